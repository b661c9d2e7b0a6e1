"""Faults in the pool and its events that were reported for other implementations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from kvref.events import BlockRemoved, BlockStored
from kvref.pool import BlockPool, Key
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_evict_blocks = BlockPool.evict_blocks
_drop_keys = BlockPool._drop_keys
_add_to_free_list = BlockPool._add_to_free_list
_get_all_free_blocks = BlockPool.get_all_free_blocks
_get_num_free_blocks = BlockPool.get_num_free_blocks
_reset_prefix_cache = BlockPool.reset_prefix_cache
_cache_full_blocks = BlockPool.cache_full_blocks


def evicted_block_knows_its_key() -> ReferenceTarget:
    """A referenced block that is evicted leaves the index but keeps its key (kvcached issue 362)."""

    def evict_blocks(pool: BlockPool, block_ids: Iterable[int]) -> None:
        keys = {block: list(pool.get_keys(block)[:1]) for block in block_ids if pool.get_keys(block)}
        _evict_blocks(pool, keys)
        pool._keys |= {block: own for block, own in keys.items() if pool.get_ref_cnt(block)}

    break_it(BlockPool, "evict_blocks", evict_blocks)
    return ReferenceTarget()


def bad_blocks_found_while_held() -> ReferenceTarget:
    """A look-up still finds blocks whose load has failed, as long as they are referenced (vLLM PR 26813)."""

    def evict_blocks(pool: BlockPool, block_ids: Iterable[int]) -> None:
        _evict_blocks(pool, [block for block in block_ids if not pool.get_ref_cnt(block)])

    break_it(BlockPool, "evict_blocks", evict_blocks)
    return ReferenceTarget()


def line_outlives_a_reset() -> ReferenceTarget:
    """After a reset, blocks that were cached are in the free list twice (SGLang PR 26009)."""

    def reset_prefix_cache(pool: BlockPool) -> bool:
        cached = [block for block in pool.get_all_free_blocks() if pool.get_keys(block)]
        done = _reset_prefix_cache(pool)
        if done:
            vars(pool)["left"] = cached
        return done

    def get_all_free_blocks(pool: BlockPool) -> list[int]:
        return _get_all_free_blocks(pool) + list(vars(pool).get("left", ()))

    def get_num_free_blocks(pool: BlockPool) -> int:
        return _get_num_free_blocks(pool) + len(vars(pool).get("left", ()))

    break_it(BlockPool, "reset_prefix_cache", reset_prefix_cache)
    break_it(BlockPool, "get_all_free_blocks", get_all_free_blocks)
    break_it(BlockPool, "get_num_free_blocks", get_num_free_blocks)
    return ReferenceTarget()


def found_again_and_still_the_oldest() -> ReferenceTarget:
    """A block freed after a hit returns to its old place in the free list (antonellof/ferrox PR 14)."""

    def add_to_free_list(pool: BlockPool, blocks: Sequence[int]) -> None:
        places: dict[int, tuple[tuple[Key, ...], int]] = vars(pool).setdefault("places", {})
        for block in blocks:
            keys = pool.get_keys(block)
            if keys and places.get(block, ((), 0))[0] != keys:
                places[block] = (keys, len(places) and max(n for _, n in places.values()) + 1)
        _add_to_free_list(pool, blocks)
        cached = [block for block in pool.get_all_free_blocks() if pool.get_keys(block)]
        for block in sorted(cached, key=lambda block: places.get(block, ((), 0))[1]):
            pool._free.move_to_end(block)

    break_it(BlockPool, "_add_to_free_list", add_to_free_list)
    return ReferenceTarget()


def cached_counts_as_used() -> ReferenceTarget:
    """Free blocks count as used as long as they are cached (xLLM-AI/xllm PR 829)."""

    def get_usage(pool: BlockPool) -> float:
        usable = pool.num_usable_blocks
        empty = [block for block in pool.get_all_free_blocks() if not pool.get_keys(block)]
        return 1 - len(empty) / usable if usable else 0.0

    break_it(BlockPool, "get_usage", get_usage)
    return ReferenceTarget()


def removal_told_of_each_copy() -> ReferenceTarget:
    """The pool sends a BlockRemoved event although another block still has the same key (vLLM PR 55092)."""

    def drop_keys(pool: BlockPool, block: int) -> None:
        copied = [key for key in pool.get_keys(block) if len(pool.get_blocks_by_key()[key]) > 1]
        _drop_keys(pool, block)
        if pool.enable_kv_cache_events:
            pool._events += [BlockRemoved((block_hash,), group) for block_hash, group in copied]

    break_it(BlockPool, "_drop_keys", drop_keys)
    return ReferenceTarget()


def tokens_of_skipped_blocks_told() -> ReferenceTarget:
    """A BlockStored event has the tokens of skipped blocks, too, but not their hashes (vLLM issue 44451)."""

    def cache_full_blocks(
        pool: BlockPool,
        request: Any,
        blocks: Sequence[int],
        start: int,
        stop: int,
        size: int,
        *rest: Any,
        **named: Any,
    ) -> None:
        before = len(pool._events)
        _cache_full_blocks(pool, request, blocks, start, stop, size, *rest, **named)
        told = [event for event in pool._events[before:] if isinstance(event, BlockStored)]
        if told:
            hashes = tuple(block_hash for event in told for block_hash in event.block_hashes)
            tokens = tuple(request.all_token_ids[start * size : stop * size])
            pool._events[before:] = [replace(told[0], block_hashes=hashes, token_ids=tokens)]

    break_it(BlockPool, "cache_full_blocks", cache_full_blocks)
    return ReferenceTarget()
