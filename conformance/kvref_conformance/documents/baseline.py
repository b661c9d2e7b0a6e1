"""Known deviations of a version of a target, each with the trace that shows it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from kvref_conformance.documents import schemas
from kvref_conformance.documents.results import Result, Status, Trace


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
    file = _shipped_files().get(name)
    return _parse(name, file.read_text(encoding="utf-8")) if file else NO_BASELINE


def _shipped_files() -> dict[str, Traversable]:
    files = (resources.files("kvref_conformance.documents") / "baselines").iterdir()
    return {file.name.removesuffix(".json"): file for file in files if file.name.endswith(".json")}


def _parse(name: str, text: str) -> Baseline:
    document = json.loads(text)
    schemas.validate(document, "baseline")
    known = [Known(**entry) for entry in document["known"]]
    for other, laws in document.get("as_in", {}).items():
        told = {entry.title: entry for entry in _told_in_full(other)}
        for law, subjects in laws.items():
            for subject, facets in subjects.items():
                for facet in facets:
                    title = Known(law, subject, facet, "", {}).title
                    if title not in told:
                        raise BaselineError(f"{name} lists {title} as in {other}, which does not tell it")
                    known.append(told[title])
    return Baseline(name, tuple(known))


def _told_in_full(name: str) -> list[Known]:
    """What a shipped baseline does not leave to others."""
    file = _shipped_files().get(name)
    if file is None:
        raise BaselineError(f"there is no shipped baseline {name}")
    return [Known(**entry) for entry in json.loads(file.read_text(encoding="utf-8"))["known"]]


def save(result: Result, path: Path) -> None:
    """Write what a run found broken as a baseline to review: every reason has to be written by hand.

    Deviations that were known keep their reasons; what the baseline of another version tells with this very
    reason and trace, it goes on to tell.
    """
    entries = [
        Known(
            row.law,
            row.subject,
            row.facet,
            row.message if row.status is Status.KNOWN else "NOT REVIEWED",
            {"runs": row.trace["runs"]},
        )
        for row in result.rows
        if row.status in (Status.BROKEN, Status.KNOWN) and row.trace is not None
    ]
    target, version = result.target["name"], result.target["version"]
    as_in: dict[str, dict[str, dict[str, list[str]]]] = {}
    own = []
    others = {
        name: _told_in_full(name)
        for name in sorted(_shipped_files(), reverse=True)
        if name.startswith(f"{target}-") and name != f"{target}-{version}"
    }
    for entry in entries:
        if teller := next((name for name, told in others.items() if entry in told), None):
            subjects = as_in.setdefault(teller, {}).setdefault(entry.law, {})
            subjects.setdefault(entry.subject, []).append(entry.facet)
        else:
            own.append(entry)
    document = {
        "schema": "kvref.baseline/1",
        "target": target,
        "version": version,
        **({"as_in": as_in} if as_in else {}),
        "known": [_entry(entry) for entry in own],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _entry(known: Known) -> dict[str, Any]:
    return {name: value for name, value in asdict(known).items() if name != "link" or value}
