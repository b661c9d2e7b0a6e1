from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from kvref.cache import KVCacheManager
from kvref.coordinators import (
    HybridKVCacheCoordinator,
    KVCacheCoordinator,
    KVCacheCoordinatorNoPrefixCache,
    UnitaryKVCacheCoordinator,
    get_kv_cache_coordinator,
)
from kvref.hashing import BlockHasher
from kvref.planning import KVCacheConfig, KVCacheGroupSpec
from kvref.request import Request
from kvref.specs import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MemoryLimits,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
)


def attention(block_size: int) -> dict[str, Any]:
    return {"block_size": block_size, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float16}


def full(block_size: int = 4) -> KVCacheSpec:
    return FullAttentionSpec(**attention(block_size))


def window(size: int, block_size: int = 4) -> KVCacheSpec:
    return SlidingWindowSpec(**attention(block_size), sliding_window=size)


def chunk(size: int, block_size: int = 4) -> KVCacheSpec:
    return ChunkedLocalAttentionSpec(**attention(block_size), attention_chunk_size=size)


def mamba(mode: str, block_size: int = 4) -> KVCacheSpec:
    return MambaSpec(block_size=block_size, shapes=((2,),), dtypes=(torch.float32,), mamba_cache_mode=mode)


def config(specs: Sequence[KVCacheSpec], num_blocks: int = 200, eagle: Sequence[int] = ()) -> KVCacheConfig:
    groups = [KVCacheGroupSpec([f"layer.{place}"], spec, place in eagle) for place, spec in enumerate(specs)]
    return KVCacheConfig(num_blocks, [], groups)


def coordinator(
    specs: Sequence[KVCacheSpec], scheduler: int = 4, hashes: int = 4, **more: Any
) -> KVCacheCoordinator:
    return get_kv_cache_coordinator(
        config(specs, more.pop("num_blocks", 200), more.pop("eagle", ())),
        MemoryLimits(200, 16),
        scheduler_block_size=scheduler,
        hash_block_size=hashes,
        **{"enable_caching": True, "use_eagle": False, "enable_kv_cache_events": False, **more},
    )


def test_kinds() -> None:
    assert type(coordinator([full()])) is UnitaryKVCacheCoordinator
    assert type(coordinator([full(), full()])) is HybridKVCacheCoordinator
    assert type(coordinator([full(), full()], enable_caching=False)) is KVCacheCoordinatorNoPrefixCache
    assert type(coordinator([])) is KVCacheCoordinatorNoPrefixCache


def test_without_caching_nothing_is_found() -> None:
    tokens = Request("r", range(16), BlockHasher(4))
    without = coordinator([full(), full()], enable_caching=False)
    assert without.find_longest_cache_hit(tokens.block_hashes, 16) == (([], []), 0)


@pytest.mark.parametrize(
    ("specs", "scheduler", "hashes"),
    [([full(4)], 4, 4), ([full(4)], 12, 2), ([full(4), full(6)], 12, 2), ([full(4), full(8)], 8, 4)],
)
def test_sizes_that_fit_reach_every_manager(specs: list[KVCacheSpec], scheduler: int, hashes: int) -> None:
    made = coordinator(specs, scheduler, hashes)
    assert made.scheduler_block_size == scheduler
    assert {manager.scheduler_block_size for manager in made.single_type_managers} == {scheduler}
    assert made.block_pool.hash_block_size == hashes


def test_hashes_may_be_coarser_than_blocks_without_caching() -> None:
    coordinator([full(4), full(6)], 12, 4, enable_caching=False)


def test_blocks_are_set_aside_for_sinks() -> None:
    sink = SinkFullAttentionSpec(**attention(4), sink_len=8)
    assert coordinator([sink], num_blocks=3).block_pool.num_usable_blocks == 0


def test_eagle_groups_are_those_that_say_so_or_all() -> None:
    specs = [full(), window(6)]

    def flagged(eagle: Sequence[int], use_eagle: bool) -> list[bool]:
        made = coordinator(specs, eagle=eagle, use_eagle=use_eagle)
        return [manager.use_eagle for manager in made.single_type_managers]

    assert flagged([], False) == [False, False]
    assert flagged([], True) == [True, True]
    assert flagged([1], True) == [False, True]


def resend(
    specs: Sequence[KVCacheSpec], tokens: int, again: int, eagle: bool, chunk: int = 10**6
) -> tuple[int, int]:
    """Compute a prompt and look up its first `again` tokens. Returns the hit's length and the hits' unit."""
    unit = math.lcm(*(spec.block_size for spec in specs))
    manager = KVCacheManager(
        config(specs), 400, scheduler_block_size=unit, hash_block_size=2, use_eagle=eagle
    )
    first = Request("a", range(tokens), BlockHasher(2))
    while first.num_computed_tokens < tokens:
        count = min(chunk, tokens - first.num_computed_tokens)
        assert manager.allocate_slots(first, count) is not None
        first.num_computed_tokens += count
    manager.free(first)
    manager.new_step_starts()
    return manager.get_computed_blocks(Request("b", range(again), BlockHasher(2)))[1], unit


