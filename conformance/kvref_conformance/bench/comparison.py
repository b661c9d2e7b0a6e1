"""Time targets side by side.

Their rounds alternate, so that a slow phase of the machine slows all of them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Protocol

from kvref.target import Json
from kvref_conformance.bench.benchmark import Benchmark, Case
from kvref_conformance.bench.catching import CATCH, NotCaught
from kvref_conformance.bench.registry import BENCHMARKS as NEXT_TO_A_TARGET
from kvref_conformance.bench.serving import BY_OPERATIONS, NATIVE, Timing, served
from kvref_conformance.documents import schemas
from kvref_conformance.processes.launch import TargetFailed
from kvref_conformance.processes.names import name_of
from kvref_conformance.processes.session import NotJudged, Session
from kvref_conformance.running.loading import Loaded
from kvref_conformance.running.progress import Progress
from kvref_conformance.targets import DEFAULT_TARGET

BENCHMARKS: dict[str, Benchmark] = {**NEXT_TO_A_TARGET, CATCH.name: CATCH}

ROUND_SECONDS, QUICK_ROUND_SECONDS = 0.05, 0.005
"""A round takes at least this long, without setup."""


class NoSuchBenchmark(ValueError):
    """No benchmark matches a glob."""


class CannotTime(Exception):
    """A benchmark cannot time a target. The message says why."""


@dataclass(frozen=True)
class Contender:
    """A target to time, with a label of its own."""

    label: str
    loaded: Loaded


@dataclass
class Timed:
    """The result of a case: for each target and round, the seconds of one operation."""

    case: Case
    labels: Sequence[str]
    """The labels of all targets, timed or left out, in the order of the command line."""
    rounds: dict[str, list[float]] = field(default_factory=dict)
    """The seconds of one operation in each round, by label."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Why a target was not timed, by label."""
    bytes: dict[str, int] = field(default_factory=dict)
    """The memory that the operation takes, by label, if it is measured."""
    unequal: str = ""
    """How the work of the targets differed, or empty if it did not. There is a ratio only if it is empty."""

    def median(self, label: str) -> float:
        return statistics.median(self.rounds[label])

    def iqr(self, label: str) -> float:
        low, high = quartiles(self.rounds[label])
        return high - low

    @property
    def ratio(self) -> float | None:
        """The second target's median over the first's; None unless two targets did the same work."""
        if len(self.rounds) != 2 or self.unequal:
            return None
        first, second = map(self.median, self.rounds)
        return second / first

    @property
    def spread(self) -> tuple[float, float] | None:
        """The quartiles of the ratios of single rounds; None if there is no ratio."""
        if self.ratio is None:
            return None
        return quartiles([b / a for a, b in zip(*self.rounds.values(), strict=True)])


