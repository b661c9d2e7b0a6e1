"""kvref's own implementation."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import kvref
from kvref.target import (
    CachePart,
    DriftPart,
    HashingPart,
    Json,
    PlannerPart,
    PluginInfo,
    PoolPart,
    RegistryPart,
    SpecsPart,
)
from kvref_conformance.targets.reference import cache, drift, hashing, planner, pool, registry, specs


class ReferenceTarget:
    """The parts of the reference that exist so far."""

    name = "reference"
    version = kvref.__version__
    capabilities: Mapping[str, Json] = MappingProxyType(
        {
            "quant_scales": True,
            "override": True,
            "contents": hashing.CONTENTS,
            "partial_keys": True,
            "block_numbers": ["touch", "free", "evict"],
            "reuse_order": {"unkeyed": "first", "keyed": "last"},
        }
    )
    specs: SpecsPart = specs
    registry: RegistryPart = registry
    drift: DriftPart = drift
    hashing: HashingPart = hashing
    planner: PlannerPart = planner
    pool: PoolPart = pool
    cache: CachePart = cache

    @property
    def plugin(self) -> PluginInfo | None:
        return None
