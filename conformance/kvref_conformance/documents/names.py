"""The names of the files in a report's folder. Names of traces and programs follow from their content."""

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
    """Turn a text into a part of a file name. It has only ASCII letters, digits, `.`, `_` and `-`.

    The result is never empty and does not begin with a dot, which would hide the file.
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text[: 4 * limit]).lstrip(".-")[:limit] or "law"


def trace_digest(trace: Trace) -> str:
    """Eight hexadecimal digits that identify a trace by its law, subject, facet and runs."""
    named = plain([trace["law"], trace["subject"], trace["facet"], trace["runs"]])
    canonical = json.dumps(named, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()[:8]


def trace_name(row: Row) -> str | None:
    """The path of a row's trace within the report's folder. None if the row has no trace."""
    return f"traces/{_stem(row)}.json" if row.trace is not None else None


def repro_name(row: Row) -> str | None:
    """The path of a row's stand-alone program within the report's folder. None if the row has no program."""
    return f"repro/{_stem(row)}.py" if row.program is not None else None


def _stem(row: Row) -> str:
    trace = row.trace or {"law": row.law, "subject": row.subject, "facet": row.facet, "runs": []}
    return f"{slug(row.law)}-{trace_digest(trace)}"


def plain(value: Any) -> Any:
    """Turn any value into plain data that strict JSON can express.

    A value that JSON cannot express becomes `{"opaque": repr}`, as in `kvref.target`.
    """
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
