"""The side of a benchmark that is in the target's process: prepares it, and times passes."""

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
"""Ways of calling a target: by its part of that name, or by its other parts."""

_FASTER = 10
"""How many times as many passes are tried at most, when few took next to no time."""
_PATIENCE = 10
"""How many times as long as what is timed all of a round may take."""


def subject_of(target: Target, description: Description, way: str) -> Subject:
    calls = target.bench if way == NATIVE else Operations(target)
    if calls is None:
        raise LookupError(f"target {target.name!r} has no part {NATIVE!r}")
    return Subject(calls, target, description)


class Timing:
    """A benchmark that is prepared, and timed as often as one likes."""

    def __init__(self, prepared: Prepared, clock: Callable[[], float] = time.perf_counter) -> None:
        self._prepared = prepared
        self._clock = clock
        # What was prepared stays, and may be much: nobody needs to look through it for garbage.
        gc.collect()
        gc.freeze()

    def begin(self, seconds: float) -> dict[str, Json]:
        """Make passes until a round takes so long: what one does and takes, and how many are in a round."""
        # What the first one does may depend on what was prepared, and not on a pass before it.
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
        """Seconds that an operation takes, in so many passes."""
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
    """What a session asks to time a target: a part with operations, of which plain data goes in and out."""
    timings: list[Timing] = []
    # Preparing may make millions of objects, which stay; a round looks for garbage before it begins.
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
