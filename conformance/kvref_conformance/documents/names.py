"""The names of a report's files, which follow from their content."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from kvref_conformance.documents.results import Row, Trace

COVERAGE = "coverage.md"
PAGE = "report.html"
BADGE = "badge.json"


def slug(text: str, limit: int = 80) -> str:
    """The text as part of a file name: ASCII letters, digits, `.`, `_` and `-`, never hidden or empty."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text[: 4 * limit]).lstrip(".-")[:limit] or "law"


def trace_digest(trace: Trace) -> str:
    """Eight hex digits that name a trace: same law, subject, facet and runs, same digest."""
    named = plain([trace["law"], trace["subject"], trace["facet"], trace["runs"]])
    canonical = json.dumps(named, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()[:8]


def trace_name(row: Row) -> str | None:
    """Where the report directory keeps the trace of a row."""
    return f"traces/{_stem(row)}.json" if row.trace is not None else None


def repro_name(row: Row) -> str | None:
    """Where the report directory keeps the stand-alone program of a row."""
    return f"repro/{_stem(row)}.py" if row.program is not None else None


def _stem(row: Row) -> str:
    trace = row.trace or {"law": row.law, "subject": row.subject, "facet": row.facet, "runs": []}
    return f"{slug(row.law)}-{trace_digest(trace)}"


def plain(value: Any) -> Any:
    """Strict JSON for any value: what JSON cannot say becomes `{"opaque": repr}`, as in `kvref.target`."""
    match value:
        case None | bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    return {"opaque": repr(value)}
