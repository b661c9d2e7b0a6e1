"""Try the generated faults of the spec classes: does some law of specs or of planning catch each one?

A generated fault makes one rule of one spec class forget one field.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kvref_conformance.laws import ANSWERS, LAWS
from kvref_conformance.processes.launch import Launch
from kvref_conformance.processes.session import NotJudged
from kvref_conformance.running.dispatch import Unit
from kvref_conformance.running.fault_matrix import NoSuchFault
from kvref_conformance.running.loading import Loaded, loaded
from kvref_conformance.running.progress import Progress, Silence
from kvref_conformance.running.time_to_find import Trial, try_on
from kvref_conformance.targets.faults import PREFIX
from kvref_conformance.targets.faults.fields import FieldFault, generated, infos
from kvref_conformance.targets.faults.observable import changes_an_answer
from kvref_strategies.catalogue import WORKLOADS

AREAS = ("spec", "plan")
"""The areas whose laws judge the faults."""

ENOUGH = 0.98
"""The share of the tried faults that the laws must catch."""

_JUDGES = tuple(
    law.id
    for law in LAWS.values()
    if law.area in AREAS and law is not ANSWERS and not WORKLOADS[law.workload].isolated
)


@dataclass(frozen=True)
class Judged:
    """A generated fault, and what happened when it was tried."""

    fault: FieldFault
    trial: Trial | None
    """None if the fault was not tried, because it changes no answer."""

    @property
    def caught(self) -> bool:
        return self.trial is not None and bool(self.trial.catches)


def are_enough(outcomes: Sequence[Judged]) -> bool:
    """Whether the share of caught faults, among those that change an answer, is at least `ENOUGH`."""
    tried = [each for each in outcomes if each.trial]
    return sum(each.caught for each in tried) >= ENOUGH * len(tried)


def target_of(fault: FieldFault) -> str:
    """The target name of a fault, as `kvref check` accepts it."""
    return f"{PREFIX}fields:{fault.name}"


def chosen(globs: Sequence[str] = ()) -> list[FieldFault]:
    """All generated faults, or those whose name matches one of the globs. Raises `NoSuchFault`."""
    faults = generated()
    for glob in globs:
        if not any(fnmatchcase(fault.name, glob) for fault in faults):
            raise NoSuchFault(
                f"no generated fault matches {glob!r}; names have the form CLASS__FIELD__RULE, for example "
                f"{faults[0].name}"
            )
    return [each for each in faults if not globs or any(fnmatchcase(each.name, glob) for glob in globs)]


def try_all(faults: Sequence[FieldFault], seed: int, jobs: int, watcher: Progress) -> Iterator[Judged]:
    """Try the faults, `jobs` at a time. Yields their outcomes in the order of the faults.

    All units are forked from one host, which has loaded the reference. Each unit then loads the fault in its
    own process.
    """
    watcher.phase(f"asking which of {len(faults)} faults change an answer")
    # In this thread: each fault changes this process for a moment.
    real = {fault for fault in faults if changes_an_answer(fault)}
    watcher.phase(f"trying {len(real)} faults", units=len(real))
    over = threading.Event()
    watching = threading.Lock()  # `Progress` is not safe for threads

    def judge(fault: FieldFault) -> Judged:
        if fault not in real:
            return Judged(fault, None)
        with watching:
            watcher.unit_started(fault.name)
        trial = _try(reference, fault, seed, over.is_set)
        with watching:
            watcher.unit_done(fault.name)
        return Judged(fault, trial)

    with loaded(Launch("reference"), _JUDGES, Silence()) as reference:
        pool = ThreadPoolExecutor(jobs)
        try:
            yield from pool.map(judge, faults)
        finally:
            over.set()
            pool.shutdown(cancel_futures=True)


def _try(reference: Loaded, fault: FieldFault, seed: int, stop: Callable[[], bool]) -> Trial:
    def near(units: list[Unit]) -> list[Unit]:
        """The units that are likely to catch the fault, in order.

        First come the units for the fault's class, beginning with those for its rule. Then come the units
        whose subject is no class.
        """
        classes = infos()
        own = [unit for unit in units if unit.subject == fault.spec_class]
        own.sort(key=lambda unit: fault.rule.partition("_")[0] not in unit.workload.name)
        return own + [unit for unit in units if unit.subject not in classes]

    name = target_of(fault)
    try:
        return try_on(reference, _JUDGES, chosen=near, until=_JUDGES, seed=seed, stop=stop, fault=name)
    except NotJudged as error:
        return Trial(open=[str(error)])
