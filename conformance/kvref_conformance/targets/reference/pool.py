"""The part `pool` of the reference: a block pool with its prefix-cache index.

Stand-alone programs copy functions from this module, so that they need only kvref.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import SimpleNamespace

from kvref.fast.pool import BlockPool as FastBlockPool
from kvref.hashing import BlockHasher
from kvref.pool import NULL_BLOCK, BlockPool
from kvref.request import Request
from kvref.target import Json, PoolShape, PoolState

CURRENT: SimpleNamespace = SimpleNamespace(pool=None, block_size=0)

POOLS: dict[str, type[BlockPool]] = {"plain": BlockPool, "fast": FastBlockPool}


def create(
    num_blocks: int,
    enable_caching: bool,
    block_size: int,
    hash_block_size: int,
    declared: Mapping[str, Json] | None = None,
    variant: str = "plain",
) -> PoolShape:
    CURRENT.pool = POOLS[variant](num_blocks, enable_caching, hash_block_size)
    CURRENT.block_size = block_size
    return {"null": NULL_BLOCK, "reserved": []}


def current_pool() -> BlockPool:
    pool: BlockPool = CURRENT.pool
    return pool


def request_of(tokens: Sequence[int]) -> Request:
    return Request("request", tokens, BlockHasher(current_pool().hash_block_size))


def get_new_blocks(num_blocks: int) -> list[int]:
    return current_pool().get_new_blocks(num_blocks)


def touch(blocks: Sequence[int]) -> None:
    current_pool().touch(blocks)


def free(blocks: Sequence[int]) -> None:
    current_pool().free_blocks(blocks)


def cache(tokens: Sequence[int], blocks: Sequence[int], start: int, group: int) -> None:
    current_pool().cache_full_blocks(
        request_of(tokens), blocks, start, len(blocks), CURRENT.block_size, group
    )


def cache_partial(tokens: Sequence[int], block: int, group: int) -> None:
    size = current_pool().hash_block_size
    number = len(tokens) // size
    table = [NULL_BLOCK] * (number - 1) + [block]
    current_pool().cache_full_blocks(request_of(tokens), table, number - 1, number, size, group)


def lookup(tokens: Sequence[int], groups: Sequence[int]) -> list[int] | None:
    return current_pool().get_cached_block(request_of(tokens).block_hashes[-1], groups)


def evict(blocks: Sequence[int]) -> None:
    current_pool().evict_blocks(blocks)


def reset() -> bool:
    return current_pool().reset_prefix_cache()


def usage() -> float:
    return current_pool().get_usage()


@lru_cache(maxsize=1 << 16)
def key_name(block_hash: bytes, group: int) -> str:
    return f"{block_hash[:6].hex()}/{group}"


def state() -> PoolState:
    return state_of(current_pool())


def state_of(pool: BlockPool) -> PoolState:
    blocks = range(pool.num_gpu_blocks)
    return {
        "free": pool.get_all_free_blocks(),
        "free_count": pool.get_num_free_blocks(),
        "refs": [pool.get_ref_cnt(block) for block in blocks],
        "keys": {
            str(block): [key_name(*key) for key in keys] for block in blocks if (keys := pool.get_keys(block))
        },
        "found": {key_name(*key): [*found] for key, found in pool.get_blocks_by_key().items()},
    }
