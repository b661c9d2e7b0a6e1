"""What a law is. Stand-alone programs copy law functions, so this module uses only the standard library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Event = dict[str, Any]
"""`{"op": "specs.build", "args": {...}, "outcome": {...}}`: an operation and its outcome."""

Runs = list[list[Event]]
"""The events of a trace: one inner list for each process."""


class Level(StrEnum):
    """How serious a broken law is. Broken robustness laws fail a check with --strict only."""

    SAFETY = "safety"
    ROBUSTNESS = "robustness"


class LawBroken(Exception):
    """The law does not hold for these events.

    Messages show `expected` and then `observed`. `facets` name the ways in which the law broke, for example
    the fields lost in a merge. kvref reduces and reports each facet on its own.
    """

    def __init__(self, expected: str, observed: str, facets: tuple[str, ...] = ("",)) -> None:
        super().__init__(f"expected {expected}; observed {observed}")
        self.expected = expected
        self.observed = observed
        self.facets = facets


@dataclass(frozen=True)
class Law:
    """A statement that every implementation must keep, with the function that checks it.

    `check` takes the events of one example. It raises `LawBroken` or returns how many judgements it made. An
    example without a judgement does not count.
    """

    id: str
    level: Level
    statement: str
    why: str
    sources: tuple[str, ...]
    workload: str
    """The name of the workload in `kvref_strategies` that draws the law's examples."""
    check: Callable[[Runs], int]
    capabilities: tuple[str, ...] = ()
    """The capabilities that a target must declare for the law to apply."""
    enough: int = 1
    """The number of examples that the law has to judge before it holds.

    Only those count in which the target worked: an operation of the workload succeeded, for example an
    allocation. It is 0 for a law that a target also keeps if it refuses everything.
    """

    @property
    def area(self) -> str:
        return self.id.partition(".")[0]
