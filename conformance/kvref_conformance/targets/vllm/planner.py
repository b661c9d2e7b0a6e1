"""Operations on vLLM's planning. Imports vLLM alone, and is copied into stand-alone programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from vllm.v1.core import kv_cache_utils, single_type_kv_cache_manager
from vllm.v1.kv_cache_interface import KVCacheConfig

from kvref.target import Plan, PlannedGroup, SizedPlan, SpecDescriptor, Storage
from kvref_conformance.targets.codec import facts
from kvref_conformance.targets.vllm.specs import make


def groups(layers: Mapping[str, SpecDescriptor]) -> Plan:
    specs = {name: make(spec) for name, spec in layers.items()}
    planned = kv_cache_utils.get_kv_cache_groups(engine_config(specs, 128, 128), specs)
    return {"groups": groups_in_words(planned), "given": {name: facts(spec) for name, spec in specs.items()}}


def config(
    layers: Mapping[str, SpecDescriptor], memory: int, max_model_len: int, max_in_flight_tokens: int
) -> SizedPlan:
    specs = {name: make(spec) for name, spec in layers.items()}
    engine = engine_config(specs, max_model_len, max_in_flight_tokens)
    [planned] = kv_cache_utils.get_kv_cache_configs(engine, [specs], [memory])
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
    """Tensors that list `layers`, or have a stride, are places in one; `shared_by` ones are apart."""
    return all(hasattr(tensor, "layers") or getattr(tensor, "block_stride", 0) for tensor in tensors)


def specs_of(group: Any) -> dict[str, Any]:
    """The spec of each layer of a group, whether they have one in common or a composite."""
    composite = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    return {name: composite[name] if composite else group.kv_cache_spec for name in group.layer_names}


def groups_in_words(planned: Sequence[Any]) -> list[PlannedGroup]:
    # As the scheduler is told about them: with one spec for each group.
    scheduled = kv_cache_utils.generate_scheduler_kv_cache_config([KVCacheConfig(1, [], list(planned))])
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
    """From the registry; a version without one has a table of its own classes."""
    table = getattr(single_type_kv_cache_manager, "spec_manager_map", None)
    if table is not None:
        return table.get(type(spec))
    registry: Any = import_module("vllm.v1.kv_cache_spec_registry")
    return registry.KVCacheSpecRegistry.get_manager_class(spec)


def engine_config(specs: Mapping[str, Any], max_model_len: int, max_in_flight_tokens: int) -> Any:
    """All that any version reads, as an engine of one GPU would have it."""
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
    """One in which each layer has memory of its own, so that pages of different groups have one size."""
    return next(iter(import_module("vllm.v1.kv_cache_layout").KVCacheLayout))
