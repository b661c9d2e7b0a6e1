"""Reduce a trace that ends its process or hangs it, by running ever smaller ones in fresh processes."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvref_conformance.results import Trace

MAX_SECONDS = 60.0


def reduce_death(trace: Trace, dies: Callable[[Trace], bool]) -> Trace:
    """Leave out operations, later ones first, as long as what is left still `dies`."""
    deadline = time.monotonic() + MAX_SECONDS
    changed = True
    while changed:
        changed = False
        for smaller in _without_one(trace):
            if time.monotonic() > deadline:
                return trace
            if dies(smaller):
                trace = smaller
                changed = True
                break
    return trace


def _without_one(trace: Trace) -> list[Trace]:
    smaller = []
    for r, run in enumerate(trace["runs"]):
        for place in reversed(range(len(run["operations"]))):
            operations = run["operations"][:place] + run["operations"][place + 1 :]
            rest = [{**run, "operations": operations}] if operations else []
            runs = trace["runs"][:r] + rest + trace["runs"][r + 1 :]
            if runs:
                smaller.append({"runs": runs})
    return smaller
