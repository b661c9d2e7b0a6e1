"""The part `drift`: whether a plugin still fits the implementation that it plugs into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, Protocol, TypedDict

from kvref.target.specs import SpecDescriptor


class PluginInfo(TypedDict):
    """The plugin that an implementation runs with."""

    name: str
    version: str
    packages: list[str]
    """Its top-level packages."""
    managers: dict[str, list[str]]
    """For each manager class of the plugin, its ancestors in the implementation, the nearest first."""
    notes: list[str]
    """Sentences for the author of the plugin to read."""
    hook_has_run: NotRequired[str]
    """If the platform's hook had to run while the target was loaded: the reason."""


class Parameter(TypedDict):
    """One parameter of a method, without `self` and `cls`. `kind` is the name of its kind in `inspect`."""

    name: str
    kind: str
    required: bool


class Override(TypedDict):
    """An attribute that a class of the plugin overrides, and the one of the implementation (core) below it.

    A `kind` is method, class method, static method, property or attribute. Parameters are None if the
    attribute has none or they cannot be read.
    """

    name: str
    kind: str
    parameters: list[Parameter] | None
    core_class: str
    core_kind: str
    core_parameters: list[Parameter] | None


class Call(TypedDict):
    """A call in the implementation's own code: the method, its positional and its keyword arguments.

    `positional` counts arguments. `open` is true if the call also unpacks a sequence or a mapping. `place` is
    where the call is.
    """

    name: str
    positional: int
    keywords: list[str]
    open: bool
    place: str


class Replaced(TypedDict):
    """A name of the implementation that the plugin has replaced.

    `by` is the object that the name has now. `stale` lists names under which modules still have the original,
    because they imported it before the plugin replaced it.
    """

    name: str
    by: str
    stale: list[str]


class DriftPart(Protocol):
    """Shows how a plugin and the implementation that it plugs into fit together."""

    def watch_hook(self) -> None:
        """Start to count how often the platform's hook runs."""
        ...

    def hook_calls(self) -> int:
        """Return how often the hook has run since `watch_hook`."""
        ...

    def overrides(self, name: str) -> list[Override]:
        """Return what a spec or manager class of the plugin overrides."""
        ...

    def calls(self, names: Sequence[str]) -> list[Call]:
        """Return the calls of methods with these names in the implementation's own code."""
        ...

    def reached(
        self, spec: SpecDescriptor, of_spec: Sequence[str], of_manager: Sequence[str], derived: bool
    ) -> list[str]:
        """Use a spec and its manager, and return which of the given attributes were used.

        An attribute is returned as `"spec.NAME"` or `"manager.NAME"`.

        Args:
            of_spec: attributes of the spec to watch.
            of_manager: attributes of the manager to watch.
            derived: use classes derived from the usual spec and manager class, which are registered and
                override these attributes without changing what they do.
        """
        ...

    def start(self) -> None:
        """Do what an engine does before it makes its configuration, when a plugin may replace names."""
        ...

    def replaced(self, packages: Sequence[str]) -> list[Replaced]:
        """Return the names of the implementation that now have code from the plugin's packages."""
        ...

    def present(self, names: Sequence[str]) -> list[bool]:
        """Return for each name whether it exists in the implementation."""
        ...

    def read(self, names: Sequence[str], packages: Sequence[str]) -> list[bool]:
        """Return for each name whether code of the implementation or the packages reads its last part."""
        ...
