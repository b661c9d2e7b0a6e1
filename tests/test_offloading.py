"""Copies between a cache and the host, and the references held meanwhile, on the CPU."""

import copy
import ctypes
import weakref
from typing import Any

import pytest
import torch
from test_layout import BLOCKS, config_of, full, states, window

from kvref.canonical import (
    CanonicalKVCaches,
    check_blocks,
    copy_blocks,
    like_on_host,
    register_kv_caches,
)
from kvref.errors import BlockError, InvalidConfigError, InvalidRequestError, OutOfCacheMemoryError
from kvref.fast import canonical as fast
from kvref.layout import KVCacheLayout
from kvref.offloading import OffloadingConnector
from kvref.planning import get_kv_cache_config_from_groups
from kvref.pool import BlockPool
from kvref.request import Request
from kvref.specs import KVCacheSpec
from kvref.tensors import allocate_kv_cache


def caches_of(*specs: KVCacheSpec, layout: str = "LBNHC") -> CanonicalKVCaches:
    return register_kv_caches(allocate_kv_cache(config_of(*specs), "cpu", KVCacheLayout(layout)))


def fill(caches: CanonicalKVCaches, value: int) -> None:
    for number, each in enumerate(caches.tensors):
        for row in range(each.tensor.shape[0]):
            each.tensor[row] = value + 10 * number + row


def rows(caches: CanonicalKVCaches) -> list[list[list[int]]]:
    return [each.tensor.tolist() for each in caches.tensors]


class Offloaded:
    """A connector for the blocks 1 to 7 of a pool, with three blocks on the host."""

    def __init__(self) -> None:
        self.pool = BlockPool(8, True, 4)
        groups = config_of(full(), full()).kv_cache_groups
        plan = get_kv_cache_config_from_groups(groups, 8)
        self.device = register_kv_caches(allocate_kv_cache(plan, "cpu"))
        self.host = like_on_host(self.device, 3)
        self.connector = OffloadingConnector(self.pool, self.device, self.host)
        fill(self.device, 1)

    def run(self) -> list[str]:
        self.connector.start_transfers()
        return self.connector.get_finished()

    def picture(self) -> object:
        held = [(self.pool.get_ref_cnt(block), self.pool.get_num_pins(block)) for block in range(8)]
        return self.pool.get_all_free_blocks(), held, rows(self.device), rows(self.host)


@pytest.fixture
def one() -> Offloaded:
    return Offloaded()


def test_what_is_stored_comes_back(one: Offloaded) -> None:
    one.pool.get_new_blocks(5)
    before = rows(one.device)
    one.connector.submit_store("out", 0, [(2, 1), (5, 0)])
    assert one.connector.get_finished() == []
    assert rows(one.host) == [[[0] * 96] * 3] * 2
    assert one.run() == ["out"]
    fill(one.device, -60)
    one.connector.submit_load("in", 0, [(1, 0), (2, 1)])
    assert one.run() == ["in"]
    for old, new in zip(before, rows(one.device), strict=True):
        assert (new[1], new[2]) == (old[5], old[2])
        assert new[3] != old[3]


def test_what_is_under_way_is_held(one: Offloaded) -> None:
    taken = one.pool.get_new_blocks(3)
    one.connector.submit_store("out", 0, [(taken[0], 0), (taken[1], 1)])
    one.pool.free_blocks(taken)
    assert one.pool.get_num_free_blocks() == 5
    one.connector.start_transfers()
    others = one.pool.get_new_blocks(5)
    assert not {*taken[:2]} & {*others}
    assert one.connector.get_finished() == ["out"]
    assert {*one.pool.get_new_blocks(2)} == {*taken[:2]}


