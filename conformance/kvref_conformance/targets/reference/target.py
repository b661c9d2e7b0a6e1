"""The target `reference`: kvref's own implementation."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import kvref
from kvref.target import (
    BenchPart,
    CachePart,
    CanonicalPart,
    ConnectorPart,
    DriftPart,
    HashingPart,
    Json,
    PlannerPart,
    PluginInfo,
    PoolPart,
    RegistryPart,
    SharingPart,
    SpecsPart,
    TensorsPart,
)
from kvref_conformance.targets.reference import (
    bench,
    cache,
    canonical,
    connector,
    drift,
    hashing,
    planner,
    pool,
    registry,
    sharing,
    specs,
    tensors,
)


class ReferenceTarget:
    """The reference as a target, with all parts."""

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
            "layouts": [
                "LBNHC",
                "LBHNC",
                "LHBNC",
                "BLNHC",
                "BLHNC",
                "BHLNC",
                "LKBNHC",
                "LBKNHC",
                "LBKHNC",
                "BLKNHC",
            ],
            "buffers": ["each", "one"],
            "kernel_blocks": True,
            "holds_stored_blocks": True,
            "zeroed": True,
        }
    )
    specs: SpecsPart = specs
    registry: RegistryPart = registry
    drift: DriftPart = drift
    hashing: HashingPart = hashing
    planner: PlannerPart = planner
    pool: PoolPart = pool
    cache: CachePart = cache
    sharing: SharingPart = sharing
    tensors: TensorsPart = tensors
    canonical: CanonicalPart = canonical
    connector: ConnectorPart = connector
    bench: BenchPart = bench

    @property
    def plugin(self) -> PluginInfo | None:
        return None
