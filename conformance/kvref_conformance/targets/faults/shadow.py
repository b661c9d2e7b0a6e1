"""Faults that change what a kernel reads.

The laws `shadow.*` look only at what a kernel reads, and find these faults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import kvref.layout
from kvref import tensors
from kvref.cache import KVCacheBlocks, KVCacheManager
from kvref.coordinators import HybridKVCacheCoordinator, KVCacheCoordinator
from kvref.hashing import BlockHasher
from kvref.layout import CacheView, KVCachePlacement
from kvref.managers import MambaManager, SingleTypeKVCacheManager
from kvref.managers.base import TokenCounts
from kvref.request import Request
from kvref.tensors import KVCaches
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_allocate = KVCacheCoordinator.allocate
_get_hit_blocks = SingleTypeKVCacheManager.get_hit_blocks
_longest = HybridKVCacheCoordinator._longest
_allocate_slots = KVCacheManager.allocate_slots
_remove_skipped_blocks = KVCacheCoordinator.remove_skipped_blocks
_free = KVCacheManager.free
_root = BlockHasher._root
_share_kv_caches = tensors.share_kv_caches
_place_kv_caches = kvref.layout.place_kv_caches


def freed_under_a_step() -> ReferenceTarget:
    """When the cache manager frees skipped blocks, it counts tokens in flight as computed."""
    in_flight: dict[str, int] = {}

    def allocate_slots(
        manager: KVCacheManager, request: Request, new: int, **named: Any
    ) -> KVCacheBlocks | None:
        in_flight[request.request_id] = request.num_in_flight_tokens if request.num_computed_tokens else 0
        return _allocate_slots(manager, request, new, **named)

    def remove_skipped_blocks(coordinator: KVCacheCoordinator, request_id: str, tokens: int) -> None:
        _remove_skipped_blocks(coordinator, request_id, tokens + in_flight[request_id])

    break_it(KVCacheManager, "allocate_slots", allocate_slots)
    break_it(KVCacheCoordinator, "remove_skipped_blocks", remove_skipped_blocks)
    return ReferenceTarget()


def salt_not_hashed() -> ReferenceTarget:
    """The block hash leaves out the salt."""

    def root(hasher: BlockHasher, content: Any) -> bytes:
        salt, content.cache_salt = content.cache_salt, None
        try:
            return _root(hasher, content)
        finally:
            content.cache_salt = salt

    break_it(BlockHasher, "_root", root)
    return ReferenceTarget()


def block_of_two_requests() -> ReferenceTarget:
    """A growing block table gets the last block of another table of the same length."""
    _share_last_blocks(lambda coordinator, request_id: True)
    return ReferenceTarget()


def block_of_another_for_who_comes_back() -> ReferenceTarget:
    """A resumed request gets the last block of another block table of the same length."""

    def free(manager: KVCacheManager, request: Request) -> None:
        vars(manager.coordinator).setdefault("away", set()).add(request.request_id)
        _free(manager, request)

    break_it(KVCacheManager, "free", free)
    _share_last_blocks(lambda coordinator, request_id: request_id in vars(coordinator).get("away", ()))
    return ReferenceTarget()


def _share_last_blocks(concerns: Callable[[KVCacheCoordinator, str], bool]) -> None:
    """Have each request that `concerns` selects get the last block of another table of the same length."""

    def allocate(coordinator: KVCacheCoordinator, request_id: str, *arguments: Any) -> tuple[list[int], ...]:
        added = _allocate(coordinator, request_id, *arguments)
        tables = coordinator.single_type_managers[0].req_to_blocks
        table, new = tables[request_id], added[0]
        equals = [each for name, each in tables.items() if name != request_id and len(each) == len(table)]
        others = [each[-1] for each in equals if each and each[-1]]
        if new and others and table[-1] != others[0] and concerns(coordinator, request_id):
            coordinator.block_pool.touch([others[0]])
            coordinator.block_pool.free_blocks([table[-1]])
            table[-1] = new[-1] = others[0]
        return added

    break_it(KVCacheCoordinator, "allocate", allocate)


def block_of_two_groups() -> ReferenceTarget:
    """A request's last new block in the first group is also its last new block in the second group."""

    def allocate(coordinator: KVCacheCoordinator, request_id: str, *arguments: Any) -> tuple[list[int], ...]:
        added = _allocate(coordinator, request_id, *arguments)
        managers = coordinator.single_type_managers
        if len(managers) > 1 and added[0] and added[1] and added[0][-1] and added[1][-1]:
            coordinator.block_pool.touch([added[0][-1]])
            coordinator.block_pool.free_blocks([added[1][-1]])
            managers[1].req_to_blocks[request_id][-1] = added[1][-1] = added[0][-1]
        return added

    break_it(KVCacheCoordinator, "allocate", allocate)
    return ReferenceTarget()


