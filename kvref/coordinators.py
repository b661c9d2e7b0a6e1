"""Coordinators: one pool, a manager for each group, and what the groups must agree on.

Above all they must agree on the length of a prefix hit: every group must be able to serve it. In a group with
full attention every shorter length is a hit as well. In a group with a window or with states it need not be.
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

    Args:
        limits: the engine's limits, which bound a request.
        scheduler_block_size: prefix hits are multiples of this many tokens.
        hash_block_size: tokens from one hash of a request to the next.
        use_eagle: whether draft layers read one token ahead. They do so in the groups with `is_eagle_group`,
            or in all groups if none has this mark. In these groups the block after a hit must be cached, too.
            As long as nothing is evicted, this makes a hit shorter by at most one scheduler block, however
            many groups there are.
        block_pool_class: the pool to use.

    Raises:
        InvalidConfigError: at construction, for block sizes that do not fit together, or with prefix caching
            for a group whose blocks cannot be cached.
        UnregisteredSpecError: at construction, for a group whose spec has no manager.
        PoolExhaustedError: at construction, if there are fewer blocks than must be reserved.
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
        """Whether the request has block tables. They may be empty."""
        managers = self.single_type_managers
        return bool(managers) and request_id in managers[0].req_to_blocks

    def get_blocks(self, request_id: str) -> tuple[list[int], ...]:
        """The request's block table in each group."""
        return tuple(list(manager.req_to_blocks.get(request_id, ())) for manager in self.single_type_managers)

    def must_wait(self, new_computed_blocks: Sequence[Sequence[int]]) -> bool:
        """Whether a request with this prefix hit has to wait for the next step."""
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
        """How many free blocks of the pool this allocation uses in all groups; see the manager's method."""
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
        """Adopt a new request's hit, and allocate blocks for these tokens.

        All groups touch their hits before any group allocates a block. Otherwise one group could evict a
        block of another group's hit.

        Returns:
            For each group the blocks that are new at the end of its table, after the hit.
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
        """The longest prefix hit that all groups can serve.

        Args:
            block_hashes: the block hashes of a request.
            max_cache_hit_length: tokens that the hit must not exceed.

        Returns:
            The block table of the hit in each group, and its length: a multiple of `scheduler_block_size`.
        """
        length = self._longest(block_hashes, max_cache_hit_length)
        tables = (manager.get_hit_blocks(block_hashes, length) for manager in self.single_type_managers)
        return tuple(tables), length

    def _longest(self, block_hashes: Sequence[bytes], max_length: int) -> int:
        raise NotImplementedError(f"{type(self).__name__} has no look-up: override _longest")


class KVCacheCoordinatorNoPrefixCache(KVCacheCoordinator):
    """Without prefix caching there are no hits."""

    def _longest(self, block_hashes: Sequence[bytes], max_length: int) -> int:
        return 0


class UnitaryKVCacheCoordinator(KVCacheCoordinator):
    """With one group, its manager finds the hit."""

    def _longest(self, block_hashes: Sequence[bytes], max_length: int) -> int:
        return self.single_type_managers[0].find_longest_cache_hit(block_hashes, max_length)


class HybridKVCacheCoordinator(KVCacheCoordinator):
    """Several groups, of any kinds and block sizes."""

    def _longest(self, block_hashes: Sequence[bytes], max_length: int) -> int:
        """Lower the length to the longest hit of each group in turn, until all of them can serve it.

        No group's answer is below a length that all groups can serve, so the result is the longest. Groups
        that can serve every shorter length come first, and need only one turn.
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
    """The coordinator for a configuration. Arguments and errors are those of `KVCacheCoordinator`."""
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
