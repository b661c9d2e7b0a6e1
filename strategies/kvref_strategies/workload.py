"""The class `Workload`, and the types that workloads use.

A workload draws examples for each of its subjects, for example for each spec class. It performs the
operations of these examples on a target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict, TypeVar

from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.strategies import SearchStrategy

from kvref.target import Outcome, PluginInfo, SpecClassInfo


class Description(TypedDict):
    """What is known about a target before any example is drawn."""

    name: str
    version: str
    capabilities: dict[str, Any]
    parts: list[str]
    """The names of the target's parts, such as "specs", and of their operations, such as "specs.merge"."""
    classes: list[SpecClassInfo]
    """The target's spec classes."""
    managers: list[str]
    """The names of the target's manager classes."""
    environment: dict[str, str]
    """The versions of Python and torch."""
    devices: list[str]
    """The kinds of devices on which the target can allocate tensors."""
    device: str
    """The kind of device that examples use."""
    threads: int
    """How many threads the process has once the target is imported, the main thread included."""
    plugin: PluginInfo | None
    setup: dict[str, Any] | None
    """How a stand-alone program loads the plugin; None if the target's factory loads it."""


T = TypeVar("T")


class Draw(Protocol):
    """Draws a value from a strategy."""

    def __call__(self, strategy: SearchStrategy[T], /) -> T: ...


class Stage(Protocol):
    """Performs the operations of one example on the target, and records them."""

    def perform(self, operation: str, /, **arguments: Any) -> Outcome:
        """Perform the operation `"<part>.<function>"` on the target."""
        ...

    def fresh(self, *flags: str) -> None:
        """Perform all further operations in a fresh process with these interpreter flags.

        Only isolated workloads may call this.
        """
        ...


Script = Callable[[Draw, Stage, Description, str], None]
"""A function that makes one example for a subject, its last argument.

It draws values and performs operations. What it draws may depend on the outcomes of earlier operations.
"""


class Machine(RuleBasedStateMachine):
    """The base class of the state machines.

    The rules of a machine perform operations on `stage`. A machine also keeps track of the target's state, so
    that it can choose legal operations.
    """

    def __init__(self, stage: Stage, description: Description, subject: str) -> None:
        self.stage = stage
        self.description = description
        self.subject = subject
        super().__init__()


@dataclass(frozen=True)
class Driven:
    """How a workload makes driven examples: long examples, made from numbers that Hypothesis does not draw.

    Attributes:
        setup: a function that draws the setup of an example, as plain data.
        go: a function that performs an example with this setup. It takes one action for each number. Any
            sequence of numbers is legal.
    """

    setup: Callable[[Draw, Description, str], dict[str, Any]]
    go: Callable[[Stage, Description, dict[str, Any], Iterable[int]], None]
    choices: int
    """The numbers are at least 0 and below this."""
    examples: dict[str, int] = field(default_factory=lambda: {"standard": 20, "deep": 200})
    """The number of driven examples per subject, by depth. At depths that are not listed there are none."""


Subjects = Mapping[str, str | None]
"""The subjects of a workload by name. The value is None, or the reason why the subject is left out."""


@dataclass(frozen=True)
class Workload:
    """A named source of examples for laws.

    Attributes:
        parts: the parts and the optional operations of the target that the workload needs.
        subjects: a function that returns the subjects for a target.
        examples: the script or the state machine that makes the examples.
        isolated: whether every example runs in fresh processes, because it changes global state.
        flags: the interpreter flags that some of the workload's processes need.
        weight: a factor for the number of examples. Slow workloads have a small weight, for example isolated
            ones, because each of their examples costs a fork.
        unobserved: the reason to report if no example of a subject gave a law anything to judge. With a
            reason the row is `not-applicable`; without one it is `incomplete`.
        proof: operations; an example shows that the target works only if one of them succeeded. Without any,
            every operation counts. A refused allocation is no success.
        driven: how to drive it by plain numbers, if that is possible.
        symbolic: whether CrossHair can draw its numbers symbolically: the target computes with them, and
            nothing else depends on them. They come from the full ranges of `specs.widened`.
    """

    name: str
    parts: tuple[str, ...]
    subjects: Callable[[Description], Subjects]
    examples: Script | type[Machine]
    isolated: bool = False
    flags: tuple[str, ...] = ()
    weight: float = 1.0
    unobserved: str = ""
    proof: tuple[str, ...] = ()
    driven: Driven | None = None
    symbolic: bool = False

    def worked(self, runs: Iterable[Iterable[Mapping[str, Any]]]) -> bool:
        """Whether the target did something in this example, and did not only refuse or raise errors."""
        return any(self._succeeded(event) for events in runs for event in events)

    def _succeeded(self, event: Mapping[str, Any]) -> bool:
        if (self.proof and event["op"] not in self.proof) or "value" not in event["outcome"]:
            return False
        value = event["outcome"]["value"]
        return not isinstance(value, dict) or value.get("added", ()) is not None
