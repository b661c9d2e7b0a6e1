"""Read and write baselines: the known findings of a release of a target, each with its trace."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from kvref_conformance.documents import schemas
from kvref_conformance.documents.causes import Cause, shipped_causes
from kvref_conformance.documents.results import Result, Row, Status, Trace


class BaselineError(ValueError):
    """A baseline cannot be used. The message says why."""


@dataclass(frozen=True)
class Known:
    """An entry of a baseline: a known finding, and why it is accepted for now.

    Law, subject and facet identify the finding. kvref replays `trace` to see whether the finding is still
    there. If another example breaks the law for the same subject in the same facet, this counts as the same
    finding, because examples differ between seeds. Each entry has a cause, a reason, or both.
    """

    law: str
    subject: str
    facet: str
    trace: Trace
    cause: Cause | None = None
    reason: str = ""
    """Why the finding is accepted. Empty if the cause says it all."""
    link: str = ""

    @property
    def title(self) -> str:
        return f"{self.law} [{self.subject}{': ' + self.facet if self.facet else ''}]"

    @property
    def message(self) -> str:
        """Why the finding is accepted: the entry's reason or, if it has none, the title of the cause."""
        return self.reason or (self.cause.title if self.cause else "")


@dataclass(frozen=True)
class Baseline:
    """The known findings of one release. `name` is None if there is no baseline."""

    name: str | None
    known: tuple[Known, ...] = ()


NO_BASELINE = Baseline(None)


def load(path: Path) -> Baseline:
    """Read a baseline file. Raises `BaselineError`, which names the problem."""
    try:
        return _parse(path.stem, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BaselineError(f"cannot read baseline {str(path)!r}: {error.strerror}") from error
    except ValueError as error:
        raise BaselineError(f"baseline {str(path)!r}: {error}") from error


def shipped(target: str, version: str) -> Baseline:
    """The baseline that kvref ships for a release of a target, or `NO_BASELINE` if it ships none."""
    name = f"{target}-{version}"
    file = _shipped_files().get(name)
    return _parse(name, file.read_text(encoding="utf-8")) if file else NO_BASELINE


def _shipped_files() -> dict[str, Traversable]:
    files = (resources.files("kvref_conformance.documents") / "baselines").iterdir()
    return {file.name.removesuffix(".json"): file for file in files if file.name.endswith(".json")}


def _parse(name: str, text: str) -> Baseline:
    document = json.loads(text)
    schemas.validate(document, "baseline")
    known = [_known(entry) for entry in document["known"]]
    for other, laws in document.get("as_in", {}).items():
        entries = {entry.title: entry for entry in _own_entries(other)}
        for law, subjects in laws.items():
            for subject, facets in subjects.items():
                for facet in facets:
                    title = Known(law, subject, facet, {}).title
                    if title not in entries:
                        raise BaselineError(f"{name} lists {title} as in {other}, which has no such entry")
                    known.append(entries[title])
    return Baseline(name, tuple(known))


def _own_entries(name: str) -> list[Known]:
    """The entries that a shipped baseline has in full, without those that it takes from others (`as_in`)."""
    file = _shipped_files().get(name)
    if file is None:
        raise BaselineError(f"there is no shipped baseline {name}")
    return [_known(entry) for entry in json.loads(file.read_text(encoding="utf-8"))["known"]]


def _known(entry: dict[str, Any]) -> Known:
    cause = entry.get("cause")
    if cause is not None and cause not in shipped_causes():
        raise BaselineError(
            f"{entry['law']} [{entry['subject']}] names the cause {cause!r}, which does not exist"
        )
    return Known(**{**entry, "cause": cause and shipped_causes()[cause]})


def save(result: Result, path: Path) -> None:
    """Write the findings of a run as a baseline. Known findings keep their causes and reasons.

    A new finding gets the reason "NOT REVIEWED". Replace that by hand with a cause or a reason. If kvref
    ships an equal entry in the baseline of another version, the new baseline only refers to it (`as_in`).
    """
    entries = [
        Known(
            row.law,
            row.subject,
            row.facet,
            {"runs": row.trace["runs"]},
            row.cause,
            _own_reason(row),
        )
        for row in result.rows
        if row.status in (Status.BROKEN, Status.KNOWN) and row.trace is not None
    ]
    target, version = result.target["name"], result.target["version"]
    as_in: dict[str, dict[str, dict[str, list[str]]]] = {}
    own = []
    others = {
        name: _own_entries(name)
        for name in sorted(_shipped_files(), reverse=True)
        if name.startswith(f"{target}-") and name != f"{target}-{version}"
    }
    for entry in entries:
        if other := next((name for name, entries in others.items() if entry in entries), None):
            subjects = as_in.setdefault(other, {}).setdefault(entry.law, {})
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


def _own_reason(row: Row) -> str:
    if row.status is not Status.KNOWN:
        return "NOT REVIEWED"
    return "" if row.cause is not None and row.message == row.cause.title else row.message


def _entry(known: Known) -> dict[str, Any]:
    return {
        "law": known.law,
        "subject": known.subject,
        "facet": known.facet,
        **({"cause": known.cause.id} if known.cause else {}),
        **({"reason": known.reason} if known.reason else {}),
        **({"link": known.link} if known.link else {}),
        "trace": known.trace,
    }
