"""Measures how many tokens per second the shadow on memory compares with their expected marks.

The shadow on memory writes a number, the mark, for each token, and reads it back (see docs/architecture.md).

pytest benchmarks/test_marks.py --benchmark-enable -n 0 -s
"""

import time
from typing import Any

import torch

from kvref.cache import KVCacheManager, Request
from kvref.hashing import BlockHasher
from kvref.planning import get_kv_cache_config_from_groups, get_kv_cache_groups
from kvref.registry import KVCacheSpecRegistry
from kvref.specs import FullAttentionSpec, SlidingWindowSpec
from kvref.tensors import allocate_kv_cache
from kvref_conformance.targets.memory import compare_marks, write_marks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOKENS = 1_000_000 if DEVICE == "cuda" else 50_000
LENGTH, BLOCK, LAYERS = 1_000, 16, 4


def test_live_tokens(benchmark: Any) -> None:
    """Time reading requests of 1,000 tokens, in layers with full attention and with windows of 1,000."""
    KVCacheSpecRegistry.initialise()
    alike: dict[str, Any] = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 8, "dtype": torch.bfloat16}
    specs = {
        f"layer.{place}": SlidingWindowSpec(**alike, sliding_window=LENGTH)
        if place % 2
        else FullAttentionSpec(**alike)
        for place in range(LAYERS)
    }
    requests, blocks = TOKENS // LENGTH, -(-LENGTH // BLOCK)
    groups = get_kv_cache_groups(specs)
    config = get_kv_cache_config_from_groups(groups, 1 + len(groups) * requests * blocks)
    caches = allocate_kv_cache(config, DEVICE)
    manager = KVCacheManager(config, LENGTH, scheduler_block_size=BLOCK, hash_block_size=BLOCK)
    hasher, tables = BlockHasher(BLOCK), []
    for number in range(requests):
        request = Request(f"r{number}", [number + 1] * LENGTH, hasher)
        assert manager.allocate_slots(request, LENGTH) is not None
        tables.append(manager.get_block_ids(request.request_id))
    positions = torch.arange(LENGTH, device=DEVICE)
    marks = torch.arange(1, requests * LENGTH + 1, device=DEVICE)
    slots = {
        group: (
            torch.tensor([table[group] for table in tables], device=DEVICE)[:, positions // BLOCK] * BLOCK
            + positions % BLOCK
        ).flatten()
        for group in range(len(groups))
    }
    layers = [(name, group) for group, each in enumerate(groups) for name in each.layer_names]

    def views(name: str) -> tuple[list[Any], list[str]]:
        return [caches.layers[name]], [view.axes for view in caches.placement.layers[name].pages.views]

    def read() -> list[list[int]]:
        return [wrong for name, group in layers for wrong in compare_marks(*views(name), slots[group], marks)]

    for name, group in layers:
        write_marks(*views(name), slots[group], marks)
    assert read() == []
    # A single wrong mark is found.
    name, group = layers[-1]
    write_marks(*views(name), slots[group][7:8], [4711])
    assert read() == [[7, 4711]]
    write_marks(*views(name), slots[group][7:8], [8])

    def seconds() -> float:
        start = time.perf_counter()
        assert read() == []
        return time.perf_counter() - start

    rate = LAYERS * requests * LENGTH / min(seconds() for _ in range(10))
    benchmark.extra_info["token reads a second"] = round(rate)
    print(f"\n{requests * LENGTH} tokens in {LAYERS} layers on {DEVICE}: {rate:.3g} token reads a second")
    benchmark(read)
