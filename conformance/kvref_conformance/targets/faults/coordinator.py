"""Faults in the coordinators."""

from __future__ import annotations

from collections.abc import Sequence

from kvref import coordinators
from kvref.errors import InvalidConfigError
from kvref.managers import SingleTypeKVCacheManager
from kvref.planning import KVCacheConfig
from kvref.request import Request
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_check_block_sizes = coordinators._check_block_sizes
_get_hit_blocks = SingleTypeKVCacheManager.get_hit_blocks
_cache_blocks = SingleTypeKVCacheManager.cache_blocks
_get_num_common_prefix_blocks = SingleTypeKVCacheManager.get_num_common_prefix_blocks


def hashes_finer_than_blocks_refused() -> ReferenceTarget:
    """The coordinator refuses a hash block size that is smaller than the block size of every group."""

    def check_block_sizes(
        config: KVCacheConfig, scheduler_block_size: int, hash_block_size: int, enable_caching: bool
    ) -> None:
        _check_block_sizes(config, scheduler_block_size, hash_block_size, enable_caching)
        if all(group.kv_cache_spec.block_size > hash_block_size for group in config.kv_cache_groups):
            raise InvalidConfigError(f"hash_block_size {hash_block_size} is no group's block size")

    break_it(coordinators, "_check_block_sizes", check_block_sizes)
    return ReferenceTarget()


def blocks_of_the_first_group_for_all() -> ReferenceTarget:
    """If the first group has a cached block for a block hash, a hit gives that block to every group."""

    def get_hit_blocks(manager: SingleTypeKVCacheManager, hashes: Sequence[bytes], length: int) -> list[int]:
        blocks = _get_hit_blocks(manager, hashes, length)
        index = manager.block_pool.get_index(0)
        own = manager._hashes(hashes)
        return [block and index.get(own[place], block) for place, block in enumerate(blocks)]

    break_it(SingleTypeKVCacheManager, "get_hit_blocks", get_hit_blocks)
    return ReferenceTarget()


def list_not_cut_to_the_hit() -> ReferenceTarget:
    """If the block after a hit is cached, too, the list of the hit's blocks includes that block."""

    def get_hit_blocks(manager: SingleTypeKVCacheManager, hashes: Sequence[bytes], length: int) -> list[int]:
        index = manager.block_pool.get_index(manager.kv_cache_group_id)
        behind = manager._hashes(hashes)[length // manager.block_size :][:1]
        blocks = _get_hit_blocks(manager, hashes, length)
        return blocks + [index[each] for each in behind if length and each in index]

    break_it(SingleTypeKVCacheManager, "get_hit_blocks", get_hit_blocks)
    return ReferenceTarget()


def last_full_block_gets_no_key() -> ReferenceTarget:
    """The last full block of a request is cached only when another token follows it."""

    def cache_blocks(manager: SingleTypeKVCacheManager, request: Request, num_tokens: int) -> None:
        _cache_blocks(manager, request, num_tokens - 1)

    break_it(SingleTypeKVCacheManager, "cache_blocks", cache_blocks)
    return ReferenceTarget()


def two_units_for_reading_ahead() -> ReferenceTarget:
    """With EAGLE, the last full blocks are not cached, although each hit leaves out a block already."""

    def cache_blocks(manager: SingleTypeKVCacheManager, request: Request, num_tokens: int) -> None:
        less = manager.scheduler_block_size if manager.use_eagle else 0
        _cache_blocks(manager, request, num_tokens - less)

    break_it(SingleTypeKVCacheManager, "cache_blocks", cache_blocks)
    return ReferenceTarget()


def short_prompts_not_looked_up() -> ReferenceTarget:
    """The look-up reads the first hash of every prompt. A prompt shorter than a block has none."""

    def get_hit_blocks(manager: SingleTypeKVCacheManager, hashes: Sequence[bytes], length: int) -> list[int]:
        return _get_hit_blocks(manager, hashes, length) if hashes[0] else []

    break_it(SingleTypeKVCacheManager, "get_hit_blocks", get_hit_blocks)
    return ReferenceTarget()


def common_prefix_one_block_longer() -> ReferenceTarget:
    """The number of blocks in the common prefix also counts the first block that is not common."""

    def get_num_common_prefix_blocks(manager: SingleTypeKVCacheManager, running_request_id: str) -> int:
        return _get_num_common_prefix_blocks(manager, running_request_id) + 1

    break_it(SingleTypeKVCacheManager, "get_num_common_prefix_blocks", get_num_common_prefix_blocks)
    return ReferenceTarget()
