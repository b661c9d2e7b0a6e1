"""The part `pool` of vLLM: a block pool with its prefix-cache index.

Stand-alone programs copy functions from this module, so that they need only vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.request import Request

from kvref.target import Json, PoolShape, PoolState

CURRENT: SimpleNamespace = SimpleNamespace(pool=None, block_size=0)


def create(
    num_blocks: int,
    enable_caching: bool,
    block_size: int,
    hash_block_size: int,
    declared: Mapping[str, Json] | None = None,
) -> PoolShape:
    kv_cache_utils.init_none_hash(sha256)
    CURRENT.pool = BlockPool(num_blocks, enable_caching, hash_block_size)
    CURRENT.block_size = block_size
    return {"null": CURRENT.pool.null_block.block_id, "reserved": []}


@lru_cache(maxsize=1024)
def request_of(tokens: tuple[int, ...], hash_block_size: int) -> Any:
    """A request with these tokens. Requests are kept, because to make one takes longer than a pool call."""
    return Request(
        request_id="request",
        prompt_token_ids=list(tokens),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        block_hasher=kv_cache_utils.get_request_block_hasher(hash_block_size, sha256),
    )


def current_request(tokens: Sequence[int]) -> Any:
    return request_of(tuple(tokens), CURRENT.pool.hash_block_size)


def objects(blocks: Sequence[int]) -> list[Any]:
    return [CURRENT.pool.blocks[block] for block in blocks]


def numbers(blocks: Sequence[Any]) -> list[int]:
    return [block.block_id for block in blocks]


def get_new_blocks(num_blocks: int) -> list[int]:
    return numbers(CURRENT.pool.get_new_blocks(num_blocks))


def touch(blocks: Sequence[int]) -> None:
    CURRENT.pool.touch(objects(blocks))


def free(blocks: Sequence[int]) -> None:
    CURRENT.pool.free_blocks(objects(blocks))


def cache(tokens: Sequence[int], blocks: Sequence[int], start: int, group: int) -> None:
    CURRENT.pool.cache_full_blocks(
        request=current_request(tokens),
        blocks=objects(blocks),
        num_cached_blocks=start,
        num_full_blocks=len(blocks),
        block_size=CURRENT.block_size,
        kv_cache_group_id=group,
    )


def has_partial_keys() -> bool:
    return hasattr(BlockPool, "cache_partial_block")


def cache_partial(tokens: Sequence[int], block: int, group: int) -> None:
    CURRENT.pool.cache_partial_block(
        request=current_request(tokens),
        block=CURRENT.pool.blocks[block],
        num_tokens=len(tokens),
        kv_cache_group_id=group,
        block_size=CURRENT.block_size,
    )


def lookup(tokens: Sequence[int], groups: Sequence[int]) -> list[int] | None:
    found = CURRENT.pool.get_cached_block(current_request(tokens).block_hashes[-1], groups)
    return None if found is None else numbers(found)


def evict(blocks: Sequence[int]) -> None:
    CURRENT.pool.evict_blocks(set(blocks))


def reset() -> bool:
    done: bool = CURRENT.pool.reset_prefix_cache()
    return done


def usage() -> float:
    used: float = CURRENT.pool.get_usage()
    return used


def hash_name(block_hash: Any) -> str:
    """A short name for a block hash: the last six bytes, in hexadecimal.

    In some releases, the hash of a large block is the concatenation of the hashes of its small blocks. The
    name then is that of the last small block.
    """
    last: bytes = block_hash[-6:]
    return last.hex()


@lru_cache(maxsize=1 << 16)
def key_name(key: Any) -> str:
    return f"{hash_name(kv_cache_utils.get_block_hash(key))}/{kv_cache_utils.get_group_id(key)}"


def free_list_of(pool: Any) -> list[int]:
    """The free list, in order. If a broken pool has made it circular, the result is cut to finite length."""
    listed: list[int] = []
    block = pool.free_block_queue.fake_free_list_head.next_free_block
    while block is not None and block.next_free_block is not None and len(listed) <= len(pool.blocks):
        listed.append(block.block_id)
        block = block.next_free_block
    return listed


def state() -> PoolState:
    return state_of(CURRENT.pool)


def state_of(pool: Any) -> PoolState:
    further = getattr(pool, "cached_block_hashes_by_block", {})
    keys: dict[str, list[str]] = {}
    for block in pool.blocks:
        own = [] if block.block_hash is None else [block.block_hash]
        own += further.get(block.block_id, ())
        if own:
            keys[str(block.block_id)] = sorted(map(key_name, own))
    found: dict[str, list[int]] = {}
    for key, cached in pool.cached_block_hash_to_block._cache.items():
        found[key_name(key)] = numbers(list(cached.values()) if isinstance(cached, dict) else [cached])
    return {
        "free": free_list_of(pool),
        "free_count": pool.get_num_free_blocks(),
        "refs": [block.ref_cnt for block in pool.blocks],
        "keys": keys,
        "found": found,
    }
