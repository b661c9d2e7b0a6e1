"""The cells of a table of laws by version. A cell shows the state of one law in one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvref_conformance.documents.results import Status

INCOMPLETE = "incomplete"

_BROKEN = (Status.BROKEN, Status.KNOWN, Status.STALE)
_OPEN = (Status.UNCONFIRMED, Status.INCOMPLETE)
_UNJUDGED = (Status.NOT_APPLICABLE, Status.DECLARED_GAP)


@dataclass(frozen=True)
class Cell:
    """The worst state of the law for any subject, with a text that counts the subjects in this state."""

    state: Status
    text: str


def cell(rows: Sequence[Mapping[str, Any]]) -> Cell:
    """The cell of one law. `rows` are the rows of this law in `report.json`."""
    states: dict[str, set[Status]] = {}
    for row in rows:
        states.setdefault(row["subject"], set()).add(Status(row["status"]))
    judged = [found for found in states.values() if not found <= {*_UNJUDGED}]
    broken, unclear, inherited = (
        sum(not found.isdisjoint(any_of) for found in judged)
        for any_of in (_BROKEN, _OPEN, (Status.INHERITED,))
    )
    if broken:
        share = f" {broken}/{len(judged)}" if len(judged) > 1 else ""
        return Cell(Status.BROKEN, f"broken{share}" + (f", {unclear} {INCOMPLETE}" if unclear else ""))
    if unclear:
        return Cell(Status.INCOMPLETE, INCOMPLETE)
    if inherited:
        return Cell(Status.INHERITED, "inherited")
    if judged:
        return Cell(Status.HOLDS, "holds")
    if any(Status.DECLARED_GAP in found for found in states.values()):
        return Cell(Status.DECLARED_GAP, "declared gap")
    return Cell(Status.NOT_APPLICABLE, "n.a.")
