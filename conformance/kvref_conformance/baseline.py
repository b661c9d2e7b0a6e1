"""Known deviations of a version of a target, each with the trace that shows it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from kvref_conformance import schemas
from kvref_conformance.results import Result, Status, Trace


class BaselineError(ValueError):
    """A baseline that cannot be used, and why."""


@dataclass(frozen=True)
class Known:
    """A deviation that is known, and why it is accepted for now.

    Law, subject and facet say which one it is. Its trace decides whether it is still there; other traces
    with the same facet show the same deviation, since examples differ from seed to seed.
    """

    law: str
    subject: str
    facet: str
    reason: str
    trace: Trace
    link: str = ""

    @property
    def title(self) -> str:
        return f"{self.law} [{self.subject}{': ' + self.facet if self.facet else ''}]"


@dataclass(frozen=True)
class Baseline:
    """What is known of one version; `name` is None when there is no baseline."""

    name: str | None
    known: tuple[Known, ...] = ()


NO_BASELINE = Baseline(None)


def load(path: Path) -> Baseline:
    """Read a baseline file. Raises `BaselineError` naming what is wrong in it."""
    try:
        return _parse(path.stem, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BaselineError(f"cannot read baseline {str(path)!r}: {error.strerror}") from error
    except ValueError as error:
        raise BaselineError(f"baseline {str(path)!r}: {error}") from error


def shipped(target: str, version: str) -> Baseline:
    """The baseline shipped for a version of a target, or `NO_BASELINE`."""
    name = f"{target}-{version}"
    file = resources.files("kvref_conformance") / "baselines" / f"{name}.json"
    return _parse(name, file.read_text(encoding="utf-8")) if file.is_file() else NO_BASELINE


def _parse(name: str, text: str) -> Baseline:
    document = json.loads(text)
    schemas.validate(document, "baseline")
    return Baseline(name, tuple(Known(**entry) for entry in document["known"]))


def save(result: Result, path: Path) -> None:
    """Write what a run found broken as a baseline to review: every reason has to be written by hand.

    Deviations that were known keep their reasons.
    """
    entries = [
        {
            "law": row.law,
            "subject": row.subject,
            "facet": row.facet,
            "reason": row.message if row.status is Status.KNOWN else "NOT REVIEWED",
            "trace": {"runs": row.trace["runs"]},
        }
        for row in result.rows
        if row.status in (Status.BROKEN, Status.KNOWN) and row.trace is not None
    ]
    document = {
        "schema": "kvref.baseline/1",
        "target": result.target["name"],
        "version": result.target["version"],
        "known": entries,
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
