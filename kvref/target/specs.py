"""The part `specs`: classes of cache specs, and what is built of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, Protocol, TypedDict

from kvref.target.values import Json

# `class` is a keyword, hence the call syntax.
SpecDescriptor = TypedDict(
    "SpecDescriptor",
    {"class": str, "fields": dict[str, Json], "declared": NotRequired[dict[str, Json]]},
)
"""How to build a spec: its class by name and the fields that differ from their defaults.

`declared` is what the target declares of the class by its capabilities. It is there for the laws; whoever
builds the spec ignores it.
"""


SpecFacts = TypedDict(
    "SpecFacts",
    {
        "class": str,
        "fields": dict[str, Json],
        "page_size_bytes": int | float,  # a law judges whether it is whole
        "unpadded_page_size_bytes": NotRequired[int | float | None],
        "mro": NotRequired[list[str]],
    },
)
"""What a built spec says of itself: class, every field, page size in bytes; where the implementation tells
them apart the bytes of the page that carry content; and the class's ancestors, as in `SpecClassInfo`."""


class FieldInfo(TypedDict):
    """One field of a spec class; `default` is absent when the field is required."""

    name: str
    default: NotRequired[Json]
    values: NotRequired[list[Json]]
    """What an engine may give it, the simplest first; empty when it leaves the field alone. Absent when
    that follows from the field's name."""


class SpecClassInfo(TypedDict):
    """A spec class: `mro` names its ancestors, itself first, `KVCacheSpec` last."""

    name: str
    mro: list[str]
    fields: list[FieldInfo]
    role: Literal["layer", "base", "composite"]
    """What the class describes: the cache of a layer; nothing by itself (a base of other classes); or
    the caches of several layers (`UniformTypeKVCacheSpecs`)."""
    module: NotRequired[str]
    origin: NotRequired[Literal["stock", "plugin"]]
    """Whose class it is: the implementation's own, which is understood, or that of its plugin."""


class Twins(TypedDict):
    """How two specs built alike compare."""

    equal: bool
    hashes_equal: bool


class Unpickled(TypedDict):
    """A spec out of a pickle, and whether it equals one built anew."""

    facts: SpecFacts
    equal: bool


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

    def derive(self, name: str, base: str, fields: Mapping[str, Json]) -> list[str]:
        """Define a spec class as a vendor would, with fields of its own by name and default.

        The class replaces an earlier one of that name. Return its MRO by name.
        """
        ...

    def twins(self, spec: SpecDescriptor) -> Twins:
        """Build the spec twice and compare the two; an unhashable one raises."""
        ...

    def mutable_fields(self, spec: SpecDescriptor) -> list[str]:
        """The fields of a built spec whose value an assignment or a deletion changes."""
        ...

    def pickled(self, spec: SpecDescriptor) -> str:
        """A pickle of the spec, as base64 text."""
        ...

    def unpickled(self, data: str, spec: SpecDescriptor) -> Unpickled:
        """Unpickle what `pickled` returned, and compare it with the spec built anew."""
        ...

    def uniform(self, specs: Sequence[SpecDescriptor]) -> bool:
        """Whether a planner takes layers with these specs, in this order, for one type."""
        ...

    def max_memory(
        self, spec: SpecDescriptor, max_model_len: int, max_in_flight_tokens: int, max_encoder_tokens: int
    ) -> int | float:
        """`max_memory_usage_bytes` of the spec where the engine has these limits, all in tokens.

        `max_in_flight_tokens` may be scheduled and not yet confirmed computed.
        """
        ...