def test_a_request_that_goes_on_keeps_its_blocks(one: Offloaded) -> None:
    taken = one.pool.get_new_blocks(2)
    one.connector.submit_load("in", 0, [(taken[0], 0)])
    one.connector.submit_store("out", 0, [(taken[1], 2)])
    assert one.run() == ["in", "out"]
    assert [one.pool.get_ref_cnt(block) for block in taken] == [1, 1]
    assert one.connector.get_finished() == []


def test_nobody_else_gives_up_what_is_under_way(one: Offloaded) -> None:
    taken = one.pool.get_new_blocks(1)
    one.connector.submit_store("out", 0, [(taken[0], 0)])
    one.pool.free_blocks(taken)
    with pytest.raises(BlockError, match="1 are pins"):
        one.pool.free_blocks(taken)


def test_jobs_are_done_in_their_order_and_only_once_started(one: Offloaded) -> None:
    one.pool.get_new_blocks(3)
    one.connector.submit_store("first", 0, [(1, 0)])
    one.connector.submit_store("second", 0, [(2, 0)])
    one.connector.start_transfers()
    one.connector.submit_store("third", 0, [(3, 1)])
    assert one.connector.get_finished() == ["first", "second"]
    assert rows(one.host)[0][0] == rows(one.device)[0][2]
    assert one.run() == ["third"]
    # When a job is done, its name may be used again.
    one.connector.submit_store("first", 0, [])
    assert one.run() == ["first"]


@pytest.mark.parametrize("started", [False, True])
def test_a_job_under_way_is_not_submitted_again(one: Offloaded, started: bool) -> None:
    one.pool.get_new_blocks(2)
    one.connector.submit_store("out", 0, [(1, 0)])
    if started:
        one.connector.start_transfers()
    before = one.picture()
    for submit in (one.connector.submit_store, one.connector.submit_load):
        with pytest.raises(InvalidRequestError, match="'out'"):
            submit("out", 0, [(2, 1)])
    assert one.picture() == before
    assert one.run() == ["out"]


@pytest.mark.parametrize(
    ("group", "pairs", "said"),
    [
        (1, [(1, 0)], "no group 1"),
        (-1, [(1, 0)], "no group -1"),
        (0, [(1, 0), (8, 1)], r"blocks 0 to 7, not \[8\]"),
        (0, [(-1, 0)], r"not \[-1\]"),
        (0, [(1, 0), (2, 3)], r"blocks 0 to 2, not \[3\]"),
        (0, [(1, -3)], r"0 to 2, not \[-3\]"),
    ],
)
def test_what_is_not_there_is_refused(
    one: Offloaded, group: int, pairs: list[tuple[int, int]], said: str
) -> None:
    one.pool.get_new_blocks(2)
    before = one.picture()
    for submit in (one.connector.submit_store, one.connector.submit_load):
        with pytest.raises(InvalidConfigError, match=said):
            submit("wrong", group, pairs)
    assert one.picture() == before
    assert one.run() == []
    one.connector.submit_store("wrong", 0, [(1, 0)])
    assert one.run() == ["wrong"]


@pytest.mark.parametrize(
    ("operation", "pairs", "said"),
    [
        ("store", [(0, 0)], "null block"),
        ("load", [(1, 0), (0, 1)], "null block"),
        ("store", [(1, 2), (2, 2)], r"fill blocks \[2\] on the host more than once"),
        ("load", [(2, 0), (1, 1), (2, 2)], r"fill blocks \[2\] more than once"),
        ("store", [(1, 0), (4, 1)], r"blocks \[4\], which are free"),
        ("load", [(4, 0), (3, 1), (1, 2)], r"blocks \[4, 3\], which are free"),
    ],
)
def test_what_nobody_can_mean_is_refused(
    one: Offloaded, operation: str, pairs: list[tuple[int, int]], said: str
) -> None:
    """Blocks 1 and 2 are referenced. Block 3 is free and cached."""
    cache_block_3(one.pool)
    before = one.picture()
    submit = getattr(one.connector, f"submit_{operation}")
    with pytest.raises(InvalidRequestError, match=f"'wrong'.*{said}"):
        submit("wrong", 0, pairs)
    assert one.picture() == before
    submit("wrong", 0, [(1, 0), (2, 1)])
    assert one.run() == ["wrong"]


