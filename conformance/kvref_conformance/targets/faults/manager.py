"""Faults in the managers and in the cache manager."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any

from kvref.cache import KVCacheBlocks, KVCacheManager
from kvref.fast.cache import KVCacheManager as FastKVCacheManager
from kvref.managers import FullAttentionManager, MambaManager, SingleTypeKVCacheManager, SlidingWindowManager
from kvref.managers.base import TokenCounts
from kvref.pool import BlockPool
from kvref.request import Request
from kvref.specs import MemoryLimits
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_remove_skipped_blocks = SingleTypeKVCacheManager.remove_skipped_blocks
_add_local_computed_blocks = SingleTypeKVCacheManager.add_local_computed_blocks
_allocate_new_blocks = SingleTypeKVCacheManager.allocate_new_blocks
_allocate_state = MambaManager.allocate_new_blocks
_count_references = BlockPool.count_references
_allocate_slots = KVCacheManager.allocate_slots
_take_new_block_ids = KVCacheManager.take_new_block_ids
_reset_prefix_cache = BlockPool.reset_prefix_cache
_free = KVCacheManager.free
_get_computed_blocks = KVCacheManager.get_computed_blocks
_settle = FastKVCacheManager._settle


def reset_refused_by_an_error() -> ReferenceTarget:
    """Resetting the prefix cache while blocks are referenced raises an error instead of returning False."""

    def reset_prefix_cache(pool: BlockPool) -> bool:
        if not _reset_prefix_cache(pool):
            raise RuntimeError("some blocks are held")
        return True

    break_it(BlockPool, "reset_prefix_cache", reset_prefix_cache)
    return ReferenceTarget()


def window_freed_one_block_early() -> ReferenceTarget:
    """The manager also frees the block in which the window begins."""

    def remove_skipped_blocks(manager: SlidingWindowManager, request_id: str, tokens: int) -> None:
        _remove_skipped_blocks(manager, request_id, tokens + manager.block_size)

    break_it(SlidingWindowManager, "remove_skipped_blocks", remove_skipped_blocks)
    return ReferenceTarget()


def single_blocks_not_freed() -> ReferenceTarget:
    """The manager frees blocks before a window only if there are at least two of them."""

    def remove_skipped_blocks(manager: SlidingWindowManager, request_id: str, tokens: int) -> None:
        start = manager._num_nulled.get(request_id, 0)
        if manager._num_skipped_blocks(tokens) > start + 1:
            _remove_skipped_blocks(manager, request_id, tokens)

    break_it(SlidingWindowManager, "remove_skipped_blocks", remove_skipped_blocks)
    return ReferenceTarget()


def found_blocks_counted_twice() -> ReferenceTarget:
    """The predicted number of blocks that a request needs counts the free blocks of its hit twice."""

    def count_references(pool: BlockPool, blocks: Iterable[int], references: int) -> int:
        return _count_references(pool, blocks, references) * (1 if references else 2)

    break_it(BlockPool, "count_references", count_references)
    return ReferenceTarget()


def refused_when_little_is_free() -> ReferenceTarget:
    """With fewer than four free blocks, every request is refused, even one that needs none."""

    def allocate_slots(
        manager: KVCacheManager, request: Request, *arguments: Any, **named: Any
    ) -> KVCacheBlocks | None:
        if manager.block_pool.get_num_free_blocks() < 4:
            return None
        return _allocate_slots(manager, request, *arguments, **named)

    break_it(KVCacheManager, "allocate_slots", allocate_slots)
    return ReferenceTarget()


def cap_without_tokens_in_flight() -> ReferenceTarget:
    """The maximum number of blocks that a request has in a windowed layer leaves out tokens in flight."""

    def max_blocks(manager: SlidingWindowManager, limits: MemoryLimits) -> int | None:
        return manager.kv_cache_spec.max_admission_blocks_per_request(1, limits.max_model_len)

    break_it(SlidingWindowManager, "max_blocks", max_blocks)
    return ReferenceTarget()


def found_blocks_held_twice() -> ReferenceTarget:
    """When a request gets the blocks of its prefix hit, it adds two references to each of them."""

    def add_local_computed_blocks(
        manager: SingleTypeKVCacheManager, request_id: str, blocks: Sequence[int], tokens: int
    ) -> None:
        _add_local_computed_blocks(manager, request_id, blocks, tokens)
        manager.block_pool.touch(filter(None, manager.req_to_blocks[request_id]))

    break_it(SingleTypeKVCacheManager, "add_local_computed_blocks", add_local_computed_blocks)
    return ReferenceTarget()


def last_block_of_another_request() -> ReferenceTarget:
    """A request gets the last block of another request whose block table is equally long."""

    def allocate_new_blocks(
        manager: FullAttentionManager, request_id: str, tokens: TokenCounts, computed: int = 0
    ) -> list[int]:
        added = _allocate_new_blocks(manager, request_id, tokens, computed)
        table = manager.req_to_blocks[request_id]
        equals = [
            other
            for name, other in manager.req_to_blocks.items()
            if name != request_id and len(other) == len(table)
        ]
        if added and equals:
            manager.block_pool.touch([equals[0][-1]])
            manager.block_pool.free_blocks([table[-1]])
            table[-1] = equals[0][-1]
        return table[len(table) - len(added) :]

    break_it(FullAttentionManager, "allocate_new_blocks", allocate_new_blocks)
    return ReferenceTarget()


def state_written_over_the_one_found() -> ReferenceTarget:
    """The first step after a prefix hit writes its recurrent state over the state that the look-up found."""

    def allocate_new_blocks(
        manager: MambaManager, request_id: str, tokens: TokenCounts, computed: int = 0
    ) -> list[int]:
        found = list(filter(None, manager.req_to_blocks.get(request_id, ())))
        new = request_id not in manager._has_state
        added = _allocate_state(manager, request_id, tokens, computed)
        table = manager.req_to_blocks[request_id]
        place = len(table) - 1 - manager.num_speculative_blocks
        if new and found and table[place] not in found:
            manager.block_pool.touch(found[-1:])
            manager.block_pool.free_blocks([table[place]])
            table[place] = found[-1]
        return table[len(table) - len(added) :]

    break_it(MambaManager, "allocate_new_blocks", allocate_new_blocks)
    return ReferenceTarget()


def new_blocks_told_again() -> ReferenceTarget:
    """The report of new blocks repeats the last block of the previous report."""

    def take_new_block_ids(manager: KVCacheManager) -> list[int]:
        told = _take_new_block_ids(manager)
        again: list[int] = vars(manager).get("last_told", [])
        vars(manager)["last_told"] = told[-1:]
        return [block for block in again if block not in told] + told

    break_it(KVCacheManager, "take_new_block_ids", take_new_block_ids)
    return ReferenceTarget()


def last_new_block_not_told() -> ReferenceTarget:
    """The report of new blocks leaves out the last block."""

    def take_new_block_ids(manager: KVCacheManager) -> list[int]:
        return _take_new_block_ids(manager)[:-1]

    break_it(KVCacheManager, "take_new_block_ids", take_new_block_ids)
    return ReferenceTarget()


def kept_while_under_way() -> ReferenceTarget:
    """A request that is freed with tokens in flight keeps its blocks."""

    def free(manager: KVCacheManager, request: Request) -> None:
        if not request.num_in_flight_tokens:
            _free(manager, request)

    break_it(KVCacheManager, "free", free)
    return ReferenceTarget()


class PartialHits(ReferenceTarget):
    """The reference, with hits that end within a block."""

    capabilities = MappingProxyType({**ReferenceTarget.capabilities, "partial_hits": True})


def hit_within_a_block_not_copied() -> ReferenceTarget:
    """After a hit that ends within a block, the request writes to the cached block instead of a copy."""

    def get_computed_blocks(manager: KVCacheManager, request: Request) -> tuple[KVCacheBlocks, int]:
        blocks, length = _get_computed_blocks(manager, request)
        return blocks, max(0, length - manager.coordinator.hash_block_size)

    def why_not(*arguments: object) -> None:
        return None

    break_it(KVCacheManager, "get_computed_blocks", get_computed_blocks)
    break_it(KVCacheManager, "_why_not", why_not)
    return PartialHits()


def settled_a_token_too_long() -> ReferenceTarget:
    """The fast cache manager's shortcut for steps that change nothing lasts one token too long."""

    def settle_longer(manager: FastKVCacheManager, request_id: str, num_tokens: int) -> None:
        _settle(manager, request_id, num_tokens)
        if manager._settled[request_id]:
            manager._settled[request_id] += 1

    break_it(FastKVCacheManager, "_settle", settle_longer)
    return ReferenceTarget()
