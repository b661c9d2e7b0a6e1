"""kvref's own implementation."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import kvref
from kvref.target import DriftPart, HashingPart, Json, PlannerPart, PluginInfo, RegistryPart, SpecsPart
from kvref_conformance.targets.reference import drift, hashing, planner, registry, specs


class ReferenceTarget:
    """The parts of the reference that exist so far."""

    name = "reference"
    version = kvref.__version__
    capabilities: Mapping[str, Json] = MappingProxyType(
        {"quant_scales": True, "override": True, "contents": hashing.CONTENTS}
    )
    specs: SpecsPart = specs
    registry: RegistryPart = registry
    drift: DriftPart = drift
    hashing: HashingPart = hashing
    planner: PlannerPart = planner

    @property
    def plugin(self) -> PluginInfo | None:
        return None
