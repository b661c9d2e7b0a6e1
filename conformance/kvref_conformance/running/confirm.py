"""Turn a failure into a finding: replay it, and run its stand-alone program.

If the target died, the trace is reduced here. All other failures are already reduced by the unit that found
them. A *row* is one line of a result: a law and a subject, with the state of the law and, if it broke, the
facet.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from kvref_conformance.documents.baseline import Known
from kvref_conformance.documents.names import trace_digest
from kvref_conformance.documents.results import Row, Status, Trace
from kvref_conformance.documents.schemas import TRACE
from kvref_conformance.laws import ANSWERS, LAWS, Law, LawBroken, Runs
from kvref_conformance.laws.subjects import ALL_OPERATIONS
from kvref_conformance.processes.launch import LOAD_PATIENCE, Launch, RunningHosts, TargetFailed
from kvref_conformance.processes.session import NotJudged, execute, run_program
from kvref_conformance.running.dispatch import Unit
from kvref_conformance.running.inherited import same_facet, stock_trace
from kvref_conformance.running.programs.writer import ProgramError, Source, stand_alone_program
from kvref_conformance.running.reducer import MAX_SECONDS, reduce_death
from kvref_conformance.targets import is_external, operations_module
from kvref_strategies.catalogue import WORKLOADS
from kvref_strategies.workload import Description

REDUCING_TIMEOUT = 5.0
"""Seconds that one operation may take while the trace of a dead or hanging process is reduced."""

T = TypeVar("T")
U = TypeVar("U")


def new_row(law: Law, subject: str, status: Status, message: str = "") -> Row:
    return Row(law=law.id, level=law.level, subject=subject, status=status, message=message)


def in_parallel(function: Callable[[T], U], items: Iterable[T], jobs: int) -> list[U]:
    pool = ThreadPoolExecutor(jobs)
    try:
        return list(pool.map(function, items))
    finally:
        # An interrupt does not wait for the threads: they end with the hosts.
        pool.shutdown(wait=False, cancel_futures=True)


def death_facet(unit: Unit) -> str:
    """The facet of a death: the operation that ended the process, and the unit's subject."""
    if unit.death_trace is None:
        return f"no operation of {unit.subject}"
    return f"{unit.death_trace['runs'][-1]['operations'][-1]['op']} of {unit.subject}"


