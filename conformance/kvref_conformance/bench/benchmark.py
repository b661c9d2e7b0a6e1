"""What a benchmark is: something to do, with many parameters, and what is made ready before it is timed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from kvref.target import BenchPart, Json, Target
from kvref_strategies.workload import Description

Params = dict[str, Any]
Grid = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Subject:
    """What is timed, in this process."""

    calls: BenchPart
    target: Target
    description: Description


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Prepared:
    """A pass that can be made again and again: `reset` before each, and `run`, which alone is timed."""

    run: Callable[[], object]
    operations: int = 1
    """In a pass."""
    reset: Callable[[], object] = _nothing
    did: Callable[[], Json] = _nothing
    """What the last pass did, or another one does, as plain data: equal where two targets do the same."""
    close: Callable[[], object] = _nothing
    memory: Callable[[], int | None] = _nothing
    """Bytes that what a pass makes takes, if that is told."""


@dataclass(frozen=True)
class Limit:
    """What an operation cannot be faster than: so many operations of another benchmark."""

    benchmark: str
    params: Params
    times: float


@dataclass(frozen=True)
class Benchmark:
    """Something to do.

    Attributes:
        name: area and what is done.
        operation: what is told the seconds of.
        prepare: makes it ready for a subject and parameters. It raises for what the subject has nothing of.
        grid: values of each parameter; all of their combinations that are `possible`.
        quick: other values, for a first look.
        cuda: other values, where tensors are on a CUDA device; None where there are no tensors.
        growth: the parameter that tells how large it is.
        limit: what it cannot be faster than, if that is known.
        here: whether it is about the suite and the reference alone: it is prepared for no subject, in kvref's
            own process, and starts those that it needs. It takes long, and has to be asked for.
    """

    name: str
    operation: str
    prepare: Callable[..., Prepared]
    grid: Grid
    quick: Grid = field(default_factory=dict)
    cuda: Grid | None = None
    growth: str | None = None
    possible: Callable[[Params], bool] = lambda params: True
    limit: Callable[[Params], Limit] | None = None
    here: bool = False

    def cases(self, device: str, quick: bool) -> Iterator[Case]:
        grid: Grid = {**self.grid, **(self.cuda or {} if device == "cuda" else {})}
        grid = {**grid, **(self.quick if quick else {})}
        if self.cuda is not None:
            grid = {**grid, "device": [device]}
        for values in product(*grid.values()):
            params = dict(zip(grid, values, strict=True))
            if self.possible(params):
                yield Case(self, params)


@dataclass(frozen=True)
class Case:
    """A benchmark with its parameters."""

    benchmark: Benchmark
    params: Params

    @staticmethod
    def key_of(benchmark: str, params: Params) -> str:
        """The same for the same benchmark and parameters."""
        return f"{benchmark} {json.dumps(params, sort_keys=True)}"

    @property
    def key(self) -> str:
        return self.key_of(self.benchmark.name, self.params)

    @property
    def limit(self) -> Limit | None:
        return self.benchmark.limit(self.params) if self.benchmark.limit else None

    @property
    def told(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.params.items())

    def __str__(self) -> str:
        return f"{self.benchmark.name} {self.told}".strip()
