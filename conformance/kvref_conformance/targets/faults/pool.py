"""Faults in the pool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvref.fast.pool import BlockPool as FastBlockPool
from kvref.pool import BlockPool
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_evict_blocks = BlockPool.evict_blocks
_get_new_blocks = BlockPool.get_new_blocks
_get_num_free_blocks = BlockPool.get_num_free_blocks
_touch = BlockPool.touch
_cache_full_blocks = BlockPool.cache_full_blocks
_reset_prefix_cache = BlockPool.reset_prefix_cache
_drop_keys = BlockPool._drop_keys
_add_to_free_list = BlockPool._add_to_free_list
_enqueue = FastBlockPool._enqueue


def found_blocks_counted_as_free() -> ReferenceTarget:
    """When a free block is touched, it leaves the free list, but still counts as a free block."""

    def touch(pool: BlockPool, blocks: Iterable[int]) -> None:
        before = _get_num_free_blocks(pool)
        _touch(pool, blocks)
        vars(pool)["found"] = vars(pool).get("found", 0) + before - _get_num_free_blocks(pool)

    def get_num_free_blocks(pool: BlockPool) -> int:
        return _get_num_free_blocks(pool) + int(vars(pool).get("found", 0))

    break_it(BlockPool, "touch", touch)
    break_it(BlockPool, "get_num_free_blocks", get_num_free_blocks)
    return ReferenceTarget()


def shared_blocks_counted_once() -> ReferenceTarget:
    """Touching a block that is already referenced adds no reference."""

    def touch(pool: BlockPool, blocks: Iterable[int]) -> None:
        _touch(pool, [block for block in blocks if not pool.get_ref_cnt(block)])

    break_it(BlockPool, "touch", touch)
    return ReferenceTarget()


def null_block_gets_a_key() -> ReferenceTarget:
    """The pool gives the null block a key, like any other block in a block table."""

    def cache_full_blocks(
        pool: BlockPool,
        request: Any,
        blocks: Sequence[int],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
    ) -> None:
        _cache_full_blocks(
            pool, request, blocks, num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id
        )
        for place in range(num_cached_blocks, num_full_blocks):
            if blocks[place] == pool.null_block:
                block_hash = request.block_hashes[(place + 1) * block_size // pool.hash_block_size - 1]
                pool._add_key(pool.null_block, (block_hash, kv_cache_group_id))

    def evict_blocks(pool: BlockPool, block_ids: Iterable[int]) -> None:
        _evict_blocks(pool, [block for block in block_ids if block != pool.null_block])

    break_it(BlockPool, "cache_full_blocks", cache_full_blocks)
    break_it(BlockPool, "evict_blocks", evict_blocks)
    return ReferenceTarget()


def negative_number_is_none() -> ReferenceTarget:
    """The pool treats a negative number of blocks as zero instead of refusing it."""

    def get_new_blocks(pool: BlockPool, num_blocks: int) -> list[int]:
        return _get_new_blocks(pool, max(0, num_blocks))

    break_it(BlockPool, "get_new_blocks", get_new_blocks)
    return ReferenceTarget()


def beginning_lost_before_the_end() -> ReferenceTarget:
    """Cached blocks that are freed together enter the free list in reverse order."""

    def add_to_free_list(pool: BlockPool, blocks: Sequence[int]) -> None:
        cached = [block for block in blocks if pool.get_keys(block)]
        others = [block for block in blocks if block not in cached]
        _add_to_free_list(pool, others + cached[::-1])

    break_it(BlockPool, "_add_to_free_list", add_to_free_list)
    return ReferenceTarget()


def second_key_stays_in_the_index() -> ReferenceTarget:
    """When the pool evicts a block with several keys, it removes only the first key from the index."""

    def drop_keys(pool: BlockPool, block: int) -> None:
        del pool._keys.get(block, [])[1:]
        _drop_keys(pool, block)

    break_it(BlockPool, "_drop_keys", drop_keys)
    return ReferenceTarget()


def refused_reset_clears_what_is_free() -> ReferenceTarget:
    """A reset that is refused because some blocks are referenced still evicts the free blocks."""

    def reset_prefix_cache(pool: BlockPool) -> bool:
        done = _reset_prefix_cache(pool)
        if not done:
            pool.evict_blocks(pool.get_all_free_blocks())
        return done

    break_it(BlockPool, "reset_prefix_cache", reset_prefix_cache)
    return ReferenceTarget()


def fast_pool_reuses_the_beginning_first() -> ReferenceTarget:
    """In the fast pool, cached blocks that are freed together are reused in reverse order."""

    def reversed_enqueue(pool: FastBlockPool, blocks: Sequence[int]) -> None:
        _enqueue(pool, blocks[::-1])

    break_it(FastBlockPool, "_enqueue", reversed_enqueue)
    return ReferenceTarget()
