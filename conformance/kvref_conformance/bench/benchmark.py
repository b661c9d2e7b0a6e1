"""What a benchmark is: an operation to time, its parameters, and the setup before it is timed."""

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
    """A target to time, in the current process."""

    calls: BenchPart
    target: Target
    description: Description


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Prepared:
    """A pass of a benchmark: some operations that are timed together, any number of times.

    `reset` is called before each pass, and only `run` is timed.
    """

    run: Callable[[], object]
    operations: int = 1
    """The number of operations in a pass."""
    reset: Callable[[], object] = _nothing
    did: Callable[[], Json] = _nothing
    """What a pass does, as plain data. Two targets that do the same work return the same data."""
    close: Callable[[], object] = _nothing
    memory: Callable[[], int | None] = _nothing
    """The bytes of the objects that a pass makes, or None if they are not measured."""


@dataclass(frozen=True)
class Limit:
    """A lower bound: an operation cannot be faster than `times` operations of another benchmark."""

    benchmark: str
    params: Params
    times: float


@dataclass(frozen=True)
class Benchmark:
    """An operation to time, with its parameters.

    Attributes:
        name: the area and the operation, such as `pool.lookup`.
        operation: a description of the operation, for tables.
        prepare: does the setup for a subject and parameters. It raises an error if the subject lacks a part.
        grid: values of each parameter. All combinations that are `possible` are timed.
        quick: values that replace some of the grid with --quick.
        cuda: values that replace some of the grid on a CUDA device; None if there are no tensors.
        growth: the parameter that is the size in growth curves.
        limit: the lower bound, if one is known.
        here: whether the benchmark runs in kvref's own process, without a subject. These benchmarks time the
            suite and the reference, and start the processes that they need. They are slow, so they run only
            if --only names them.
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
        """A key that is equal for equal benchmarks and parameters."""
        return f"{benchmark} {json.dumps(params, sort_keys=True)}"

    @property
    def key(self) -> str:
        return self.key_of(self.benchmark.name, self.params)

    @property
    def limit(self) -> Limit | None:
        return self.benchmark.limit(self.params) if self.benchmark.limit else None

    @property
    def parameters(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.params.items())

    def __str__(self) -> str:
        return f"{self.benchmark.name} {self.parameters}".strip()
