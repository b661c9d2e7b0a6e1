from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from kvref.errors import InvalidSpecError, SpecKindError
from kvref.managers import (
    ChunkedLocalAttentionManager,
    CrossAttentionManager,
    FullAttentionManager,
    MambaManager,
    SingleTypeKVCacheManager,
    SinkFullAttentionManager,
    SlidingWindowManager,
)
from kvref.managers.base import TokenCounts
from kvref.pool import BlockPool
from kvref.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MemoryLimits,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

ATTENTION: dict[str, Any] = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float16}
LENGTHS = st.integers(0, 10_000)

FULL = FullAttentionSpec(**ATTENTION)
WINDOW = SlidingWindowSpec(**ATTENTION, sliding_window=40)
CHUNK = ChunkedLocalAttentionSpec(**ATTENTION, attention_chunk_size=64)
CROSS = CrossAttentionSpec(**ATTENTION)
SINK = SinkFullAttentionSpec(**ATTENTION, sink_len=32)
MAMBA = MambaSpec(block_size=16, shapes=((2, 3),), dtypes=(torch.float32,))

KINDS: dict[type[SingleTypeKVCacheManager], KVCacheSpec] = {
    FullAttentionManager: FULL,
    SlidingWindowManager: WINDOW,
    ChunkedLocalAttentionManager: CHUNK,
    CrossAttentionManager: CROSS,
    SinkFullAttentionManager: SINK,
    MambaManager: MAMBA,
}


def made(manager_class: type[SingleTypeKVCacheManager], spec: KVCacheSpec, **more: Any) -> Any:
    engine = {
        "block_pool": BlockPool(40, True, 16),
        "enable_caching": True,
        "kv_cache_group_id": 0,
        "scheduler_block_size": spec.block_size,
        "limits": MemoryLimits(10_000, 10_000),
        "use_eagle": False,
    }
    return manager_class(spec, **{**engine, **more})


@pytest.mark.parametrize("manager_class", KINDS)
def test_holds_its_spec(manager_class: type[SingleTypeKVCacheManager]) -> None:
    spec = KINDS[manager_class]
    manager = made(manager_class, spec)
    assert manager.kv_cache_spec is spec
    assert manager.block_size == 16


@pytest.mark.parametrize("manager_class", KINDS)
def test_refuses_other_kinds(manager_class: type[SingleTypeKVCacheManager]) -> None:
    for other in KINDS.values():
        if isinstance(other, manager_class.spec_class):
            continue
        with pytest.raises(SpecKindError) as caught:
            made(manager_class, other)
        assert manager_class.__name__ in str(caught.value)
        assert type(other).__name__ in str(caught.value)


def test_takes_subclasses() -> None:
    made(FullAttentionManager, MLAAttentionSpec(**ATTENTION))
    made(FullAttentionManager, SINK)
    made(SlidingWindowManager, SlidingWindowMLASpec(**ATTENTION, sliding_window=8))


@pytest.mark.parametrize(
    ("computed", "skipped"), [(39, 0), (40, 1), (41, 2), (63, 24), (64, 25), (65, 26), (100, 61)]
)
def test_sliding_window_numbers(computed: int, skipped: int) -> None:
    assert made(SlidingWindowManager, WINDOW).get_num_skipped_tokens(computed) == skipped


@given(n=LENGTHS, window=st.integers(1, 200), extra=st.integers(0, 50))
def test_sliding_window_keeps_what_the_next_token_sees(n: int, window: int, extra: int) -> None:
    spec = SlidingWindowSpec(**ATTENTION, sliding_window=window, extra_retained_tokens=extra)
    skipped = made(SlidingWindowManager, spec).get_num_skipped_tokens(n)
    needed = [position for position in range(max(0, n - 400), n) if position > n - window - extra]
    assert skipped == (needed[0] if needed else n if window + extra == 1 else 0)


@pytest.mark.parametrize(("computed", "skipped"), [(0, 0), (63, 0), (64, 64), (100, 64), (128, 128)])
def test_chunk_numbers(computed: int, skipped: int) -> None:
    assert made(ChunkedLocalAttentionManager, CHUNK).get_num_skipped_tokens(computed) == skipped


@pytest.mark.parametrize(("computed", "skipped"), [(0, 0), (1, 0), (2, 1), (100, 99)])
def test_mamba_numbers(computed: int, skipped: int) -> None:
    assert made(MambaManager, MAMBA).get_num_skipped_tokens(computed) == skipped


@given(n=LENGTHS)
def test_full_cross_and_sink_skip_nothing(n: int) -> None:
    for manager_class in (FullAttentionManager, CrossAttentionManager, SinkFullAttentionManager):
        assert made(manager_class, KINDS[manager_class]).get_num_skipped_tokens(n) == 0


def test_a_recorded_window_changes_nothing_for_full_attention() -> None:
    manager = made(FullAttentionManager, FullAttentionSpec(**ATTENTION, sliding_window=8))
    assert manager.get_num_skipped_tokens(100) == 0


@given(n=LENGTHS, more=st.integers(0, 100))
@pytest.mark.parametrize("manager_class", KINDS)
def test_skipped_never_falls_nor_passes_the_computed(
    manager_class: type[SingleTypeKVCacheManager], n: int, more: int
) -> None:
    manager = made(manager_class, KINDS[manager_class])
    assert 0 <= manager.get_num_skipped_tokens(n) <= n
    assert manager.get_num_skipped_tokens(n) <= manager.get_num_skipped_tokens(n + more)


