"""The part `drift`: how a plugin and the implementation it plugs into fit together."""

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
    """The manager classes it brings, each with its ancestors in the implementation, nearest first."""
    notes: list[str]
    """Sentences about it that its author should read."""
    hook_has_run: NotRequired[str]
    """Why the platform's hook had to run while the target was loaded, if it had to."""


class Parameter(TypedDict):
    """One parameter of a method, the one for the instance or class left out; `kind` as `inspect` names it."""

    name: str
    kind: str
    required: bool


class Override(TypedDict):
    """An attribute of a plugin's class that an ancestor within the implementation has, too.

    `kind` is method, class method, static method, property or attribute. Parameters are None where there
    are none to be known.
    """

    name: str
    kind: str
    parameters: list[Parameter] | None
    core_class: str
    core_kind: str
    core_parameters: list[Parameter] | None


class Call(TypedDict):
    """A call in the implementation's own code: how many arguments by position, which by keyword.

    `open` tells that it also unpacks a sequence or a mapping.
    """

    name: str
    positional: int
    keywords: list[str]
    open: bool
    place: str


class Replaced(TypedDict):
    """A name of the implementation under which there is something of the plugin's.

    `by` is what it is now. `stale` lists the names under which modules still have the original, as those do
    that imported it before it was replaced.
    """

    name: str
    by: str
    stale: list[str]


class DriftPart(Protocol):
    """How a plugin and the implementation it plugs into fit together."""

    def watch_hook(self) -> None:
        """Count from now on how often the platform's hook runs."""
        ...

    def hook_calls(self) -> int:
        """How often it has run since."""
        ...

    def overrides(self, name: str) -> list[Override]:
        """What a spec or manager class of the plugin overrides."""
        ...

    def calls(self, names: Sequence[str]) -> list[Call]:
        """The calls of methods of these names in the implementation's own code."""
        ...

    def reached(
        self, spec: SpecDescriptor, of_spec: Sequence[str], of_manager: Sequence[str], derived: bool
    ) -> list[str]:
        """Which of these attributes of a spec and of its manager are reached while they are used.

        With `derived`, both are of classes derived from the usual ones and registered, which override these
        attributes and change nothing. An attribute is written `"spec.NAME"` or `"manager.NAME"`.
        """
        ...

    def start(self) -> None:
        """What an engine calls before it makes its configuration: where a plugin may replace names."""
        ...

    def replaced(self, packages: Sequence[str]) -> list[Replaced]:
        """The names of the implementation under which there is code of the plugin's packages."""
        ...

    def present(self, names: Sequence[str]) -> list[bool]:
        """Which of these names exist in the implementation."""
        ...

    def read(self, names: Sequence[str], packages: Sequence[str]) -> list[bool]:
        """Of which of these names some code of the implementation or the packages reads the last part."""
        ...
