"""Coordinators: a coordinator runs the block pool and one manager for each group.

It also finds prefix hits that all groups can serve. A full-attention group that can serve a hit can also
serve every shorter one. For a group with a window, a chunk or recurrent states this need not be true.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

from kvref.errors import (
    InvalidConfigError,
    InvalidSpecError,
    PoolExhaustedError,
    SpecKindError,
    UnregisteredSpecError,
)
from kvref.managers import SingleTypeKVCacheManager
from kvref.managers.base import TokenCounts
from kvref.planning import KVCacheConfig, KVCacheGroupSpec, get_manager_for_kv_cache_spec
from kvref.pool import BlockPool
from kvref.request import Request
from kvref.specs import MemoryLimits

__all__ = [
    "HybridKVCacheCoordinator",
    "KVCacheCoordinator",
    "KVCacheCoordinatorNoPrefixCache",
    "UnitaryKVCacheCoordinator",
    "get_kv_cache_coordinator",
]


class KVCacheCoordinator:
    """Runs the managers of all groups together.

    Groups with `is_eagle_group` have draft layers that read one token ahead. In these groups, a hit also
    needs the block after the hit to be cached. As long as nothing is evicted, this makes a hit shorter by at
    most one scheduler block, however many groups there are.

    Args:
        limits: the engine's limits on the size of a request.
        scheduler_block_size: the length of every prefix hit is a multiple of this many tokens.
        hash_block_size: a request has one block hash for each `hash_block_size` tokens.
        use_eagle: if no group has `is_eagle_group`, treat all groups as if they had it.
        block_pool_class: the class of the pool.

    Raises:
        InvalidConfigError: at construction, if block sizes do not fit together, if the layers of a group have
            different managers, or if prefix caching is on and a group's blocks cannot be cached.
        InvalidSpecError: at construction, if the sinks of a group do not fill whole blocks.
        PoolExhaustedError: at construction, if the pool has fewer blocks than the managers reserve.
        SpecKindError: at construction, if a group's spec is registered with a manager of another kind.
        UnregisteredSpecError: at construction, if a group's spec has no manager.
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        limits: MemoryLimits,
        *,
        scheduler_block_size: int,
        hash_block_size: int,
        enable_caching: bool,
        use_eagle: bool,
        enable_kv_cache_events: bool,
        block_pool_class: type[BlockPool] = BlockPool,
    ) -> None:
        groups = kv_cache_config.kv_cache_groups
        _check_block_sizes(kv_cache_config, scheduler_block_size, hash_block_size, enable_caching)
        self.kv_cache_config = kv_cache_config
        self.scheduler_block_size = scheduler_block_size
        self.hash_block_size = hash_block_size
        self.eagle_group_ids = {group_id for group_id, group in enumerate(groups) if group.is_eagle_group}
        if use_eagle and not self.eagle_group_ids:
            self.eagle_group_ids = set(range(len(groups)))
        self.block_pool = block_pool_class(
            kv_cache_config.num_blocks, enable_caching, hash_block_size, enable_kv_cache_events
        )
        self.single_type_managers: tuple[SingleTypeKVCacheManager, ...] = tuple(
            _make_manager(
                group,
                block_pool=self.block_pool,
                enable_caching=enable_caching,
                kv_cache_group_id=group_id,
                scheduler_block_size=scheduler_block_size,
                limits=limits,
                use_eagle=group_id in self.eagle_group_ids,
            )
            for group_id, group in enumerate(groups)
        )
        for manager, group in zip(self.single_type_managers, groups, strict=True):
            if enable_caching and not manager.prefix_cacheable:
                raise InvalidConfigError(
                    f"{type(manager).__name__} of the group of {_names(group)} cannot cache prefixes: switch "
                    "prefix caching off for this model"
                )

    def has_blocks(self, request_id: str) -> bool:
        """Whether the request has block tables. The tables may be empty."""
        managers = self.single_type_managers
        return bool(managers) and request_id in managers[0].req_to_blocks

    def get_blocks(self, request_id: str) -> tuple[list[int], ...]:
        """The request's block table in each group; an empty list if the request has no table."""
        return tuple(list(manager.req_to_blocks.get(request_id, ())) for manager in self.single_type_managers)

    def must_wait(self, new_computed_blocks: Sequence[Sequence[int]]) -> bool:
        """Whether a request with this hit must wait for the next step: see the manager's method."""
        managers = zip(self.single_type_managers, new_computed_blocks, strict=True)
        return any(manager.must_wait(hit) for manager, hit in managers)

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        tokens: TokenCounts,
        new_computed_blocks: Sequence[Sequence[int]],
        total_computed_tokens: int,
        apply_admission_cap: bool = False,
    ) -> int:
        """How many free blocks an allocation takes from the pool, in all groups together.

        For the arguments see `SingleTypeKVCacheManager.get_num_blocks_to_allocate`.
        """
        needed = 0
        for manager, hit in zip(self.single_type_managers, new_computed_blocks, strict=True):
            needed += manager.get_num_blocks_to_allocate(
                request_id, tokens, hit, total_computed_tokens, apply_admission_cap
            )
        return needed

    def allocate(
        self,
        request_id: str,
        tokens: TokenCounts,
        new_computed_blocks: Sequence[Sequence[int]],
        total_computed_tokens: int,
    ) -> tuple[list[int], ...]:
        """Allocate blocks for these tokens. A request without block tables first gets tables from its hit.

        All groups touch their hits before any group allocates a block. Otherwise one group could evict a
        block of another group's hit.

        Returns:
            For each group, the blocks that this call added to the request's block table after the hit.
        """
        if not self.has_blocks(request_id):
            for manager, hit in zip(self.single_type_managers, new_computed_blocks, strict=True):
                manager.add_local_computed_blocks(request_id, hit, total_computed_tokens)
        return tuple(
            [
                manager.allocate_new_blocks(request_id, tokens, total_computed_tokens)
                for manager in self.single_type_managers
            ]
        )

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        for manager in self.single_type_managers:
            manager.cache_blocks(request, num_tokens)

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        for manager in self.single_type_managers:
            manager.remove_skipped_blocks(request_id, num_computed_tokens)

    def take_back_keys(self, request_id: str, num_computed_tokens: int) -> None:
        for manager in self.single_type_managers:
            manager.take_back_keys(request_id, num_computed_tokens)

    def free(self, request_id: str) -> None:
        for manager in self.single_type_managers:
            manager.free(request_id)

    def find_longest_cache_hit(
        self, block_hashes: Sequence[bytes], max_cache_hit_length: int
    ) -> tuple[tuple[list[int], ...], int]:
        """Find the longest prefix hit that all groups can serve.

        Args:
            block_hashes: the block hashes of a request.
            max_cache_hit_length: the hit has at most this many tokens.

        Returns:
            The block table of the hit in each group, and the length of the hit: a multiple of
            `scheduler_block_size`.
        """
        length = self._longest(block_hashes, max_cache_hit_length)
        tables = (manager.get_hit_blocks(block_hashes, length) for manager in self.single_type_managers)
        return tuple(tables), length

    def _longest(self, block_hashes: Sequence[bytes], max_length: int) -> int:
        raise NotImplementedError(f"{type(self).__name__} has no look-up: override _longest")