class Confirmer:
    """Confirms the findings of one loaded target. Its methods may run in several threads."""

    def __init__(self, worker: Launch, hosts: RunningHosts, description: Description) -> None:
        self._worker = worker
        self._running = hosts
        self._description = description
        # In Python 3.11 parsing in two threads at once fails now and then (CPython issue 106905).
        self._parsing = threading.Lock()
        self._starting = threading.Lock()

    def judge(self, law: Law, trace: Trace) -> LawBroken | None:
        """Perform a trace in fresh processes. Returns how the trace breaks the law, or None if the law holds.

        Raises `NotJudged` if the trace cannot be performed, or if the law cannot judge the answers.
        """
        runs = execute(trace, self._running.addresses, self._worker.timeout)
        try:
            law.check(runs)
        except LawBroken as broken:
            return broken
        except Exception as error:
            raise NotJudged(
                f"{law.id} cannot judge the answers to this trace ({type(error).__name__}: {error})"
            ) from error
        return None

    def document(self, law: Law, subject: str, facet: str, trace: Trace) -> Trace:
        return {
            "schema": TRACE,
            "law": law.id,
            "subject": subject,
            "facet": facet,
            "target": {"name": self._description["name"], "version": self._description["version"]},
            "runs": trace["runs"],
        }

    def broken_row(self, law: Law, subject: str, found: dict[str, Any]) -> Row:
        """A row for a failure that a unit found.

        The row is broken. If the unit could not break the law a second time, the row has no trace and is
        unconfirmed.
        """
        row = new_row(law, subject, Status.BROKEN)
        row.facet = found["facet"]
        if "trace" not in found:
            row.status = Status.UNCONFIRMED
            row.message = found.get("unstable", "it broke once, and not again with the same operations")
            return row
        row.expected, row.observed = found["expected"], found["observed"]
        row.message = f"expected {row.expected}; observed {row.observed}"
        row.trace = self.document(law, subject, row.facet, found["trace"])
        return row

    def death_row(self, unit: Unit, seconds: float = MAX_SECONDS) -> Row:
        """Replay the operations that led to the death of a unit, and return a row for it.

        If the process dies again, the row is broken, and its trace is reduced for at most `seconds`.
        Otherwise the row is incomplete.
        """
        row = new_row(ANSWERS, ALL_OPERATIONS, Status.INCOMPLETE)
        row.facet = death_facet(unit)
        row.message = f"{unit.name}: {unit.death}"
        if unit.death_trace is None:
            row.message += ", while it performed no operation"
            return row
        try:
            trace, broken = self._reduced_death(unit.death_trace, seconds)
        except NotJudged as error:
            row.message += f"; it could not be replayed: {error}"
            return row
        if broken is None:
            row.message += "; replaying the operations did not show it again"
            return row
        row.status = Status.BROKEN
        row.expected, row.observed = broken.expected, broken.observed
        row.message = f"{unit.name}: expected {broken.expected}; observed {broken.observed}"
        row.trace = self.document(ANSWERS, row.subject, row.facet, trace)
        return row

    def _reduced_death(self, trace: Trace, seconds: float) -> tuple[Trace, LawBroken | None]:
        """Reduce the trace of a death. Returns the smallest trace found, and how it breaks the law.

        In every smaller trace, the process still dies in the same operation. If the process does not die at
        all in a replay, this returns the trace as it is, and None.
        """
        broken = self.judge(ANSWERS, trace)
        if broken is None:
            return trace, None
        timeout = min(self._worker.timeout, REDUCING_TIMEOUT)
        fatal = trace["runs"][-1]["operations"][-1]["op"]

        def dies(smaller: Trace) -> bool:
            try:
                runs = execute(smaller, self._running.addresses, timeout)
            except NotJudged:
                return False
            return any(event["op"] == fatal and "died" in event["outcome"] for run in runs for event in run)

        reduced = reduce_death(trace, dies, seconds)
        # An operation that hung for the shorter time-out may answer within the full one.
        if confirmed := self.judge(ANSWERS, reduced):
            return reduced, confirmed
        return trace, broken

    def confirm(self, row: Row) -> None:
        """Write and run a broken row's program. The row becomes unconfirmed unless the exit code is 1."""
        if row.trace is not None and (problem := self.write_program(row) or self.run_program(row)):
            row.status, row.message = Status.UNCONFIRMED, f"{row.message}; {problem}"

    def write_program(self, row: Row) -> str:
        """Write the program of a row's trace, and keep it in the row.

        Returns "", or why no program can be written.
        """
        try:
            with self._parsing:
                row.program = self._program(row, row.trace or {})
        except ProgramError as error:
            return f"no program: {error}"
        return ""

    def run_program(self, row: Row) -> str:
        """Run a row's program in a fresh process. Returns "" if it exits with 1, else what happened."""
        address = self._running.addresses[""]
        path = Path(address).parent / f"{trace_digest(row.trace or {})}.py"
        path.write_text(row.program or "", encoding="utf-8")
        patience = self._worker.timeout * LOAD_PATIENCE
        try:
            ended = run_program(path, self._worker.target, address, patience)
        except NotJudged as error:
            return f"its program was not run: {error}"
        return "" if ended == 1 else f"its program did not exit with 1 but: {ended}"

    def known_row(self, entry: Known) -> Row:
        """A row for a finding that the baseline lists."""
        law = LAWS[entry.law]
        row = new_row(law, entry.subject, Status.KNOWN, entry.message)
        row.facet, row.cause = entry.facet, entry.cause
        row.trace = self.document(law, entry.subject, entry.facet, entry.trace)
        return row

    def write_known_programs(self, rows: Iterable[Row]) -> tuple[list[Row], list[str]]:
        """Write one program for each known cause, from the smallest trace among the cause's rows.

        Rows that have no cause but the same reason are treated as one cause. Returns the rows that got a
        program, and a note for each cause whose program cannot be written.
        """
        groups: dict[str, list[Row]] = {}
        for row in rows:
            if row.status is Status.KNOWN and row.trace is not None:
                groups.setdefault(row.cause.id if row.cause else row.message, []).append(row)
        chosen = [
            min(group, key=lambda row: len(json.dumps(row.trace)))
            for group in groups.values()
            if not any(row.program is not None for row in group)
        ]
        problems = {row.title: self.write_program(row) for row in chosen}
        notes = [f"{title}: {problem}" for title, problem in problems.items() if problem]
        return [row for row in chosen if row.program is not None], notes

    def observe(self, row: Row) -> None:
        """Perform a broken row's trace once more, and keep the operations with their answers in the row.

        A trace has no answers, and the report shows them.
        """
        if row.trace is None:
            return
        runs: Runs = []
        try:
            runs = execute(row.trace, self._running.addresses, self._worker.timeout)
            LAWS[row.law].check(runs)
        except LawBroken as broken:
            row.events = runs if row.facet in broken.facets else None
        except Exception:  # the target may answer differently this time; the program has shown the failure
            return

    def inherit(self, row: Row) -> None:
        """Mark a broken row as inherited if the law breaks without the plugin, too.

        To find out, this performs the trace again with each class of the plugin replaced by its nearest stock
        ancestor. Stock classes exist without the plugin.
        """
        # A law about the plugin cannot be judged without the plugin.
        workload = WORKLOADS.get(LAWS[row.law].workload)
        about_plugin = workload is not None and "drift" in workload.parts
        if row.status is not Status.BROKEN or not self._description["plugin"] or about_plugin:
            return
        if row.trace is None:
            return
        trace = stock_trace(row.trace, self._description)
        try:
            with self._starting:
                self._running.start([" ".join(run["flags"]) for run in trace["runs"]])
            broken = self.judge(LAWS[row.law], trace)
        except (NotJudged, TargetFailed) as error:
            row.message += f"; kvref could not find out whether it is broken without the plugin: {error}"
            return
        if broken is not None and any(
            same_facet(row.facet, facet, self._description) for facet in broken.facets
        ):
            row.status = Status.INHERITED
            row.message = f"{self._description['name']} breaks it without the plugin: {row.message}"

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
