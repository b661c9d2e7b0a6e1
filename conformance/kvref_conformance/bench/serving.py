"""The part of a benchmark that runs in the target's process: it does the setup and times passes."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kvref.target import Json, Target
from kvref_conformance.bench.benchmark import Params, Prepared, Subject
from kvref_conformance.bench.operations import Operations
from kvref_conformance.bench.registry import BENCHMARKS
from kvref_strategies.workload import Description

NATIVE, BY_OPERATIONS = "bench", "operations"
"""Ways to call a target: through its part `bench`, or through the operations of its other parts."""

_FASTER = 10
"""The largest factor by which the number of passes grows from one attempt to the next."""
_PATIENCE = 10
"""If a round with its setup takes this many times the requested seconds, it gets no more passes."""


def subject_of(target: Target, description: Description, way: str) -> Subject:
    calls = target.bench if way == NATIVE else Operations(target)
    if calls is None:
        raise LookupError(f"target {target.name!r} does not implement the part {NATIVE!r}")
    return Subject(calls, target, description)


class Timing:
    """A prepared benchmark, which can be timed any number of times."""

    def __init__(self, prepared: Prepared, clock: Callable[[], float] = time.perf_counter) -> None:
        self._prepared = prepared
        self._clock = clock
        # The setup may make many objects that stay: the garbage collector must not scan them.
        gc.collect()
        gc.freeze()

    def begin(self, seconds: float) -> dict[str, Json]:
        """Find out how many passes make a round of `seconds`.

        Returns this number, what a pass does, and how much memory it takes.
        """
        # The first pass may differ from the later ones, since only the setup came before it.
        self._make(1)
        taken, passes = self._make(1), 1
        did, memory = self._prepared.did(), self._prepared.memory()
        while taken < seconds:
            more = math.ceil(passes * min(_FASTER, seconds / max(taken, 1e-9)))
            before = self._clock()
            taken = self._make(more)
            passes = more
            if self._clock() - before > _PATIENCE * seconds:
                break
        return {"did": did, "passes": passes, "bytes": memory}

    def run(self, passes: int) -> float:
        """Run `passes` passes. Returns the seconds of one operation."""
        return self._make(passes) / (passes * self._prepared.operations)

    def _make(self, passes: int) -> float:
        reset, run, clock = self._prepared.reset, self._prepared.run, self._clock
        total, enabled = 0.0, gc.isenabled()
        gc.collect()
        gc.disable()
        try:
            for _ in range(passes):
                reset()
                start = clock()
                run()
                total += clock() - start
        finally:
            if enabled:
                gc.enable()
        return total

    def close(self) -> None:
        self._prepared.close()


def served(target: Target) -> Any:
    """A stand-in for the target in a session. Its part `bench` has the operations that time the target.

    These operations take and return plain data.
    """
    timings: list[Timing] = []
    # The setup may make millions of objects, which stay. A round collects garbage before it begins.
    gc.disable()

    def begin(
        benchmark: str, params: Params, description: Description, way: str, seconds: float
    ) -> dict[str, Json]:
        subject = subject_of(target, description, way)
        timings[:] = [Timing(BENCHMARKS[benchmark].prepare(subject, **params))]
        return timings[0].begin(seconds)

    def run(passes: int) -> float:
        return timings[0].run(passes)

    def device_name() -> str:
        import torch

        return torch.cuda.get_device_name()

    operations = SimpleNamespace(begin=begin, run=run, device_name=device_name)
    return SimpleNamespace(name=target.name, bench=operations)
