"""The part `specs`: lists the spec classes, and builds, copies, merges and compares specs."""

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

`declared` has the capabilities that the target declares for the class. The laws read it. Targets ignore it.
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
"""The facts of a built spec: its class, the value of every field, and its page size in bytes.

`unpadded_page_size_bytes` counts only the bytes of a page that carry content, if the implementation knows
that. `mro` has the names of the class and its ancestors, as in `SpecClassInfo`.
"""


class FieldInfo(TypedDict):
    """One field of a spec class. A field without `default` is required."""

    name: str
    default: NotRequired[Json]
    values: NotRequired[list[Json]]
    """The values that kvref should draw, the simplest first. If the list is empty, the field keeps its
    default. If the list is absent, kvref chooses values by the name of the field."""


class SpecClassInfo(TypedDict):
    """A spec class: its name, its ancestors, its fields and its role."""

    name: str
    mro: list[str]
    """The names of the class and its ancestors: the class itself first, `KVCacheSpec` last."""
    fields: list[FieldInfo]
    role: Literal["layer", "base", "composite"]
    """`layer`: a spec of the class describes the cache of one layer. `base`: other classes derive from the
    class. `composite`: a spec describes the caches of several layers, as in `UniformTypeKVCacheSpecs`."""
    module: NotRequired[str]
    origin: NotRequired[Literal["stock", "plugin"]]
    """Where the class comes from: the implementation itself (the default), or its plugin."""


class Twins(TypedDict):
    """A comparison of two specs that were built from the same descriptor."""

    equal: bool
    hashes_equal: bool


class Unpickled(TypedDict):
    """A spec read from a pickle, and whether it equals a newly built spec."""

    facts: SpecFacts
    equal: bool


class SpecsPart(Protocol):
    """Lists the spec classes, and builds, copies, merges and compares specs.

    If the implementation refuses a call, let its own exception through.
    """

    def classes(self) -> list[SpecClassInfo]:
        """Return every spec class of the implementation, in a stable order."""
        ...

    def build(self, spec: SpecDescriptor) -> SpecFacts:
        """Build a spec, and return its facts."""
        ...

    def copy(self, spec: SpecDescriptor, block_size: int) -> SpecFacts:
        """Build the spec, copy it with a new block size in tokens, and return the facts of the copy.

        The copy is made by vLLM's method `copy_with_new_block_size`.
        """
        ...

    def merge(self, specs: Sequence[SpecDescriptor]) -> SpecFacts:
        """Build the specs, merge them as a planner does, and return the facts of the result.

        A planner calls `merge` of the first spec's class.
        """
        ...

    def derive(self, name: str, base: str, fields: Mapping[str, Json]) -> list[str]:
        """Define a spec class as a vendor would, and return the names of the classes in its MRO.

        If a class of this name was defined before, the new class replaces it.

        Args:
            fields: the fields that the class adds to those of `base`, with their defaults.
        """
        ...

    def twins(self, spec: SpecDescriptor) -> Twins:
        """Build the spec twice, and compare the specs and their hashes. Raises if specs are not hashable."""
        ...

    def mutable_fields(self, spec: SpecDescriptor) -> list[str]:
        """Try to set and to delete each field of a built spec. Return the fields whose value changed."""
        ...

    def pickled(self, spec: SpecDescriptor) -> str:
        """Build the spec, and return its pickle as base64 text."""
        ...

    def unpickled(self, data: str, spec: SpecDescriptor) -> Unpickled:
        """Unpickle `data`, which `pickled` returned, and compare the result with a newly built `spec`."""
        ...

    def uniform(self, specs: Sequence[SpecDescriptor]) -> bool:
        """Return whether a planner treats layers with these specs, in this order, as being of one type."""
        ...

    def max_memory(
        self, spec: SpecDescriptor, max_model_len: int, max_in_flight_tokens: int, max_encoder_tokens: int
    ) -> int | float:
        """Return the most bytes that one request needs: vLLM's `max_memory_usage_bytes`.

        The arguments after `spec` are the limits of an engine, in tokens.

        Args:
            max_in_flight_tokens: how many tokens may be scheduled and not yet reported as done.
        """
        ...
