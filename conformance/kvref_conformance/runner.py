"""Check a target: plan units, run them, confirm what broke with stand-alone programs, add up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from kvref_conformance.baseline import Baseline, Known
from kvref_conformance.inherited import stock_trace
from kvref_conformance.laws import ANSWERS, LAWS, Law, LawBroken
from kvref_conformance.profile import NO_PROFILE, Profile
from kvref_conformance.programs import ProgramError, Source, stand_alone_program
from kvref_conformance.reducer import MAX_SECONDS, reduce_death
from kvref_conformance.report.files import trace_digest
from kvref_conformance.report.progress import Progress
from kvref_conformance.results import Result, Row, Status, Trace
from kvref_conformance.session import NotJudged, execute, run_program
from kvref_conformance.subjects import ALL_OPERATIONS, of_unknown_kind, subjects_of
from kvref_conformance.targets import is_external, operations_module
from kvref_conformance.targets.plugins import NO_PLUGIN
from kvref_conformance.units import Running, Unit, listen_all
from kvref_conformance.worker import LOAD_PATIENCE, RunningHosts, TargetFailed, Worker
from kvref_strategies.catalogue import WORKLOADS
from kvref_strategies.workload import Description

DEPTHS = {"quick": 100, "standard": 500, "deep": 5000}
"""Examples of a workload for one subject, before its weight."""

REDUCING_TIMEOUT = 5.0
"""Seconds an operation may take while a trace that hangs is reduced."""

MAX_DEATHS = 6
"""Units whose death is replayed and reduced; further ones are named only."""

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Options:
    """What to run and how: `budget` in seconds cuts, `jobs` units run at a time."""

    laws: tuple[str, ...] = tuple(LAWS)
    depth: str = "quick"
    seed: int = 0
    budget: float | None = None
    jobs: int = 1
    strict: bool = False
    subjects: tuple[str, ...] = ()
    """Globs; none for every subject."""

    def left_out(self, subject: str) -> bool:
        """Whether it is not among the subjects to be run; what has no subject is never left out."""
        globs = self.subjects
        return bool(globs and subject) and not any(fnmatchcase(subject, glob) for glob in globs)


class NoSuchSubject(ValueError):
    """Globs that match no subject of the chosen laws."""


def flags_needed(laws: Iterable[str], plugin: bool) -> list[str]:
    """The sets of interpreter flags for which the laws need a host; some only where there is a plugin."""
    workloads = (WORKLOADS[law.workload] for law in _feeding([LAWS[law] for law in laws]))
    needed = dict.fromkeys(["", *(flags for workload in workloads for flags in workload.flags)])
    return [flags for flags in needed if plugin or NO_PLUGIN not in flags.split()]


def _feeding(laws: Sequence[Law]) -> list[Law]:
    """The laws whose workloads have to run. Any workload feeds `target.answers`: alone, it gets all."""
    return [law for law in (LAWS.values() if laws == [ANSWERS] else laws) if law is not ANSWERS]


class Runner:
    """Checks one loaded target."""

    def __init__(
        self,
        worker: Worker,
        hosts: RunningHosts,
        description: Description,
        options: Options,
        watcher: Progress,
        profile: Profile = NO_PROFILE,
    ) -> None:
        self._worker = worker
        self._running = hosts
        self._hosts: dict[str, str] = {flags: host.address for flags, host in hosts.items()}
        self._description = description
        self._options = options
        self._watcher = watcher
        self._profile = profile
        self._laws = [law for law in LAWS.values() if law.id in options.laws]
        self._started = time.monotonic()
        # In Python 3.11 parsing in two threads at once fails now and then (CPython issue 106905).
        self._parsing = threading.Lock()

    def run(self, baseline: Baseline) -> Result:
        """Run the selected laws and tell what was found."""
        self._started = started = time.monotonic()
        description, options = self._description, self._options
        plugin = description["plugin"]
        self._check_subjects()
        known, notes = self._replay_known(baseline)
        notes += [self._profile.note] if self._profile.note else []
        if unknown := of_unknown_kind(description):
            notes.append(f"of no kind that kvref knows, held to the laws for any kind: {', '.join(unknown)}")
        units, rows = self._plan()
        for unit in units:
            for entry in known:
                if entry.subject == unit.subject:
                    unit.known.setdefault(entry.law, []).append(entry.facet)
            for failure in self._profile.known:
                if failure.subject == unit.subject and failure.facet is not None:
                    unit.accepted.setdefault(failure.law, []).append(failure.facet)
        self._run_units(units, started)
        for unit in units:
            rows += self._unit_rows(unit, known)
        if ANSWERS in self._laws:
            rows += self._answers_rows(units, known)
        self._confirm([row for row in rows if row.status is Status.BROKEN])
        self._inherit(rows)
        self._accept(rows)
        order = list(LAWS)
        rows.sort(key=lambda row: order.index(row.law))
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
            elapsed_seconds=time.monotonic() - started,
            rows=rows,
            notes=[*notes, *(plugin["notes"] if plugin else ())],
        )

    def judge(self, law: Law, trace: Trace) -> LawBroken | None:
        """Run a trace in pristine processes and ask the law about it. Raises `NotJudged`."""
        runs = execute(trace, self._hosts, self._worker.timeout)
        try:
            law.check(runs)
        except LawBroken as broken:
            return broken
        except Exception as error:
            raise NotJudged(
                f"{law.id} cannot make sense of what came of this trace ({type(error).__name__}: {error})"
            ) from error
        return None

    def has_work(self) -> bool:
        """Whether any of the selected laws can, and shall, be run on anything."""
        return bool(self._plan()[0])

    def left_out(self) -> list[Row]:
        """Rows for what the selected laws cannot, or shall not, be run on."""
        return self._plan()[1]

    def _replay_known(self, baseline: Baseline) -> tuple[list[Known], list[str]]:
        """The known deviations that still show, and a note for each that does not."""
        known, notes = [], []
        self._watcher.phase("replaying known deviations")
        for entry in baseline.known:
            law = LAWS.get(entry.law)
            if law not in self._laws or law is None or entry.subject in self._left_to_stock:
                continue
            if self._options.left_out(entry.subject):
                continue
            try:
                shows = self.judge(law, entry.trace) is not None
            except NotJudged as error:
                notes.append(f"known deviation could not be replayed: {entry.title}: {error}")
                continue
            if shows:
                known.append(entry)
            else:
                notes.append(
                    f"known deviation no longer shows: {entry.title}; remove it from {baseline.name}"
                )
        return known, notes

    def _check_subjects(self) -> None:
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

    def _plan(self) -> tuple[list[Unit], list[Row]]:
        """Units for what can be run, rows for what does not apply, in the order of the laws."""
        rows: list[Row] = []
        units: dict[tuple[str, str], Unit] = {}
        for law in _feeding(self._laws):
            workload = WORKLOADS[law.workload]
            for subject, reason in subjects_of(law, self._description).items():
                if subject in self._left_to_stock or self._options.left_out(subject):
                    continue
                gap = self._profile.gap(law.id, subject)
                # One class that a law does not speak of is no gap; a law that speaks of nothing there is.
                if gap is not None and (reason is None or not subject):
                    rows.append(_row(law, subject, Status.DECLARED_GAP, gap.reason))
                elif reason is not None:
                    rows.append(_row(law, subject, Status.NOT_APPLICABLE, reason))
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
        """Classes that are judged where there is no plugin."""
        if self._description["plugin"] is None:
            return set()
        return {info["name"] for info in self._description["classes"] if info.get("origin") != "plugin"}

    def _run_units(self, units: list[Unit], started: float) -> None:
        waiting = list(reversed(units))
        running: list[Running] = []
        budget = self._options.budget
        self._watcher.phase("running laws")
        while waiting or running:
            if budget is not None and time.monotonic() - started > budget:
                for cut in running:
                    cut.cut()
                for unit in waiting:
                    unit.cut = True
                return
            while waiting and len(running) < self._options.jobs:
                unit = waiting.pop()
                try:
                    one = Running(
                        unit,
                        hosts=self._hosts,
                        description=self._description,
                        seed=self._options.seed,
                        examples=DEPTHS[self._options.depth],
                        driven=_driven(unit, self._options.depth),
                        timeout=self._worker.timeout,
                    )
                except NotJudged as error:
                    # Nor would the host come up with a process for the others.
                    for lost in (unit, *waiting):
                        lost.failure = str(error)
                    waiting.clear()
                    break
                running.append(one)
                self._watcher.unit_started(unit.name)
            for one, examples in listen_all(running):
                if examples is not None:
                    self._watcher.unit_progress(one.unit.name, examples)
                else:
                    running.remove(one)
                    self._watcher.unit_done(one.unit.name)

    def _unit_rows(self, unit: Unit, known: list[Known]) -> list[Row]:
        """Rows of the unit's laws: each way of breaking that is new, each that is known, else one row."""
        rows = []
        for law in unit.laws:
            nothing: dict[str, Any] = {"examples": 0, "broken": [], "unreduced": []}
            findings = unit.findings["laws"][law.id] if unit.findings else nothing
            expected = [entry for entry in known if (entry.law, entry.subject) == (law.id, unit.subject)]
            own = [self._broken_row(law, unit.subject, broken) for broken in findings["broken"]]
            # Where one trace shows two facets, and one of them is accepted, the trace is.
            own = _distinct(sorted(own, key=lambda row: self._profile.failure(row) is None))
            if findings["unreduced"] and own:
                own[-1].message += f"; also breaks in: {', '.join(findings['unreduced'])}"
            reason = _why_incomplete(unit, findings["examples"])
            if reason and not own:
                unobserved = unit.workload.unobserved if unit.findings and not unit.death else ""
                status = Status.NOT_APPLICABLE if unobserved else Status.INCOMPLETE
                own = [_row(law, unit.subject, status, unobserved or reason)]
            own += [self._known_row(law, entry) for entry in expected]
            if not reason:
                facets = [*(broken["facet"] for broken in findings["broken"]), *findings["unreduced"]]
                facets += [entry.facet for entry in expected]
                own += self._stale_rows(law, unit.subject, facets, findings["examples"])
            for row in own or [_row(law, unit.subject, Status.HOLDS)]:
                row.examples = findings["examples"]
                row.seconds = round(unit.seconds, 3)
                _count(row, [unit])
                rows.append(row)
        return rows

    def _stale_rows(self, law: Law, subject: str, facets: list[str], examples: int) -> list[Row]:
        """Rows for the failures that the profile lists and that are none: only these facets broke."""
        rows = []
        for entry in self._profile.known_for(law.id, subject):
            if not (facets if entry.facet is None else entry.facet in facets):
                told = f"it did not break in {examples} examples"
                message = f"{entry.place} lists it as known ({entry.issue}), but {told}: remove it there"
                rows.append(_row(law, subject, Status.STALE, message))
                rows[-1].facet = entry.facet or ""
        return rows

    def _accept(self, rows: list[Row]) -> None:
        """Call known what the profile lists."""
        for row in rows:
            if row.status is Status.BROKEN and (failure := self._profile.failure(row)):
                row.status, row.message = Status.KNOWN, failure.message

    def _inherit(self, rows: list[Row]) -> None:
        """Call inherited what breaks for the stock ancestors of a plugin's classes without the plugin."""
        for row in rows:
            # What a law says of a plugin has no meaning without one.
            workload = WORKLOADS.get(LAWS[row.law].workload)
            about_plugin = workload is not None and "drift" in workload.parts
            if row.status is not Status.BROKEN or not self._description["plugin"] or about_plugin:
                continue
            if row.trace is None:
                continue
            trace = stock_trace(row.trace, self._description)
            self._watcher.phase(f"{row.title}: is it broken without the plugin?")
            needed = [" ".join(run["flags"]) for run in trace["runs"]]
            try:
                self._running.start(needed)
                self._hosts.update({flags: self._running[flags].address for flags in needed})
                broken = self.judge(LAWS[row.law], trace)
            except (NotJudged, TargetFailed) as error:
                row.message += f"; whether it is broken without the plugin could not be found out: {error}"
                continue
            if broken is not None and row.facet in broken.facets:
                row.status = Status.INHERITED
                row.message = f"{self._description['name']} breaks it without the plugin: {row.message}"

    def _known_row(self, law: Law, entry: Known) -> Row:
        row = _row(law, entry.subject, Status.KNOWN, entry.reason)
        row.facet = entry.facet
        row.trace = self._document(law, entry.subject, entry.facet, entry.trace)
        return row

    def _broken_row(self, law: Law, subject: str, found: dict[str, Any]) -> Row:
        row = _row(law, subject, Status.BROKEN)
        row.facet = found["facet"]
        if "trace" not in found:
            row.status = Status.UNCONFIRMED
            row.message = found.get("unstable", "it broke once, and never again when it was asked the same")
            return row
        row.expected, row.observed = found["expected"], found["observed"]
        row.message = f"expected {row.expected}; observed {row.observed}"
        row.trace = self._document(law, subject, row.facet, found["trace"])
        return row

    def _document(self, law: Law, subject: str, facet: str, trace: Trace) -> Trace:
        return {
            "schema": "kvref.trace/1",
            "law": law.id,
            "subject": subject,
            "facet": facet,
            "target": {"name": self._description["name"], "version": self._description["version"]},
            "runs": trace["runs"],
        }

    def _answers_rows(self, units: list[Unit], known: list[Known]) -> list[Row]:
        """One row that holds, or one for each distinct way in which the target died."""
        if not units:
            return [_row(ANSWERS, ALL_OPERATIONS, Status.NOT_APPLICABLE, "there is nothing to ask")]
        expected = [entry for entry in known if entry.law == ANSWERS.id]
        deaths = [
            unit
            for unit in units
            if unit.death and not any(entry.facet == _death_facet(unit) for entry in expected)
        ]
        chosen = _diverse(deaths)[:MAX_DEATHS]
        rows = _distinct(self._in_parallel(self._death_row, chosen))
        if named := [unit.name for unit in deaths if unit not in chosen]:
            rows[-1].message += f"; also ended: {', '.join(named)}"
        examples = sum(unit.findings["examples"] for unit in units if unit.findings)
        cut = [unit for unit in units if unit.cut or unit.failure or not (examples or unit.death)]
        if not rows and cut:
            rows = [_row(ANSWERS, ALL_OPERATIONS, Status.INCOMPLETE, "not everything was run")]
        elif not rows and not expected:
            rows = [_row(ANSWERS, ALL_OPERATIONS, Status.HOLDS)]
            # A few of the laws may not come to the operation that ends the process.
            if len(self._laws) == len(LAWS):
                rows = self._stale_rows(ANSWERS, ALL_OPERATIONS, [], examples) or rows
        rows += [self._known_row(ANSWERS, entry) for entry in expected]
        for row in rows:
            row.examples = examples
            row.seconds = round(sum(unit.seconds for unit in units), 3)
            _count(row, units)
        return rows

    def _death_row(self, unit: Unit) -> Row:
        """The unit's death, reduced when it comes again."""
        row = _row(ANSWERS, ALL_OPERATIONS, Status.INCOMPLETE)
        row.facet = _death_facet(unit)
        row.message = f"{unit.name}: {unit.death}"
        if unit.death_trace is None:
            row.message += ", while it performed no operation"
            return row
        try:
            trace, broken = self._reduced_death(unit, unit.death_trace)
        except NotJudged as error:
            row.message += f"; it could not be replayed: {error}"
            return row
        if broken is None:
            row.message += "; it did not come again when the operations were replayed"
            return row
        row.status = Status.BROKEN
        row.expected, row.observed = broken.expected, broken.observed
        row.message = f"{unit.name}: expected {broken.expected}; observed {broken.observed}"
        row.trace = self._document(ANSWERS, row.subject, row.facet, trace)
        return row

    def _reduced_death(self, unit: Unit, trace: Trace) -> tuple[Trace, LawBroken | None]:
        """The smallest trace found that ends the process at the same operation, and how, or None."""
        broken = self.judge(ANSWERS, trace)
        if broken is None:
            return trace, None
        self._watcher.phase(f"reducing what ended {unit.name}")
        timeout = min(self._worker.timeout, REDUCING_TIMEOUT)
        fatal = trace["runs"][-1]["operations"][-1]["op"]

        def dies(smaller: Trace) -> bool:
            try:
                runs = execute(smaller, self._hosts, timeout)
            except NotJudged:
                return False
            return any(event["op"] == fatal and "died" in event["outcome"] for run in runs for event in run)

        seconds = MAX_SECONDS
        if self._options.budget is not None:
            seconds = min(seconds, self._started + self._options.budget - time.monotonic())
        reduced = reduce_death(trace, dies, seconds)
        # What hung for the shorter time-out of reducing may come back within the full one.
        if confirmed := self.judge(ANSWERS, reduced):
            return reduced, confirmed
        return trace, broken

    def _in_parallel(self, function: Callable[[T], U], items: Iterable[T]) -> list[U]:
        pool = ThreadPoolExecutor(self._options.jobs)
        try:
            return list(pool.map(function, items))
        finally:
            # An interrupt does not wait for them: when the hosts end, the threads do, too.
            pool.shutdown(wait=False, cancel_futures=True)

    def _confirm(self, rows: list[Row]) -> None:
        """Run each broken row's program; what does not show it alone is not called broken."""
        if rows:
            self._watcher.phase(f"confirming {len(rows)} broken laws, each with a program of its own")
        self._in_parallel(self._confirm_one, rows)

    def _confirm_one(self, row: Row) -> None:
        if row.trace is None:
            return
        try:
            with self._parsing:
                row.program = self._program(row, row.trace)
        except ProgramError as error:
            row.status, row.message = Status.UNCONFIRMED, f"{row.message}; no program: {error}"
            return
        address = self._hosts[""]
        path = Path(address).parent / f"{trace_digest(row.trace)}.py"
        path.write_text(row.program, encoding="utf-8")
        patience = self._worker.timeout * LOAD_PATIENCE
        try:
            ended = run_program(path, self._worker.target, address, patience)
        except NotJudged as error:
            row.status, row.message = Status.UNCONFIRMED, f"{row.message}; its program was not run: {error}"
            return
        if ended != 1:
            row.status = Status.UNCONFIRMED
            row.message += f"; its program did not exit with 1 but: {ended}"

    def _program(self, row: Row, trace: Trace) -> str:
        target = self._worker.target

        def source(operation: str) -> Source:
            part, _, function = operation.partition(".")
            module = operations_module(target, part)
            if module is None:
                raise LookupError(f"no native operation {operation!r}")
            return Source(module, function)

        return stand_alone_program(
            title=row.title,
            law=LAWS[row.law],
            target_name=self._description["name"],
            target_version=self._description["version"],
            operations=target if is_external(target) else source,
            setup=self._description["setup"],
            trace=trace,
            isolated=row.law == ANSWERS.id,
            timeout=self._worker.timeout,
        )


