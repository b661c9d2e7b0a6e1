"""Faults in memory and transfers that were reported for other implementations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

from kvref import offloading, planning
from kvref.canonical import CanonicalKVCacheRef as Ref, CanonicalKVCaches
from kvref.planning import KVCacheConfig
from kvref.pool import BlockPool
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.faults.shadow import bound_to_another_owner
from kvref_conformance.targets.reference import canonical as operations
from kvref_conformance.targets.reference.target import ReferenceTarget

_unpin = BlockPool.unpin
_configs = planning.get_kv_cache_configs


def kept_if_the_request_left_first() -> ReferenceTarget:
    """If a request is freed before its transfer ends, its blocks stay referenced (LMCache issue 1130)."""

    def unpin(pool: BlockPool, blocks: Iterable[int]) -> None:
        _unpin(pool, [block for block in blocks if pool.get_ref_cnt(block) > pool.get_num_pins(block)])

    break_it(BlockPool, "unpin", unpin)
    return ReferenceTarget()


def given_up_twice_when_done() -> ReferenceTarget:
    """If other transfers hold the same blocks, a finished transfer frees them twice (LMCache issue 5090)."""

    def unpin(pool: BlockPool, blocks: Iterable[int]) -> None:
        blocks = [block for block in blocks if pool.get_num_pins(block)]
        _unpin(pool, blocks)
        _unpin(pool, [block for block in blocks if pool.get_num_pins(block)])

    break_it(BlockPool, "unpin", unpin)
    return ReferenceTarget()


def first_kernel_block_moved() -> ReferenceTarget:
    """A transfer moves only the first kernel block of each block (vLLM PR 30692)."""
    return _so_much_moved(offloading, lambda ref, refs: ref.page_size_bytes // 2)


def pages_of_the_first_layer_moved() -> ReferenceTarget:
    """A copy uses the first layer's page size for every layer (vLLM PR 38554)."""
    return _so_much_moved(operations, lambda ref, refs: refs[0].page_size_bytes)


def _so_much_moved(user: ModuleType, size: Callable[[Ref, Sequence[Ref]], int]) -> ReferenceTarget:
    """Make `copy_blocks` in the module `user` copy only `size(ref, refs)` bytes of each page.

    `ref` stands for the page in the canonical view, and `refs` for all pages of that group.
    """

    def copy_blocks(
        source: CanonicalKVCaches,
        destination: CanonicalKVCaches,
        group: int,
        pairs: Sequence[tuple[int, int]],
    ) -> None:
        refs = source.group_data_refs[group]
        for ref in refs:
            theirs, ours = source.tensors[ref.tensor_idx].tensor, destination.tensors[ref.tensor_idx].tensor
            for from_block, to_block in pairs:
                ours[to_block, : size(ref, refs)] = theirs[from_block, : size(ref, refs)]

    break_it(user, "copy_blocks", copy_blocks)
    return ReferenceTarget()


def chain_ends_at_the_first_layer() -> ReferenceTarget:
    """If a layer's target itself shares a cache, the layer may get a wrong layer's cache (vLLM PR 43185)."""
    return bound_to_another_owner(lambda sharer, targets: targets[sharer] in targets)


def each_stage_plans_alone() -> ReferenceTarget:
    """Each pipeline stage plans its pages from its own layers only (vLLM issue 51752)."""

    def get_kv_cache_configs(specs: Sequence[Any], *limits: Any) -> list[KVCacheConfig]:
        number = min(config.num_blocks for config in _configs(specs, *limits))
        plans = [planning.get_kv_cache_groups(own) for own in specs]
        return [planning.get_kv_cache_config_from_groups(plan, number) for plan in plans]

    break_it(planning, "get_kv_cache_configs", get_kv_cache_configs)
    return ReferenceTarget()
