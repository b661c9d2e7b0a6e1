"""The targets `reference`, `reference:plain` and `reference:fast`, which are kvref's own implementation."""

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
from kvref_conformance.targets.reference.fast import (
    cache as fast_cache,
    canonical as fast_canonical,
    connector as fast_connector,
    pool as fast_pool,
)


class ReferenceTarget:
    """The target `reference`: checks use the plain half, benchmarks the fast one."""

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
            "variants": {"pool": ["plain", "fast"], "cache": ["plain", "fast"]},
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
    bench: BenchPart = bench.FAST

    @property
    def plugin(self) -> PluginInfo | None:
        return None


class PlainTarget(ReferenceTarget):
    """The target `reference:plain`: checks and benchmarks use the plain half."""

    name = "reference:plain"
    bench: BenchPart = bench.PLAIN


class FastTarget(ReferenceTarget):
    """The target `reference:fast`: checks and benchmarks use the fast half, where it has code of its own."""

    name = "reference:fast"
    pool: PoolPart = fast_pool
    cache: CachePart = fast_cache
    canonical: CanonicalPart = fast_canonical
    connector: ConnectorPart = fast_connector
