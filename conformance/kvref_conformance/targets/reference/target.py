"""kvref's own implementation."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import kvref
from kvref.target import Json, RegistryPart, SpecsPart
from kvref_conformance.targets.reference import registry, specs


class ReferenceTarget:
    """The parts of the reference that exist so far."""

    name = "reference"
    version = kvref.__version__
    capabilities: Mapping[str, Json] = MappingProxyType({})
    specs: SpecsPart = specs
    registry: RegistryPart = registry
