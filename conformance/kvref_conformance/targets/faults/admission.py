"""Faults in the admission of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvref.cache import KVCacheBlocks, KVCacheManager
from kvref.coordinators import KVCacheCoordinator
from kvref.managers import SingleTypeKVCacheManager
from kvref.request import Request
from kvref.specs import MemoryLimits, SlidingWindowSpec
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_allocate_slots = KVCacheManager.allocate_slots
_get_num_blocks_to_allocate = KVCacheCoordinator.get_num_blocks_to_allocate
_add_local_computed_blocks = SingleTypeKVCacheManager.add_local_computed_blocks


def block_taken_before_the_refusal() -> ReferenceTarget:
    """When the cache manager refuses a request, it allocates a block and frees it again."""

    def allocate_slots(
        manager: KVCacheManager, request: Request, *arguments: Any, **named: Any
    ) -> KVCacheBlocks | None:
        allocated = _allocate_slots(manager, request, *arguments, **named)
        if allocated is None and manager.block_pool.get_num_free_blocks():
            manager.block_pool.free_blocks(manager.block_pool.get_new_blocks(1))
        return allocated

    break_it(KVCacheManager, "allocate_slots", allocate_slots)
    return ReferenceTarget()


def enough_as_long_as_any_is_free() -> ReferenceTarget:
    """If any block is free, the cache manager never predicts a need of more blocks than are free."""

    def get_num_blocks_to_allocate(coordinator: KVCacheCoordinator, *arguments: Any) -> int:
        needed = _get_num_blocks_to_allocate(coordinator, *arguments)
        return min(needed, coordinator.block_pool.get_num_free_blocks() or needed)

    break_it(KVCacheCoordinator, "get_num_blocks_to_allocate", get_num_blocks_to_allocate)
    return ReferenceTarget()


def found_blocks_lose_their_keys() -> ReferenceTarget:
    """When a request gets the blocks of its prefix hit, these blocks lose their keys."""

    def add_local_computed_blocks(
        manager: SingleTypeKVCacheManager, request_id: str, blocks: Sequence[int], tokens: int
    ) -> None:
        _add_local_computed_blocks(manager, request_id, blocks, tokens)
        manager.block_pool.evict_blocks(filter(None, manager.req_to_blocks[request_id]))

    break_it(SingleTypeKVCacheManager, "add_local_computed_blocks", add_local_computed_blocks)
    return ReferenceTarget()


def memory_of_the_window_alone() -> ReferenceTarget:
    """The spec of a windowed layer counts memory for the window, but none for tokens in flight."""

    def max_memory_usage_bytes(spec: SlidingWindowSpec, limits: MemoryLimits) -> int:
        return spec.page_size_bytes * spec.max_admission_blocks_per_request(1, limits.max_model_len)

    break_it(SlidingWindowSpec, "max_memory_usage_bytes", max_memory_usage_bytes)
    return ReferenceTarget()


def keys_kept_of_what_is_not_computed() -> ReferenceTarget:
    """When a request is withdrawn from a step, its blocks keep the keys that they got for that step."""

    def take_back_keys(*arguments: object) -> None:
        pass

    break_it(KVCacheCoordinator, "take_back_keys", take_back_keys)
    return ReferenceTarget()


def longest_request_must_fit() -> ReferenceTarget:
    """With `full_sequence_must_fit`, a request is refused if the longest possible request would not fit."""

    def allocate_slots(
        manager: KVCacheManager, request: Request, *arguments: Any, **named: Any
    ) -> KVCacheBlocks | None:
        longest = 0
        for each in manager.coordinator.single_type_managers:
            blocks = -(-manager.max_model_len // each.block_size)
            longest += min(blocks, each.max_admission_blocks_per_request or blocks)
        if named.get("full_sequence_must_fit") and longest > manager.block_pool.num_usable_blocks:
            return None
        return _allocate_slots(manager, request, *arguments, **named)

    break_it(KVCacheManager, "allocate_slots", allocate_slots)
    return ReferenceTarget()
