"""The part `planner` of the reference: groups of layers and the sizes of their caches.

Stand-alone programs copy functions from this module, so that they need only kvref.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import kvref.planning
from kvref.cache import KVCacheManager
from kvref.planning import BlockSizeWarning, KVCacheConfig, KVCacheGroupSpec
from kvref.registry import KVCacheSpecRegistry
from kvref.specs import KVCacheSpec, MemoryLimits
from kvref.target import (
    BlockSizes,
    CapacityReport,
    Constructed,
    Plan,
    PlannedGroup,
    SizedPlan,
    SpecDescriptor,
    Storage,
    WorkerLayers,
)
from kvref_conformance.targets.codec import facts
from kvref_conformance.targets.reference.specs import make

BLOCKS = 2048
"""The number of blocks for a cache manager that serves no request: kvref only tries its constructor."""


def groups(layers: Mapping[str, SpecDescriptor]) -> Plan:
    return grouped(layers, disable_hybrid_kv_cache_manager=False)


def one_group(layers: Mapping[str, SpecDescriptor]) -> Plan:
    return grouped(layers, disable_hybrid_kv_cache_manager=True)


def grouped(layers: Mapping[str, SpecDescriptor], disable_hybrid_kv_cache_manager: bool) -> Plan:
    specs = make_all(layers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BlockSizeWarning)
        planned = kvref.planning.get_kv_cache_groups(specs, disable_hybrid_kv_cache_manager)
    return {"groups": groups_in_words(planned), "given": {name: facts(spec) for name, spec in specs.items()}}


def config(
    layers: Mapping[str, SpecDescriptor], memory: int, max_model_len: int, max_in_flight_tokens: int
) -> SizedPlan:
    [plan] = workers([{"layers": dict(layers), "memory": memory}], max_model_len, max_in_flight_tokens)
    return plan


def workers(
    workers: Sequence[WorkerLayers], max_model_len: int, max_in_flight_tokens: int
) -> list[SizedPlan]:
    specs = [make_all(worker["layers"]) for worker in workers]
    budgets = [worker["memory"] for worker in workers]
    plans = configs(specs, budgets, MemoryLimits(max_model_len, max_in_flight_tokens, max_in_flight_tokens))
    return [sized(plan, given) for plan, given in zip(plans, specs, strict=True)]


def block_sizes(layers: Mapping[str, SpecDescriptor], enable_caching: bool) -> BlockSizes:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        planned = kvref.planning.get_kv_cache_groups(make_all(layers))
        scheduler, hashed = kvref.planning.resolve_kv_cache_block_sizes(planned, enable_caching)
    return {
        "groups": groups_in_words(planned),
        "scheduler_block_size": scheduler,
        "hash_block_size": hashed,
        "said": [str(warning.message) for warning in said],
    }


def construct(
    layers: Mapping[str, SpecDescriptor],
    enable_caching: bool,
    scheduler_block_size: int,
    hash_block_size: int,
) -> Constructed:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BlockSizeWarning)
        planned = kvref.planning.get_kv_cache_groups(make_all(layers))
    manager = KVCacheManager(
        KVCacheConfig(BLOCKS, [], planned),
        max_model_len=1024,
        scheduler_block_size=scheduler_block_size,
        hash_block_size=hash_block_size,
        enable_caching=enable_caching,
    )
    coordinator = manager.coordinator
    managers = enumerate(coordinator.single_type_managers)
    return {
        "scheduler_block_size": {
            "the coordinator": coordinator.scheduler_block_size,
            **{f"the manager of group {place}": one.scheduler_block_size for place, one in managers},
        },
        "hash_block_size": {
            "the coordinator": coordinator.hash_block_size,
            "the pool": manager.block_pool.hash_block_size,
        },
    }


def capacity(
    layers: Mapping[str, SpecDescriptor],
    memory: int,
    max_model_len: int,
    max_in_flight_tokens: int,
    backwards: bool,
) -> CapacityReport:
    limits = MemoryLimits(max_model_len, max_in_flight_tokens, max_in_flight_tokens)
    [plan] = configs([make_all(layers)], [memory], limits)
    if backwards:
        plan = replace(plan, kv_cache_groups=plan.kv_cache_groups[::-1])
    report = kvref.planning.get_kv_cache_report(plan, limits)
    specs = [group.kv_cache_spec for group in plan.kv_cache_groups]
    return {
        "num_blocks": plan.num_blocks,
        "blocks_per_request": [
            -(-spec.max_memory_usage_bytes(limits) // spec.page_size_bytes) for spec in specs
        ],
        "told": {"worker": {"max_concurrency": report.max_concurrency, "num_tokens": report.num_tokens}},
    }


def make_all(layers: Mapping[str, SpecDescriptor]) -> dict[str, KVCacheSpec]:
    return {name: make(spec) for name, spec in layers.items()}


def configs(
    specs: Sequence[Mapping[str, KVCacheSpec]], budgets: Sequence[int], limits: MemoryLimits
) -> list[KVCacheConfig]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BlockSizeWarning)
        return kvref.planning.get_kv_cache_configs(specs, budgets, limits)


def sized(planned: KVCacheConfig, specs: Mapping[str, KVCacheSpec]) -> SizedPlan:
    pages = {
        name: group.spec_of(name).page_size_bytes
        for group in planned.kv_cache_groups
        for name in group.layer_names
    }
    storage: dict[str, Storage] = {
        name: {"tensor": place, "offset": 0, "block_stride": pages[name]}
        for place, tensor in enumerate(planned.kv_cache_tensors)
        for name in tensor.shared_by
    }
    return {
        "groups": groups_in_words(planned.kv_cache_groups),
        "given": {name: facts(spec) for name, spec in specs.items()},
        "num_blocks": planned.num_blocks,
        "tensors": [tensor.size for tensor in planned.kv_cache_tensors],
        "storage": storage,
    }


def groups_in_words(planned: Sequence[KVCacheGroupSpec]) -> list[PlannedGroup]:
    described: list[PlannedGroup] = []
    for group in planned:
        specs = {name: group.spec_of(name) for name in group.layer_names}
        described.append(
            {
                "layers": [
                    {"name": name, "spec": facts(spec), "manager": manager_name(spec)}
                    for name, spec in specs.items()
                ],
                # The first layer by name decides, as it does when the cache manager makes the manager.
                "manager": manager_name(min(specs.items())[1] if specs else group.kv_cache_spec),
            }
        )
    return described


def manager_name(spec: KVCacheSpec) -> str | None:
    manager = KVCacheSpecRegistry.get_manager_class(spec)
    return manager.__name__ if manager else None
