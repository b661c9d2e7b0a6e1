"""Compare two reports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from kvref_conformance.documents import schemas
from kvref_conformance.documents.results import ALSO_BREAKS, Status


class UnusableReport(ValueError):
    """The file is not a readable report."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"cannot use the report {str(path)!r}: {reason}")


class Kind(StrEnum):
    """How the result of a law changed for one subject and facet. The members are sorted, the worst first."""

    BROKEN = "broken"
    STALE = "stale"
    OPEN = "open"
    KNOWN = "known"
    UNJUDGED = "unjudged"
    GONE = "gone"
    MENDED = "mended"
    JUDGED = "judged"
    NEW = "new"


_KINDS = {
    Status.BROKEN: Kind.BROKEN,
    Status.STALE: Kind.STALE,
    Status.UNCONFIRMED: Kind.OPEN,
    Status.INCOMPLETE: Kind.OPEN,
    Status.KNOWN: Kind.KNOWN,
    Status.INHERITED: Kind.KNOWN,
    Status.NOT_APPLICABLE: Kind.UNJUDGED,
    Status.DECLARED_GAP: Kind.UNJUDGED,
}
"""The kind of change for a row that now has this status.

There is no change if the row's old status has the same kind. If the row now holds, or if the old report lacks
it, `_change` decides.
"""

_BADNESS = {
    Status.HOLDS: 0,
    None: 1,
    Status.NOT_APPLICABLE: 1,
    Status.DECLARED_GAP: 1,
    Status.KNOWN: 1,
    Status.INHERITED: 1,
    Status.UNCONFIRMED: 2,
    Status.INCOMPLETE: 2,
    Status.STALE: 3,
    Status.BROKEN: 3,
}
"""How bad each status is. A change to a higher number is a change for the worse. None is a missing row.

A row that is missing or not judged is as bad as a known finding.
"""

_OF_THE_WHOLE = (Status.HOLDS, Status.NOT_APPLICABLE, Status.DECLARED_GAP, Status.INCOMPLETE)
_CONDITIONS = ("depth", "seed", "strict", "baseline", "profile")

Row = Mapping[str, Any]
Rows = dict[str, Row]
"""The rows of one law for one subject, by facet."""


@dataclass(frozen=True)
class Change:
    """A row that changed. `row` is from the new report, or from the old one if the new report lacks it."""

    kind: Kind
    worse: bool
    facet: str
    old: Status | None
    new: Status | None
    row: Row


@dataclass(frozen=True)
class Condition:
    """A setting or version that differs between the two checks, and that alone may explain a change."""

    what: str
    old: Any
    new: Any


@dataclass(frozen=True)
class Diff:
    """Two reports with the changes from the first to the second, the worst first."""

    old: Mapping[str, Any]
    new: Mapping[str, Any]
    conditions: Sequence[Condition]
    changes: Sequence[Change]

    @property
    def worse(self) -> bool:
        return any(change.worse for change in self.changes)


