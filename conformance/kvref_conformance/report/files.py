"""Write the result of a run into a folder: report.json, the page, traces, programs and so on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvref_conformance.documents.folder import as_json, claim, write
from kvref_conformance.documents.names import BADGE, COVERAGE, PAGE, plain, repro_name, trace_name
from kvref_conformance.documents.results import Result, Row
from kvref_conformance.documents.schemas import REPORT, validate
from kvref_conformance.report.badge import badge
from kvref_conformance.report.coverage import coverage_document, coverage_page
from kvref_conformance.report.junit import junit
from kvref_conformance.report.page import page

_GENERATED = re.compile(r".*-[0-9a-f]{8}\.(json|py)|\..*\.tmp")
"""Matches the names that kvref gives to files in traces/ and repro/. All other files there belong to the
user."""


def write_report(result: Result, directory: Path, beside: Sequence[Mapping[str, Any]] = ()) -> list[Path]:
    """Write the whole report. Returns the paths of the files that were written, report.json first.

    Args:
        result: the result of a check.
        directory: the folder of the report. It is created if it does not exist.
        beside: reports of other versions. The page then has a table of laws by version.

    If the folder holds an earlier report, that report is replaced, and its traces and programs are removed.

    Raises:
        ForeignDirectory: the folder holds other files; nothing was written.
        InvalidDocument: the report would not match its schema; nothing was written.
    """
    contents = _contents(result, beside)
    claim(directory)
    written = [directory / name for name in contents]
    # report.json goes first: it marks the directory as a report even if kvref is interrupted.
    for path, content in zip(written, contents.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, content)
    if directory / COVERAGE not in written:
        (directory / COVERAGE).unlink(missing_ok=True)
    for folder in ("traces", "repro"):
        for path in _files(directory / folder):
            if path not in written and _GENERATED.fullmatch(path.name):
                path.unlink()
    return written


def report_document(result: Result) -> dict[str, Any]:
    """The result as a `kvref.report/1` document. `--json` prints it, too."""
    document: dict[str, Any] = plain(
        {
            "schema": REPORT,
            "target": {
                "name": result.target["name"],
                "version": result.target["version"],
                "plugin": result.target.get("plugin"),
                "capabilities": _sorted(result.target.get("capabilities", {})),
            },
            "verdict": result.verdict.value,
            "seed": result.seed,
            "depth": result.depth,
            "strict": result.strict,
            "baseline": result.baseline,
            "profile": result.profile,
            **({"selected": result.selected} if result.selected else {}),
            "environment": _sorted(result.environment),
            "elapsed_seconds": round(result.elapsed_seconds, 3),
            "totals": result.totals,
            "notes": result.notes,
            "laws": [_row(row) for row in result.rows],
            **({"causes": causes} if (causes := _causes(result)) else {}),
            **({"coverage": coverage_document(result.coverage)} if result.coverage is not None else {}),
            **({"undrawn": result.undrawn} if result.undrawn is not None else {}),
        }
    )
    return document


def _contents(result: Result, beside: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    """The content of each file of the report, by name. All contents are made before a file is written."""
    report = report_document(result)
    validate(report, "report")
    contents = {
        "report.json": as_json(report),
        PAGE: page(result, [report, *beside]),
        "junit.xml": junit(result),
        BADGE: as_json(badge(result.verdict)),
    }
    if result.coverage is not None:
        contents[COVERAGE] = coverage_page(result, result.coverage).encode("utf-8", "backslashreplace")
    for row in result.rows:
        if (name := trace_name(row)) is not None:
            document = plain(row.trace)
            validate(document, "trace")
            contents[name] = as_json(document)
        if row.program is not None and (name := repro_name(row)) is not None:
            contents[name] = row.program.encode("utf-8", "backslashreplace")
    return contents


def _row(row: Row) -> dict[str, Any]:
    return {
        "id": row.law,
        "level": row.level.value,
        "subject": row.subject,
        "facet": row.facet,
        "status": row.status.value,
        "examples": row.examples,
        "steps": row.steps,
        "seconds": round(row.seconds, 3),
        "exploring_seconds": round(row.exploring_seconds, 3),
        "driven_steps": row.driven_steps,
        "driven_seconds": round(row.driven_seconds, 3),
        "message": row.message,
        **({"cause": row.cause.id} if row.cause else {}),
        "expected": row.expected,
        "observed": row.observed,
        "trace": trace_name(row),
        "repro": repro_name(row),
    }


def _causes(result: Result) -> list[dict[str, Any]]:
    return [
        {**asdict(cause), "severity": cause.severity.value, "link": cause.link or None, "rows": len(rows)}
        for cause, rows in result.causes.items()
    ]


def _sorted(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {key: mapping[key] for key in sorted(mapping)}


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
