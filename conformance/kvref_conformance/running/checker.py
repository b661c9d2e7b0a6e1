"""Run a check: plan units, run them, confirm each broken law with a program, make the result.

A unit is one workload, run for one subject. A row is one line of the result: a law and a subject, with the
state of the law and, if it broke, the facet.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Any

from kvref_conformance.documents.baseline import Baseline, Known
from kvref_conformance.documents.profile import NO_PROFILE, Profile
from kvref_conformance.documents.results import ALSO_BREAKS, Reached, Result, Row, Status
from kvref_conformance.laws import ANSWERS, LAWS, Law
from kvref_conformance.laws.subjects import (
    ALL_OPERATIONS,
    is_undrawable,
    left_at_default,
    of_unknown_kind,
    subjects_of,
)
from kvref_conformance.processes.launch import Launch, RunningHosts
from kvref_conformance.processes.session import NotJudged
from kvref_conformance.running.confirm import Confirmer, death_facet, in_parallel, new_row
from kvref_conformance.running.dispatch import Effort, Running, Unit, work_off
from kvref_conformance.running.line_coverage import add_up
from kvref_conformance.running.progress import Progress
from kvref_conformance.running.reducer import MAX_SECONDS
from kvref_conformance.running.undrawn import undrawn
from kvref_conformance.targets.plugins import NO_PLUGIN
from kvref_strategies.catalogue import WORKLOADS
from kvref_strategies.workload import Description

DEPTHS = {"quick": 100, "standard": 500, "deep": 5000}
"""How many examples Hypothesis draws for a workload and a subject. The workload's weight multiplies the
number."""

SYMBOLIC_SHARE = 4
"""If CrossHair also makes examples, it makes one for every four that Hypothesis makes."""

DEPTH = "quick"
"""The default depth of a check."""

MAX_DEATHS = 6
"""At most this many deaths of units are replayed and reduced. The report only names the others."""


@dataclass(frozen=True)
class Options:
    """What to run and how. `jobs` units run at a time; after `budget` seconds the check ends."""

    laws: tuple[str, ...] = tuple(LAWS)
    depth: str = DEPTH
    seed: int = 0
    budget: float | None = None
    jobs: int = 1
    strict: bool = False
    subjects: tuple[str, ...] = ()
    """Globs. Without any, all subjects are checked."""
    symbolic: bool = False
    """Whether CrossHair also makes examples, for workloads that support it."""
    known_programs: bool = False
    """Whether to write a program for each known cause, too."""
    inputs: bool = False
    """Whether to find out which inputs were never drawn."""

    @property
    def selected(self) -> dict[str, list[str]]:
        """The chosen laws and subjects, as a report lists them; empty if all are chosen."""
        laws = {"laws": [*self.laws]} if len(self.laws) < len(LAWS) else {}
        return {**laws, **({"subjects": [*self.subjects]} if self.subjects else {})}

    def left_out(self, subject: str) -> bool:
        """Whether the globs exclude this subject.

        Laws without subjects have the subject "", which is never excluded.
        """
        globs = self.subjects
        return bool(globs and subject) and not any(fnmatchcase(subject, glob) for glob in globs)


class NoSuchSubject(ValueError):
    """The globs match no subject of the chosen laws."""


def flags_needed(laws: Iterable[str], plugin: bool) -> list[str]:
    """The sets of interpreter flags that the laws need. Each set needs a host of its own.

    `plugin` says whether the target has a plugin. Some sets are needed only then.
    """
    workloads = (WORKLOADS[law.workload] for law in _feeding([LAWS[law] for law in laws]))
    needed = dict.fromkeys(["", *(flags for workload in workloads for flags in workload.flags)])
    return [flags for flags in needed if plugin or NO_PLUGIN not in flags.split()]


def _feeding(laws: Sequence[Law]) -> list[Law]:
    """The laws whose workloads must run so that the given laws can be judged.

    `target.answers` has no workload of its own: it judges the examples of all workloads. So the result never
    contains `target.answers`. If it is the only given law, the result is all other laws.
    """
    return [law for law in (LAWS.values() if laws == [ANSWERS] else laws) if law is not ANSWERS]


class Checker:
    """Checks one loaded target."""

    def __init__(
        self,
        worker: Launch,
        hosts: RunningHosts,
        description: Description,
        options: Options,
        watcher: Progress,
        profile: Profile = NO_PROFILE,
    ) -> None:
        self._worker = worker
        self._hosts = hosts
        self.confirmer = Confirmer(worker, hosts, description)
        self._description = description
        self._options = options
        self._watcher = watcher
        self._profile = profile
        self._laws = [law for law in LAWS.values() if law.id in options.laws]
        self._started = time.monotonic()

    def run(self, baseline: Baseline) -> Result:
        self._started = started = time.monotonic()
        description = self._description
        plugin = description["plugin"]
        self.check_subjects()
        known, notes = self.replay_known(baseline)
        notes += self._profile.notes
        if unknown := of_unknown_kind(description):
            notes.append(
                f"kvref does not know the kind of these classes and judges them by the laws for any kind: "
                f"{', '.join(unknown)}"
            )
        if fields := left_at_default(description):
            notes.append(
                "these fields had their defaults in all examples; list values for them under "
                f"[strategies.CLASS] in kvref.toml: {', '.join(fields)}"
            )
        units, rows = self.plan()
        searched = [unit for unit in units if self.effort(unit).symbolic]
        if found := [law.id for law in self._laws if any(law in unit.laws for unit in searched)]:
            notes.append(f"CrossHair also makes examples for {', '.join(found)}")
        for unit in units:
            for entry in known:
                if entry.subject == unit.subject:
                    unit.known.setdefault(entry.law, []).append(entry.facet)
            for failure in self._profile.known:
                if failure.subject == unit.subject and failure.facet is not None:
                    unit.accepted.setdefault(failure.law, []).append(failure.facet)
        self._run_units(units)
        for unit in units:
            rows += self._unit_rows(unit, known)
        if ANSWERS in self._laws:
            rows += self._answers_rows(units, known)
        self._confirm([row for row in rows if row.status is Status.BROKEN])
        if plugin:
            self._watcher.phase("checking what is broken without the plugin")
        for row in rows:
            self.confirmer.inherit(row)
        self._accept(rows)
        shown = [row for row in rows if row.status is Status.BROKEN and row.law != ANSWERS.id]
        in_parallel(self.confirmer.observe, shown, self._options.jobs)
        if self._options.known_programs:
            # Their traces have just been replayed, so the programs need not run.
            notes += self.confirmer.write_known_programs(rows)[1]
        order = list(LAWS)
        rows.sort(key=lambda row: order.index(row.law))
        result = self.setup(baseline)
        result.elapsed_seconds = time.monotonic() - started
        result.rows, result.coverage = rows, self._reached(units)
        if self._options.inputs:
            result.undrawn = undrawn(
                description,
                {key for unit in units if unit.findings for key in unit.findings["inputs"]},
            )
        result.notes = [*notes, *(plugin["notes"] if plugin else ())]
        return result

    def setup(self, baseline: Baseline) -> Result:
        """A result that has no rows yet. It says what is checked, and how."""
        description, options = self._description, self._options
        plugin = description["plugin"]
        return Result(
            target={
                "name": description["name"],
                "version": description["version"],
                "plugin": f"{plugin['name']} ({plugin['version']})" if plugin else None,
                "capabilities": description["capabilities"],
            },
            seed=options.seed,
            depth=options.depth,
            strict=options.strict,
            baseline=baseline.name,
            environment=description["environment"],
            profile=self._profile.name,
            selected=options.selected,
        )

    def has_work(self) -> bool:
        """Whether any selected law applies to any selected subject."""
        return bool(self.plan()[0])

    def left_out(self) -> list[Row]:
        """A row for each law and subject that the check does not run, with the reason."""
        return self.plan()[1]

    def replay_known(self, baseline: Baseline) -> tuple[list[Known], list[str]]:
        """Replay the findings of the baseline.

        Returns those that still show, and a note for each of the others.
        """
        known, notes = [], []
        self._watcher.phase("replaying known findings")
        for entry in baseline.known:
            law = LAWS.get(entry.law)
            if law not in self._laws or law is None or entry.subject in self._left_to_stock:
                continue
            if self._options.left_out(entry.subject):
                continue
            try:
                shows = self.confirmer.judge(law, entry.trace) is not None
            except NotJudged as error:
                notes.append(f"known finding could not be replayed: {entry.title}: {error}")
                continue
            if shows:
                known.append(entry)
            else:
                notes.append(f"known finding no longer shows: {entry.title}; remove it from {baseline.name}")
        return known, notes

    def check_subjects(self) -> None:
        """Raise `NoSuchSubject` if the globs exclude every subject."""
        subjects = {
            subject
            for law in _feeding(self._laws)
            for subject in subjects_of(law, self._description)
            if subject
        }
        if subjects and all(map(self._options.left_out, subjects)):
            raise NoSuchSubject(
                f"no subject matches {' or '.join(map(repr, self._options.subjects))}; there are: "
                f"{', '.join(sorted(subjects))}"
            )

    def plan(self) -> tuple[list[Unit], list[Row]]:
        """Plan the check.

        Returns the units to run, and rows for the laws and subjects that are not judged, both in the order of
        the laws.
        """
        rows: list[Row] = []
        units: dict[tuple[str, str], Unit] = {}
        for law in _feeding(self._laws):
            workload = WORKLOADS[law.workload]
            not_loaded = [why for flags in workload.flags if (why := self._hosts.failed.get(flags))]
            for subject, reason in subjects_of(law, self._description).items():
                if subject in self._left_to_stock or self._options.left_out(subject):
                    continue
                gap = self._profile.gap(law.id, subject)
                undrawable = is_undrawable(subject, reason, self._description)
                # A class to which the law does not apply needs no gap. A law without subjects may have one.
                if gap is not None and (reason is None or undrawable or not subject):
                    rows.append(new_row(law, subject, Status.DECLARED_GAP, gap.reason))
                elif undrawable:
                    rows.append(new_row(law, subject, Status.INCOMPLETE, reason or ""))
                elif reason is not None:
                    rows.append(new_row(law, subject, Status.NOT_APPLICABLE, reason))
                elif not_loaded:
                    rows.append(new_row(law, subject, Status.INCOMPLETE, not_loaded[0]))
                else:
                    unit = units.setdefault((workload.name, subject), Unit(workload, subject, []))
                    unit.laws.append(law)
        if self._laws == [ANSWERS]:
            for unit in units.values():
                unit.laws.clear()
            rows.clear()
        return list(units.values()), rows

    @property
    def _left_to_stock(self) -> set[str]:
        """The names of the stock classes if the target has a plugin; otherwise an empty set.

        Stock classes exist without the plugin, too. A check of a plugin judges only the plugin's own classes.
        """
        if self._description["plugin"] is None:
            return set()
        return {info["name"] for info in self._description["classes"] if info.get("origin") != "plugin"}

    def _run_units(self, units: list[Unit]) -> None:
        budget = self._options.budget
        deadline = math.inf if budget is None else self._started + budget
        self._watcher.phase("running laws", units=len(units))

        def late(_: Unit) -> bool:
            return time.monotonic() > deadline

        try:
            timely = takewhile(lambda unit: not late(unit), units)
            starts = (self.start(unit, self.effort(unit)) for unit in timely)
            for one, message in work_off(starts, self._options.jobs, late):
                if message is None:
                    self._watcher.unit_done(one.unit.name)
                else:
                    self._watcher.unit_progress(one.unit.name, int(message["progress"] or 0))
        except NotJudged as error:
            # The host could not fork, so it cannot start the other units either.
            for unit in units:
                if not unit.over:
                    unit.failure = str(error)
        for unit in units:
            unit.cut = unit.cut or not unit.over

    def start(self, unit: Unit, effort: Effort) -> Running:
        """Start a unit in a process of its own. Raises `NotJudged`."""
        one = Running(
            unit,
            hosts=self._hosts.addresses,
            description=self._description,
            effort=effort,
            timeout=self._worker.timeout,
        )
        self._watcher.unit_started(unit.name)
        return one

    def _reached(self, units: list[Unit]) -> Reached | None:
        """The lines of the target's own files that the units reached, if that was measured."""
        if self._worker.measured is None:
            return None
        self._watcher.phase("adding up which lines were reached")
        # If only `target.answers` is chosen, all units ran for it.
        run = [([law.id for law in unit.laws] or [ANSWERS.id], unit.reached) for unit in units]
        ended_early = [unit.name for unit in units if unit.cut or unit.failure or unit.death]
        return add_up(self._hosts[""].ask({"kind": "own"})["own"], run, ended_early)

    def effort(self, unit: Unit) -> Effort:
        """How much a unit does under these options."""
        depth, driven = self._options.depth, unit.workload.driven
        symbolic = self._options.symbolic and unit.workload.symbolic
        return Effort(
            self._options.seed,
            DEPTHS[depth],
            0 if driven is None else driven.examples.get(depth, 0),
            inputs=self._options.inputs,
            symbolic=DEPTHS[depth] // SYMBOLIC_SHARE if symbolic else 0,
        )

    def _unit_rows(self, unit: Unit, known: list[Known]) -> list[Row]:
        """The rows for each of the unit's laws: one for each facet that broke, new or known.

        If nothing broke, a law has a single row.
        """
        rows = []
        for law in unit.laws:
            nothing: dict[str, Any] = {"examples": 0, "substantial": 0, "broken": [], "unreduced": []}
            findings = unit.findings["laws"][law.id] if unit.findings else nothing
            expected = [entry for entry in known if (entry.law, entry.subject) == (law.id, unit.subject)]
            own = [self.confirmer.broken_row(law, unit.subject, broken) for broken in findings["broken"]]
            # If one trace shows two facets and one of them is accepted, the trace is accepted.
            own = _distinct(sorted(own, key=lambda row: self._profile.failure(row) is None))
            if findings["unreduced"] and own:
                own[-1].message += f"{ALSO_BREAKS}{', '.join(findings['unreduced'])}"
            reason = _why_incomplete(unit, law, findings)
            if reason and not own:
                seen = unit.death or not unit.findings or findings["examples"]
                unobserved = "" if seen else unit.workload.unobserved
                status = Status.NOT_APPLICABLE if unobserved else Status.INCOMPLETE
                own = [new_row(law, unit.subject, status, unobserved or reason)]
            own += [self.confirmer.known_row(entry) for entry in expected]
            if not reason:
                facets = [*(broken["facet"] for broken in findings["broken"]), *findings["unreduced"]]
                facets += [entry.facet for entry in expected]
                own += self._stale_rows(law, unit.subject, facets, findings["examples"])
            for row in own or [new_row(law, unit.subject, Status.HOLDS)]:
                row.examples = findings["examples"]
                row.seconds = round(unit.seconds, 3)
                _count(row, [unit])
                rows.append(row)
        return rows

    def _stale_rows(self, law: Law, subject: str, facets: list[str], examples: int) -> list[Row]:
        """Rows for the profile's known failures that did not occur.

        `facets` are the facets in which the law broke.
        """
        rows = []
        for entry in self._profile.known_for(law.id, subject):
            if not (facets if entry.facet is None else entry.facet in facets):
                message = (
                    f"{entry.place} lists it as known ({entry.issue}), but it did not break in {examples} "
                    "examples: remove it there"
                )
                rows.append(new_row(law, subject, Status.STALE, message))
                rows[-1].facet = entry.facet or ""
        return rows

    def _accept(self, rows: list[Row]) -> None:
        """Change broken rows to known ones if the profile lists them."""
        for row in rows:
            if row.status is Status.BROKEN and (failure := self._profile.failure(row)):
                row.status, row.message = Status.KNOWN, failure.message

    def _answers_rows(self, units: list[Unit], known: list[Known]) -> list[Row]:
        """The rows of `target.answers`: one for each different way in which the target died.

        If the target never died, there is a single row.
        """
        if not units:
            return [
                new_row(ANSWERS, ALL_OPERATIONS, Status.NOT_APPLICABLE, "the target has no operation to call")
            ]
        expected = [entry for entry in known if entry.law == ANSWERS.id]
        deaths = [
            unit
            for unit in units
            if unit.death and not any(entry.facet == death_facet(unit) for entry in expected)
        ]
        chosen = _diverse(deaths)[:MAX_DEATHS]
        for unit in chosen:
            self._watcher.phase(f"reducing what ended {unit.name}")
        rows = _distinct(in_parallel(self._death_row, chosen, self._options.jobs))
        if named := [unit.name for unit in deaths if unit not in chosen]:
            rows[-1].message += f"; also ended: {', '.join(named)}"
        examples = sum(unit.findings["examples"] for unit in units if unit.findings)
        cut = [unit for unit in units if unit.cut or unit.failure or not (examples or unit.death)]
        if not rows and cut:
            rows = [new_row(ANSWERS, ALL_OPERATIONS, Status.INCOMPLETE, "not everything was run")]
        elif not rows and not expected:
            rows = [new_row(ANSWERS, ALL_OPERATIONS, Status.HOLDS)]
            # A selection of laws may never call the operation that ends the process.
            if len(self._laws) == len(LAWS):
                rows = self._stale_rows(ANSWERS, ALL_OPERATIONS, [], examples) or rows
        rows += [self.confirmer.known_row(entry) for entry in expected]
        for row in rows:
            row.examples = examples
            row.seconds = round(sum(unit.seconds for unit in units), 3)
            _count(row, units)
        return rows

    def _death_row(self, unit: Unit) -> Row:
        budget = self._options.budget
        left = MAX_SECONDS if budget is None else self._started + budget - time.monotonic()
        return self.confirmer.death_row(unit, min(MAX_SECONDS, left))

    def _confirm(self, rows: list[Row]) -> None:
        """Run the program of each broken row. A row becomes unconfirmed if its program shows no break."""
        if rows:
            self._watcher.phase(f"confirming {len(rows)} broken laws, each with a program of its own")
        in_parallel(self.confirmer.confirm, rows, self._options.jobs)


