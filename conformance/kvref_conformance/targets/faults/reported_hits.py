"""Faults in look-ups that were reported for other implementations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from types import SimpleNamespace
from typing import Any

from kvref.cache import KVCacheBlocks, KVCacheManager
from kvref.coordinators import HybridKVCacheCoordinator, KVCacheCoordinator
from kvref.hashing import BlockHasher
from kvref.managers import FullAttentionManager, SingleTypeKVCacheManager, SlidingWindowManager
from kvref.request import Request
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_find_longest_cache_hit = SingleTypeKVCacheManager.find_longest_cache_hit
_find_full = FullAttentionManager.find_longest_cache_hit
_find_in_groups = KVCacheCoordinator.find_longest_cache_hit
_get_computed_blocks = KVCacheManager.get_computed_blocks
_allocate_slots = KVCacheManager.allocate_slots
_extend = BlockHasher.extend


def window_shorter_by_what_is_read_ahead() -> ReferenceTarget:
    """With EAGLE, a hit drops its last block, but the look-up forgets that the window then moves.

    The window of the shorter hit begins a block earlier, and that block may be missing (vLLM PR 17398).
    """

    def find_longest_cache_hit(manager: SlidingWindowManager, hashes: Sequence[bytes], most: int) -> int:
        if not manager.use_eagle:
            return _find_longest_cache_hit(manager, hashes, most)
        manager.use_eagle = False
        try:
            found = _find_longest_cache_hit(manager, hashes, most + manager.block_size)
        finally:
            manager.use_eagle = True
        return max(0, manager._aligned(found - manager.block_size))

    def get_hit_blocks(manager: SlidingWindowManager, hashes: Sequence[bytes], length: int) -> list[int]:
        index = manager.block_pool.get_index(manager.kv_cache_group_id)
        skipped, own = manager._num_skipped_blocks(length), manager._hashes(hashes)
        return [0] * skipped + [index.get(each, 0) for each in own[skipped : length // manager.block_size]]

    break_it(SlidingWindowManager, "find_longest_cache_hit", find_longest_cache_hit)
    break_it(SlidingWindowManager, "get_hit_blocks", get_hit_blocks)
    return ReferenceTarget()


def block_read_ahead_gets_no_key() -> ReferenceTarget:
    """With EAGLE, a hit also needs the block after its window, but that is not cached (vLLM PR 44082)."""

    def is_useful(manager: SingleTypeKVCacheManager, place: int) -> bool:
        next_end = manager._aligned(place * manager.block_size) + manager.scheduler_block_size
        return place >= manager._num_skipped_blocks(next_end)

    break_it(SingleTypeKVCacheManager, "_is_useful", is_useful)
    return ReferenceTarget()


def each_look_drops_a_block() -> ReferenceTarget:
    """With EAGLE, a group drops one more block each time the same look-up asks it (vLLM issue 32802)."""

    def dropping(find: Any) -> Any:
        def find_longest_cache_hit(
            manager: SingleTypeKVCacheManager, hashes: Sequence[bytes], most: int
        ) -> int:
            if not manager.use_eagle:
                return int(find(manager, hashes, most))
            manager.use_eagle = False
            try:
                found = find(manager, hashes, most)
            finally:
                manager.use_eagle = True
            return max(0, manager._aligned(found - manager.block_size))

        return find_longest_cache_hit

    break_it(FullAttentionManager, "prefix_closed", False)
    break_it(FullAttentionManager, "find_longest_cache_hit", dropping(_find_full))
    break_it(SlidingWindowManager, "find_longest_cache_hit", dropping(_find_longest_cache_hit))
    return ReferenceTarget()


def one_list_cut_to_the_hit() -> ReferenceTarget:
    """With several full attention groups, only the first group's blocks are cut to the length of the hit.

    The others have blocks beyond its end (vllm-ascend PR 14810).
    """

    def find_longest_cache_hit(
        coordinator: KVCacheCoordinator, hashes: Sequence[bytes], most: int
    ) -> tuple[tuple[list[int], ...], int]:
        tables, length = _find_in_groups(coordinator, hashes, most)
        full = [each for each in coordinator.single_type_managers if each.prefix_closed]
        own = {
            each.kv_cache_group_id: each.get_hit_blocks(hashes, each.find_longest_cache_hit(hashes, most))
            for each in full[1:]
        }
        return tuple(own.get(group, table) for group, table in enumerate(tables)), length

    break_it(HybridKVCacheCoordinator, "find_longest_cache_hit", find_longest_cache_hit)
    return ReferenceTarget()


def common_if_held_often_enough() -> ReferenceTarget:
    """A block is common if it has as many references as there are running requests (vLLM issue 23130)."""

    def allocate_slots(
        manager: KVCacheManager, request: Request, new: int, **named: Any
    ) -> KVCacheBlocks | None:
        loading: set[str] = vars(manager).setdefault("loading", set())
        (loading.add if named.get("delay_cache_blocks") else loading.discard)(request.request_id)
        return _allocate_slots(manager, request, new, **named)

    def get_num_common_prefix_blocks(manager: KVCacheManager, running_request_id: str) -> list[int]:
        counts = []
        for each in manager.coordinator.single_type_managers:
            running = len(each.req_to_blocks.keys() - vars(manager)["loading"])
            refs = map(manager.block_pool.get_ref_cnt, each.req_to_blocks[running_request_id])
            counts.append(sum(1 for _ in takewhile(running.__eq__, refs)))
        return counts

    break_it(KVCacheManager, "allocate_slots", allocate_slots)
    break_it(KVCacheManager, "get_num_common_prefix_blocks", get_num_common_prefix_blocks)
    return ReferenceTarget()


def nothing_left_to_compute() -> ReferenceTarget:
    """A hit covers the whole prompt, so no token is left to compute an output from (vLLM PR 3239)."""

    def get_computed_blocks(manager: KVCacheManager, request: Request) -> tuple[KVCacheBlocks, int]:
        if not manager.enable_caching:
            return _get_computed_blocks(manager, request)
        tables, length = manager.coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens)
        return KVCacheBlocks(tables), length

    break_it(KVCacheManager, "get_computed_blocks", get_computed_blocks)
    return ReferenceTarget()


def found_once_for_all() -> ReferenceTarget:
    """A request that was not admitted keeps its old hit for the next attempt (vLLM PR 17305)."""

    def get_computed_blocks(manager: KVCacheManager, request: Request) -> tuple[KVCacheBlocks, int]:
        if "found" not in vars(request):
            vars(request)["found"] = _get_computed_blocks(manager, request)
        found: tuple[KVCacheBlocks, int] = vars(request)["found"]
        return found

    def allocate_slots(
        manager: KVCacheManager, request: Request, new: int, **named: Any
    ) -> KVCacheBlocks | None:
        added = _allocate_slots(manager, request, new, **named)
        if added is not None:
            vars(request).pop("found", None)
        return added

    break_it(KVCacheManager, "get_computed_blocks", get_computed_blocks)
    break_it(KVCacheManager, "allocate_slots", allocate_slots)
    return ReferenceTarget()


def later_hashes_begin_anew() -> ReferenceTarget:
    """Blocks that become full later begin a new hash chain (inference-sim/inference-sim issue 209)."""

    def extend(hasher: BlockHasher, block_hashes: list[bytes], content: Any) -> None:
        done = len(block_hashes) * hasher.hash_block_size
        later: Any = SimpleNamespace(
            all_token_ids=content.all_token_ids[done:],
            adapter=content.adapter,
            cache_salt=content.cache_salt,
            multimodal_items=() if done else content.multimodal_items,
            embeddings={} if done else content.embeddings,
        )
        new: list[bytes] = []
        _extend(hasher, new, later)
        block_hashes += new

    break_it(BlockHasher, "extend", extend)
    return ReferenceTarget()
