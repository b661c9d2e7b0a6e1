"""Faults in managers that were reported for other implementations."""

from __future__ import annotations

from typing import Any

from kvref.cache import KVCacheBlocks, KVCacheManager
from kvref.managers import MambaManager, SingleTypeKVCacheManager, SlidingWindowManager
from kvref.managers.base import TokenCounts
from kvref.request import Request
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_remove_skipped_blocks = SingleTypeKVCacheManager.remove_skipped_blocks
_take_new_block_ids = SingleTypeKVCacheManager.take_new_block_ids
_free = KVCacheManager.free
_allocate_slots = KVCacheManager.allocate_slots
_cache_blocks = SingleTypeKVCacheManager.cache_blocks
_allocate_state = MambaManager.allocate_new_blocks


def left_behind_and_not_new_again() -> ReferenceTarget:
    """A block that a window has left is not reported as new when it is allocated again.

    So the block is not zeroed (vLLM PR 47574).
    """

    def remove_skipped_blocks(manager: SlidingWindowManager, request_id: str, tokens: int) -> None:
        before = set(manager.req_to_blocks.get(request_id, ()))
        _remove_skipped_blocks(manager, request_id, tokens)
        gone = before.difference(manager.req_to_blocks.get(request_id, ()))
        vars(manager).setdefault("left_behind", set()).update(gone)

    def take_new_block_ids(manager: SlidingWindowManager) -> list[int]:
        behind = vars(manager).get("left_behind", ())
        return [block for block in _take_new_block_ids(manager) if block not in behind]

    break_it(SlidingWindowManager, "remove_skipped_blocks", remove_skipped_blocks)
    break_it(SlidingWindowManager, "take_new_block_ids", take_new_block_ids)
    return ReferenceTarget()


def given_up_twice_while_under_way() -> ReferenceTarget:
    """Freeing a request in flight frees its shared blocks twice (sgl-project/sglang-jax PR 994)."""

    def free(manager: KVCacheManager, request: Request) -> None:
        pool = manager.block_pool
        held = {block for table in manager.get_block_ids(request.request_id) for block in table if block}
        shared = [block for block in held if pool.get_ref_cnt(block) > 1]
        _free(manager, request)
        if request.num_in_flight_tokens:
            pool.free_blocks(shared)

    break_it(KVCacheManager, "free", free)
    return ReferenceTarget()


def reference_left_on_the_copy() -> ReferenceTarget:
    """If an equal block is already cached, the block table gets that block, but the block gets no reference.

    The reference stays on the request's own block (Avarok-Cybersecurity/atlas PR 373).
    """

    def cache_blocks(manager: SingleTypeKVCacheManager, request: Request, num_tokens: int) -> None:
        _cache_blocks(manager, request, num_tokens)
        table = manager.req_to_blocks[request.request_id]
        index = manager.block_pool.get_index(manager.kv_cache_group_id)
        for place, block_hash in enumerate(manager._hashes(request.block_hashes)[: len(table)]):
            keyed = manager.block_pool.get_keys(table[place])
            if (block_hash, manager.kv_cache_group_id) in keyed:
                table[place] = index[block_hash]

    break_it(SingleTypeKVCacheManager, "cache_blocks", cache_blocks)
    return ReferenceTarget()


def room_for_drafts_behind_the_longest() -> ReferenceTarget:
    """Drafts get slots past the maximum length of a request (vLLM PR 53812)."""

    def allocate_slots(
        manager: KVCacheManager, request: Request, new: int, **named: Any
    ) -> KVCacheBlocks | None:
        lookahead: int = named.get("num_lookahead_tokens", 0)
        manager.max_model_len += lookahead
        try:
            return _allocate_slots(manager, request, new, **named)
        finally:
            manager.max_model_len -= lookahead

    break_it(KVCacheManager, "allocate_slots", allocate_slots)
    return ReferenceTarget()


def loaded_state_not_counted() -> ReferenceTarget:
    """The predicted need leaves out the block for a recurrent state that is loaded (vLLM PR 46892)."""

    def num_new_blocks(
        manager: MambaManager, request_id: str, tokens: TokenCounts, length: int, total_computed_tokens: int
    ) -> int:
        missing = max(0, manager.table_length(tokens) - length)
        if manager.mamba_cache_mode != "align":
            return missing
        new = request_id not in manager._has_state
        return min(missing, 1 + manager.num_speculative_blocks * new)

    break_it(MambaManager, "_num_new_blocks", num_new_blocks)
    return ReferenceTarget()


def fewer_than_before_asserted_away() -> ReferenceTarget:
    """The manager of a recurrent layer asserts that a request never needs fewer blocks than it has.

    It needs fewer after drafts were rejected (weicj/vLLM-2080Ti-Definitive PR 137).
    """

    def allocate_new_blocks(
        manager: MambaManager, request_id: str, tokens: TokenCounts, computed: int = 0
    ) -> list[int]:
        held = len(manager.req_to_blocks.get(request_id, ()))
        if request_id in manager._has_state and manager.table_length(tokens) < held:
            raise AssertionError(f"{request_id} needs fewer blocks than {held}")
        return _allocate_state(manager, request_id, tokens, computed)

    break_it(MambaManager, "allocate_new_blocks", allocate_new_blocks)
    return ReferenceTarget()


def state_found_before_it_is_written() -> ReferenceTarget:
    """A look-up finds a recurrent state in the very step that has yet to write it (kvcached PR 363)."""

    def _is_being_written(manager: MambaManager, block: int) -> bool:
        return False

    break_it(MambaManager, "_is_being_written", _is_being_written)
    return ReferenceTarget()


def state_remembered_over_preemption() -> ReferenceTarget:
    """A resumed request is treated as if it still had its state and blocks for drafts (vLLM PR 35157)."""
    break_it(MambaManager, "pop_blocks_for_free", SingleTypeKVCacheManager.pop_blocks_for_free)
    return ReferenceTarget()
