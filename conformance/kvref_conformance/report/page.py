"""The report as a page: one file that needs nothing else, shows all text as text, and has a largest size."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from kvref_conformance.documents.names import COVERAGE, plain, repro_name, trace_name
from kvref_conformance.documents.results import Reached, Result, Row, Status
from kvref_conformance.laws import LAWS, Law
from kvref_conformance.report.cells import Cell, cell
from kvref_conformance.report.coverage import heading, percent, places, remarks
from kvref_conformance.report.narrate import remark
from kvref_conformance.report.terminal import by_reason
from kvref_conformance.report.text import visible, visible_lines
from kvref_conformance.report.timeline import KINDS, Run, run_of

_ROOM_FOR_FINDINGS = 1_100_000
_ROOM_FOR_LAWS = 350_000
_ROOM_FOR_VERSIONS = 150_000
_ROOM_FOR_LINES = 40_000
"""Bytes of the page: of all findings, of the tables of laws and of versions, of each other list."""

_LONGEST_NAME = 120
_LONGEST_TEXT = 1_000
_LONGEST_PLACES = 500
_LONGEST_PROGRAM = 100_000
_MOST_RUNS = 4
_MOST_FILES = 100
_MOST_VERSIONS = 20
_MOST_WORDS = 50

T = TypeVar("T")

_TOLD = (
    Status.BROKEN,
    Status.STALE,
    Status.UNCONFIRMED,
    Status.INCOMPLETE,
    Status.KNOWN,
    Status.INHERITED,
)
"""States that a reader is told of one by one."""


class Name(str):
    """Text that is shortened to the length of a name."""


class Source(str):
    """Text that keeps its lines."""


@dataclass(frozen=True)
class Finding:
    """A row that is told."""

    row: Row
    counts: bool
    first: bool
    """Of its law."""
    law: Law | None
    trace: str | None
    repro: str | None

    @property
    def area(self) -> str:
        return _area(self.row.law)

    @property
    def remark(self) -> str:
        return remark(self.row)

    @property
    def program(self) -> Source | None:
        program = self.row.program
        return Source(program) if program is not None and len(program) <= _LONGEST_PROGRAM else None

    @cached_property
    def runs(self) -> list[Run]:
        """What its operations did, if that is known, or else which they are."""
        traced = self.row.trace["runs"][:_MOST_RUNS] if self.row.trace is not None else []
        events = self.row.events or [run["operations"] for run in traced]
        return [run_of(run["flags"], each) for run, each in zip(traced, events, strict=False)]

    @property
    def more_runs(self) -> int:
        return max(0, len(self.row.trace["runs"]) - _MOST_RUNS) if self.row.trace is not None else 0


@dataclass(frozen=True)
class LawLine:
    """A law, and what came of it."""

    id: str
    level: str
    law: Law | None
    rows: Sequence[Row]
    area: str
    first: bool
    """Of its area."""

    @property
    def examples(self) -> int:
        """Those of one subject are shared by its rows."""
        subjects: dict[str, int] = {}
        for row in self.rows:
            subjects[row.subject] = max(subjects.get(row.subject, 0), row.examples)
        return sum(subjects.values())

    @property
    def states(self) -> dict[str, list[str]]:
        """What it was judged on, by state."""
        found: dict[str, list[str]] = {}
        for row in sorted(self.rows, key=lambda row: list(Status).index(row.status)):
            name = f"{row.subject}: {row.facet}" if row.facet else row.subject
            found.setdefault(row.status.value, []).append(name)
        return found


@dataclass(frozen=True)
class VersionsLine:
    """A law, and what came of it in each report; `statuses` are those in the first."""

    law: str
    area: str
    first: bool
    """Of its area."""
    cells: Sequence[Cell | None]
    statuses: Sequence[str]


@dataclass(frozen=True)
class Lines:
    """Lines that there is room for, and how many more there are."""

    shown: Sequence[str]
    more: int


@dataclass(frozen=True)
class File:
    """How much of a file was reached."""

    name: Name
    lines: int
    reached: int
    percent: str
    unreached: str


def page(result: Result, reports: Sequence[Mapping[str, Any]] = ()) -> bytes:
    """The whole page. With several reports, that of the result the first, laws are shown by version, too."""
    templates = _templates()

    def render(name: str, **values: Any) -> Markup:
        return Markup(templates.get_template(f"{name}.html.jinja").render(**values))

    findings, untold = _fitting(
        _findings(result),
        _ROOM_FOR_FINDINGS,
        [
            lambda one: render("finding", one=one, runs=one.runs, program=one.program),
            lambda one: render("finding", one=one, runs=one.runs, program=None),
            lambda one: render("finding", one=one, runs=[], program=None),
        ],
    )
    laws, unlisted = _fitting(
        _laws(result),
        _ROOM_FOR_LAWS,
        [lambda law: render("law", line=law, names=True), lambda law: render("law", line=law, names=False)],
    )
    beside, unbeside = _fitting(
        _beside(result, reports[:_MOST_VERSIONS]),
        _ROOM_FOR_VERSIONS,
        [lambda line: render("beside", line=line)],
    )
    style, script = (_own(f"report.{kind}") for kind in ("css", "js"))
    text = render(
        "report",
        result=result,
        style=Markup(style),
        script=Markup(script),
        policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'",
        about=_about(result),
        capabilities=_lines(_capabilities(result)),
        findings=findings,
        untold=untold,
        laws=laws,
        unlisted=unlisted,
        versions=[Name(_version(report)) for report in reports[:_MOST_VERSIONS]],
        more_versions=max(0, len(reports) - _MOST_VERSIONS),
        beside=beside,
        unbeside=unbeside,
        areas=list(dict.fromkeys(_area(row.law) for row in result.rows))[:_MOST_WORDS],
        not_run={
            title: _lines(by_reason(row for row in result.rows if row.status is status))
            for title, status in (
                ("Declared gaps", Status.DECLARED_GAP),
                ("Not applicable", Status.NOT_APPLICABLE),
            )
        },
        notes=_lines(result.notes),
        coverage=result.coverage and _coverage(result, result.coverage),
    )
    return text.encode("utf-8", "backslashreplace")


def _findings(result: Result) -> Iterator[Finding]:
    """What is told row by row, that first which counts."""
    failing = {id(row) for row in result.failing}
    rows = [row for row in result.rows if row.status in _TOLD]
    seen: set[str] = set()
    for row in sorted(rows, key=lambda row: (id(row) not in failing, _TOLD.index(row.status))):
        counts, first = id(row) in failing, row.law not in seen
        seen.add(row.law)
        yield Finding(row, counts, first, LAWS.get(row.law), trace_name(row), repro_name(row))


def _laws(result: Result) -> Iterator[LawLine]:
    """All of one area together."""
    areas: dict[str, dict[str, list[Row]]] = {}
    for row in result.rows:
        areas.setdefault(_area(row.law), {}).setdefault(row.law, []).append(row)
    for area, laws in areas.items():
        for number, (law, rows) in enumerate(laws.items()):
            yield LawLine(law, rows[0].level, LAWS.get(law), rows, area, number == 0)


def _beside(result: Result, reports: Sequence[Mapping[str, Any]]) -> Iterator[VersionsLine]:
    """The laws of the result in each report, if there are several."""
    if len(reports) < 2:
        return
    found: list[dict[str, list[Any]]] = [{} for _ in reports]
    for rows, report in zip(found, reports, strict=True):
        for row in report["laws"]:
            rows.setdefault(row["id"], []).append(row)
    for line in _laws(result):
        cells = [cell(rows[line.id]) if line.id in rows else None for rows in found]
        yield VersionsLine(line.id, line.area, line.first, cells, [*line.states])


def _version(report: Mapping[str, Any]) -> str:
    target = report["target"]
    plugin = f" with {target['plugin']}" if target["plugin"] else ""
    return f"{target['name']} {target['version']}{plugin}"


def _area(law: str) -> str:
    return law.partition(".")[0]


def _fitting(
    items: Iterable[T], room: int, forms: Sequence[Callable[[T], Markup]]
) -> tuple[list[Markup], int]:
    """Each in the first of its forms, the longest first, that there is room for; for how many there is none.

    The shortest form has a quarter of the room for itself, and none takes more than an eighth.
    """
    told: list[Markup] = []
    untold = 0
    reserve, most = room // 4, room // 8
    for item in items:
        for form in forms:
            free = min(most, room - (reserve if form is not forms[-1] else 0))
            text = form(item) if free > 0 else Markup("")
            size = len(text.encode("utf-8", "backslashreplace"))
            if 0 < size <= free:
                told.append(text)
                room -= size
                break
        else:
            untold += 1
    return told, untold


def _about(result: Result) -> dict[str, Name]:
    """How it was run."""
    told = {
        "plugin": result.target.get("plugin") or "",
        "depth": result.depth,
        "seed": f"{result.seed}",
        "baseline": result.baseline or "none",
        "profile": result.profile or "none",
        "strict": "broken robustness laws count, too" if result.strict else "",
        "took": f"{result.elapsed_seconds:.1f} s",
    }
    told |= dict(sorted(result.environment.items()))
    return {name: Name(value) for name, value in [*told.items()][:_MOST_WORDS] if value}


def _capabilities(result: Result) -> Iterator[str]:
    for name, value in sorted(result.target.get("capabilities", {}).items()):
        yield f"{name} = {json.dumps(plain(value))}"


def _lines(lines: Iterable[str]) -> Lines:
    """As many of them as there is room for."""
    kept: list[str] = []
    room = _ROOM_FOR_LINES
    more = 0
    for line in lines:
        if room > 0:
            kept.append(shown(line, _LONGEST_TEXT))
            room -= len(f"  <li>{escape(kept[-1])}</li>\n".encode())
        else:
            more += 1
    return Lines(kept, more)


def _coverage(result: Result, reached: Reached) -> dict[str, Any]:
    files = [
        File(
            Name(file.name),
            len(file.lines),
            file.reached,
            percent(len(file.lines), file.reached),
            shown(", ".join(places(file)), _LONGEST_PLACES),
        )
        for file in reached.files[:_MOST_FILES]
    ]
    return {
        "title": heading(result, reached),
        "files": files,
        "more": len(reached.files) - len(files),
        "remarks": _lines(remarks(reached)),
        "lines": reached.lines,
        "reached": reached.reached,
        "percent": percent(reached.lines, reached.reached),
        "page": COVERAGE,
    }


def shown(text: str, limit: int) -> str:
    """The text as it can be shown, not longer than the limit even where it has to be written as escapes."""
    return visible(visible(text, limit), limit)


def _finalize(value: Any) -> Any:
    """What a template shows. It is escaped after that."""
    match value:
        case Markup() | int():
            return value
        case Source():
            return visible_lines(value, _LONGEST_PROGRAM)
        case Name():
            return shown(value, _LONGEST_NAME)
        case str():
            return shown(value, _LONGEST_TEXT)
    raise TypeError(f"a template is not to show {type(value).__name__}")


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("kvref_conformance.report"),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals["kinds"] = KINDS
    templates.filters["name"] = Name
    templates.filters["marked"] = _marked
    return templates


def _marked(text: str) -> Markup:
    """A sentence of a law, with code where it has backticks."""
    parts = (escape(shown(part, _LONGEST_TEXT)) for part in text.split("`"))
    return Markup("").join(Markup("<code>{}</code>").format(p) if n % 2 else p for n, p in enumerate(parts))


def _own(name: str) -> str:
    return (resources.files("kvref_conformance.report") / "templates" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """How a policy names what is in the page itself: nothing else is run, or styles anything."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
