"""What only a CUDA device can show. `pytest tests/cuda` runs it: pytest alone does not collect it."""

import gc
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from kvref.canonical import like_on_host
from kvref.errors import OutOfCacheMemoryError
from kvref.fast.canonical import copy_blocks, register_kv_caches
from kvref.layout import KVCacheLayout
from kvref.offloading import OffloadingConnector
from kvref.planning import KVCacheConfig, get_kv_cache_config_from_groups, get_kv_cache_groups
from kvref.pool import BlockPool
from kvref.specs import FullAttentionSpec
from kvref.tensors import allocate_kv_cache
from kvref_conformance.laws import LAWS

PAGE = 2 * 16 * 8 * 128 * 2
"""The bytes of a block in one layer."""


def config_of(layers: int, num_blocks: int) -> KVCacheConfig:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype=torch.bfloat16)
    groups = get_kv_cache_groups({f"layer.{place}": spec for place in range(layers)})
    return get_kv_cache_config_from_groups(groups, num_blocks)


def used() -> tuple[int, int]:
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def test_out_of_memory_leaves_nothing_allocated() -> None:
    torch.cuda.empty_cache()
    before, total = used(), torch.cuda.get_device_properties(0).total_memory
    # Seven of the ten layers fit.
    config = config_of(10, total // 8 // PAGE)
    with pytest.raises(OutOfCacheMemoryError) as refused:
        allocate_kv_cache(config, "cuda")
    assert used() == before
    message = str(refused.value)
    size = config.kv_cache_tensors[0].size
    for said in (f"needs {size} bytes", "are free", f"of the {10 * size} bytes", "layer 'layer."):
        assert said in message
    # The message says how much memory was free: less than one layer needs.
    free = int(message.split(" are free")[0].split()[-1])
    assert 0 < free < size
    # A second attempt fails in the same way. A smaller plan fits.
    with pytest.raises(OutOfCacheMemoryError):
        allocate_kv_cache(config, "cuda")
    caches = allocate_kv_cache(config_of(6, total // 8 // PAGE), "cuda")
    assert used()[0] - before[0] == caches.num_bytes


@pytest.mark.parametrize("layout", ["LBNHC", "LKBNHC", "BHLNC"])
def test_blocks_survive_on_the_host(layout: str) -> None:
    """A request frees its blocks while they are being stored.

    Other content overwrites the blocks. Then the stored content is loaded into other blocks.
    """
    caches = allocate_kv_cache(config_of(3, 8), "cuda", KVCacheLayout(layout))
    device, pool = register_kv_caches(caches), BlockPool(8, True, 16)
    host = like_on_host(device, 4)
    assert all(each.tensor.is_pinned() and not each.tensor.is_cuda for each in host.tensors)
    connector = OffloadingConnector(pool, device, host)
    taken = pool.get_new_blocks(7)
    for each in device.tensors:
        for block in taken:
            each.tensor[block] = block
    connector.submit_store("out", 0, [(2, 0), (5, 3)])
    connector.start_transfers()
    pool.free_blocks(taken)
    finished: list[str] = []
    while not finished:
        finished = connector.get_finished()
    assert finished == ["out"]
    assert pool.get_num_free_blocks() == 7
    for each in device.tensors:
        each.tensor.fill_(-1)
    pool.get_new_blocks(7)
    connector.submit_load("in", 0, [(1, 3), (6, 0)])
    connector.start_transfers()
    while not connector.get_finished():
        pass
    for each in device.tensors:
        assert [int(each.tensor[block].float().mean()) for block in (1, 6, 2)] == [5, 2, -1]


@pytest.mark.parametrize("layout", ["LBNHC", "LKBNHC", "BLNHC", "BHLNC"])
@pytest.mark.parametrize("head_size", [128, 3])
def test_blocks_are_copied_on_the_device(layout: str, head_size: int) -> None:
    """The result equals row-by-row copies on the host, in any order, aligned or not. No other row changes."""
    blocks = 40
    spec = FullAttentionSpec(block_size=1, num_kv_heads=1, head_size=head_size, dtype=torch.float16)
    groups = get_kv_cache_groups({f"layer.{place}": spec for place in range(5)})
    config = get_kv_cache_config_from_groups(groups, blocks)
    made = {
        device: register_kv_caches(allocate_kv_cache(config, device, KVCacheLayout(layout)))
        for device in ("cpu", "cuda")
    }
    assert [table.aligned for table in made["cuda"].row_tables] == [head_size == 128]
    for here, there in zip(made["cpu"].tensors, made["cuda"].tensors, strict=True):
        there.tensor.copy_(here.tensor.random_(-128, 128))
    numbers = random.Random(0).sample(range(blocks), blocks)
    any_order = list(zip(numbers[::2], numbers[1::2], strict=True))
    for pairs in (any_order, any_order[:1], [(1, 2), (2, 3), (3, 1), (5, 1)], []):
        for caches in made.values():
            copy_blocks(caches, caches, 0, pairs)
        for here, there in zip(made["cpu"].tensors, made["cuda"].tensors, strict=True):
            assert torch.equal(here.tensor, there.tensor.cpu())


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")
def test_copies_are_one_launch() -> None:
    """Ten times as many blocks and layers need the same number of launches."""
    launches = []
    for number in (1, 10):
        caches = register_kv_caches(allocate_kv_cache(config_of(number, 2 * number + 1), "cuda"))
        pairs = [(1 + place, 1 + number + place) for place in range(number)]
        copy_blocks(caches, caches, 0, pairs)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            copy_blocks(caches, caches, 0, pairs)
            torch.cuda.synchronize()
        launches.append(sum(each.count for each in profile.key_averages()))
    assert launches[0] == launches[1] > 0


def test_held_until_the_copy_is_done() -> None:
    """A store that is still running is not reported as done, and the pool does not get its block back."""
    caches = allocate_kv_cache(config_of(1, 4), "cuda")
    device, pool = register_kv_caches(caches), BlockPool(4, True, 16)
    connector = OffloadingConnector(pool, device, like_on_host(device, 1))
    [block] = pool.get_new_blocks(1)
    torch.cuda._sleep(200_000_000)  # stands for an earlier step that is still in flight
    connector.submit_store("out", 0, [(block, 0)])
    connector.start_transfers()
    pool.free_blocks([block])
    assert connector.get_finished() == []
    assert pool.get_num_free_blocks() == 2
    torch.cuda.synchronize()
    assert connector.get_finished() == ["out"]
    assert pool.get_num_free_blocks() == 3


@pytest.mark.parametrize("target", ["reference", "reference:fast"])
def test_the_reference_keeps_the_laws_on_the_device(kvref: Any, tmp_path: Path, target: str) -> None:
    """Checks all laws that use the device. The other laws do not depend on it."""
    areas = ("tensors", "sharing", "canonical", "connector")
    options = [option for area in areas for option in ("--laws", f"{area}.*")]
    _, report = kvref.report(target, *options, "--device", "cuda")
    judged = {row["id"] for row in report["laws"] if row["status"] == "holds"}
    assert report["verdict"] == "conformant"
    assert judged == {law.id for law in LAWS.values() if law.area in areas}