def _driven(unit: Unit, depth: str) -> int:
    """How many driven examples it makes."""
    driven = unit.workload.driven
    return 0 if driven is None else driven.examples.get(depth, 0)


def _row(law: Law, subject: str, status: Status, message: str = "") -> Row:
    return Row(law=law.id, level=law.level, subject=subject, status=status, message=message)


def _count(row: Row, units: list[Unit]) -> None:
    """Add up the operations of the units' examples, and the time that these took."""
    findings = [unit.findings for unit in units if unit.findings]
    row.steps = sum(each["steps"] for each in findings)
    row.exploring_seconds = round(sum(each["seconds"] for each in findings), 3)
    row.driven_steps = sum(each["driven_steps"] for each in findings)
    row.driven_seconds = round(sum(each["driven_seconds"] for each in findings), 3)


def _death_facet(unit: Unit) -> str:
    """Which death it is: the operation at which the process ended, and whose workload asked for it."""
    if unit.death_trace is None:
        return f"no operation of {unit.subject}"
    return f"{unit.death_trace['runs'][-1]['operations'][-1]['op']} of {unit.subject}"


def _diverse(deaths: list[Unit]) -> list[Unit]:
    """The deaths, those first that differ from all before in operation or manner."""
    first: dict[tuple[str, str], Unit] = {}
    for unit in deaths:
        first.setdefault((_death_facet(unit).partition(" ")[0], unit.death), unit)
    return [*first.values(), *(unit for unit in deaths if unit not in first.values())]


def _distinct(rows: Iterable[Row]) -> list[Row]:
    """Rows without those that repeat an earlier one's trace."""
    seen: list[object] = []
    kept = []
    for row in rows:
        key = row.trace["runs"] if row.trace else (row.facet, row.message)
        if key not in seen:
            seen.append(key)
            kept.append(row)
    return kept


def _why_incomplete(unit: Unit, examples: int) -> str:
    if unit.cut:
        return "cut by the budget"
    if unit.failure:
        return f"not judged: {unit.failure}"
    if unit.death:
        return f"the target's process ended ({unit.death}); see {ANSWERS.id}"
    return "" if examples else "no example gave this law anything to judge"
