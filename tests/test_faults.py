"""Each deliberate fault of the reference breaks the law it is meant for, and no other."""

import io

import pytest
from rich.console import Console

from kvref_conformance.baseline import NO_BASELINE
from kvref_conformance.check import loaded
from kvref_conformance.faults import FAULTS
from kvref_conformance.laws import ANSWERS, LAWS
from kvref_conformance.report import progress
from kvref_conformance.results import Result, Row, Status
from kvref_conformance.runner import Options
from kvref_conformance.worker import Worker
from kvref_strategies.catalogue import WORKLOADS


def check(target: str) -> Result:
    with (
        progress(Console(file=io.StringIO())) as watcher,
        loaded(Worker(target), tuple(LAWS), watcher) as one,
    ):
        return one.check(Options(jobs=2), NO_BASELINE, watcher)


def test_every_law_has_a_fault() -> None:
    assert sorted(FAULTS.values()) == sorted(LAWS)


def test_the_reference_keeps_every_law() -> None:
    """The control: what the faults break holds without them, for every subject, with examples."""
    rows = check("reference").rows
    assert {row.law for row in rows} == set(LAWS)
    # What speaks of plugins is held by the reference with one, in test_plugin.py.
    rest = [row for row in rows if row.message != "there is no plugin"]
    assert [row.title for row in rest if row.status is not Status.HOLDS or not row.examples] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_breaks_exactly_its_law(fault: str) -> None:
    rows = check(fault).rows
    broken = [row for row in rows if row.status is Status.BROKEN]
    assert {row.law for row in broken} == {FAULTS[fault]}
    assert all(row.program and row.trace for row in broken)
    # Where the process ended, nothing can be said of the laws that were being checked.
    rest = {Status.HOLDS, Status.INCOMPLETE} if FAULTS[fault] == ANSWERS.id else {Status.HOLDS}
    assert {row.status for row in rows if row not in broken and not left_out(row)} <= rest


def left_out(row: Row) -> bool:
    """Whether the law speaks of plugins, and there is none or nothing of it that it speaks of."""
    reason = WORKLOADS[LAWS[row.law].workload].unobserved if row.law != ANSWERS.id else ""
    return row.status is Status.NOT_APPLICABLE and row.message in ("there is no plugin", reason)
