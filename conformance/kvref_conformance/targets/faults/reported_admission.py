"""Faults in the admission of requests that were reported for other implementations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvref.cache import KVCacheBlocks, KVCacheManager
from kvref.coordinators import KVCacheCoordinator
from kvref.managers import SingleTypeKVCacheManager
from kvref.managers.base import TokenCounts
from kvref.pool import BlockPool
from kvref.request import Request
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_allocate_slots = KVCacheManager.allocate_slots
_free = KVCacheManager.free
_get_blocks = KVCacheManager.get_blocks
_count_references = BlockPool.count_references
_add_local_computed_blocks = SingleTypeKVCacheManager.add_local_computed_blocks


def held_although_refused() -> ReferenceTarget:
    """The blocks of a hit get references even if the request is not admitted (vLLM PR 11565)."""

    def allocate_slots(
        manager: KVCacheManager, request: Request, new: int, **named: Any
    ) -> KVCacheBlocks | None:
        added = _allocate_slots(manager, request, new, **named)
        hit: KVCacheBlocks | None = named.get("new_computed_blocks")
        if added is None and hit is not None:
            manager.block_pool.touch(block for blocks in hit.blocks for block in blocks)
        return added

    break_it(KVCacheManager, "allocate_slots", allocate_slots)
    return ReferenceTarget()


def one_group_after_the_other() -> ReferenceTarget:
    """A group allocates new blocks before the next group references its own hit (vLLM PR 44409)."""

    def allocate(
        coordinator: KVCacheCoordinator,
        request_id: str,
        tokens: TokenCounts,
        hits: Sequence[Sequence[int]],
        computed: int,
    ) -> tuple[list[int], ...]:
        new = not coordinator.has_blocks(request_id)
        added = []
        for manager, hit in zip(coordinator.single_type_managers, hits, strict=True):
            if new:
                manager.add_local_computed_blocks(request_id, hit, computed)
            added.append(manager.allocate_new_blocks(request_id, tokens, computed))
        return tuple(added)

    break_it(KVCacheCoordinator, "allocate", allocate)
    return ReferenceTarget()


def found_blocks_cost_nothing() -> ReferenceTarget:
    """The predicted need leaves out free blocks of the hit, as if they stayed free (vLLM PR 6849)."""

    def count_references(pool: BlockPool, blocks: Iterable[int], references: int) -> int:
        return _count_references(pool, blocks, references) if references else 0

    break_it(BlockPool, "count_references", count_references)
    return ReferenceTarget()


def next_in_line_for_the_one_found() -> ReferenceTarget:
    """If a hit has the next block to be evicted, the request gets the one after it (TensorRT-LLM PR 8830)."""

    def add_local_computed_blocks(
        manager: SingleTypeKVCacheManager, request_id: str, blocks: Sequence[int], tokens: int
    ) -> None:
        pool = manager.block_pool
        first, second, *_ = [*filter(pool.get_keys, pool.get_all_free_blocks()), 0, 0]
        mistaken = [second if block and block == first and second else block for block in blocks]
        _add_local_computed_blocks(manager, request_id, mistaken, tokens)

    break_it(SingleTypeKVCacheManager, "add_local_computed_blocks", add_local_computed_blocks)
    return ReferenceTarget()


def table_goes_on_from_before_preemption() -> ReferenceTarget:
    """After a preemption, a request's block table still begins with its old blocks (LMCache PR 2069)."""

    def free(manager: KVCacheManager, request: Request) -> None:
        vars(manager).setdefault("before", {})[request.request_id] = manager.get_block_ids(request.request_id)
        _free(manager, request)

    def get_blocks(manager: KVCacheManager, request_id: str) -> KVCacheBlocks:
        tables = _get_blocks(manager, request_id).blocks
        before = vars(manager).get("before", {}).get(request_id)
        if before is None or not any(tables):
            return KVCacheBlocks(tables)
        return KVCacheBlocks(tuple([*old, *new] for old, new in zip(before, tables, strict=True)))

    break_it(KVCacheManager, "free", free)
    break_it(KVCacheManager, "get_blocks", get_blocks)
    return ReferenceTarget()