@pytest.mark.parametrize(("sink_len", "blocks"), [(0, 0), (16, 1), (64, 4)])
def test_sink_blocks(sink_len: int, blocks: int) -> None:
    spec = SinkFullAttentionSpec(**ATTENTION, sink_len=sink_len)
    assert made(SinkFullAttentionManager, spec).num_sink_blocks == blocks


def test_sinks_that_end_within_a_block_are_refused() -> None:
    with pytest.raises(InvalidSpecError, match=r"sink_len 20 .* block_size 16"):
        made(SinkFullAttentionManager, SinkFullAttentionSpec(**ATTENTION, sink_len=20))


# What single calls of a manager do with blocks. test_cache.py tests managers as a part of the whole cache.


def allocate(
    manager: SingleTypeKVCacheManager, tokens: int, lookahead: int = 0, encoder: int = 0
) -> list[int]:
    """Allocate for request "r", and check the predicted number of blocks. Returns the block table."""
    counts = TokenCounts(
        num_tokens=tokens + lookahead, num_tokens_main_model=tokens, num_encoder_tokens=encoder
    )
    if "r" not in manager.req_to_blocks:
        manager.add_local_computed_blocks("r", (), 0)
    need = manager.get_num_blocks_to_allocate("r", counts)
    free = manager.block_pool.get_num_free_blocks()
    manager.allocate_new_blocks("r", counts)
    assert free - manager.block_pool.get_num_free_blocks() == need
    return manager.req_to_blocks["r"]


@pytest.mark.parametrize(
    ("manager_class", "lengths"),
    [
        (FullAttentionManager, [1, 1, 3, 3]),
        (SlidingWindowManager, [1, 1, 3, 3]),
        (ChunkedLocalAttentionManager, [1, 1, 3, 3]),
        (SinkFullAttentionManager, [1, 1, 3, 3]),
        (MambaManager, [1, 1, 3, 3]),
        (CrossAttentionManager, [2, 2, 2, 2]),
    ],
)
def test_tables_grow_and_never_shrink(
    manager_class: type[SingleTypeKVCacheManager], lengths: list[int]
) -> None:
    manager = made(manager_class, KINDS[manager_class])
    assert [len(allocate(manager, tokens, encoder=20)) for tokens in (1, 16, 40, 17)] == lengths
    manager.free("r")
    manager.free("r")
    assert manager.block_pool.get_num_free_blocks() == manager.block_pool.num_usable_blocks


def test_lookahead_takes_places() -> None:
    assert len(allocate(made(FullAttentionManager, FULL), 16, lookahead=1)) == 2
    align = dataclasses.replace(MAMBA, mamba_cache_mode="align")
    assert len(allocate(made(MambaManager, align), 16, lookahead=1)) == 1


def test_a_window_is_freed_behind_what_is_confirmed() -> None:
    manager = made(SlidingWindowManager, WINDOW)
    table = list(allocate(manager, 100))
    manager.remove_skipped_blocks("r", 70)
    assert manager.req_to_blocks["r"] == [0, *table[1:]]
    for _ in range(2):
        manager.remove_skipped_blocks("r", 71)
        assert manager.req_to_blocks["r"] == [0, 0, *table[2:]]
    assert manager.block_pool.get_ref_cnt(table[1]) == 0


def test_align_takes_one_block_a_step_and_moves_the_speculative_ones() -> None:
    align = dataclasses.replace(MAMBA, mamba_cache_mode="align", num_speculative_blocks=2)
    manager = made(MambaManager, align)
    for _ in range(2):
        first = list(allocate(manager, 40))
        assert (first[:2], len(set(first))) == ([0, 0], 4)
        second = list(allocate(manager, 64))
        assert second[:5] == first
        # One speculative block becomes the state's block. The other one was skipped, and moves to the end.
        third = list(allocate(manager, 96))
        assert third[:6] == [*second[:4], 0, second[5]]
        assert third[6] == second[4]
        last = list(allocate(manager, 200))
        assert last[:11] == [*third[:6], 0, 0, 0, 0, 0][:11]
        assert {*third[6:]} < {*last[12:]}
        manager.remove_skipped_blocks("r", 200)
        assert [block for block in manager.req_to_blocks["r"] if block] == last[12:]
        manager.free("r")


@pytest.mark.parametrize(
    ("manager_class", "cap"), [(SlidingWindowManager, 5), (ChunkedLocalAttentionManager, 6)]
)
def test_what_is_needed_to_be_admitted_is_bounded(
    manager_class: type[SingleTypeKVCacheManager], cap: int
) -> None:
    manager = made(manager_class, KINDS[manager_class], limits=MemoryLimits(1000, 20))
    assert manager.max_admission_blocks_per_request == cap
    long, short = (TokenCounts(num_tokens=each, num_tokens_main_model=each) for each in (1000, 20))
    assert manager.get_num_blocks_to_allocate("r", long) == 63
    assert manager.get_num_blocks_to_allocate("r", long, apply_admission_cap=True) == cap
    assert manager.get_num_blocks_to_allocate("r", short, apply_admission_cap=True) == 2
    table = allocate(manager, 20)
    assert manager.get_num_blocks_to_allocate("r", long, apply_admission_cap=True) == cap - 2
    manager.block_pool.touch(table[:1])
    assert manager.get_num_blocks_to_allocate("r", long, apply_admission_cap=True) == cap - 1


def test_sink_blocks_are_reserved() -> None:
    manager = made(SinkFullAttentionManager, SINK)
    assert len(manager.sink_blocks) == 2
    assert manager.block_pool.num_usable_blocks == 37
    assert not {*manager.sink_blocks} & {*allocate(manager, 100)}
