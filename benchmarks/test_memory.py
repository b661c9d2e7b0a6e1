"""Memory of a cache: how fast it is cleared, and how long the host takes for a thousand layers.

pytest benchmarks/test_memory.py --benchmark-enable -n 0 --benchmark-columns=median,iqr,rounds
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvref.canonical import register_kv_caches
from kvref.layout import KVCacheLayout, place_kv_caches
from kvref.planning import KVCacheConfig, get_kv_cache_config_from_groups, get_kv_cache_groups
from kvref.sharing import add_kv_sharing_layers_to_kv_cache_groups
from kvref.specs import FullAttentionSpec
from kvref.tensors import KVCaches, allocate_kv_cache, reshape_kv_cache, share_kv_caches

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

GIB = 48 if DEVICE == "cuda" else 1
LAYERS = 64
ROUNDS = 7


def config_of(layers: int, num_blocks: int) -> KVCacheConfig:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype=torch.bfloat16)
    groups = get_kv_cache_groups({f"layer.{place}": spec for place in range(layers)})
    return get_kv_cache_config_from_groups(groups, num_blocks)


def seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    """How long it takes until the device has done it, and what came of it."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = action()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def clear(caches: KVCaches) -> None:
    for buffer in caches.buffers:
        buffer.zero_()


@pytest.mark.parametrize("contiguous", [False, True])
def test_allocation(benchmark: Any, contiguous: bool) -> None:
    """With memory that torch has already; compared with clearing that memory."""
    page = config_of(1, 1).kv_cache_tensors[0].size
    config = config_of(LAYERS, (GIB << 30) // LAYERS // page)

    def allocate() -> KVCaches:
        return allocate_kv_cache(config, DEVICE, contiguous=contiguous)

    warm = allocate()
    del warm
    ratios, rates = [], []
    for _ in range(ROUNDS):
        taken, caches = seconds(allocate)
        cleared, _ = seconds(lambda caches=caches: clear(caches))
        ratios.append(cleared / taken)
        rates.append(caches.num_bytes / cleared / 1e9)
        del caches
    benchmark.extra_info["of the rate of clearing"] = round(statistics.median(ratios), 4)
    benchmark.extra_info["clearing, GB/s"] = round(statistics.median(rates))
    of, rate = statistics.median(ratios), statistics.median(rates)
    print(f"\n{GIB} GiB, {LAYERS} layers: {of:.1%} of {rate:.0f} GB/s")
    benchmark.pedantic(lambda: seconds(allocate)[0], rounds=3)


@pytest.mark.parametrize("layout", ["LBNHC", "LKBNHC", "BLNHC"])
def test_thousand_layers(benchmark: Any, layout: str) -> None:
    """What the host takes for places, views, sharing, canonical views. Half of the layers share."""
    config = config_of(500, 4)
    shared = {f"sharing.{place}": f"layer.{place}" for place in range(500)}
    order = KVCacheLayout(layout)
    buffers = allocate_kv_cache(config, DEVICE, order).buffers

    def initialise() -> None:
        add_kv_sharing_layers_to_kv_cache_groups(shared, config.kv_cache_groups)
        caches = reshape_kv_cache(place_kv_caches(config, order), buffers)
        share_kv_caches(caches, shared)
        register_kv_caches(caches)

    benchmark(initialise)


def test_thousand_owners(benchmark: Any) -> None:
    """The same where each of the layers has a cache, and none shares."""
    config = config_of(1000, 4)
    buffers = allocate_kv_cache(config, DEVICE).buffers
    benchmark(lambda: register_kv_caches(reshape_kv_cache(place_kv_caches(config), buffers)))
