"""Note which lines of the target's own files its operations run; in the processes of the target.

The library `coverage` does that with a trace function, which is set during operations alone: neither what
draws examples nor what judges them is seen, or slowed. It is started once, in the host, and children inherit
it. Its C extension is for one version of Python; elsewhere the library has a slower trace function in Python.
It is imported only by a process that measures.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, cast

from kvref.target import Target
from kvref_conformance.targets.own import OwnFiles

Arcs = dict[str, list[list[int]]]
"""By the real path of a file the pairs of lines that ran one after the other; -N is outside of what begins at N."""


class Measure:
    """What was run in this process, and in others that were asked."""

    def __init__(self, own: OwnFiles) -> None:
        from coverage import Coverage

        self._coverage = Coverage(
            data_file=None, config_file=False, branch=True, include=own.measured, omit=own.left_out
        )
        # Others are not to be had in every version, nor set and unset so often.
        self._coverage.set_option("run:core", "ctrace")
        self._coverage.start()
        self._trace, self._trace_threads = sys.gettrace(), threading.gettrace()
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        self._told: dict[str, set[tuple[int, int]]] = {}
        self._others: dict[str, set[tuple[int, int]]] = {}
        self.on = True

    def of(self, target: Target) -> Target:
        """The target, with its operations measured."""
        return cast(Target, _Parts(target, self))

    def during(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, measured."""

        def operation(**arguments: Any) -> Any:
            if not self.on:
                return function(**arguments)
            threading.settrace(self._trace_threads)  # type: ignore[arg-type]
            sys.settrace(self._trace)
            try:
                return function(**arguments)
            finally:
                sys.settrace(None)
                threading.settrace(None)  # type: ignore[arg-type]

        return operation

    def add(self, arcs: Arcs) -> None:
        """What another process has told."""
        for path, pairs in arcs.items():
            self._others.setdefault(path, set()).update((start, end) for start, end in pairs)

    def new(self) -> Arcs:
        """What was run since this was asked last."""
        data = self._coverage.get_data()
        run = {path: set(data.arcs(path) or ()) for path in data.measured_files()}
        for path, pairs in self._others.items():
            run.setdefault(path, set()).update(pairs)
        found = {path: pairs - self._told.get(path, set()) for path, pairs in run.items()}
        self._told.update(run)
        return {path: [list(pair) for pair in sorted(pairs)] for path, pairs in found.items() if pairs}


class _Parts:
    """The parts of a target."""

    def __init__(self, target: Target, measure: Measure) -> None:
        self._target = target
        self._measure = measure

    def __getattr__(self, name: str) -> Any:
        part = getattr(self._target, name)
        return part if part is None or isinstance(part, str) else _Functions(part, self._measure)


class _Functions:
    """The functions of a part."""

    def __init__(self, part: object, measure: Measure) -> None:
        self._part = part
        self._measure = measure

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._part, name)
        return function if function is None else self._measure.during(function)