def found_blocks_handed_out() -> ReferenceTarget:
    """The pool evicts a block of a request's hit, and allocates it as the last new block of that request."""

    def allocate(
        coordinator: KVCacheCoordinator,
        request_id: str,
        tokens: TokenCounts,
        hits: Sequence[Sequence[int]],
        computed: int,
    ) -> tuple[list[int], ...]:
        pool = coordinator.block_pool
        found = [block for hit in hits for block in hit if block and pool.get_ref_cnt(block) == 0]
        added = _allocate(coordinator, request_id, tokens, hits, computed)
        if found and added[0] and added[0][-1]:
            pool.evict_blocks([found[0]])
            pool.touch([found[0]])
            pool.free_blocks([added[0][-1]])
            table = coordinator.single_type_managers[0].req_to_blocks[request_id]
            table[-1] = added[0][-1] = found[0]
        return added

    break_it(KVCacheCoordinator, "allocate", allocate)
    return ReferenceTarget()


def hit_longer_in_one_group() -> ReferenceTarget:
    """A hit has the length that the first group found. If a group lacks a block, it gets any cached block."""

    def longest(coordinator: HybridKVCacheCoordinator, block_hashes: Sequence[bytes], max_length: int) -> int:
        found = _longest(coordinator, block_hashes, max_length)
        first, *others = coordinator.single_type_managers
        if not found or not others:
            return found
        return first.find_longest_cache_hit(block_hashes, max_length)

    def get_hit_blocks(manager: SingleTypeKVCacheManager, hashes: Sequence[bytes], length: int) -> list[int]:
        index = manager.block_pool.get_index(manager.kv_cache_group_id)
        skipped, own = manager._num_skipped_blocks(length), manager._hashes(hashes)
        some = next(iter(index.values()), 0)
        return [0] * skipped + [index.get(each, some) for each in own[skipped : length // manager.block_size]]

    break_it(HybridKVCacheCoordinator, "_longest", longest)
    break_it(SingleTypeKVCacheManager, "get_hit_blocks", get_hit_blocks)
    break_it(KVCacheManager, "_why_not", _nothing)
    return ReferenceTarget()


def _nothing(*arguments: object) -> None:
    """Accept any arguments. This replaces `KVCacheManager._why_not`."""


def state_of_the_block_before() -> ReferenceTarget:
    """A recurrent layer resumes from the state one block before the end of the hit, if that is cached."""

    def get_hit_blocks(manager: MambaManager, hashes: Sequence[bytes], length: int) -> list[int]:
        blocks = _get_hit_blocks(manager, hashes, length)
        before = manager._hashes(hashes)[: max(0, len(blocks) - 1)]
        index = manager.block_pool.get_index(manager.kv_cache_group_id)
        if before and before[-1] in index:
            blocks[-1] = index[before[-1]]
        return blocks

    break_it(MambaManager, "get_hit_blocks", get_hit_blocks)
    break_it(KVCacheManager, "_why_not", _nothing)
    return ReferenceTarget()


def drafts_get_keys() -> ReferenceTarget:
    """Blocks with draft tokens are cached, as if each draft were token 0."""

    def allocate_slots(
        manager: KVCacheManager, request: Request, new: int, **named: Any
    ) -> KVCacheBlocks | None:
        added = _allocate_slots(manager, request, new, **named)
        end = request.num_computed_tokens + new
        drafts = end - request.num_tokens
        running = not named.get("num_new_computed_tokens")
        if added is not None and running and drafts > 0 and manager.enable_caching:
            guess = Request(request.request_id, [*request.all_token_ids, *[0] * drafts], request.block_hasher)
            manager.coordinator.cache_blocks(guess, end)
        return added

    break_it(KVCacheManager, "allocate_slots", allocate_slots)
    return ReferenceTarget()


def sharer_bound_to_another_owner() -> ReferenceTarget:
    """A layer that shares a cache gets the first cache with the same page layout, even if it is wrong."""
    return bound_to_another_owner(lambda sharer, targets: True)


def bound_to_another_owner(concerns: Callable[[str, Mapping[str, str]], bool]) -> ReferenceTarget:
    """Bind each layer that `concerns` selects to the first cache with the same page layout as its own."""

    def share_kv_caches(kv_caches: KVCaches, targets: Mapping[str, str]) -> None:
        _share_kv_caches(kv_caches, targets)
        placed = kv_caches.placement.layers
        for sharer in [each for each in targets if concerns(each, targets)]:
            [owner] = [name for name in placed if kv_caches.layers[name] is kv_caches.layers[sharer]]
            alike = [name for name in placed if placed[name].pages == placed[owner].pages]
            kv_caches.layers[sharer] = kv_caches.layers[alike[0]]

    break_it(tensors, "share_kv_caches", share_kv_caches)
    return ReferenceTarget()


def blocks_too_close() -> ReferenceTarget:
    """The stride between blocks is one element too short, so blocks overlap."""

    def place_kv_caches(*arguments: Any, **options: Any) -> KVCachePlacement:
        placement = _place_kv_caches(*arguments, **options)
        layers = {
            name: place._replace(pages=replace(place.pages, views=tuple(map(_closer, place.pages.views))))
            for name, place in placement.layers.items()
        }
        return replace(placement, layers=layers)

    break_it(tensors, "place_kv_caches", place_kv_caches)
    return ReferenceTarget()


def _closer(view: CacheView) -> CacheView:
    axis = view.axes.index("B")
    strides = [stride - (place == axis) for place, stride in enumerate(view.strides)]
    return replace(view, strides=tuple(strides))
