"""Faults in planning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from kvref import coordinators, planning
from kvref.errors import InvalidConfigError
from kvref.planning import KVCacheConfig, KVCacheGroupSpec, KVCacheReport
from kvref.registry import KVCacheSpecRegistry
from kvref.specs import FullAttentionSpec, KVCacheSpec, MemoryLimits
from kvref.uniform import get_uniform_type_specs
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_groups = planning.get_kv_cache_groups
_configs = planning.get_kv_cache_configs
_report = planning.get_kv_cache_report
_with_page = planning._with_page
_check_block_sizes = coordinators._check_block_sizes

Specs = dict[str, KVCacheSpec]


def incomplete_groups_left_out() -> ReferenceTarget:
    """The planner leaves out each group that has fewer layers than the largest group."""

    def get_kv_cache_groups(specs: Specs, *options: Any) -> list[KVCacheGroupSpec]:
        groups = _groups(specs, *options)
        size = max(len(group.layer_names) for group in groups)
        return [group for group in groups if len(group.layer_names) == size]

    break_it(planning, "get_kv_cache_groups", get_kv_cache_groups)
    return ReferenceTarget()


def one_type_if_the_first_is_the_largest() -> ReferenceTarget:
    """The planner takes layers as one uniform type only if the first layer has the largest page."""

    def uniform_type_specs(specs: Specs) -> Any:
        pages = [spec.page_size_bytes for spec in specs.values()]
        return get_uniform_type_specs(specs) if pages[0] == max(pages) else None

    break_it(planning, "get_uniform_type_specs", uniform_type_specs)
    return ReferenceTarget()


def one_group_whatever_the_managers() -> ReferenceTarget:
    """Layers of one uniform type form one group, even if their managers differ."""

    def get_kv_cache_groups(specs: Specs, *options: Any) -> list[KVCacheGroupSpec]:
        composite = get_uniform_type_specs(specs)
        return _groups(specs, *options) if composite is None else [KVCacheGroupSpec(tuple(specs), composite)]

    break_it(planning, "get_kv_cache_groups", get_kv_cache_groups)
    return ReferenceTarget()


def pages_that_do_not_divide_left_alone() -> ReferenceTarget:
    """A full attention page that does not divide the largest page keeps its size."""

    def with_page(spec: KVCacheSpec, page: int) -> KVCacheSpec:
        alone = type(spec) is FullAttentionSpec and page % spec.page_size_bytes
        return spec if alone else _with_page(spec, page)

    break_it(planning, "_with_page", with_page)
    return ReferenceTarget()


def windows_not_as_full_attention() -> ReferenceTarget:
    """If the plan must have a single group, windowed and chunked layers do not become full attention."""
    break_it(planning, "_as_full_attention", lambda spec: spec)
    return ReferenceTarget()


def given_specs_replaced() -> ReferenceTarget:
    """The planner overwrites the caller's specs with the specs of its plan."""

    def get_kv_cache_groups(specs: Specs, *options: Any) -> list[KVCacheGroupSpec]:
        groups = _groups(specs, *options)
        for group in groups:
            specs.update({name: group.spec_of(name) for name in group.layer_names})
        return groups

    break_it(planning, "get_kv_cache_groups", get_kv_cache_groups)
    return ReferenceTarget()


def null_block_on_top() -> ReferenceTarget:
    """The plan has one block more than fits into the available memory: the null block comes on top."""

    def get_kv_cache_configs(specs: Sequence[Specs], *limits: Any) -> list[KVCacheConfig]:
        return [
            replace(
                config,
                num_blocks=config.num_blocks + 1,
                kv_cache_tensors=[
                    replace(tensor, size=tensor.size // config.num_blocks * (config.num_blocks + 1))
                    for tensor in config.kv_cache_tensors
                ],
            )
            for config in _configs(specs, *limits)
        ]

    break_it(planning, "get_kv_cache_configs", get_kv_cache_configs)
    return ReferenceTarget()


def registration_not_checked() -> ReferenceTarget:
    """The planner accepts layers whose specs are not registered."""

    def get_kv_cache_groups(specs: Specs, *options: Any) -> list[KVCacheGroupSpec]:
        with mock.patch.object(KVCacheSpecRegistry, "check_kv_cache_spec_registry"):
            return _groups(specs, *options)

    break_it(planning, "get_kv_cache_groups", get_kv_cache_groups)
    return ReferenceTarget()


def null_block_for_each_group() -> ReferenceTarget:
    """The planner wants one null block for each group, and refuses memory that is too small for them."""

    def get_kv_cache_configs(
        specs: Sequence[Specs], memory: Sequence[int], limits: MemoryLimits
    ) -> list[KVCacheConfig]:
        configs = _configs(specs, memory, limits)
        groups = [group.kv_cache_spec for group in configs[0].kv_cache_groups]
        needed = sum(1 + planning._num_blocks_of_request(spec, limits) for spec in groups)
        if configs[0].num_blocks < needed:
            raise InvalidConfigError(f"{configs[0].num_blocks} blocks, but {needed} are needed")
        return configs

    break_it(planning, "get_kv_cache_configs", get_kv_cache_configs)
    return ReferenceTarget()


def coarser_hits_unmentioned() -> ReferenceTarget:
    """The planner does not warn that larger blocks make prefix hits coarser."""
    break_it(planning, "warnings", mock.Mock())
    return ReferenceTarget()


def block_size_of_the_first_group_checked() -> ReferenceTarget:
    """The coordinator checks the scheduler block size against the first group only."""

    def check_block_sizes(config: KVCacheConfig, *sizes: Any) -> None:
        _check_block_sizes(replace(config, kv_cache_groups=config.kv_cache_groups[:1]), *sizes)

    break_it(coordinators, "_check_block_sizes", check_block_sizes)
    return ReferenceTarget()


def blocks_of_the_first_worker() -> ReferenceTarget:
    """Every worker gets as many blocks as the first worker's memory allows."""

    def get_kv_cache_configs(
        specs: Sequence[Specs], memory: Sequence[int], limits: Any
    ) -> list[KVCacheConfig]:
        return _configs(specs, [memory[0], *[1 << 40] * (len(memory) - 1)], limits)

    break_it(planning, "get_kv_cache_configs", get_kv_cache_configs)
    return ReferenceTarget()


def concurrency_by_the_first_group() -> ReferenceTarget:
    """The capacity report assumes that a request needs as many blocks in every group as in the first one."""

    def get_kv_cache_report(config: KVCacheConfig, limits: MemoryLimits) -> KVCacheReport:
        first = replace(config, kv_cache_tensors=[], kv_cache_groups=config.kv_cache_groups[:1])
        report = _report(first, limits)
        count = len(config.kv_cache_groups)
        return replace(
            report,
            max_concurrency=report.max_concurrency / count,
            num_tokens=report.num_tokens // count,
        )

    break_it(planning, "get_kv_cache_report", get_kv_cache_report)
    return ReferenceTarget()
