"""What a law is. Standard library alone: law functions are copied into stand-alone programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Event = dict[str, Any]
"""`{"op": "specs.build", "args": {...}, "outcome": {...}}`: an operation and what it answered."""

Runs = list[list[Event]]
"""The events of a trace; each inner list came from a process of its own."""


class Level(StrEnum):
    """How much a broken law matters."""

    SAFETY = "safety"
    ROBUSTNESS = "robustness"


class LawBroken(Exception):
    """The law does not hold for these events.

    `facets` tells apart different ways of breaking one law (the fields lost in a merge, say): each is
    reduced and reported on its own.
    """

    def __init__(self, expected: str, observed: str, facets: tuple[str, ...] = ("",)) -> None:
        super().__init__(f"expected {expected}; observed {observed}")
        self.expected = expected
        self.observed = observed
        self.facets = facets


@dataclass(frozen=True)
class Law:
    """A checkable statement about an implementation.

    `check` takes the events of one example, raises `LawBroken`, and returns how many judgements it made:
    an example that gave it nothing to judge does not count.
    """

    id: str
    level: Level
    statement: str
    why: str
    sources: tuple[str, ...]
    workload: str
    """Name of the workload in `kvref_strategies` that feeds the law."""
    check: Callable[[Runs], int]
    capabilities: tuple[str, ...] = ()
    """Capabilities that a target must declare for the law to apply."""

    @property
    def area(self) -> str:
        return self.id.partition(".")[0]
