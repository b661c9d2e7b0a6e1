"""The part `drift`: shows whether a plugin still fits the implementation that it plugs into.

Here the *core* is the implementation without the plugin, such as stock vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, Protocol, TypedDict

from kvref.target.specs import SpecDescriptor


class PluginInfo(TypedDict):
    """A plugin that runs with the core."""

    name: str
    version: str
    packages: list[str]
    """The plugin's top-level Python packages."""
    managers: dict[str, list[str]]
    """For each manager class of the plugin, the core classes that it derives from, the nearest first."""
    notes: list[str]
    """Messages for the author of the plugin."""
    hook_has_run: NotRequired[str]
    """Why the platform's hook had to run while the target was loaded. Absent if it did not have to."""


class Parameter(TypedDict):
    """One parameter of a method, other than `self` or `cls`.

    `kind` is a name from `inspect.Parameter`, such as "KEYWORD_ONLY".
    """

    name: str
    kind: str
    required: bool


class Override(TypedDict):
    """An attribute of a plugin class, and the attribute of a core class that it overrides.

    The fields `core_...` describe the attribute of the core class. `kind` and `core_kind` are "method",
    "class method", "static method", "property" or "attribute". `parameters` and `core_parameters` are None if
    the attribute is not a method, or not a method written in Python.
    """

    name: str
    kind: str
    parameters: list[Parameter] | None
    core_class: str
    core_kind: str
    core_parameters: list[Parameter] | None


class Call(TypedDict):
    """A call of a method in the core's code.

    `positional` is the number of positional arguments. `keywords` has the names of the keyword arguments.
    `open` is true if the call also unpacks a sequence (`*`) or a mapping (`**`). `place` is file and line.
    """

    name: str
    positional: int
    keywords: list[str]
    open: bool
    place: str


class Replaced(TypedDict):
    """A name in the core, such as a function of a module, that the plugin has replaced.

    `by` names the plugin's object, which the name now refers to. `stale` lists the names under which other
    core modules still hold the original object, because they imported it before the plugin replaced it.
    """

    name: str
    by: str
    stale: list[str]


class DriftPart(Protocol):
    """Shows how a plugin and its core fit together."""

    def watch_hook(self) -> None:
        """Start to count the runs of the hook by which a platform registers its spec classes."""
        ...

    def hook_calls(self) -> int:
        """Return how often the hook has run since `watch_hook` was called."""
        ...

    def overrides(self, name: str) -> list[Override]:
        """Return the attributes of core classes that this spec or manager class of the plugin overrides."""
        ...

    def calls(self, names: Sequence[str]) -> list[Call]:
        """Return the calls of methods with these names in the core's code."""
        ...

    def reached(
        self, spec: SpecDescriptor, of_spec: Sequence[str], of_manager: Sequence[str], derived: bool
    ) -> list[str]:
        """Let the core use a spec and its manager, and return which of the watched attributes it used.

        Attributes are returned as `"spec.NAME"` or `"manager.NAME"`.

        Args:
            of_spec: the attributes of the spec class to watch.
            of_manager: the attributes of the manager class to watch.
            derived: derive a class from the spec class and one from the manager class, register the two, and
                use them instead. The derived classes override the watched attributes, but behave the same.
        """
        ...

    def start(self) -> None:
        """Run what an engine runs before it makes its configuration. A plugin may replace names there."""
        ...

    def replaced(self, packages: Sequence[str]) -> list[Replaced]:
        """Return the names of the core that now refer to code from these packages of the plugin."""
        ...

    def present(self, names: Sequence[str]) -> list[bool]:
        """Return for each name whether it exists in the core. A name has the form `"module:attribute"`."""
        ...

    def read(self, names: Sequence[str], packages: Sequence[str]) -> list[bool]:
        """Return for each name whether any code of the core or of the packages reads an attribute so called.

        Only the last part of a name counts: `f` in `"module:Class.f"`.
        """
        ...