class KVCacheCoordinatorNoPrefixCache(KVCacheCoordinator):
    """The coordinator without prefix caching: it never finds a hit."""

    def _longest(self, block_hashes: Sequence[bytes], max_length: int) -> int:
        return 0


class UnitaryKVCacheCoordinator(KVCacheCoordinator):
    """The coordinator for one group: the group's manager finds the hit."""

    def _longest(self, block_hashes: Sequence[bytes], max_length: int) -> int:
        return self.single_type_managers[0].find_longest_cache_hit(block_hashes, max_length)


class HybridKVCacheCoordinator(KVCacheCoordinator):
    """The coordinator for several groups, of any kinds and block sizes."""

    def _longest(self, block_hashes: Sequence[bytes], max_length: int) -> int:
        """Find the longest length, up to `max_length`, that all groups can serve.

        The search starts with `max_length`. One group after another looks for its longest hit up to the
        current length, and that becomes the new length. The search ends when all groups agree. A group never
        goes below a length that all groups can serve, so the result is the longest one.

        A group that is `prefix_closed` can also serve every shorter length. Such groups come first and take
        part once.
        """
        length, others = max_length, []
        for manager in self.single_type_managers:
            if manager.prefix_closed:
                length = manager.find_longest_cache_hit(block_hashes, length)
            else:
                others.append(manager)
        agreeing = 0
        for manager in cycle(others):
            found = manager.find_longest_cache_hit(block_hashes, length)
            agreeing = agreeing + 1 if found == length else 1
            length = found
            if agreeing == len(others):
                break
        return length


