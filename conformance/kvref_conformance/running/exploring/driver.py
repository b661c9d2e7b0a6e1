"""Drive a workload by random numbers, for long examples and many operations a second.

Hypothesis draws only the setup of an example. Failures are reduced here, by leaving out numbers and trying
smaller ones.
"""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvref_conformance.documents.results import Trace
from kvref_conformance.processes.channel import Message
from kvref_conformance.processes.line_tracer import Asked
from kvref_conformance.running.exploring.stage import Died, Journal, LocalStage, Stage, SwiftStage
from kvref_conformance.running.reducer import MAX_SECONDS, shortest
from kvref_strategies.workload import Description, Workload

LENGTH = 400
"""Numbers in an example."""

DRIVEN = "driven"
"""The journal's entry for a whole driven example."""

_BITS = (0, 4, 7, 9, 11, 13, 16, 20, 24)
"""To make a number smaller, reduction keeps this many of its lowest bits."""


@dataclass(frozen=True)
class Example:
    """A setup, and the numbers that choose the operations."""

    setup: dict[str, Any]
    choices: list[int]


class Driver:
    """Drives one workload for one subject."""

    def __init__(self, target: Asked, workload: Workload, request: Message, journal: Journal) -> None:
        self._target = target
        self.workload = workload
        self._description: Description = request["description"]
        self._seed: int = request["seed"]
        self._journal = journal

    def examples(self, setups: Sequence[dict[str, Any]]) -> Iterator[Example]:
        """One example for each setup."""
        driven = self.workload.driven
        if driven is None:
            return
        for number, setup in enumerate(setups):
            choose = random.Random(f"{self._seed}/{number}")
            yield Example(setup, [choose.randrange(driven.choices) for _ in range(LENGTH)])

    def perform_swiftly(self, example: Example) -> Stage:
        """Perform an example with one journal entry for the whole example."""
        self._journal.clear()
        self._journal.note(DRIVEN, json.dumps(vars(example)))
        stage = SwiftStage(self._target)
        # An example makes no garbage before it ends, and looking for it takes a third of the time.
        gc.disable()
        try:
            perform(self.workload, stage, self._description, example)
        finally:
            gc.enable()
        self._journal.came_back()
        return stage

    def perform(self, example: Example) -> Stage:
        """Perform an example with a journal entry for each operation."""
        stage = LocalStage(self._target, self._journal)
        perform(self.workload, stage, self._description, example)
        return stage

    def reduce(self, example: Example, breaks: Callable[[Stage], bool]) -> None:
        """Perform smaller and smaller examples that still break the law. `breaks` judges each one."""
        deadline = time.monotonic() + MAX_SECONDS

        def fails(choices: list[int]) -> bool:
            return breaks(self.perform(Example(example.setup, choices)))

        if not fails(example.choices):
            return
        choices = shortest(example.choices, fails, deadline)
        for place, choice in enumerate(choices):
            for bits in _BITS:
                smaller = [*choices[:place], choice % (1 << bits), *choices[place + 1 :]]
                if time.monotonic() > deadline or smaller == choices:
                    break
                if fails(smaller):
                    choices = smaller
                    break


def perform(workload: Workload, stage: Stage, description: Description, example: Example) -> None:
    """Perform a driven example until it ends or the target dies."""
    if workload.driven is None:
        return
    try:
        workload.driven.go(stage, description, example.setup, example.choices)
    except Died:
        pass


def in_full(trace: Trace, workload: Workload, stage: Stage, description: Description) -> Trace:
    """The trace as operations. A driven example, stored as numbers, is performed to get its operations."""
    first = trace["runs"][0]["operations"][0]
    if first["op"] == DRIVEN:
        perform(workload, stage, description, Example(**first["args"]))
        return stage.trace()
    return trace