def quartiles(numbers: Sequence[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return low, high


def choose(patterns: Sequence[str], device: str, quick: bool) -> list[Case]:
    """The cases of all benchmarks, or of those that match a glob. The cases of their limits come first.

    Raises `NoSuchBenchmark` if a glob matches none.
    """
    for glob in patterns:
        if not any(fnmatchcase(name, glob) for name in BENCHMARKS):
            raise NoSuchBenchmark(f"no benchmark matches {glob!r}; there are: {', '.join(BENCHMARKS)}")
    chosen = [
        case
        for benchmark in BENCHMARKS.values()
        if any(fnmatchcase(benchmark.name, glob) for glob in patterns or ["*"] * (not benchmark.here))
        for case in benchmark.cases(device, quick)
    ]
    found = [limit for case in chosen if (limit := case.limit) is not None]
    limits = [Case(BENCHMARKS[limit.benchmark], limit.params) for limit in found]
    limits.sort(key=lambda case: case.params["size"])
    every = {case.key: case for case in [*limits, *chosen]}
    order = list(BENCHMARKS)
    return sorted(every.values(), key=lambda case: order.index(case.benchmark.name))


def way_of(contenders: Sequence[Contender]) -> str:
    """`bench` if all targets implement that part, else `operations` for all of them."""
    native = all(NATIVE in each.loaded.description["parts"] for each in contenders)
    return NATIVE if native else BY_OPERATIONS


def compare(
    cases: Sequence[Case], contenders: Sequence[Contender], rounds: int, seconds: float, watcher: Progress
) -> Iterator[Timed]:
    """Time each case: `rounds` rounds of `seconds` for each contender, in turn."""
    way = way_of(contenders)
    watcher.phase(f"timing {len(cases)} cases of {len({case.benchmark.name for case in cases})} benchmarks")
    for case in cases:
        watcher.unit_started(str(case))
        yield _timed(case, contenders, way, rounds, seconds)
        watcher.unit_done(str(case))


def _timed(case: Case, contenders: Sequence[Contender], way: str, rounds: int, seconds: float) -> Timed:
    timed = Timed(case, [each.label for each in contenders])
    did: dict[str, Json] = {}
    with ExitStack() as stack:
        runners: dict[str, _Runner] = {}
        for each in contenders:
            try:
                runner = _runner(case, each, way)
                stack.callback(runner.close)
                begun = runner.begin(seconds)
                did[each.label] = begun["did"]
                if begun["bytes"] is not None:
                    timed.bytes[each.label] = begun["bytes"]
                runners[each.label] = runner
            except CannotTime as error:
                timed.left_out[each.label] = str(error)
        measured: dict[str, list[float]] = {label: [] for label in runners}
        for _ in range(rounds):
            for label, runner in list(runners.items()):
                try:
                    measured[label].append(runner.run())
                except CannotTime as error:
                    timed.left_out[label] = str(error)
                    del runners[label]
    timed.rounds = {label: measured[label] for label in runners}
    if len({json.dumps(did[label], sort_keys=True) for label in runners}) > 1:
        timed.unequal = "; ".join(f"{label}: {_in_words(did[label])}" for label in runners)
    return timed


def _in_words(did: Json) -> str:
    return ", ".join(f"{name} {value}" for name, value in did.items()) if isinstance(did, dict) else str(did)


def document(timed: Sequence[Timed], environment: Mapping[str, Any]) -> dict[str, Any]:
    """What `kvref bench --json` prints."""
    return {
        "schema": schemas.BENCH,
        "environment": environment,
        "benchmarks": [
            {
                "name": each.case.benchmark.name,
                "params": each.case.params,
                "targets": {
                    label: {
                        "median_seconds": each.median(label),
                        "iqr_seconds": each.iqr(label),
                        **({"bytes": each.bytes[label]} if label in each.bytes else {}),
                    }
                    for label in each.rounds
                },
                "ratio": each.ratio,
            }
            for each in timed
        ],
    }


class _Runner(Protocol):
    """Times a case for one contender. Methods raise `CannotTime`."""

    def begin(self, seconds: float) -> dict[str, Json]:
        """Prepare rounds of `seconds`. Returns what a pass does, and how much memory it takes."""
        ...

    def run(self) -> float:
        """Run a round. Returns the seconds of one operation."""
        ...

    def close(self) -> None: ...


def _runner(case: Case, contender: Contender, way: str) -> _Runner:
    return _Here(case, contender) if case.benchmark.here else _There(case, contender, way)


class _There:
    """Times in a fresh process, forked from a host that has only imported the target."""

    def __init__(self, case: Case, contender: Contender, way: str) -> None:
        self._case, self._contender, self._way = case, contender, way
        worker, hosts = contender.loaded.worker, contender.loaded.hosts
        try:
            self._session = Session(hosts.addresses[""], worker.timeout, through=name_of(served))
        except NotJudged as error:
            raise CannotTime(str(error)) from error
        self._passes = 1

    def begin(self, seconds: float) -> dict[str, Json]:
        begun: dict[str, Json] = self._perform(
            "begin",
            benchmark=self._case.benchmark.name,
            params=self._case.params,
            description=self._contender.loaded.description,
            way=self._way,
            seconds=seconds,
        )
        self._passes = begun["passes"]
        return begun

    def run(self) -> float:
        return float(self._perform("run", passes=self._passes))

    def _perform(self, operation: str, **arguments: Any) -> Json:
        try:
            outcome = self._session.perform(f"bench.{operation}", arguments)
        except NotJudged as error:
            raise CannotTime(str(error)) from error
        if "died" in outcome:
            raise CannotTime(f"its process ended: {outcome['died']}")
        if refused := outcome.get("error"):
            kind, message = refused["type"], refused["message"]
            raise CannotTime(message if kind == NotImplementedError.__name__ else f"{kind}: {message}")
        return outcome.get("value")

    def close(self) -> None:
        self._session.close()


class _Here:
    """Times in this process, for benchmarks of the suite and the reference."""

    def __init__(self, case: Case, contender: Contender) -> None:
        if contender.loaded.worker.target != DEFAULT_TARGET:
            raise CannotTime("it times faults of the reference, so it needs the target 'reference'")
        try:
            self._timing = Timing(case.benchmark.prepare(**case.params))
        except (TargetFailed, NotJudged) as error:
            raise CannotTime(str(error)) from error
        self._passes = 1

    def begin(self, seconds: float) -> dict[str, Json]:
        try:
            begun = self._timing.begin(seconds)
        except (NotCaught, NotJudged) as error:
            raise CannotTime(str(error)) from error
        self._passes = begun["passes"]
        return begun

    def run(self) -> float:
        try:
            return self._timing.run(self._passes)
        except (NotCaught, NotJudged) as error:
            raise CannotTime(str(error)) from error

    def close(self) -> None:
        self._timing.close()
