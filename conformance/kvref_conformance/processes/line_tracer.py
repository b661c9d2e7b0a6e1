"""Note which lines of the target's own files its operations run; in the processes of the target.

The library `coverage` does that with a trace function, which is set during operations alone: neither what
draws examples nor what judges them is seen, or slowed. It is started once, in the host, and children inherit
it. Its C extension is for one version of Python; elsewhere the library has a slower trace function in Python.
It is imported only by a process that measures.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping

from kvref.target import Json, Outcome, Target, perform
from kvref_conformance.targets.own import OwnFiles

Arcs = dict[str, list[list[int]]]
"""By the path of a file, pairs of lines that ran one after the other; -N is outside of what begins at N."""


class Measure:
    """What was run in this process, and in others that were asked."""

    def __init__(self, own: OwnFiles) -> None:
        from coverage import Coverage

        self.own = own
        # An empty list would stand for everything.
        include = own.measured or [os.devnull]
        self._coverage = Coverage(
            data_file=None, config_file=False, branch=True, include=include, omit=own.left_out
        )
        # Others are not to be had in every version, nor set and unset so often.
        self._coverage.set_option("run:core", "ctrace")
        self._coverage.start()
        self._trace, self._trace_threads = sys.gettrace(), threading.gettrace()
        sys.settrace(None)
        threading.settrace(None)
        self._told: dict[str, set[tuple[int, int]]] = {}
        self._others: dict[str, set[tuple[int, int]]] = {}
        self.on = True

    def perform(self, target: Target, operation: str, arguments: Mapping[str, Json]) -> Outcome:
        """Run one operation, measured."""
        threading.settrace(self._trace_threads)
        sys.settrace(self._trace)
        try:
            return perform(target, operation, arguments)
        finally:
            sys.settrace(None)
            threading.settrace(None)

    def add(self, arcs: Arcs) -> None:
        """What another process has told."""
        for path, pairs in arcs.items():
            self._others.setdefault(path, set()).update((start, end) for start, end in pairs)

    def new(self) -> Arcs:
        """What was run since this was asked last."""
        data = self._coverage.get_data()
        run: dict[str, set[tuple[int, int]]] = {
            path: set(data.arcs(path) or ()) for path in data.measured_files()
        }
        for path, pairs in self._others.items():
            run.setdefault(path, set()).update(pairs)
        found = {path: pairs - self._told.get(path, set()) for path, pairs in run.items()}
        self._told.update(run)
        return {path: [list(pair) for pair in sorted(pairs)] for path, pairs in found.items() if pairs}


class Measured:
    """A target whose operations are measured; nothing else is asked of it."""

    def __init__(self, target: Target, measure: Measure) -> None:
        self._target = target
        self._measure = measure

    def perform(self, operation: str, arguments: Mapping[str, Json]) -> Outcome:
        run = self._measure.perform if self._measure.on else perform
        return run(self._target, operation, arguments)


Asked = Target | Measured
"""What operations are asked of."""


def ask(target: Asked, operation: str, arguments: Mapping[str, Json]) -> Outcome:
    """What `kvref.target.perform` does."""
    if isinstance(target, Measured):
        return target.perform(operation, arguments)
    return perform(target, operation, arguments)