def test_what_the_pool_promises_can_be_stored(one: Offloaded) -> None:
    cache_block_3(one.pool)
    one.connector.submit_store("out", 0, [(3, 0)])
    assert one.pool.get_ref_cnt(3) == 1
    assert 3 not in one.pool.get_new_blocks(4)
    assert one.run() == ["out"]
    assert rows(one.host)[0][0] == rows(one.device)[0][3]
    assert one.pool.get_cached_block(b"hash", [0]) == [3]
    assert one.pool.get_all_free_blocks() == [3]


def test_what_is_read_may_be_given_twice(one: Offloaded) -> None:
    one.pool.get_new_blocks(2)
    one.connector.submit_store("out", 0, [(2, 0), (2, 1)])
    one.connector.submit_load("in", 0, [(1, 1), (2, 1)])
    assert one.run() == ["out", "in"]
    first = rows(one.device)[0]
    assert first[1] == first[2] == rows(one.host)[0][0]
    assert [one.pool.get_ref_cnt(block) for block in (1, 2)] == [1, 1]


def cache_block_3(pool: BlockPool) -> None:
    """Allocate blocks 1 to 3, cache block 3, and free it."""
    taken = pool.get_new_blocks(3)
    request = Request("r", [0] * 4)
    request.block_hashes = [b"hash"]
    pool.cache_full_blocks(request, taken[2:], 0, 1, 4, 0)
    pool.free_blocks(taken[2:])


@pytest.mark.parametrize("layout", ["LBNHC", "LHBNC", "BLNHC", "LKBNHC"])
def test_a_block_is_copied_in_all_layers(layout: str) -> None:
    source = caches_of(full(), full(), layout=layout)
    destination = caches_of(full(), full(), layout=layout)
    fill(source, 1)
    before = rows(source)
    copy_blocks(source, destination, 0, [(1, 2), (2, 0)])
    for old, new in zip(before, rows(destination), strict=True):
        assert new == [old[2], [0] * len(old[0]), old[1]]
    assert rows(source) == before


def test_only_the_content_of_the_group_is_copied() -> None:
    """The layers use one tensor in turns. The state of 14 bytes is padded to the page of 96."""
    source = caches_of(full(), states(), layout="LKBNHC")
    host = like_on_host(source, BLOCKS)
    group = next(n for n, refs in enumerate(source.group_data_refs) if refs[0].page_size_bytes == 14)
    fill(source, 1)
    copy_blocks(source, host, group, [(1, 1)])
    [ref] = source.group_data_refs[group]
    there = host.tensors[ref.tensor_idx].tensor
    assert there[1].tolist() == [*source.tensors[ref.tensor_idx].tensor[1, :14].tolist(), *[0] * 82]
    assert there[[0, 2]].count_nonzero() == 0


def test_the_table_of_rows_tells_where_they_are() -> None:
    plan, layout = config_of(full(), states()), KVCacheLayout("LKBNHC")
    caches = fast.register_kv_caches(allocate_kv_cache(plan, "cpu", layout))
    fill(caches, 1)
    for refs, table in zip(caches.group_data_refs, caches.row_tables, strict=True):
        told = table.addresses.tolist()
        for ref, (address, stride, size) in zip(refs, told, strict=True):
            tensor = caches.tensors[ref.tensor_idx].tensor
            assert size == ref.page_size_bytes
            for row in range(BLOCKS):
                assert ctypes.string_at(address + stride * row, size) == bytes(tensor[row, :size].tolist())
        assert table.sizes == tuple(ref.page_size_bytes for ref in refs)
        assert table.aligned == all(number % 16 == 0 for each in told for number in each)
    assert {table.aligned for table in caches.row_tables} == {False, True}
    copied = copy.deepcopy(caches)
    assert copied.row_tables[0].addresses[0, 0] == copied.tensors[0].tensor.data_ptr()
    assert copied.tensors[0].tensor.data_ptr() != caches.tensors[0].tensor.data_ptr()


