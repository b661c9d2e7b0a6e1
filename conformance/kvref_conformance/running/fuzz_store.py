"""The folder of a fuzz: its findings, saved at once, and its progress.

Each file is replaced in one step, and a trace is written before `fuzz.json` names it. So no finding is lost,
and the fuzz can continue, however its process ended.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from kvref_conformance.documents.folder import ForeignDirectory, as_json, claim, write
from kvref_conformance.documents.names import plain, repro_name, trace_name
from kvref_conformance.documents.results import Row, Status
from kvref_conformance.documents.schemas import FUZZ, InvalidDocument, validate
from kvref_conformance.laws import LAWS

UNFINISHED = "unfinished"
"""The state of a finding that is not yet reduced or not yet confirmed. In the code it is
`Status.INCOMPLETE`."""

Key = tuple[str, str, str]
"""A finding is identified by its law, subject and facet."""


@dataclass
class Tally:
    """How many examples and operations were made, in how many seconds, and which behaviours occurred."""

    examples: int = 0
    steps: int = 0
    seconds: float = 0.0
    driven_examples: int = 0
    driven_steps: int = 0
    driven_seconds: float = 0.0
    behaviours: Counter[str] = field(default_factory=Counter)

    def add(self, counted: dict[str, Any]) -> None:
        for name in (each.name for each in fields(self) if each.name != "behaviours"):
            setattr(self, name, getattr(self, name) + counted[name])
        self.behaviours.update(counted["behaviours"])

    def document(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass
class Finding:
    """A facet in which a law breaks for a subject, with the unit that found it and the unit's seed."""

    row: Row
    seed: str
    unit: str
    reduced: bool = False
    files: list[str] = field(default_factory=list)
    """The names of the finding's files in the folder: its trace and its program."""

    @property
    def key(self) -> Key:
        return self.row.law, self.row.subject, self.row.facet

    @property
    def status(self) -> str:
        return UNFINISHED if self.row.status is Status.INCOMPLETE else self.row.status.value


class Store:
    """The folder of a fuzz. Only one process at a time may use it."""

    def __init__(self, directory: Path, target: dict[str, str], seed: int) -> None:
        """Create the folder, or continue an earlier fuzz of the same target.

        Raises `ForeignDirectory` if the folder holds something else, or if another fuzz uses it.
        """
        claim(directory, "fuzz", FUZZ)
        self.directory = directory
        self.target = target
        self.seed = seed
        self.round = 0
        self.done: set[str] = set()
        self.seconds = 0.0
        self.tally = Tally()
        self.findings: dict[Key, Finding] = {}
        self._path = directory / "fuzz.json"
        self._lock = (directory / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._path.exists():
                self._load()
            self.save_state()
        except BaseException as error:
            self._lock.close()
            if isinstance(error, BlockingIOError):
                raise ForeignDirectory(directory, "another fuzz is using it", "fuzz") from None
            raise

    @property
    def examples(self) -> Path:
        """The folder in which Hypothesis keeps the examples that it is reducing."""
        return (self.directory / "examples").absolute()

    def save(self, finding: Finding) -> None:
        """Write the files of the finding as it is now, then remove its earlier files."""
        row, before = finding.row, finding.files
        finding.files = []
        if row.trace is not None and (name := trace_name(row)):
            document = plain(row.trace if finding.reduced else {**row.trace, "reduced": False})
            validate(document, "trace")
            self._write(finding, name, as_json(document))
        if row.program is not None and (name := repro_name(row)):
            self._write(finding, name, row.program.encode("utf-8", "backslashreplace"))
        self.findings[finding.key] = finding
        self.save_state()
        for name in {*before} - {*finding.files}:
            (self.directory / name).unlink(missing_ok=True)

    def _write(self, finding: Finding, name: str, content: bytes) -> None:
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        write(path, content)
        finding.files.append(name)

    def save_state(self) -> None:
        document = plain(
            {
                "schema": FUZZ,
                "target": self.target,
                "seed": self.seed,
                "round": self.round,
                "done": sorted(self.done),
                "seconds": round(self.seconds, 3),
                "counted": self.tally.document(),
                "findings": [_document(finding) for finding in self.findings.values()],
            }
        )
        validate(document, "fuzz")
        write(self._path, as_json(document))

    def close(self) -> None:
        """Release the folder, and remove the examples if no finding needs them."""
        if not any(finding.status == UNFINISHED for finding in self.findings.values()):
            shutil.rmtree(self.examples, ignore_errors=True)
        self._lock.close()

    def _load(self) -> None:
        document = json.loads(self._path.read_bytes())
        try:
            validate(document, "fuzz")
        except InvalidDocument as error:
            raise ForeignDirectory(self.directory, str(error), "fuzz") from error
        if document["target"] != self.target:
            name, version = document["target"].values()
            raise ForeignDirectory(self.directory, f"it belongs to a fuzz of {name} {version}", "fuzz")
        self.round, self.seconds = document["round"], document["seconds"]
        if document["seed"] == self.seed:
            self.done = {*document["done"]}
        else:
            self.round += 1
        self.tally.add(document["counted"])
        for entry in document["findings"]:
            if entry["law"] in LAWS and (finding := self._finding(entry)):
                self.findings[finding.key] = finding
        self._remove_unlisted(
            {name for entry in document["findings"] for name in (entry["trace"], entry["repro"])}
        )

    def _remove_unlisted(self, listed: set[str | None]) -> None:
        """Remove traces and programs that `fuzz.json` does not list.

        A fuzz that was killed wrote them just before. Its unit will run again and find the failure again.
        """
        for path in [*self.directory.glob("traces/*.json"), *self.directory.glob("repro/*.py")]:
            if path.relative_to(self.directory).as_posix() not in listed:
                path.unlink()

    def _finding(self, entry: dict[str, Any]) -> Finding | None:
        """A finding from `fuzz.json`, with its files. None if they are gone: the fuzz may find it again."""
        status = Status.INCOMPLETE if entry["status"] == UNFINISHED else Status(entry["status"])
        row = Row(entry["law"], LAWS[entry["law"]].level, entry["subject"], status, entry["facet"])
        row.message, row.expected, row.observed = entry["message"], entry["expected"], entry["observed"]
        files = [name for name in (entry["trace"], entry["repro"]) if name is not None]
        try:
            texts = [(self.directory / name).read_text(encoding="utf-8") for name in files]
        except FileNotFoundError:
            return None
        if entry["trace"] is not None:
            try:
                row.trace = json.loads(texts[0])
                validate(row.trace, "trace")
            except ValueError as error:
                reason = f"{entry['trace']} is damaged ({error}); remove it to search for that finding again"
                raise ForeignDirectory(self.directory, reason, "fuzz") from error
        row.program = texts[-1] if entry["repro"] is not None else None
        return Finding(row, entry["seed"], entry["unit"], entry["reduced"], files)


def _document(finding: Finding) -> dict[str, Any]:
    row = finding.row
    return {
        "law": row.law,
        "subject": row.subject,
        "facet": row.facet,
        "status": finding.status,
        "reduced": finding.reduced,
        "seed": finding.seed,
        "unit": finding.unit,
        "message": row.message,
        "expected": row.expected,
        "observed": row.observed,
        "trace": trace_name(row),
        "repro": repro_name(row),
    }
