"""Operations on the reference's planning. Imports kvref alone, and is copied into stand-alone programs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import kvref.planning
from kvref.planning import BlockSizeWarning, KVCacheGroupSpec
from kvref.registry import KVCacheSpecRegistry
from kvref.specs import KVCacheSpec, MemoryLimits
from kvref.target import Plan, PlannedGroup, SizedPlan, SpecDescriptor, Storage
from kvref_conformance.targets.codec import facts
from kvref_conformance.targets.reference.specs import make


def groups(layers: Mapping[str, SpecDescriptor]) -> Plan:
    specs: dict[str, KVCacheSpec] = {name: make(spec) for name, spec in layers.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BlockSizeWarning)
        planned = kvref.planning.get_kv_cache_groups(specs)
    return {"groups": groups_in_words(planned), "given": {name: facts(spec) for name, spec in specs.items()}}


def config(
    layers: Mapping[str, SpecDescriptor], memory: int, max_model_len: int, max_in_flight_tokens: int
) -> SizedPlan:
    specs: dict[str, KVCacheSpec] = {name: make(spec) for name, spec in layers.items()}
    limits = MemoryLimits(max_model_len, max_in_flight_tokens, max_in_flight_tokens)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BlockSizeWarning)
        [planned] = kvref.planning.get_kv_cache_configs([specs], [memory], limits)
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
    told: list[PlannedGroup] = []
    for group in planned:
        specs = {name: group.spec_of(name) for name in group.layer_names}
        told.append(
            {
                "layers": [
                    {"name": name, "spec": facts(spec), "manager": manager_name(spec)}
                    for name, spec in specs.items()
                ],
                # The first by name tells, as it does where the manager is made.
                "manager": manager_name(min(specs.items())[1]) if specs else None,
            }
        )
    return told


def manager_name(spec: KVCacheSpec) -> str | None:
    manager = KVCacheSpecRegistry.get_manager_class(spec)
    return manager.__name__ if manager else None
