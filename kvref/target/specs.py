"""The part `specs`: classes of cache specs, and what the implementation makes of specs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, Protocol, TypedDict

from kvref.target.values import Json

# `class` is a keyword, hence the call syntax.
SpecDescriptor = TypedDict(
    "SpecDescriptor",
    {"class": str, "fields": dict[str, Json], "declared": NotRequired[dict[str, Json]]},
)
"""How to build a spec: the name of its class, and the fields that differ from their defaults.

`declared` is what the target's capabilities say of the class. The laws read it; an implementation ignores it.
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
"""What a built spec says of itself: its class, the value of every field, and its page size in bytes.

`unpadded_page_size_bytes` are the bytes of a page that carry content, if the implementation knows them. `mro`
is as in `SpecClassInfo`.
"""


class FieldInfo(TypedDict):
    """One field of a spec class. A field without `default` is required."""

    name: str
    default: NotRequired[Json]
    values: NotRequired[list[Json]]
    """Values to try, the simplest first; empty if the field stays at its default. If this is absent, kvref
    chooses values by the name of the field."""


class SpecClassInfo(TypedDict):
    """A spec class: its name, its ancestors, its fields and its role."""

    name: str
    mro: list[str]
    """Names of the class and its ancestors: the class itself first, `KVCacheSpec` last."""
    fields: list[FieldInfo]
    role: Literal["layer", "base", "composite"]
    """`layer`: describes the cache of one layer. `base`: only a base of other classes. `composite`: describes
    the caches of several layers (`UniformTypeKVCacheSpecs`)."""
    module: NotRequired[str]
    origin: NotRequired[Literal["stock", "plugin"]]
    """Whether the class comes from the implementation itself, which is the default, or from its plugin."""


class Twins(TypedDict):
    """How two specs compare that were built from one descriptor."""

    equal: bool
    hashes_equal: bool


class Unpickled(TypedDict):
    """A spec read from a pickle, and whether it equals a newly built one."""

    facts: SpecFacts
    equal: bool


class SpecsPart(Protocol):
    """Builds, copies, merges and compares specs.

    If the implementation refuses a call, let its own exception through.
    """

    def classes(self) -> list[SpecClassInfo]:
        """Return every spec class of the implementation, in a stable order."""
        ...

    def build(self, spec: SpecDescriptor) -> SpecFacts:
        """Construct a spec and read it back."""
        ...

    def copy(self, spec: SpecDescriptor, block_size: int) -> SpecFacts:
        """Call `copy_with_new_block_size` of the spec; the block size is in tokens."""
        ...

    def merge(self, specs: Sequence[SpecDescriptor]) -> SpecFacts:
        """Call `merge` with the specs on the class of the first one, as a planner does."""
        ...

    def derive(self, name: str, base: str, fields: Mapping[str, Json]) -> list[str]:
        """Define a spec class as a vendor would, and return its MRO by name.

        A class of this name that was defined before is replaced.

        Args:
            fields: the fields that the class adds, with their defaults.
        """
        ...

    def twins(self, spec: SpecDescriptor) -> Twins:
        """Build the spec twice and compare the two. An unhashable spec raises."""
        ...

    def mutable_fields(self, spec: SpecDescriptor) -> list[str]:
        """Return the fields of a built spec that can be changed by an assignment or a deletion."""
        ...

    def pickled(self, spec: SpecDescriptor) -> str:
        """Return a pickle of the spec as base64 text."""
        ...

    def unpickled(self, data: str, spec: SpecDescriptor) -> Unpickled:
        """Read a spec from what `pickled` returned, and compare it with the same spec built anew."""
        ...

    def uniform(self, specs: Sequence[SpecDescriptor]) -> bool:
        """Return whether a planner treats layers with these specs, in this order, as one type."""
        ...

    def max_memory(
        self, spec: SpecDescriptor, max_model_len: int, max_in_flight_tokens: int, max_encoder_tokens: int
    ) -> int | float:
        """Return `max_memory_usage_bytes` of the spec under these limits of an engine, all in tokens.

        Args:
            max_in_flight_tokens: tokens that may be scheduled and not yet reported as done.
        """
        ...