def _count(row: Row, units: list[Unit]) -> None:
    """Add up the operations in these units' examples, and the time that they took. Store both in the row."""
    findings = [unit.findings for unit in units if unit.findings]
    row.steps = sum(each["steps"] for each in findings)
    row.exploring_seconds = round(sum(each["seconds"] for each in findings), 3)
    row.driven_steps = sum(each["driven_steps"] for each in findings)
    row.driven_seconds = round(sum(each["driven_seconds"] for each in findings), 3)


def _diverse(deaths: list[Unit]) -> list[Unit]:
    """The deaths, reordered: first one for each pair of operation and kind of death, then the repetitions."""
    first: dict[tuple[str, str], Unit] = {}
    for unit in deaths:
        first.setdefault((death_facet(unit).partition(" ")[0], unit.death), unit)
    return [*first.values(), *(unit for unit in deaths if unit not in first.values())]


def _distinct(rows: Iterable[Row]) -> list[Row]:
    """The rows, without those that have the same trace as an earlier row."""
    seen: list[object] = []
    kept = []
    for row in rows:
        key = row.trace["runs"] if row.trace else (row.facet, row.message)
        if key not in seen:
            seen.append(key)
            kept.append(row)
    return kept


def _why_incomplete(unit: Unit, law: Law, findings: dict[str, Any]) -> str:
    if unit.cut:
        return "cut by the budget"
    if unit.failure:
        return f"not judged: {unit.failure}"
    if unit.death:
        return f"the target's process ended ({unit.death}); see {ANSWERS.id}"
    if not findings["examples"]:
        return "no example gave this law anything to judge"
    if findings["broken"] or findings["unreduced"] or findings["substantial"] >= law.enough:
        return ""
    what = " or ".join(unit.workload.proof) or "an operation"
    return (
        f"of the {findings['examples']} examples that this law judged, {what} succeeded in "
        f"{findings['substantial']}; it holds only after {law.enough}"
    )
