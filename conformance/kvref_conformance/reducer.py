"""Reduce a trace that ends its process or hangs it, by running ever smaller ones in fresh processes."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvref_conformance.results import Trace

MAX_SECONDS = 60.0


def reduce_death(trace: Trace, dies: Callable[[Trace], bool], seconds: float = MAX_SECONDS) -> Trace:
    """Leave out operations, many at a time at first, as long as what is left still `dies`."""
    deadline = time.monotonic() + seconds
    number = max(len(run["operations"]) for run in trace["runs"])
    while number:
        for smaller in _without(number, trace):
            if time.monotonic() > deadline:
                return trace
            if dies(smaller):
                trace = smaller
                break
        else:
            number //= 2
    return trace


def _without(number: int, trace: Trace) -> list[Trace]:
    """The trace without so many operations in a row, for every place they can be taken from; later first."""
    smaller = []
    for r, run in enumerate(trace["runs"]):
        for place in reversed(range(len(run["operations"]) - number + 1)):
            operations = run["operations"][:place] + run["operations"][place + number :]
            rest = [{**run, "operations": operations}] if operations else []
            runs = trace["runs"][:r] + rest + trace["runs"][r + 1 :]
            if runs:
                smaller.append({"runs": runs})
    return smaller
