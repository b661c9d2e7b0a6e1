"""What a run found: one `Row` per law, subject and facet, and the verdict they add up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kvref_conformance.documents.causes import Cause, by_cause
from kvref_conformance.laws.core import Level

Trace = dict[str, Any]
"""A replayable trace (schema `kvref.trace/1`)."""


class Status(StrEnum):
    """The states that a row can have: see docs/results.md."""

    BROKEN = "broken"
    STALE = "stale"
    UNCONFIRMED = "unconfirmed"
    INCOMPLETE = "incomplete"
    KNOWN = "known"
    INHERITED = "inherited"
    DECLARED_GAP = "declared-gap"
    HOLDS = "holds"
    NOT_APPLICABLE = "not-applicable"


class Verdict(StrEnum):
    """The verdict of a run, which follows from its rows."""

    CONFORMANT = "conformant"
    CONFORMANT_WITH_GAPS = "conformant with declared gaps"
    NOT_CONFORMANT = "not conformant"
    INCOMPLETE = "incomplete"


ALSO_BREAKS = "; also breaks in: "
"""In the message of a row, in front of the facets that were not reduced and have no row."""

EXIT_CODES = {
    Verdict.CONFORMANT: 0,
    Verdict.CONFORMANT_WITH_GAPS: 0,
    Verdict.NOT_CONFORMANT: 1,
    Verdict.INCOMPLETE: 3,
}
EXIT_USAGE = 2


@dataclass
class Row:
    """The result of one law for one subject.

    A law that breaks in several ways has one row for each `facet` (the field that is lost, for example).
    `seconds` covers the whole unit of work that fed the law. `exploring_seconds` is the time to make its
    examples, perform their `steps` and judge them. Driven examples, which are faster, have counts of their
    own.
    """

    law: str
    level: Level
    subject: str
    status: Status
    facet: str = ""
    examples: int = 0
    steps: int = 0
    seconds: float = 0.0
    exploring_seconds: float = 0.0
    driven_steps: int = 0
    driven_seconds: float = 0.0
    message: str = ""
    cause: Cause | None = None
    """The cause of what is known, if the baseline names one."""
    expected: str = ""
    observed: str = ""
    trace: Trace | None = None
    program: str | None = None
    """Source of the stand-alone program, for what broke in this run, and for one row of each known cause."""
    events: list[list[dict[str, Any]]] | None = None
    """What the operations of the trace answered, by run, for what is broken."""

    @property
    def title(self) -> str:
        """The law with its subject and facet. A law that applies to nothing has no subject."""
        return (
            f"{self.law} [{self.subject}{': ' + self.facet if self.facet else ''}]"
            if self.subject
            else self.law
        )


@dataclass(frozen=True)
class FileReached:
    """A file that the target has loaded, and that has functions.

    `lines` are the lines inside functions. `branches` are the jumps that were never taken, although the lines
    at both ends were reached. A negative end means that the jump leaves the function.
    """

    name: str
    lines: Sequence[int]
    unreached: frozenset[int]
    branches: Sequence[tuple[int, int]]
    laws: Mapping[str, frozenset[int]]

    @property
    def reached(self) -> int:
        return len(self.lines) - len(self.unreached)


@dataclass(frozen=True)
class Reached:
    """The lines of the target's own files that laws reached. Files with more unreached lines come first."""

    modules: Sequence[str]
    without: Sequence[str]
    files: Sequence[FileReached]
    not_loaded: Sequence[str]
    unread: Sequence[str]
    """Files that cannot be read as Python here."""
    ended_early: Sequence[str]
    """Units that died, or were cut: what they reached last is not known."""

    @property
    def lines(self) -> int:
        return sum(len(file.lines) for file in self.files)

    @property
    def reached(self) -> int:
        return sum(file.reached for file in self.files)


@dataclass
class Result:
    """A whole run, as `report.json` has it."""

    target: dict[str, Any]
    """name, version, plugin, capabilities."""
    seed: int
    depth: str
    strict: bool
    baseline: str | None
    environment: dict[str, str]
    profile: str | None = None
    selected: dict[str, list[str]] = field(default_factory=dict)
    """`laws` by id and globs of `subjects`, if not all were to be judged."""
    elapsed_seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    coverage: Reached | None = None
    """The reached lines of the target's own files, if they were measured."""
    undrawn: list[str] | None = None
    """The inputs that no example had, if they were measured."""

    @property
    def failing(self) -> list[Row]:
        """Rows that fail the run: broken safety laws, with `strict` robustness laws too, and stale ones."""
        return [
            row
            for row in self.rows
            if row.status is Status.STALE
            or (row.status is Status.BROKEN and (self.strict or row.level is Level.SAFETY))
        ]

    @property
    def verdict(self) -> Verdict:
        if self.failing:
            return Verdict.NOT_CONFORMANT
        unasked = (Status.NOT_APPLICABLE, Status.DECLARED_GAP)
        judged = [row for row in self.rows if row.status not in unasked]
        if not judged or any(row.status in (Status.UNCONFIRMED, Status.INCOMPLETE) for row in judged):
            return Verdict.INCOMPLETE
        if any(row.status is Status.DECLARED_GAP for row in self.rows):
            return Verdict.CONFORMANT_WITH_GAPS
        return Verdict.CONFORMANT

    @property
    def causes(self) -> dict[Cause, list[Row]]:
        """The rows of each known cause, the worst severity first."""
        return by_cause(row for row in self.rows if row.status is Status.KNOWN)

    @property
    def totals(self) -> dict[str, int]:
        counts = {status.value: 0 for status in Status}
        for row in self.rows:
            counts[row.status] += 1
        return {status: count for status, count in counts.items() if count}
