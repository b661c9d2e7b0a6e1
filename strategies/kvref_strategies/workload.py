"""The types of workloads. A workload draws examples for each of its subjects and runs them on a target."""

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
    """The parts that it has, as in "specs", and their operations, as in "specs.merge"."""
    classes: list[SpecClassInfo]
    """Its spec classes."""
    managers: list[str]
    """Its manager classes."""
    environment: dict[str, str]
    """Versions of Python and torch."""
    devices: list[str]
    """The kinds of devices that its tensors can be on."""
    device: str
    """The device to use."""
    threads: int
    """The number of threads after import, the main one included."""
    plugin: PluginInfo | None
    setup: dict[str, Any] | None
    """How a stand-alone program loads the plugin; None if the target's factory does it."""


T = TypeVar("T")


class Draw(Protocol):
    """Draws a value from a strategy."""

    def __call__(self, strategy: SearchStrategy[T], /) -> T: ...


class Stage(Protocol):
    """Where the operations of one example are performed and recorded."""

    def perform(self, operation: str, /, **arguments: Any) -> Outcome:
        """Perform `"<part>.<function>"` on the target."""
        ...

    def fresh(self, *flags: str) -> None:
        """Continue in a pristine process with these interpreter flags. Only isolated workloads may do so."""
        ...


Script = Callable[[Draw, Stage, Description, str], None]
"""Makes one example: draws, performs operations, and may draw more that depends on the answers.

The `str` is the subject.
"""


class Machine(RuleBasedStateMachine):
    """Base of the state machines. Their rules perform operations on `stage` and keep a simple model."""

    def __init__(self, stage: Stage, description: Description, subject: str) -> None:
        self.stage = stage
        self.description = description
        self.subject = subject
        super().__init__()


@dataclass(frozen=True)
class Driven:
    """How to make long examples from plain numbers, so that Hypothesis does not draw every operation.

    Attributes:
        setup: draws the beginning of an example, as plain data.
        go: performs an example: one action for each number. Any sequence of numbers is legal.
    """

    setup: Callable[[Draw, Description, str], dict[str, Any]]
    go: Callable[[Stage, Description, dict[str, Any], Iterable[int]], None]
    choices: int
    """The numbers are from 0 to below this."""
    examples: dict[str, int] = field(default_factory=lambda: {"standard": 20, "deep": 200})
    """The number of examples for each subject, by depth. No other depth has any."""


Subjects = Mapping[str, str | None]
"""The subjects of a workload by name. The value is the reason why a subject is left out, or None."""


@dataclass(frozen=True)
class Workload:
    """A named source of examples for laws.

    Attributes:
        parts: the parts and the optional operations of the target that the workload needs.
        subjects: returns the subjects for a target.
        examples: a script or a state machine.
        isolated: whether every example runs in pristine processes, because it changes global state.
        flags: interpreter flags that some of its processes need.
        weight: its share of the example budget. Isolated examples cost a fork each.
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
