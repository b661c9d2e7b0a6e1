"""Record which lines of the target's own files run during operations. The target's processes use this module.

coverage.py does the tracing. Its trace function is set only while an operation runs, so that kvref neither
records nor slows down the drawing and judging of examples. The host starts coverage.py once, and the host's
children inherit the trace function. coverage.py has a C extension, which fits one version of Python. With
other versions, coverage.py uses a slower tracer. Only a process that records lines imports coverage.py.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping

from kvref.target import Json, Outcome, Target, perform
from kvref_conformance.targets.own import OwnFiles

Arcs = dict[str, list[list[int]]]
"""For each file path, the pairs of lines that ran one after the other.

A pair may begin or end with -N: that is the code outside the function that begins at line N.
"""


class Measure:
    """Records the lines that run in this process, and collects the lines that other processes report."""

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
        """All pairs of lines that no earlier call has returned."""
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
    """A target that records which lines its operations run, as long as `Measure.on` is true."""

    def __init__(self, target: Target, measure: Measure) -> None:
        self._target = target
        self._measure = measure

    def perform(self, operation: str, arguments: Mapping[str, Json]) -> Outcome:
        run = self._measure.perform if self._measure.on else perform
        return run(self._target, operation, arguments)


Asked = Target | Measured
"""A target, with or without the recording of lines."""


def ask(target: Asked, operation: str, arguments: Mapping[str, Json]) -> Outcome:
    """Perform an operation like `kvref.target.perform`, and record lines if `target` is `Measured`."""
    if isinstance(target, Measured):
        return target.perform(operation, arguments)
    return perform(target, operation, arguments)