def test_copies_within_one_cache() -> None:
    caches = caches_of(full())
    fill(caches, 1)
    copy_blocks(caches, caches, 0, [(2, 1)])
    assert [row[0] for row in rows(caches)[0]] == [1, 3, 3]


@pytest.mark.parametrize(
    ("group", "pairs", "said"),
    [
        (2, [(1, 0)], "no group 2, only 2 of them"),
        (0, [(1, 0), (3, 1)], r"group 0 has blocks 0 to 2, not \[3\]"),
        (1, [(1, 0), (1, 2), (-1, 5)], r"group 1 has blocks 0 to 2, not \[-1\]"),
        (1, [(1, 0), (1, 2), (2, 5)], r"group 1 has blocks 0 to 1, not \[2, 5\]"),
    ],
)
def test_nothing_is_copied_where_something_is_wrong(
    group: int, pairs: list[tuple[int, int]], said: str
) -> None:
    source = caches_of(full(), window())
    host = like_on_host(source, 2)
    fill(source, 1)
    with pytest.raises(InvalidConfigError, match=said):
        copy_blocks(source, host, group, pairs)
    assert rows(host) == rows(like_on_host(source, 2))


def test_blocks_that_are_there() -> None:
    caches = caches_of(full(), window())
    check_blocks(caches, 0, [0, 1, 2, 2])
    check_blocks(caches, 1, [])


def test_memory_on_the_host() -> None:
    caches = caches_of(full(), states())
    host = like_on_host(caches, 7)
    assert host.group_data_refs == caches.group_data_refs
    for ours, theirs in zip(host.tensors, caches.tensors, strict=True):
        assert ours.page_size_bytes == theirs.page_size_bytes
        assert ours.tensor.shape == (7, theirs.page_size_bytes)
        assert ours.tensor.dtype == torch.int8
        assert not ours.tensor.any()
        assert not ours.tensor.is_pinned()
    for none in (0, -1):
        with pytest.raises(InvalidConfigError, match="give at least 1"):
            like_on_host(caches, none)


def test_too_little_memory_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = caches_of(full(), full())
    monkeypatch.setattr("kvref.tensors._free_bytes", lambda device: 2 * 7 * 96 - 1)
    like_on_host(caches, 6)
    with pytest.raises(
        OutOfCacheMemoryError, match=r"7 blocks on the host.*: it needs 672 bytes, and 671 are free"
    ) as no:
        like_on_host(caches, 7)
    assert no.value.__cause__ is None


def test_memory_on_the_host_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough memory is free by number, but the allocation still fails, as it may for pinned memory."""
    caches, zeros = caches_of(full(), full()), torch.zeros
    kept: list[weakref.ref[torch.Tensor]] = []

    def once(*arguments: Any, **how: Any) -> torch.Tensor:
        if kept:
            raise RuntimeError("CUDA error: out of memory")
        made: torch.Tensor = zeros(*arguments, **how)
        kept.append(weakref.ref(made))
        return made

    monkeypatch.setattr(torch, "zeros", once)
    with pytest.raises(OutOfCacheMemoryError, match=r"canonical tensor 1: it needs 672 bytes") as no:
        like_on_host(caches, 7)
    assert isinstance(no.value.__cause__, RuntimeError)
    assert [each() for each in kept] == [None]


def test_host_memory_of_another_form() -> None:
    host = like_on_host(caches_of(full(num_kv_heads=1)), 2)
    with pytest.raises(InvalidConfigError, match=r"rows of \[48\] bytes, that on the device of \[96\]"):
        OffloadingConnector(BlockPool(3, True, 4), caches_of(full()), host)
