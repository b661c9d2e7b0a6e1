"""The part `registry`: which manager and which uniform base a spec class has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypedDict

from kvref.target.specs import SpecDescriptor
from kvref.target.values import Json


class RegistryEntry(TypedDict):
    """The manager and the uniform base of a spec class by name, or None where the registry knows none."""

    manager: str | None
    base: str | None


class Registration(TypedDict):
    """One registration: spec class, manager class and uniform base. Base None means the class itself."""

    spec_class: str
    manager: str
    base: str | None


class Step(TypedDict):
    """An operation that is an argument of another one: a name like `"registry.lookup"`, and its arguments."""

    op: str
    args: dict[str, Json]


class Races(TypedDict):
    """What several threads observed, each distinct observation once.

    Each observation comes from a process of its own. It is `{"answers": [[outcome, ...], ...], "after":
    [outcome, ...]}`: the outcomes of each thread's steps, and of the steps after all threads have ended. If
    the process died, it is `{"died": how}`.
    """

    orders: list[Json]
    """Observations of sequential runs, one for each order that keeps the order within each thread."""
    races: list[Json]
    """Observations of concurrent runs."""


class RegistryPart(Protocol):
    """The registry that maps spec classes to manager classes. There is one for the whole process."""

    def managers(self) -> list[str]:
        """Return the names of the built-in manager classes, in a stable order."""
        ...

    def define_spec(self, name: str, bases: Sequence[str]) -> list[str]:
        """Define a spec class without fields of its own, and return its MRO by name."""
        ...

    def define_manager(self, name: str, base: str) -> None:
        """Define a manager class derived from a known one."""
        ...

    def initialise(self) -> None:
        """Do what an engine does at start: register the built-in classes and run the platform's hook."""
        ...

    def install_hook(self, registrations: Sequence[Registration]) -> None:
        """Make the platform's hook register these classes whenever it runs."""
        ...

    def register(self, spec_class: str, manager: str, base: str | None) -> None:
        """Register a class by a call."""
        ...

    def decorate(self, spec_class: str, manager: str, base: str | None) -> None:
        """Register a class by the decorator, as plugins do at import."""
        ...

    def lookup(self, spec: SpecDescriptor) -> RegistryEntry:
        """Return the manager and the uniform base of a spec."""
        ...

    def check(self, layers: Mapping[str, SpecDescriptor]) -> None:
        """Raise an error if the spec of a layer is not registered. A planner does this first.

        Args:
            layers: specs by the name of the layer.
        """
        ...

    def override(self, spec_class: str, manager: str | None, base: str | None) -> None:
        """Replace the entry of a class. None keeps the present manager or base, but only one can be None.

        kvref calls it only if the target declares the capability `override`.
        """
        ...

    def substitute(self, spec_class: str, substitute: str | None) -> None:
        """Plan layers of a class as a class that derives from it; None undoes that.

        kvref calls it only if the target declares the capability `override`.
        """
        ...

    def uniform(self, specs: Sequence[SpecDescriptor]) -> bool:
        """Call `is_uniform_with_collection` of the first spec with all of them, as a planner does."""
        ...

    def race(self, threads: Sequence[Sequence[Step]], after: Sequence[Step], points: int) -> Races:
        """Run each list of steps in a thread of its own, and report what the threads observed.

        `kvref_conformance.targets.racing` implements it for any target. It interrupts the first thread, lets
        the others run, and goes on. It does so `points` times, each time in a new child process and at
        another point of the first thread.

        Args:
            threads: the steps of each thread.
            after: steps to run when all threads have ended.
        """
        ...
