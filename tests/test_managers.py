from __future__ import annotations

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
from kvref.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
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


@pytest.mark.parametrize("manager_class", KINDS)
def test_holds_its_spec(manager_class: type[SingleTypeKVCacheManager]) -> None:
    spec = KINDS[manager_class]
    manager = manager_class(spec)
    assert manager.kv_cache_spec is spec
    assert manager.block_size == 16


@pytest.mark.parametrize("manager_class", KINDS)
def test_refuses_other_kinds(manager_class: type[SingleTypeKVCacheManager]) -> None:
    for other in KINDS.values():
        if isinstance(other, manager_class.spec_class):
            continue
        with pytest.raises(SpecKindError) as caught:
            manager_class(other)
        assert manager_class.__name__ in str(caught.value)
        assert type(other).__name__ in str(caught.value)


def test_takes_subclasses() -> None:
    FullAttentionManager(MLAAttentionSpec(**ATTENTION))
    FullAttentionManager(SINK)
    SlidingWindowManager(SlidingWindowMLASpec(**ATTENTION, sliding_window=8))


@pytest.mark.parametrize(
    ("computed", "skipped"), [(39, 0), (40, 1), (41, 2), (63, 24), (64, 25), (65, 26), (100, 61)]
)
def test_sliding_window_numbers(computed: int, skipped: int) -> None:
    assert SlidingWindowManager(WINDOW).get_num_skipped_tokens(computed) == skipped


@given(n=LENGTHS, window=st.integers(1, 200), extra=st.integers(0, 50))
def test_sliding_window_keeps_what_the_next_token_sees(n: int, window: int, extra: int) -> None:
    spec = SlidingWindowSpec(**ATTENTION, sliding_window=window, extra_retained_tokens=extra)
    skipped = SlidingWindowManager(spec).get_num_skipped_tokens(n)
    needed = [position for position in range(max(0, n - 400), n) if position > n - window - extra]
    assert skipped == (needed[0] if needed else n if window + extra == 1 else 0)


@pytest.mark.parametrize(("computed", "skipped"), [(0, 0), (63, 0), (64, 64), (100, 64), (128, 128)])
def test_chunk_numbers(computed: int, skipped: int) -> None:
    assert ChunkedLocalAttentionManager(CHUNK).get_num_skipped_tokens(computed) == skipped


@pytest.mark.parametrize(("computed", "skipped"), [(0, 0), (1, 0), (2, 1), (100, 99)])
def test_mamba_numbers(computed: int, skipped: int) -> None:
    assert MambaManager(MAMBA).get_num_skipped_tokens(computed) == skipped


@given(n=LENGTHS)
def test_full_cross_and_sink_skip_nothing(n: int) -> None:
    for manager in (FullAttentionManager(FULL), CrossAttentionManager(CROSS), SinkFullAttentionManager(SINK)):
        assert manager.get_num_skipped_tokens(n) == 0


def test_a_recorded_window_changes_nothing_for_full_attention() -> None:
    manager = FullAttentionManager(FullAttentionSpec(**ATTENTION, sliding_window=8))
    assert manager.get_num_skipped_tokens(100) == 0


@given(n=LENGTHS, more=st.integers(0, 100))
@pytest.mark.parametrize("manager_class", KINDS)
def test_skipped_never_falls_nor_passes_the_computed(
    manager_class: type[SingleTypeKVCacheManager], n: int, more: int
) -> None:
    manager = manager_class(KINDS[manager_class])
    assert 0 <= manager.get_num_skipped_tokens(n) <= n
    assert manager.get_num_skipped_tokens(n) <= manager.get_num_skipped_tokens(n + more)


@pytest.mark.parametrize(("sink_len", "blocks"), [(None, 0), (0, 0), (16, 1), (64, 4)])
def test_sink_blocks(sink_len: int | None, blocks: int) -> None:
    spec = SinkFullAttentionSpec(**ATTENTION, sink_len=sink_len)
    assert SinkFullAttentionManager(spec).num_sink_blocks == blocks


def test_sinks_that_end_within_a_block_are_refused() -> None:
    with pytest.raises(InvalidSpecError, match=r"sink_len 20 .* block_size 16"):
        SinkFullAttentionManager(SinkFullAttentionSpec(**ATTENTION, sink_len=20))
