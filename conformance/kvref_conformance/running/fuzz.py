"""Fuzz a target: run round after round of new examples until time is up, and save each failure at once.

A round runs every unit that the laws need. The seed of a round follows from the seed of the fuzz and the
number of the round. So an interrupted round can continue. If a unit found a failure but did not reduce it,
the unit runs again with the same seed. It then finds the failure again and reduces it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from kvref_conformance.documents.baseline import Known
from kvref_conformance.documents.profile import Profile
from kvref_conformance.documents.results import Row, Status
from kvref_conformance.laws import ANSWERS, LAWS, Law
from kvref_conformance.laws.subjects import ALL_OPERATIONS
from kvref_conformance.running.checker import DEPTHS, Checker
from kvref_conformance.running.confirm import death_facet, new_row
from kvref_conformance.running.dispatch import Effort, Running, Unit, work_off
from kvref_conformance.running.fuzz_store import Finding, Key, Store, Tally
from kvref_conformance.running.reducer import MAX_SECONDS


class View(Protocol):
    """Shows the state of a fuzz to the user."""

    def tick(self) -> None:
        """Called when the state of the fuzz may have changed."""
        ...


@dataclass
class _Task:
    """A unit that runs in a round, with its seed."""

    unit: Unit
    seed: str
    counted: dict[str, Any] | None = None
    """The counts of examples and behaviours that the unit sent last."""


class Fuzz:
    """Fuzzes one target for `seconds`. A `View` shows the state."""

    def __init__(
        self, checker: Checker, store: Store, known: list[Known], profile: Profile, seconds: float, jobs: int
    ) -> None:
        self.store = store
        self.jobs = jobs
        self.seconds = seconds
        self.started = time.monotonic()
        self._checker = checker
        self._profile = profile
        self._known: set[Key] = {(each.law, each.subject, each.facet) for each in known}
        self._known |= {
            (each.law, each.subject, each.facet) for each in profile.known if each.facet is not None
        }
        self._units = checker.plan()[0]
        self._tasks: dict[int, _Task] = {}
        self._before = store.seconds
        self._pool = ThreadPoolExecutor(jobs)
        self._confirming: list[tuple[Finding, Future[Row]]] = []

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    @property
    def tally(self) -> Tally:
        """The counts so far: of earlier runs in this folder, of this run, and of units that still run."""
        tally = replace(self.store.tally, behaviours=self.store.tally.behaviours.copy())
        for task in [*self._tasks.values()]:
            if task.counted:
                tally.add(task.counted)
        return tally

    def run(self, view: View) -> None:
        """Run rounds until time is up. Units that are then reducing a failure get another minute.

        Raises `NotJudged` if the host cannot fork any more.
        """
        try:
            self._confirm_left_over()
            for one, message in work_off(self._starts(), self.jobs, self._late):
                task = self._tasks[id(one.unit)]
                if message is None:
                    self._over(task)
                elif "broke" in message:
                    self._broke(task, message["broke"], reduced=False)
                elif "reduced" in message:
                    self._confirm(self._broke(task, message["reduced"], reduced=True))
                else:
                    task.counted = message["counted"]
                self._collect()
                view.tick()
            while self._confirming:
                self._collect(wait=True)
                view.tick()
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)
            for task in self._tasks.values():
                self._count(task)
            self._tasks.clear()
            self._save_state()

    def _save_state(self) -> None:
        self.store.seconds = self._before + self.elapsed
        self.store.save_state()

    # Which units run.

    def _starts(self) -> Iterator[Running]:
        for unit, seed in self._agenda():
            if self.elapsed > self.seconds:
                return
            driven = unit.workload.driven
            effort = Effort(
                seed,
                DEPTHS["quick"],
                0 if driven is None else driven.examples["standard"],
                str(self.store.examples),
            )
            new = replace(unit, known={law.id: self._known_facets(law, unit.subject) for law in unit.laws})
            self._tasks[id(new)] = _Task(new, seed)
            yield self._checker.start(new, effort)

    def _agenda(self) -> Iterator[tuple[Unit, str]]:
        """Yield units with their seeds, in the order in which they run.

        First come units that found a failure in an earlier run and did not reduce it, with the seed of that
        time. Then come all units, round after round.
        """
        by_name = {unit.name: unit for unit in self._units}
        left = {(each.unit, each.seed) for each in self.store.findings.values() if self._is_raw(each)}
        for name, seed in sorted(left):
            if name in by_name:
                yield by_name[name], seed
        while self._units:
            seed = f"{self.store.seed}/{self.store.round}"
            for unit in self._in_order(seed):
                if unit.name not in self.store.done and (unit.name, seed) not in left:
                    yield unit, seed
            self.store.round += 1
            self.store.done.clear()

    def _in_order(self, seed: str) -> list[Unit]:
        """The units in an order that follows from the seed.

        Units with driven examples come first, because they find most.
        """
        units = [*self._units]
        random.Random(seed).shuffle(units)
        return sorted(units, key=lambda unit: unit.workload.driven is None)

    def _known_facets(self, law: Law, subject: str) -> list[str]:
        found = {key for key, each in self.store.findings.items() if not self._is_raw(each)}
        return sorted(facet for id, of, facet in found | self._known if (id, of) == (law.id, subject))

    def _late(self, unit: Unit) -> bool:
        late = self.elapsed - self.seconds
        return late > 0 and (late > MAX_SECONDS or not self._raw_of(self._tasks[id(unit)]))

    @staticmethod
    def _is_raw(finding: Finding) -> bool:
        return finding.row.status is Status.INCOMPLETE and not finding.reduced

    def _raw_of(self, task: _Task) -> list[Finding]:
        """The findings of the unit that are not reduced yet."""
        mine = (task.unit.name, task.seed)
        return [
            each
            for each in self.store.findings.values()
            if self._is_raw(each) and mine == (each.unit, each.seed)
        ]

    # What units find.

    def _broke(self, task: _Task, found: dict[str, Any], *, reduced: bool) -> Finding | None:
        row = self._checker.confirmer.broken_row(LAWS[found["law"]], task.unit.subject, found)
        return self._found(task, row, reduced=reduced)

    def _found(self, task: _Task, row: Row, *, reduced: bool) -> Finding | None:
        """Save a finding if it is new, or reduced for the first time. Returns None if it was not saved."""
        finding = Finding(row, task.seed, task.unit.name, reduced)
        earlier = self.store.findings.get(finding.key)
        if finding.key in self._known or self._profile.failure(row):
            return None
        if earlier is not None:
            if not self._is_raw(earlier) or not reduced:
                return None
            finding.files = earlier.files
        row.status = Status.INCOMPLETE
        self.store.save(finding)
        return finding

    def _over(self, task: _Task) -> None:
        unit = task.unit
        findings = unit.findings
        raw_still: set[tuple[str, str]] = set()
        if findings is not None:
            task.counted = findings["counted"]
            for law in unit.laws:
                found = findings["laws"][law.id]
                raw_still |= {(law.id, facet) for facet in found["unreduced"]}
                for broken in found["broken"]:
                    if "trace" in broken:
                        row = self._checker.confirmer.broken_row(law, unit.subject, broken)
                        self._confirm(self._found(task, row, reduced=True))
        if unit.death:
            self._died(task)
        if not unit.cut:
            # These will not be reduced further: confirm them as they are.
            for finding in self._raw_of(task):
                if (finding.row.law, finding.row.facet) not in raw_still:
                    self._confirm(finding)
            if task.seed == f"{self.store.seed}/{self.store.round}":
                self.store.done.add(unit.name)
        del self._tasks[id(unit)]
        self._count(task)
        self._save_state()

    def _count(self, task: _Task) -> None:
        if task.counted:
            self.store.tally.add(task.counted)

    def _died(self, task: _Task) -> None:
        """Save the death of a unit as a finding, then reduce it in a thread, while other units run."""
        unit = task.unit
        row = new_row(ANSWERS, ALL_OPERATIONS, Status.INCOMPLETE, f"{unit.name}: {unit.death}")
        row.facet, row.expected, row.observed = death_facet(unit), "an answer", unit.death
        if unit.death_trace is not None:
            row.trace = self._checker.confirmer.document(ANSWERS, row.subject, row.facet, unit.death_trace)
        finding = self._found(task, row, reduced=False) or self.store.findings.get(
            (row.law, row.subject, row.facet)
        )
        pending = [id(each) for each, _ in self._confirming]
        if finding is not None and self._is_raw(finding) and id(finding) not in pending:
            self._confirming.append((finding, self._pool.submit(self._reduce_death, replace(row), unit)))

    def _reduce_death(self, raw: Row, unit: Unit) -> Row:
        confirmer = self._checker.confirmer
        row = confirmer.death_row(unit)
        if row.status is not Status.BROKEN:
            return replace(raw, status=Status.UNCONFIRMED, message=row.message)
        confirmer.confirm(row)
        confirmer.inherit(row)
        return row

    def _confirm_left_over(self) -> None:
        for finding in self.store.findings.values():
            if finding.row.status is Status.INCOMPLETE and finding.reduced:
                self._confirm(finding)

    def _confirm(self, finding: Finding | None) -> None:
        if finding is None or id(finding) in [id(each) for each, _ in self._confirming]:
            return

        def confirmed(row: Row) -> Row:
            self._checker.confirmer.confirm(row)
            self._checker.confirmer.inherit(row)
            return row

        row = replace(finding.row, status=Status.BROKEN)
        self._confirming.append((finding, self._pool.submit(confirmed, row)))

    def _collect(self, wait: bool = False) -> None:
        """Save the findings whose confirmation has ended. With `wait`, wait for the confirmations first."""
        for finding, future in [*self._confirming]:
            if wait or future.done():
                self._confirming.remove((finding, future))
                row = future.result()
                if self.store.findings.get(finding.key) is not finding:
                    continue  # another unit has reduced it in the meantime
                finding.reduced = finding.reduced or (row.law == ANSWERS.id and row.status is Status.BROKEN)
                finding.row = row
                self.store.save(finding)
