"""The part `registry`: the manager class and the uniform base that are registered for a spec class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypedDict

from kvref.target.specs import SpecDescriptor
from kvref.target.values import Json


class RegistryEntry(TypedDict):
    """The names of a spec class's manager class and uniform base. A name is None if none is registered."""

    manager: str | None
    base: str | None


class Registration(TypedDict):
    """One registration, by names. If `base` is None, the spec class is its own uniform base."""

    spec_class: str
    manager: str
    base: str | None


class Step(TypedDict):
    """An operation to be performed later: its name, such as `"registry.lookup"`, and its arguments."""

    op: str
    args: dict[str, Json]


class Races(TypedDict):
    """The results of a race: the distinct observations of all runs.

    Each run has a process of its own and gives one observation: `{"answers": [[outcome, ...], ...], "after":
    [outcome, ...]}`. `answers` has the outcomes of each thread's steps. `after` has the outcomes of the steps
    that follow once all threads have ended. If the process died, the observation is `{"died": how}`.
    """

    orders: list[Json]
    """Observations of sequential runs, one for each way to interleave the steps of the threads."""
    races: list[Json]
    """Observations of concurrent runs."""


class RegistryPart(Protocol):
    """The registry that maps spec classes to manager classes. A process has only one."""

    def managers(self) -> list[str]:
        """Return the names of the built-in manager classes, in a stable order."""
        ...

    def define_spec(self, name: str, bases: Sequence[str]) -> list[str]:
        """Define a spec class without fields of its own, and return the names of the classes in its MRO."""
        ...

    def define_manager(self, name: str, base: str) -> None:
        """Define a manager class that derives from `base`."""
        ...

    def initialise(self) -> None:
        """Do what an engine does at start: register the built-in classes and run the platform's hook."""
        ...

    def install_hook(self, registrations: Sequence[Registration]) -> None:
        """Make the platform's hook register these spec classes whenever the hook runs."""
        ...

    def register(self, spec_class: str, manager: str, base: str | None) -> None:
        """Register a spec class by a call of the registry's function."""
        ...

    def decorate(self, spec_class: str, manager: str, base: str | None) -> None:
        """Register a spec class by the decorator that plugins write above their classes."""
        ...

    def lookup(self, spec: SpecDescriptor) -> RegistryEntry:
        """Return the manager class and the uniform base that the registry has for the spec."""
        ...

    def check(self, layers: Mapping[str, SpecDescriptor]) -> None:
        """Raise an error if the spec of any layer is not registered. A planner checks this first.

        Args:
            layers: the spec of each layer, by the layer's name.
        """
        ...

    def override(self, spec_class: str, manager: str | None, base: str | None) -> None:
        """Replace the registered manager, the uniform base, or both.

        If `manager` or `base` is None, the registered one stays. They are never both None. kvref calls this
        only if the target declares the capability `override`.
        """
        ...

    def substitute(self, spec_class: str, substitute: str | None) -> None:
        """Make planners replace specs of `spec_class` with specs of `substitute`, a class derived from it.

        None ends the replacement. kvref calls this only if the target declares the capability `override`.
        """
        ...

    def uniform(self, specs: Sequence[SpecDescriptor]) -> bool:
        """Call `is_uniform_with_collection` on the first spec, with all specs as the argument.

        A planner asks this before it puts layers into one group.
        """
        ...

    def race(self, threads: Sequence[Sequence[Step]], after: Sequence[Step], points: int) -> Races:
        """Run each list of steps in a thread of its own, and return what the threads observed.

        `kvref_conformance.targets.racing` implements this for any target. It starts `points` child processes.
        In each of them it stops the first thread at a different line, lets the other threads run, and then
        lets the first thread finish.

        Args:
            threads: the steps of each thread.
            after: the steps to run when all threads have ended.
            points: the number of lines at which to stop the first thread.
        """
        ...
