"""What a workload is: a way of making examples, for each subject it applies to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict, TypeVar

from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.strategies import SearchStrategy

from kvref.target import Outcome, PluginInfo, SpecClassInfo


class Description(TypedDict):
    """What a target says of itself before any work starts."""

    name: str
    version: str
    capabilities: dict[str, Any]
    parts: list[str]
    """What it has: parts (`"specs"`), and their operations (`"specs.merge"`)."""
    classes: list[SpecClassInfo]
    managers: list[str]
    environment: dict[str, str]
    """Versions of Python and torch."""
    devices: list[str]
    """Kinds of devices that its tensors can be on."""
    device: str
    """The one that they are to be on."""
    threads: int
    """Threads that run after import, the main one included."""
    plugin: PluginInfo | None
    setup: dict[str, Any] | None
    """How a stand-alone program loads the plugin, where that is not for the target's factory to do."""


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
        """Go on in a pristine process (isolated workloads only), with these interpreter flags."""
        ...


Script = Callable[[Draw, Stage, Description, str], None]
"""One example: draw, perform, draw more in the light of what was answered. The `str` is the subject."""


class Machine(RuleBasedStateMachine):
    """Base of the state machines: rules perform operations on `stage` and keep a plain model."""

    def __init__(self, stage: Stage, description: Description, subject: str) -> None:
        self.stage = stage
        self.description = description
        self.subject = subject
        super().__init__()


@dataclass(frozen=True)
class Driven:
    """How to make long examples out of numbers, without Hypothesis having a hand in each operation.

    Attributes:
        setup: draws what an example begins with, as plain data.
        go: performs an example: one thing for each number below `choices`, whatever the numbers before.
    """

    setup: Callable[[Draw, Description, str], dict[str, Any]]
    go: Callable[[Stage, Description, dict[str, Any], Iterable[int]], None]
    choices: int
    examples: dict[str, int] = field(default_factory=lambda: {"standard": 20, "deep": 200})
    """How many for a subject, at the depths that have any."""


Subjects = Mapping[str, str | None]
"""Subjects by name, each with the reason why the workload cannot be used on it, or None when it can."""


@dataclass(frozen=True)
class Workload:
    """A named source of examples.

    Attributes:
        parts: parts of the target it needs, and single operations that not every target has.
        subjects: what there is to run it on, for a described target.
        examples: a script, or a machine.
        isolated: every example runs in pristine processes of the target (its state is global).
        flags: sets of interpreter flags its processes need besides none.
        weight: share of the example budget (isolated examples cost a fork each).
        unobserved: why a law does not apply to a subject of which no example gave it anything to judge;
            without a reason, such a law was not run properly.
        driven: how it is driven by numbers, if it can be.
        symbolic: whether its examples are numbers that a target computes with and nothing else depends on, so
            that they can be drawn without being known, from all that is honest (`specs.widened`).
    """

    name: str
    parts: tuple[str, ...]
    subjects: Callable[[Description], Subjects]
    examples: Script | type[Machine]
    isolated: bool = False
    flags: tuple[str, ...] = ()
    weight: float = 1.0
    unobserved: str = ""
    driven: Driven | None = None
    symbolic: bool = False
