"""The part `planner` of vLLM: groups of layers and the sizes of their caches.

Stand-alone programs copy functions from this module, so that they need only vLLM.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from vllm.v1.core import kv_cache_utils, single_type_kv_cache_manager
from vllm.v1.kv_cache_interface import KVCacheConfig

from kvref.target import (
    BlockSizes,
    Capacity,
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
from kvref_conformance.targets.vllm.cache import make_manager, takes_setting
from kvref_conformance.targets.vllm.specs import make

BLOCKS = 2048
"""The number of blocks for a cache manager that serves no request: kvref only tries its constructor."""


def groups(layers: Mapping[str, SpecDescriptor]) -> Plan:
    specs = make_all(layers)
    planned = kv_cache_utils.get_kv_cache_groups(engine_config(specs, 128, 128), specs)
    return {"groups": groups_in_words(planned), "given": {name: facts(spec) for name, spec in specs.items()}}


def one_group(layers: Mapping[str, SpecDescriptor]) -> Plan:
    specs = make_all(layers)
    engine = engine_config(specs, 128, 128)
    engine.scheduler_config.disable_hybrid_kv_cache_manager = True
    # A copy, because vLLM replaces windows by full attention in the mapping.
    planned = kv_cache_utils.get_kv_cache_groups(engine, dict(specs))
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
    engine = engine_config(
        {name: spec for each in specs for name, spec in each.items()}, max_model_len, max_in_flight_tokens
    )
    plans = kv_cache_utils.get_kv_cache_configs(engine, specs, [worker["memory"] for worker in workers])
    return [sized(plan, given) for plan, given in zip(plans, specs, strict=True)]


def block_sizes(layers: Mapping[str, SpecDescriptor], enable_caching: bool) -> BlockSizes:
    specs = make_all(layers)
    engine = engine_config(specs, 1024, 1024)
    engine.cache_config.enable_prefix_caching = enable_caching
    with log_lines() as said:
        planned = kv_cache_utils.get_kv_cache_groups(engine, specs)
        scheduled = for_scheduler(KVCacheConfig(BLOCKS, [], planned))
        engine.cache_config.block_size = engine_block_size(scheduled)
        scheduler, hashed = kv_cache_utils.resolve_kv_cache_block_sizes(scheduled, engine)
    return {
        "groups": groups_in_words(planned),
        "scheduler_block_size": scheduler,
        "hash_block_size": hashed,
        "said": said,
    }


def construct(
    layers: Mapping[str, SpecDescriptor],
    enable_caching: bool,
    scheduler_block_size: int,
    hash_block_size: int,
) -> Constructed:
    specs = make_all(layers)
    planned = kv_cache_utils.get_kv_cache_groups(engine_config(specs, 1024, 1024), specs)
    manager = make_manager(
        for_scheduler(KVCacheConfig(BLOCKS, [], planned)),
        max_model_len=1024,
        scheduler_block_size=scheduler_block_size,
        hash_block_size=hash_block_size,
        max_in_flight_tokens=1024,
        enable_caching=enable_caching,
    )
    objects = {"the coordinator": manager.coordinator, "the pool": manager.block_pool}
    for place, one in enumerate(manager.coordinator.single_type_managers):
        objects[f"the manager of group {place}"] = one
    return {
        "scheduler_block_size": (
            shown(objects, "scheduler_block_size") if takes_setting("scheduler_block_size") else None
        ),
        "hash_block_size": shown(objects, "hash_block_size"),
    }


def shown(objects: Mapping[str, Any], name: str) -> dict[str, int]:
    """The value of an attribute in each object that has this attribute."""
    return {which: getattr(one, name) for which, one in objects.items() if hasattr(one, name)}


def capacity(
    layers: Mapping[str, SpecDescriptor],
    memory: int,
    max_model_len: int,
    max_in_flight_tokens: int,
    backwards: bool,
) -> CapacityReport:
    specs = make_all(layers)
    engine = engine_config(specs, max_model_len, max_in_flight_tokens)
    [plan] = kv_cache_utils.get_kv_cache_configs(engine, [specs], [memory])
    if backwards:
        plan = replace(plan, kv_cache_groups=plan.kv_cache_groups[::-1])
    counted = [group.kv_cache_spec for group in plan.kv_cache_groups]
    return {
        "num_blocks": plan.num_blocks,
        "blocks_per_request": [
            -(-spec.max_memory_usage_bytes(engine) // spec.page_size_bytes) for spec in counted
        ],
        "told": capacities(engine, plan),
    }


def capacities(engine: Any, plan: Any) -> dict[str, Capacity]:
    """The capacity that the worker and the scheduler report. In older releases, only the worker does so."""
    if not hasattr(kv_cache_utils, "get_kv_cache_capacity"):
        return {
            "worker": {
                "max_concurrency": kv_cache_utils.get_max_concurrency_for_kv_cache_config(engine, plan)
            }
        }
    reports: dict[str, Capacity] = {}
    for view, seen in (("worker", plan), ("scheduler", for_scheduler(plan))):
        tokens, concurrency = kv_cache_utils.get_kv_cache_capacity(engine, seen)
        reports[view] = {"max_concurrency": concurrency, "num_tokens": tokens}
    return reports


def make_all(layers: Mapping[str, SpecDescriptor]) -> dict[str, Any]:
    return {name: make(spec) for name, spec in layers.items()}


def for_scheduler(planned: Any) -> Any:
    """The plan as the scheduler gets it: with one spec for each group."""
    return kv_cache_utils.generate_scheduler_kv_cache_config([planned])


def engine_block_size(scheduled: Any) -> int:
    """The block size that an engine writes into its configuration after planning."""
    specs = [group.kv_cache_spec for group in scheduled.kv_cache_groups]
    cached = [spec for spec in specs if getattr(spec, "prefix_cacheable", True)]
    sizes: list[int] = [spec.block_size for spec in cached or specs]
    return min(sizes)


class Lines(logging.Handler):
    """A log handler that collects the messages."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def log_lines() -> Iterator[list[str]]:
    """Collect what vLLM logs inside the `with` statement, at level INFO, which vLLM shows by default."""
    logger = logging.getLogger("vllm")
    handler, level = Lines(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler.lines
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def sized(planned: Any, specs: Mapping[str, Any]) -> SizedPlan:
    pages = {
        name: spec.page_size_bytes
        for group in planned.kv_cache_groups
        for name, spec in specs_of(group).items()
    }
    tensors = planned.kv_cache_tensors
    together = in_one_allocation(tensors)
    storage: dict[str, Storage] = {}
    for number, tensor in enumerate(tensors):
        for place, name in enumerate(getattr(tensor, "layers", None) or tensor.shared_by):
            storage[name] = {
                "tensor": 0 if together else number,
                "offset": getattr(tensor, "offset", 0) + place * getattr(tensor, "layer_stride", 0),
                "block_stride": getattr(tensor, "block_stride", 0) or pages[name],
            }
    sizes = [tensor.size for tensor in tensors]
    return {
        "groups": groups_in_words(planned.kv_cache_groups),
        "given": {name: facts(spec) for name, spec in specs.items()},
        "num_blocks": planned.num_blocks,
        "tensors": [max(sizes)] if together else sizes,
        "storage": storage,
    }


def in_one_allocation(tensors: Sequence[Any]) -> bool:
    """Whether all tensors of a plan share one allocation: each then lists `layers` or has a block stride."""
    return bool(tensors) and all(
        hasattr(tensor, "layers") or getattr(tensor, "block_stride", 0) for tensor in tensors
    )


def specs_of(group: Any) -> dict[str, Any]:
    """The spec of each layer in a group. A group has one spec for all layers, or a composite of several."""
    composite = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    return {name: composite[name] if composite else group.kv_cache_spec for name in group.layer_names}


def groups_in_words(planned: Sequence[Any]) -> list[PlannedGroup]:
    scheduled = for_scheduler(KVCacheConfig(1, [], list(planned)))
    return [
        {
            "layers": [
                {"name": name, "spec": facts(spec), "manager": manager_name(spec)}
                for name, spec in specs_of(group).items()
            ],
            "manager": manager_name(of_scheduler.kv_cache_spec),
        }
        for group, of_scheduler in zip(planned, scheduled.kv_cache_groups, strict=True)
    ]


def manager_name(spec: Any) -> str | None:
    manager = manager_class(spec)
    return manager.__name__ if manager else None


def manager_class(spec: Any) -> Any:
    """The manager class of a spec, from vLLM's registry or, in releases without a registry, from a table."""
    table = getattr(single_type_kv_cache_manager, "spec_manager_map", None)
    if table is not None:
        return table.get(type(spec))
    registry: Any = import_module("vllm.v1.kv_cache_spec_registry")
    return registry.KVCacheSpecRegistry.get_manager_class(spec)


def engine_config(specs: Mapping[str, Any], max_model_len: int, max_in_flight_tokens: int) -> Any:
    """Make the configuration of an engine with one GPU. It has all settings that any release reads."""
    modes = [spec.mamba_cache_mode for spec in specs.values() if hasattr(spec, "mamba_cache_mode")]
    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=max_model_len, original_max_model_len=max_model_len),
        max_in_flight_tokens=max_in_flight_tokens,
        num_prefill_lookahead_tokens=0,
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=False,
            max_num_batched_tokens=max_in_flight_tokens,
            max_num_encoder_input_tokens=max_in_flight_tokens,
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1, tensor_parallel_size=1
        ),
        cache_config=SimpleNamespace(
            block_size=min(spec.block_size for spec in specs.values()),
            enable_prefix_caching=True,
            get_resolved_kv_cache_layout=first_layout,
            hash_block_size=None,
            mamba_cache_mode=modes[0] if modes else "none",
            num_gpu_blocks_override=None,
            prefix_cache_retention_interval=None,
            prefix_match_unit=None,
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
        kv_transfer_config=None,
        speculative_config=None,
    )


def first_layout() -> Any:
    """vLLM's first layout. There, each layer has memory of its own, so all groups need pages of one size."""
    return next(iter(import_module("vllm.v1.kv_cache_layout").KVCacheLayout))
