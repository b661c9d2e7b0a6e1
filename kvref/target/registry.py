"""The part `registry`: which manager and which uniform base a class has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypedDict

from kvref.target.specs import SpecDescriptor
from kvref.target.values import Json


class RegistryEntry(TypedDict):
    """What a look-up answers: names of the manager and of the uniform base, or None for unknown."""

    manager: str | None
    base: str | None


class Registration(TypedDict):
    """One registration: spec class, manager class and uniform base (None = the class itself)."""

    spec_class: str
    manager: str
    base: str | None


class Step(TypedDict):
    """An operation inside another one: its name (`"registry.lookup"`) and its arguments."""

    op: str
    args: dict[str, Json]


class Races(TypedDict):
    """What came of steps in several threads: distinct observations, each from a process of its own.

    An observation is `{"answers": [[outcome, ...], ...], "after": [outcome, ...]}`, with the outcomes of each
    thread's steps and of those performed when all threads had ended; or `{"died": how}`.
    """

    orders: list[Json]
    """Of the steps one after the other, in every order that keeps that of each thread."""
    races: list[Json]
    """Of the threads side by side."""


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

    def override(self, spec_class: str, manager: str | None, base: str | None) -> None:
        """Replace what is registered for a class; a manager or uniform base of None keeps the present one.

        Only asked of a target that declares the capability `override`, and never with both None.
        """
        ...

    def substitute(self, spec_class: str, substitute: str | None) -> None:
        """Have layers that declare a class planned as another that derives from it; None undoes that.

        Only asked of a target that declares the capability `override`.
        """
        ...

    def uniform(self, specs: Sequence[SpecDescriptor]) -> bool:
        """`is_uniform_with_collection`, asked of the first spec about all of them, as a planner asks it."""
        ...

    def race(self, threads: Sequence[Sequence[Step]], after: Sequence[Step], points: int) -> Races:
        """Perform each list of steps in a thread, `points` times, each time in a child of this process.

        `kvref_conformance.targets.racing` does it for any target: the first thread is interrupted for the
        others to run, each time somewhere else.
        """
        ...
