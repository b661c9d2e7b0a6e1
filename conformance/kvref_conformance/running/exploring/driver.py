"""Make and reduce driven examples: long ones, whose operations follow from a list of random numbers.

Hypothesis draws only the setup of a driven example, so many more operations run per second than in a drawn
example. To reduce a failure, the driver leaves out numbers and tries smaller ones.
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
"""How many numbers an example has."""

DRIVEN = "driven"
"""The name of the journal's entry for a whole driven example."""

_BITS = (0, 4, 7, 9, 11, 13, 16, 20, 24)
"""To make a number smaller, a reduction keeps only its lowest bits. It tries these numbers of bits in
turn."""


@dataclass(frozen=True)
class Example:
    """A driven example: its setup, and the numbers that choose its operations."""

    setup: dict[str, Any]
    choices: list[int]


class Driver:
    """Makes, performs and reduces the driven examples of one unit."""

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
        """Perform an example fast: with one journal entry for all of it, and without copies of arguments.

        A failure of such an example needs a confirmation: see `SwiftStage`.
        """
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
        """Perform an example like a drawn one, with a journal entry for each operation."""
        stage = LocalStage(self._target, self._journal)
        perform(self.workload, stage, self._description, example)
        return stage

    def reduce(self, example: Example, breaks: Callable[[Stage], bool]) -> None:
        """Reduce an example: perform smaller and smaller ones that still break the law.

        `breaks` judges each example. It must also keep the last example that breaks the law, because this
        method returns nothing. The reduction ends after `MAX_SECONDS`.
        """
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
    """The trace with its operations.

    The journal stores a driven example only as numbers. Such an example is performed on `stage` to get its
    operations.
    """
    first = trace["runs"][0]["operations"][0]
    if first["op"] == DRIVEN:
        perform(workload, stage, description, Example(**first["args"]))
        return stage.trace()
    return trace
