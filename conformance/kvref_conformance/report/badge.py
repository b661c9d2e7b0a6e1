"""Make a badge that shows the verdict."""

from __future__ import annotations

from typing import Any

from kvref_conformance.documents.results import Verdict

_COLOURS = {
    Verdict.CONFORMANT: "brightgreen",
    Verdict.CONFORMANT_WITH_GAPS: "green",
    Verdict.NOT_CONFORMANT: "red",
    Verdict.INCOMPLETE: "yellow",
}


def badge(verdict: Verdict) -> dict[str, Any]:
    """The badge, as JSON that an endpoint badge of shields.io reads."""
    return {"schemaVersion": 1, "label": "kvref", "message": verdict.value, "color": _COLOURS[verdict]}
