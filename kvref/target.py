"""The protocol an implementation under test offers.

A `Target` has a name, a version, capabilities and *parts*. A part is any object, a module included,
whose functions take and return plain data (numbers, strings, lists, dictionaries), never objects of
the implementation: that keeps programs short, traces readable, and one suite usable for every
implementation.

An operation is written `"<part>.<function>"` with keyword arguments; `perform` runs one. A target that
lacks a part leaves the attribute as `None` or out, and the laws that need the part do not apply.

How values are written as plain data:

* `torch.dtype`: `"torch.float16"`; an enum member: `{"enum": "KVQuantMode", "name": "NONE"}`;
  a fraction: `{"fraction": [1, 4]}`; a tuple: a list; a spec inside a spec: its descriptor;
* anything else: `{"opaque": repr}`, which can be compared but not built from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, Protocol, TypeAlias, TypedDict

__all__ = [
    "FieldInfo",
    "Json",
    "Outcome",
    "Registration",
    "RegistryEntry",
    "RegistryPart",
    "SpecClassInfo",
    "SpecDescriptor",
    "SpecFacts",
    "SpecsPart",
    "Target",
    "perform",
]

Json: TypeAlias = Any
"""Plain data: None, bool, int, float, str, list or dict of plain data."""

# `class` is a keyword, hence the call syntax.
SpecDescriptor = TypedDict("SpecDescriptor", {"class": str, "fields": dict[str, Json]})
"""How to build a spec: its class by name and the fields that differ from their defaults."""

SpecFacts = TypedDict("SpecFacts", {"class": str, "fields": dict[str, Json], "page_size_bytes": int})
"""What a built spec says of itself: class, every field, page size in bytes."""


class FieldInfo(TypedDict):
    """One field of a spec class; `default` is absent when the field is required."""

    name: str
    default: NotRequired[Json]


class SpecClassInfo(TypedDict):
    """A spec class: `mro` names its ancestors, itself first, `KVCacheSpec` last."""

    name: str
    mro: list[str]
    fields: list[FieldInfo]
    role: Literal["layer", "base", "composite"]
    """What the class describes: the cache of a layer; nothing by itself (a base of other classes); or
    the caches of several layers (`UniformTypeKVCacheSpecs`)."""


class RegistryEntry(TypedDict):
    """What a look-up answers: names of the manager and of the uniform base, or None for unknown."""

    manager: str | None
    base: str | None


class Registration(TypedDict):
    """One registration: spec class, manager class and uniform base (None = the class itself)."""

    spec_class: str
    manager: str
    base: str | None


class Outcome(TypedDict, total=False):
    """What an operation answered: exactly one of `value`, `error`, `died`."""

    value: Json
    error: dict[str, str]
    """`type` and `message` of the exception that the operation raised."""
    died: str
    """How the process ended, or that it gave no answer in time."""


class SpecsPart(Protocol):
    """The spec family. Each call that the implementation refuses raises its own exception."""

    def classes(self) -> list[SpecClassInfo]:
        """Every spec class of the implementation, in a stable order."""
        ...

    def build(self, spec: SpecDescriptor) -> SpecFacts:
        """Construct a spec and read it back."""
        ...

    def copy(self, spec: SpecDescriptor, block_size: int) -> SpecFacts:
        """`copy_with_new_block_size` of the spec; block size in tokens."""
        ...

    def merge(self, specs: Sequence[SpecDescriptor]) -> SpecFacts:
        """`merge` of the specs, called on the class of the first, as a planner calls it."""
        ...


class RegistryPart(Protocol):
    """The registry that maps spec classes to manager classes. State lives for the process."""

    def managers(self) -> list[str]:
        """Names of the built-in manager classes, in a stable order."""
        ...

    def define_spec(self, name: str, bases: Sequence[str]) -> list[str]:
        """Define a spec class without fields of its own; return its MRO by name."""
        ...

    def define_manager(self, name: str, base: str) -> None:
        """Define a manager class derived from a known one."""
        ...

    def initialise(self) -> None:
        """What an engine calls at start: register the built-in classes, run the platform's hook."""
        ...

    def install_hook(self, registrations: Sequence[Registration]) -> None:
        """Make the platform's hook register these classes whenever it runs."""
        ...

    def register(self, spec_class: str, manager: str, base: str | None) -> None:
        """Register a class directly."""
        ...

    def decorate(self, spec_class: str, manager: str, base: str | None) -> None:
        """Register a class the way a decorator does at import."""
        ...

    def lookup(self, spec: SpecDescriptor) -> RegistryEntry:
        """Manager and uniform base for a spec."""
        ...

    def check(self, layers: Mapping[str, SpecDescriptor]) -> None:
        """Check that the spec of every layer (by layer name) is registered, as planning does first."""
        ...


class Target(Protocol):
    """An implementation under test."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def capabilities(self) -> Mapping[str, Json]:
        """What the implementation declares beyond the parts it has, by capability name."""
        ...

    @property
    def specs(self) -> SpecsPart | None: ...

    @property
    def registry(self) -> RegistryPart | None: ...


def perform(target: Target, operation: str, arguments: Mapping[str, Json]) -> Outcome:
    """Run one operation and tell what came of it; no `Exception` of the target escapes.

    Raises:
        LookupError: the target has no such part or function, which is the caller's mistake.
    """
    part_name, _, function_name = operation.partition(".")
    function = getattr(getattr(target, part_name, None), function_name, None)
    if function is None:
        raise LookupError(f"target {target.name!r} has no operation {operation!r}")
    try:
        return {"value": function(**arguments)}
    except Exception as error:
        return {"error": {"type": type(error).__name__, "message": str(error)}}