def get_kv_cache_coordinator(
    kv_cache_config: KVCacheConfig,
    limits: MemoryLimits,
    *,
    scheduler_block_size: int,
    hash_block_size: int,
    enable_caching: bool,
    use_eagle: bool,
    enable_kv_cache_events: bool,
    block_pool_class: type[BlockPool] = BlockPool,
) -> KVCacheCoordinator:
    """Make the coordinator for a configuration. For arguments and errors see `KVCacheCoordinator`."""
    coordinator_class: type[KVCacheCoordinator] = HybridKVCacheCoordinator
    if not enable_caching or not kv_cache_config.kv_cache_groups:
        coordinator_class = KVCacheCoordinatorNoPrefixCache
    elif len(kv_cache_config.kv_cache_groups) == 1:
        coordinator_class = UnitaryKVCacheCoordinator
    return coordinator_class(
        kv_cache_config,
        limits,
        scheduler_block_size=scheduler_block_size,
        hash_block_size=hash_block_size,
        enable_caching=enable_caching,
        use_eagle=use_eagle,
        enable_kv_cache_events=enable_kv_cache_events,
        block_pool_class=block_pool_class,
    )


def _make_manager(group: KVCacheGroupSpec, **engine: Any) -> SingleTypeKVCacheManager:
    try:
        return get_manager_for_kv_cache_spec(group.kv_cache_spec, **engine)
    except (
        InvalidConfigError,
        InvalidSpecError,
        PoolExhaustedError,
        SpecKindError,
        UnregisteredSpecError,
    ) as error:
        raise type(error)(f"the group of {_names(group)}: {error}") from error


def _names(group: KVCacheGroupSpec) -> str:
    return ", ".join(group.layer_names) or "no layers"


def _check_block_sizes(
    kv_cache_config: KVCacheConfig, scheduler_block_size: int, hash_block_size: int, enable_caching: bool
) -> None:
    if scheduler_block_size < 1 or hash_block_size < 1:
        everything = ", ".join(_names(group) for group in kv_cache_config.kv_cache_groups)
        raise InvalidConfigError(
            f"scheduler_block_size {scheduler_block_size} and hash_block_size {hash_block_size} must be at "
            f"least 1 (layers: {everything or 'none'})"
        )
    for group in kv_cache_config.kv_cache_groups:
        block_size = group.kv_cache_spec.block_size
        layers = _names(group)
        if scheduler_block_size % block_size:
            raise InvalidConfigError(
                f"scheduler_block_size {scheduler_block_size} must be a multiple of block_size {block_size} "
                f"of the group of {layers}"
            )
        if enable_caching and block_size % hash_block_size:
            raise InvalidConfigError(
                f"block_size {block_size} of the group of {layers} must be a multiple of hash_block_size "
                f"{hash_block_size} for prefix caching"
            )
