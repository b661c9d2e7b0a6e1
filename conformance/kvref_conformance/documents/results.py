"""The result of a run: a `Row` for each law, subject and facet, and the verdict that follows from them."""

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
"""If a law breaks in very many facets, kvref reduces only some, and only these have rows.

In the message of the last row, this text comes before the names of the other facets.
"""

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

    If the law breaks in several ways, there is a row for each way, its `facet` (a field that a merge loses,
    for example). `seconds` is the time of the whole *unit*, the process that explored the workload for this
    subject; several laws may share a unit. `exploring_seconds` is the time that the unit took to make its
    drawn examples, perform their operations and judge them; `steps` is the number of these operations.
    Driven examples are faster, so `driven_seconds` and `driven_steps` count them apart.
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
    """The cause of a known finding, if the baseline names one."""
    expected: str = ""
    observed: str = ""
    trace: Trace | None = None
    program: str | None = None
    """Source of the stand-alone program. Broken rows have one, and so has one row of each known cause."""
    events: list[list[dict[str, Any]]] | None = None
    """For a broken row: the operations of each run of the trace, with their outcomes."""

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
    """A file that the target has loaded, with at least one function, and the lines that laws reached in it.

    `lines` are all lines inside functions, and `unreached` those that no law reached. `laws` has the reached
    lines, by law. `branches` has the jumps that no law caused, although the lines at both ends were reached.
    If the end of a jump is negative, the jump leaves the function.
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
    """The lines of the target's own files that laws reached. Files are sorted, most unreached lines first."""

    modules: Sequence[str]
    without: Sequence[str]
    files: Sequence[FileReached]
    not_loaded: Sequence[str]
    unread: Sequence[str]
    """Files that this version of Python cannot parse."""
    ended_early: Sequence[str]
    """Units that died or ran out of time. The last lines that they reached are not known."""

    @property
    def lines(self) -> int:
        return sum(len(file.lines) for file in self.files)

    @property
    def reached(self) -> int:
        return sum(file.reached for file in self.files)


@dataclass
class Result:
    """The result of a whole run, with everything that `report.json` says."""

    target: dict[str, Any]
    """The target's name, version, plugin and capabilities."""
    seed: int
    depth: str
    strict: bool
    baseline: str | None
    environment: dict[str, str]
    profile: str | None = None
    selected: dict[str, list[str]] = field(default_factory=dict)
    """If the user chose only some laws or subjects: the ids of the `laws`, the globs of the `subjects`."""
    elapsed_seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    coverage: Reached | None = None
    """The reached lines of the target's own files, if the run recorded them."""
    undrawn: list[str] | None = None
    """The inputs that no example had, if the run recorded inputs."""

    @property
    def failing(self) -> list[Row]:
        """The rows that make the run fail: stale rows and broken laws.

        Without `strict`, a broken law of robustness does not count.
        """
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