def read(path: Path) -> dict[str, Any]:
    """Read a report from its folder or from its report.json. Raises `UnusableReport`."""
    path = path / "report.json" if path.is_dir() else path
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise UnusableReport(path, f"it cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UnusableReport(path, f"it is not JSON ({error})") from error
    except RecursionError as error:
        raise UnusableReport(path, "it is nested too deeply") from error
    said = document.get("schema") if isinstance(document, dict) else None
    if said != schemas.REPORT:
        what = f"is of the schema {said}" if isinstance(said, str) else "names no schema"
        raise UnusableReport(path, f"it {what}, and this kvref reads {schemas.REPORT}")
    try:
        schemas.validate(document, "report")
    except schemas.InvalidDocument as error:
        raise UnusableReport(path, str(error)) from error
    report: dict[str, Any] = document
    return report


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Diff:
    """Compare two `kvref.report/1` documents."""
    before, after = _by_subject(old, new), _by_subject(new, old)
    changes: list[Change] = []
    for law in dict.fromkeys([*after, *before]):
        changes += _changes(before.get(law, {}), after.get(law, {}))
    kinds = list(Kind)
    changes.sort(key=lambda change: (not change.worse, kinds.index(change.kind)))
    return Diff(old, new, list(_conditions(old, new)), changes)


def _by_subject(report: Mapping[str, Any], other: Mapping[str, Any]) -> dict[tuple[str, str], Rows]:
    """Map each law and subject to its rows in a report, if the other check selected them, too."""
    selected = other.get("selected", {})
    found: dict[tuple[str, str], Rows] = {}
    for row in report["laws"]:
        law, subject = row["id"], row["subject"]
        globs = selected.get("subjects", ()) if subject else ()
        selected_too = not globs or any(fnmatchcase(subject, glob) for glob in globs)
        if law in selected.get("laws", [law]) and selected_too:
            found.setdefault((law, subject), {})[row["facet"]] = row
    return found


def _changes(before: Rows, after: Rows) -> Iterator[Change]:
    if not (before and after):
        for facet, row in (after or before).items():
            status = Status(row["status"])
            yield from _change(facet, row, *((None, status) if after else (status, None)))
        return
    old_ways, new_ways = _ways(before), _ways(after)
    for facet in dict.fromkeys([*new_ways, *old_ways]):
        row = after.get(facet) or after.get("") or before[facet]
        yield from _change(facet, row, _state(before, facet), _state(after, facet))
    old, new = _whole(before), _whole(after)
    # If all rows are facets, the rest of the law holds; report that here unless a facet was reported.
    old = Status.HOLDS if old is None and {*old_ways} <= {*new_ways} else old
    new = Status.HOLDS if new is None and {*new_ways} <= {*old_ways} else new
    if old is not None and new is not None:
        yield from _change("", after.get("") or before.get("") or next(iter(after.values())), old, new)


def _change(facet: str, row: Row, old: Status | None, new: Status | None) -> Iterator[Change]:
    was = _KINDS.get(old) if old else None
    kind = _KINDS.get(new) if new else Kind.GONE
    if old is None and kind in (None, Kind.UNJUDGED):
        kind = Kind.NEW
    elif kind is None and was is not None:
        kind = Kind.JUDGED if was in (Kind.OPEN, Kind.UNJUDGED) else Kind.MENDED
    if kind is not None and kind is not was:
        yield Change(kind, _BADNESS[new] > _BADNESS[old], facet, old, new, row)


def _ways(rows: Rows) -> list[str]:
    """The facets in which the law breaks or may break, "" included if its row is not about the whole law."""
    return [facet for facet in rows if facet or _whole(rows) is None]


def _whole(rows: Rows) -> Status | None:
    """The status of the row without a facet, if it speaks for the whole law. Otherwise None.

    It does if its status is `holds`, `not-applicable`, `declared-gap` or `incomplete`.
    """
    status = Status(rows[""]["status"]) if "" in rows else None
    return status if status in _OF_THE_WHOLE else None


def _state(rows: Rows, facet: str) -> Status:
    """The status of a facet. A facet without a row has the status of the law as a whole."""
    if facet in _ways(rows):
        return Status(rows[facet]["status"])
    # With very many facets, the last row's message names some that have no row.
    if any(facet and facet in row["message"].partition(ALSO_BREAKS)[2] for row in rows.values()):
        return Status.BROKEN
    return _whole(rows) or Status.HOLDS


def _conditions(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Condition]:
    conditions = [
        {f"target {name}": value for name, value in report["target"].items()}
        | {name: report[name] for name in _CONDITIONS}
        | _selection(report)
        | {f"version of {name}": value for name, value in report["environment"].items()}
        for report in (old, new)
    ]
    for what in dict.fromkeys([*conditions[1], *conditions[0]]):
        if conditions[0].get(what) != conditions[1].get(what):
            yield Condition(what, conditions[0].get(what), conditions[1].get(what))


def _selection(report: Mapping[str, Any]) -> dict[str, str]:
    """Put the selected laws and subjects of a check into words."""
    selected = report.get("selected", {})
    laws = f"{len(selected['laws'])} of them" if "laws" in selected else "all"
    return {"laws": laws, "subjects": ", ".join(selected.get("subjects", ["all"]))}


def document(diff: Diff) -> dict[str, Any]:
    """The document that `kvref diff --json` prints."""
    return {
        "schema": schemas.DIFF,
        "worse": diff.worse,
        **{
            name: {key: report[key] for key in ("target", "verdict", "totals", *_CONDITIONS, "environment")}
            for name, report in (("old", diff.old), ("new", diff.new))
        },
        "conditions": [asdict(condition) for condition in diff.conditions],
        "changes": [
            {
                "kind": change.kind,
                "worse": change.worse,
                "id": change.row["id"],
                "level": change.row["level"],
                "subject": change.row["subject"],
                "facet": change.facet,
                "old": change.old,
                "new": change.new,
                **{name: change.row[name] for name in ("message", "expected", "observed")},
            }
            for change in diff.changes
        ],
    }