WINDOWS = [window(size) for size in (1, 3, 6, 9, 20)] + [window(5, 8), window(30, 6)]
CHUNKS = [chunk(8), chunk(6), chunk(12, 8)]
KINDS = [full(4), full(8), full(6), *WINDOWS, *CHUNKS, mamba("all"), mamba("all", 8)]
GROUPS = st.lists(st.sampled_from(KINDS), min_size=1, max_size=4)


@given(specs=GROUPS, tokens=st.integers(1, 120), short=st.integers(0, 30))
@settings(max_examples=150, deadline=None)
def test_lookahead_costs_one_unit_at_most_however_many_groups(
    specs: list[KVCacheSpec], tokens: int, short: int
) -> None:
    """The prompt is computed in one step, so no window has lost blocks, and a hit can end at any boundary."""
    again = max(1, tokens - short)
    without, unit = resend(specs, tokens, again, eagle=False)
    assert without == (again - 1) // unit * unit
    assert without - unit <= resend(specs, tokens, again, eagle=True)[0] <= without


@given(specs=GROUPS, tokens=st.integers(1, 120), pace=st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_a_prompt_sent_again_is_found_up_to_its_last_boundary(
    specs: list[KVCacheSpec], tokens: int, pace: int
) -> None:
    """Nothing is evicted, so the pace of the first request does not matter."""
    found, unit = resend(specs, tokens, tokens, eagle=False, chunk=pace)
    assert found == (tokens - 1) // unit * unit
    assert resend(specs, tokens, tokens, eagle=True, chunk=pace)[0] >= found - unit


@pytest.mark.parametrize(("tokens", "found"), [(32, 16), (33, 16), (48, 32), (64, 48), (15, 0)])
def test_lookahead_is_counted_once_for_one_group_and_for_several(tokens: int, found: int) -> None:
    for specs in ([full(16)], [full(16), window(16, 16)], [window(40, 16)] * 3):
        assert resend(specs, tokens, tokens, eagle=True)[0] == found


def test_align_finds_where_steps_ended() -> None:
    specs = [full(), mamba("align")]
    assert resend(specs, 40, 40, eagle=False, chunk=12)[0] == 36
    assert resend(specs, 40, 30, eagle=False, chunk=12)[0] == 24
    assert resend(specs, 40, 40, eagle=False, chunk=10)[0] == 20
    assert resend([mamba("none")], 40, 40, eagle=False)[0] == 0


def test_a_group_that_lacks_something_bounds_all() -> None:
    """If one group's block was evicted, the hit is cut to the next length that all groups can serve."""
    manager = KVCacheManager(
        config([full(), window(8), mamba("all", 8)]), 400, scheduler_block_size=8, hash_block_size=4
    )
    first = Request("a", range(60), BlockHasher(4))
    assert manager.allocate_slots(first, 60) is not None
    again = Request("b", range(60), BlockHasher(4))
    tables, hit = manager.get_computed_blocks(again)
    assert (hit, [len(table) for table in tables.blocks]) == (56, [14, 14, 7])
    assert [list(table).count(0) for table in tables.blocks] == [0, 12, 6]
    manager.evict_blocks([tables.blocks[1][13]])
    assert manager.get_computed_blocks(again)[1] == 48
    manager.evict_blocks([manager.get_block_ids("a")[2][5]])
    assert manager.get_computed_blocks(again)[1] == 40
    manager.evict_blocks([manager.get_block_ids("a")[0][1]])
    assert manager.get_computed_blocks(again)[1] == 0


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_groups_are_asked_again_when_others_can_serve_less(order: tuple[int, ...]) -> None:
    """Each window covers one block. Only at 8 tokens do all groups have a cached block."""
    kept = [(24, 16, 8), (28, 24, 8), (20, 16, 8, 4)]
    manager = KVCacheManager(config([window(5)] * 3), 400, scheduler_block_size=4, hash_block_size=4)
    first = Request("a", range(32), BlockHasher(4))
    assert manager.allocate_slots(first, 32) is not None
    for table, group in zip(manager.get_block_ids("a"), order, strict=True):
        manager.evict_blocks(block for place, block in enumerate(table) if (place + 1) * 4 not in kept[group])
    tables, hit = manager.get_computed_blocks(Request("b", range(32), BlockHasher(4)))
    assert hit == 8
    assert list(tables.blocks) == [[0, table[1]] for table in manager.get_block_ids("a")]


def test_no_key_is_given_for_lookahead_where_no_hit_ends_yet() -> None:
    """The unit of hits is 4 tokens. One block of 2 tokens serves no hit, three blocks serve one."""
    for tokens, keys in ((2, 0), (3, 0), (4, 2 + 1), (6, 3 + 1)):
        manager = KVCacheManager(
            config([full(2), full(4)], eagle=[0]),
            400,
            scheduler_block_size=4,
            hash_block_size=2,
            use_eagle=True,
        )
        request = Request("r", [0] * tokens, BlockHasher(2))
        assert manager.allocate_slots(request, tokens) is not None
        pool = manager.block_pool
        assert sum(len(pool.get_keys(block)) for block in range(pool.num_gpu_blocks)) == keys
