"""Try every fault of the reference: which law catches it, and how soon?"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from kvref_conformance.documents import schemas
from kvref_conformance.laws import ANSWERS, LAWS
from kvref_conformance.processes.launch import Launch, TargetFailed
from kvref_conformance.processes.session import NotJudged
from kvref_conformance.running.checker import DEPTH, DEPTHS
from kvref_conformance.running.dispatch import Unit
from kvref_conformance.running.loading import loaded
from kvref_conformance.running.progress import Progress, Silence
from kvref_conformance.running.time_to_find import Trial, try_on
from kvref_conformance.targets.faults import FAULTS, PREFIX, REPORTED

CONTROL = "reference"
"""The control is the reference without a fault. It is tried like a fault, and no law may break."""


class NoSuchFault(ValueError):
    """The glob matches no generated fault (see `field_faults`)."""


class NoSuchArea(ValueError):
    """The glob matches no area of laws."""


@dataclass(frozen=True)
class Fault:
    """A deliberate fault of the reference, and the law that must catch it."""

    name: str
    law: str
    source: str = ""
    """Where this bug was reported. Empty if we made the fault up. A reported bug shows only after several
    operations."""
    depth: str = DEPTH
    """The depth at which the law finds the fault."""

    @property
    def target(self) -> str:
        return PREFIX + self.name

    @property
    def area(self) -> str:
        return LAWS[self.law].area

    @property
    def judges(self) -> tuple[str, ...]:
        """The laws that judge the fault: those of the areas that `near` gives."""
        return tuple(law.id for law in LAWS.values() if law.area in near(self.law))


@dataclass(frozen=True)
class Tried:
    """The outcome of trying a fault. If `fault` is None, the control was tried."""

    fault: Fault | None
    trial: Trial

    @property
    def name(self) -> str:
        return self.fault.name if self.fault else CONTROL

    @property
    def area(self) -> str:
        return self.fault.area if self.fault else ""

    @property
    def seconds(self) -> float | None:
        """Seconds until the fault's law broke; None if it did not."""
        catch = self.trial.catches.get(self.fault.law) if self.fault else None
        return catch.seconds if catch else None

    @property
    def as_expected(self) -> bool:
        if self.fault is None:
            return not self.trial.catches and not self.trial.open
        return self.fault.law in self.trial.catches


def near(law: str) -> set[str]:
    """The areas of the laws that judge a fault which `law` must catch. Normally this is the area of `law`.

    `target.answers` has no workload of its own, so its faults need the workloads of other laws. A process
    that dies can show in any area, so two areas are enough.
    """
    return {ANSWERS.area, "spec", "plan"} if law == ANSWERS.id else {LAWS[law].area}


def faults(areas: Sequence[str] = ()) -> list[Fault]:
    """All faults, or those whose area matches one of the globs. Raises `NoSuchArea`."""
    known = [Fault(target.removeprefix(PREFIX), law) for target, law in FAULTS.items()]
    known += [Fault(target.removeprefix(PREFIX), *reported) for target, reported in REPORTED.items()]
    for glob in areas:
        if not any(fnmatchcase(fault.area, glob) for fault in known):
            areas_there = ", ".join(dict.fromkeys(fault.area for fault in known))
            raise NoSuchArea(f"no area matches {glob!r}; the areas are: {areas_there}")
    return [each for each in known if not areas or any(fnmatchcase(each.area, glob) for glob in areas)]


def try_all(chosen: Sequence[Fault], seed: int, jobs: int, watcher: Progress) -> Iterator[Tried]:
    """Try the control and the faults, `jobs` at a time. Yields each outcome as soon as it is known.

    The control runs at the deepest depth that any fault needs.
    """
    judges = tuple(law for law in LAWS if any(law in fault.judges for fault in chosen))
    deepest = max((fault.depth for fault in chosen), key=list(DEPTHS).index)
    over = threading.Event()
    watching = threading.Lock()  # `Progress` is not safe for threads

    def try_one(fault: Fault | None) -> Tried:
        name = fault.name if fault else CONTROL
        with watching:
            watcher.unit_started(name)
        trial = _try(fault, judges if fault is None else fault.judges, deepest, seed, over.is_set)
        with watching:
            watcher.unit_done(name)
        return Tried(fault, trial)

    pool = ThreadPoolExecutor(jobs)
    try:
        for future in as_completed([pool.submit(try_one, fault) for fault in (None, *chosen)]):
            yield future.result()
    finally:
        over.set()
        pool.shutdown(cancel_futures=True)


def _try(
    fault: Fault | None, judges: Sequence[str], deepest: str, seed: int, stop: Callable[[], bool]
) -> Trial:
    def own_first(units: list[Unit]) -> list[Unit]:
        return sorted(units, key=lambda unit: fault is None or LAWS[fault.law] not in unit.laws)

    try:
        worker = Launch(fault.target if fault else CONTROL)
        depth = fault.depth if fault else deepest
        with loaded(worker, judges, Silence()) as target:
            return try_on(target, judges, chosen=own_first, depth=depth, seed=seed, stop=stop)
    except (TargetFailed, NotJudged) as error:
        return Trial(open=[str(error)])


def quantiles(tried: Sequence[Tried]) -> tuple[float, float]:
    """Seconds until a fault is caught: the median and the 95th percentile."""
    seconds = sorted(each.seconds for each in tried if each.seconds is not None)
    if len(seconds) < 2:
        return (seconds or [0.0])[0], (seconds or [0.0])[0]
    return statistics.median(seconds), statistics.quantiles(seconds, n=20, method="inclusive")[-1]


def in_order(tried: Sequence[Tried]) -> list[Tried]:
    """The outcomes in the order of the laws, the control first."""
    laws = list(LAWS)
    return sorted(tried, key=lambda each: (laws.index(each.fault.law) if each.fault else -1, each.name))


def document(tried: Sequence[Tried], seed: int) -> dict[str, Any]:
    """The document that `kvref faults --json` prints."""
    return {
        "schema": schemas.FAULTS,
        "seed": seed,
        "control": next((outcome(each) for each in tried if each.fault is None), None),
        "faults": [
            {**outcome(each), "area": each.fault.area, "law": each.fault.law, "source": each.fault.source}
            for each in in_order(tried)
            if each.fault
        ],
    }


def outcome(each: Tried) -> dict[str, Any]:
    """The outcome of a fault, as in the document."""
    caught = each.trial.catches.get(each.fault.law) if each.fault else None
    return {
        "name": each.name,
        "caught_by": list(each.trial.catches),
        "seconds": (caught or each.trial).seconds,
        "examples": (caught or each.trial).examples,
        "subject": caught.subject if caught else "",
        "open": each.trial.open,
    }
