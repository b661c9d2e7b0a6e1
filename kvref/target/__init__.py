"""The protocol of a target: what kvref calls in an implementation under test.

A `Target` has a name, a version, capabilities and *parts*. Each part covers one area of the implementation,
such as the block pool. It can be any object that has the functions of the part's protocol, for example a
module. The functions take and return plain data: numbers, strings, lists, dictionaries. They never take or
return objects of the implementation, except in the part `bench`. So programs are short, traces are readable,
and kvref can check every implementation in the same way.

An operation has a name, `"<part>.<function>"`, and keyword arguments. `perform` runs an operation. If your
target lacks a part, set the attribute to `None` or leave it out. The laws that need the part then do not
apply.

Some values are converted to plain data:

* `torch.dtype`: `"torch.float16"`
* an enum member: `{"enum": "KVQuantMode", "name": "NONE"}`
* a fraction: `{"fraction": [1, 4]}`
* a tuple: a list
* a spec inside a spec: its descriptor
* anything else: `{"opaque": repr}`. Laws can compare this form, but no target can build a value from it.

To write a target, see docs/check-your-own.md. For the details of each part, see docs/targets.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypedDict

from kvref.target.bench import BenchCall, BenchPart, CacheCalls, PoolCalls
from kvref.target.cache import (
    Allocation,
    CacheEvent,
    CacheGroup,
    CachePart,
    CacheShape,
    CacheState,
    Copy,
    Hit,
)
from kvref.target.canonical import Canonical, CanonicalPart, CanonicalRef, CanonicalTensor
from kvref.target.connector import ConnectorPart
from kvref.target.drift import Call, DriftPart, Override, Parameter, PluginInfo, Replaced
from kvref.target.hashing import Content, ContentItem, HashingPart
from kvref.target.planner import (
    BlockSizes,
    Capacity,
    CapacityReport,
    Constructed,
    Plan,
    PlannedGroup,
    PlannedLayer,
    PlannerPart,
    SizedPlan,
    Storage,
    WorkerLayers,
)
from kvref.target.pool import PoolPart, PoolShape, PoolState
from kvref.target.registry import Races, Registration, RegistryEntry, RegistryPart, Step
from kvref.target.sharing import Joined, Pair, SharingPart
from kvref.target.specs import (
    FieldInfo,
    SpecClassInfo,
    SpecDescriptor,
    SpecFacts,
    SpecsPart,
    Twins,
    Unpickled,
)
from kvref.target.tensors import Caches, LayerTensors, TensorsPart, View
from kvref.target.values import Json

__all__ = [
    "AdapterError",
    "Allocation",
    "BenchCall",
    "BenchPart",
    "BlockSizes",
    "CacheCalls",
    "CacheEvent",
    "CacheGroup",
    "CachePart",
    "CacheShape",
    "CacheState",
    "Caches",
    "Call",
    "Canonical",
    "CanonicalPart",
    "CanonicalRef",
    "CanonicalTensor",
    "Capacity",
    "CapacityReport",
    "ConnectorPart",
    "Constructed",
    "Content",
    "ContentItem",
    "Copy",
    "DriftPart",
    "FieldInfo",
    "HashingPart",
    "Hit",
    "Joined",
    "Json",
    "LayerTensors",
    "Outcome",
    "Override",
    "Pair",
    "Parameter",
    "Plan",
    "PlannedGroup",
    "PlannedLayer",
    "PlannerPart",
    "PluginInfo",
    "PoolCalls",
    "PoolPart",
    "PoolShape",
    "PoolState",
    "Races",
    "Registration",
    "RegistryEntry",
    "RegistryPart",
    "Replaced",
    "SharingPart",
    "SizedPlan",
    "SpecClassInfo",
    "SpecDescriptor",
    "SpecFacts",
    "SpecsPart",
    "Step",
    "Storage",
    "Target",
    "TensorsPart",
    "Twins",
    "Unpickled",
    "View",
    "WorkerLayers",
    "perform",
]


class Outcome(TypedDict, total=False):
    """How an operation ended. Exactly one of `value`, `error` and `died` is present."""

    value: Json
    """What the operation returned."""
    error: dict[str, str]
    """`type` and `message` of the exception that the operation raised."""
    died: str
    """How the process ended during the operation, or a note that it did not answer in time."""


class AdapterError(Exception):
    """The target's own adapter cannot perform an operation: this says nothing about the implementation."""


class Target(Protocol):
    """An implementation under test."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def capabilities(self) -> Mapping[str, Json]:
        """The value of each capability that the implementation declares, by name (docs/profile.md)."""
        ...

    @property
    def specs(self) -> SpecsPart | None: ...

    @property
    def registry(self) -> RegistryPart | None: ...

    @property
    def drift(self) -> DriftPart | None: ...

    @property
    def hashing(self) -> HashingPart | None: ...

    @property
    def planner(self) -> PlannerPart | None: ...

    @property
    def pool(self) -> PoolPart | None: ...

    @property
    def cache(self) -> CachePart | None: ...

    @property
    def sharing(self) -> SharingPart | None: ...

    @property
    def tensors(self) -> TensorsPart | None: ...

    @property
    def canonical(self) -> CanonicalPart | None: ...

    @property
    def connector(self) -> ConnectorPart | None: ...

    @property
    def bench(self) -> BenchPart | None:
        """The implementation's own API, for `kvref bench` to time. No law needs it."""
        ...

    @property
    def plugin(self) -> PluginInfo | None:
        """The plugin that the implementation runs with.

        None if there is no plugin, or if Python was started with `-X kvref-no-plugin`.
        """
        ...


def perform(target: Target, operation: str, arguments: Mapping[str, Json]) -> Outcome:
    """Run one operation, and return its outcome. An `Exception` of the target becomes the outcome's `error`.

    A target may have a method `own_error(error)`. It returns "" if the implementation raised the error.
    Otherwise it returns why the adapter failed, for example that it passed a keyword that this release lacks.

    Raises:
        LookupError: the target has no such part or function. This is the caller's mistake.
        AdapterError: the adapter could not perform the operation.
    """
    part_name, _, function_name = operation.partition(".")
    function = getattr(getattr(target, part_name, None), function_name, None)
    if function is None:
        raise LookupError(f"target {target.name!r} has no operation {operation!r}")
    try:
        return {"value": function(**arguments)}
    except Exception as error:
        own_error = getattr(target, "own_error", None)
        if own_error is not None and (why := own_error(error)):
            raise AdapterError(
                f"the adapter of {target.name} cannot perform {operation} on {target.version}: {why}"
            ) from error
        return {"error": {"type": type(error).__name__, "message": str(error)}}
