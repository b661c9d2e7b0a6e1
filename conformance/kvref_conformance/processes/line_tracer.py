"""Record which lines of the target's own files its operations run; used in the target's processes.

coverage.py does the tracing. Its trace function is set only while an operation runs, so drawing and judging
examples is neither recorded nor slowed. The host starts coverage.py once, and children inherit it. Its C
extension fits one version of Python; with others, it uses a slower tracer. Only a process that measures
imports coverage.py.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping

from kvref.target import Json, Outcome, Target, perform
from kvref_conformance.targets.own import OwnFiles

Arcs = dict[str, list[list[int]]]
"""By file path, pairs of lines that ran one after the other; -N is outside the function that begins at N."""


class Measure:
    """The lines that ran in this process, and in the processes that reported to it."""

    def __init__(self, own: OwnFiles) -> None:
        from coverage import Coverage

        self.own = own
        # coverage.py takes an empty list as "everything".
        include = own.measured or [os.devnull]
        self._coverage = Coverage(
            data_file=None, config_file=False, branch=True, include=include, omit=own.left_out
        )
        # The other cores do not exist in every version, and cannot be switched on and off this often.
        self._coverage.set_option("run:core", "ctrace")
        self._coverage.start()
        self._trace, self._trace_threads = sys.gettrace(), threading.gettrace()
        sys.settrace(None)
        threading.settrace(None)
        self._reported: dict[str, set[tuple[int, int]]] = {}
        self._others: dict[str, set[tuple[int, int]]] = {}
        self.on = True

    def perform(self, target: Target, operation: str, arguments: Mapping[str, Json]) -> Outcome:
        """Perform an operation and record the lines that run."""
        threading.settrace(self._trace_threads)
        sys.settrace(self._trace)
        try:
            return perform(target, operation, arguments)
        finally:
            sys.settrace(None)
            threading.settrace(None)

    def add(self, arcs: Arcs) -> None:
        """Add the lines that another process reported."""
        for path, pairs in arcs.items():
            self._others.setdefault(path, set()).update((start, end) for start, end in pairs)

    def new(self) -> Arcs:
        """The pairs of lines that ran since the last call."""
        data = self._coverage.get_data()
        run: dict[str, set[tuple[int, int]]] = {
            path: set(data.arcs(path) or ()) for path in data.measured_files()
        }
        for path, pairs in self._others.items():
            run.setdefault(path, set()).update(pairs)
        found = {path: pairs - self._reported.get(path, set()) for path, pairs in run.items()}
        self._reported.update(run)
        return {path: [list(pair) for pair in sorted(pairs)] for path, pairs in found.items() if pairs}


class Measured:
    """A target whose operations are traced."""

    def __init__(self, target: Target, measure: Measure) -> None:
        self._target = target
        self._measure = measure

    def perform(self, operation: str, arguments: Mapping[str, Json]) -> Outcome:
        run = self._measure.perform if self._measure.on else perform
        return run(self._target, operation, arguments)


Asked = Target | Measured
"""What performs operations: the target, traced or not."""


def ask(target: Asked, operation: str, arguments: Mapping[str, Json]) -> Outcome:
    """Perform an operation, as `kvref.target.perform` does."""
    if isinstance(target, Measured):
        return target.perform(operation, arguments)
    return perform(target, operation, arguments)
