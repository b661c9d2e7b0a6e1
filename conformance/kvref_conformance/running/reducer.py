"""Reduce a sequence of operations: leave out whatever the failure does not need."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from kvref_conformance.documents.results import Trace

MAX_SECONDS = 60.0

T = TypeVar("T")


def shortest(items: Sequence[T], fails: Callable[[list[T]], bool], deadline: float) -> list[T]:
    """The shortest list found for which `fails` is still true.

    It tries to leave out long stretches before short ones, and later items before earlier ones. At the
    `deadline`, a time of the monotonic clock, it returns the shortest list so far. It does not catch
    exceptions that `fails` raises.
    """
    left = list(items)
    number = len(left)
    while number:
        place = len(left) - number
        while place >= 0 and time.monotonic() < deadline:
            smaller = left[:place] + left[place + number :]
            if smaller and fails(smaller):
                left = smaller
            place -= max(1, number // 2)
        number //= 2
    return left


def reduce_death(trace: Trace, dies: Callable[[Trace], bool], seconds: float = MAX_SECONDS) -> Trace:
    """Reduce a trace that ends or hangs its process. `dies` says whether a smaller trace still does so."""
    operations = [(place, each) for place, run in enumerate(trace["runs"]) for each in run["operations"]]

    def rebuilt(left: Sequence[tuple[int, Any]]) -> Trace:
        runs = itertools.groupby(left, itemgetter(0))
        return {
            "runs": [{**trace["runs"][place], "operations": [each for _, each in run]} for place, run in runs]
        }

    return rebuilt(shortest(operations, lambda left: dies(rebuilt(left)), time.monotonic() + seconds))
