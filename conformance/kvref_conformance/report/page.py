"""The report as one HTML file. It loads no other file, escapes all text, and has a maximum size."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any, TypeVar
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from kvref_conformance.documents.causes import Cause as KnownCause
from kvref_conformance.documents.names import COVERAGE, plain, repro_name, trace_name
from kvref_conformance.documents.results import Reached, Result, Row, Status
from kvref_conformance.laws import LAWS, Law
from kvref_conformance.laws.core import Level
from kvref_conformance.report.cells import Cell, cell
from kvref_conformance.report.coverage import heading, percent, places, remarks
from kvref_conformance.report.narrate import remark
from kvref_conformance.report.terminal import by_reason
from kvref_conformance.report.text import visible, visible_lines
from kvref_conformance.report.timeline import COLUMN, KINDS, Run, run_of

_ROOM_FOR_FINDINGS = 1_000_000
_ROOM_FOR_LAWS = 350_000
_ROOM_FOR_VERSIONS = 150_000
_ROOM_FOR_LINES = 40_000
"""Maximum sizes in bytes: of all findings together, of the table of laws, of the table of laws by version,
and of each other list."""

_LONGEST_NAME = 120
_LONGEST_TEXT = 1_000
_LONGEST_PLACES = 500
_LONGEST_PROGRAM = 100_000
_MOST_RUNS = 4
_MOST_FILES = 100
_MOST_VERSIONS = 20
_MOST_AREAS = 40
_MOST_FACTS = 50

T = TypeVar("T")


@dataclass(frozen=True)
class Section:
    """A section of the page. All its findings have the same effect on the verdict."""

    id: str
    title: str
    lead: str


_COUNTED = Section(
    "counted",
    "Broken",
    "These findings make the target not conformant.",
)
_LENIENT = Section(
    "lenient", "Broken, robustness only", "These findings count for the verdict only with `--strict`."
)
_OPEN = Section(
    "open", "Not judged to the end", "While there are such findings, the verdict is incomplete at best."
)
_INHERITED = Section(
    "inherited",
    "Inherited from stock",
    "The stock class that yours derives from breaks the law in the same way. These findings do not count.",
)
_KNOWN = Section(
    "known", "Known", "The baseline or the profile lists these findings. They do not count for the verdict."
)
_SECTIONS = (_COUNTED, _LENIENT, _OPEN, _INHERITED, _KNOWN)
_SECTION_OF = {
    Status.BROKEN: _LENIENT,
    Status.STALE: _COUNTED,
    Status.UNCONFIRMED: _OPEN,
    Status.INCOMPLETE: _OPEN,
    Status.INHERITED: _INHERITED,
    Status.KNOWN: _KNOWN,
}
"""The section for each state. A broken law that makes the run fail goes to the first section instead."""


class Name(str):
    """Text that a template cuts to the maximum length of a name."""


class Source(str):
    """Text that a template shows with its line breaks, a program for example."""


@dataclass(frozen=True)
class Cause:
    """Findings that the page groups, because they probably have the same cause.

    They break the same law in the same facet, or are listed for the same reason.
    """

    law: str | None
    facet: str
    reason: str
    level: Level | None
    statement: str
    why: str
    count: int
    known: KnownCause | None = None
    """The cause that the baseline gives for these findings, if it gives one."""


@dataclass(frozen=True)
class Finding:
    """A finding on the page: a row of the result that belongs to one of the sections."""

    row: Row
    number: int
    section: Section
    opens_section: bool
    cause: Cause
    opens_cause: bool
    trace: str | None
    repro: str | None

    @property
    def law(self) -> Law | None:
        return LAWS.get(self.row.law)

    @property
    def area(self) -> str:
        return _area(self.row.law)

    @property
    def open(self) -> bool:
        """Whether the details are unfolded at first: only for finding 1, and only if it counts."""
        return self.number == 1 and self.section is _COUNTED

    @property
    def remark(self) -> str:
        text = remark(self.row)
        return "" if text == self.cause.reason and len(text) <= _LONGEST_NAME else text

    @property
    def program(self) -> Source | None:
        program = self.row.program
        return Source(program) if program is not None and len(program) <= _LONGEST_PROGRAM else None

    @cached_property
    def runs(self) -> list[Run]:
        """The operations of each process, with their answers if kvref recorded them."""
        traced = self.row.trace["runs"][:_MOST_RUNS] if self.row.trace is not None else []
        events = self.row.events or [run["operations"] for run in traced]
        # If there are several processes, the law compares them, so no single step breaks it.
        expected = self.row.expected if len(traced) == 1 and self.row.observed else None
        return [run_of(run["flags"], each, expected) for run, each in zip(traced, events, strict=False)]

    @property
    def more_runs(self) -> int:
        return max(0, len(self.row.trace["runs"]) - _MOST_RUNS) if self.row.trace is not None else 0


@dataclass(frozen=True)
class LawLine:
    """A line in the table of laws: a law with its rows."""

    id: str
    level: str
    law: Law | None
    rows: Sequence[Row]
    area: str
    first: bool
    """Whether this is the first law of its area."""

    @property
    def examples(self) -> int:
        """The examples of all subjects. All rows of a subject share its examples, so only one row counts."""
        subjects: dict[str, int] = {}
        for row in self.rows:
            subjects[row.subject] = max(subjects.get(row.subject, 0), row.examples)
        return sum(subjects.values())

    @property
    def states(self) -> dict[str, list[str]]:
        """The subjects and facets, by state."""
        found: dict[str, list[str]] = {}
        for row in sorted(self.rows, key=lambda row: list(Status).index(row.status)):
            name = f"{row.subject}: {row.facet}" if row.facet else row.subject
            found.setdefault(row.status.value, []).append(name)
        return found


@dataclass(frozen=True)
class VersionsLine:
    """A line in the table of laws by version: a law, and its state in each report.

    `statuses` are the states of its rows in the first report.
    """

    law: str
    level: str
    area: str
    first: bool
    """Whether this is the first law of its area."""
    cells: Sequence[Cell | None]
    statuses: Sequence[str]


@dataclass(frozen=True)
class Lines:
    """The lines of a list that fit, and the number of those that do not."""

    shown: Sequence[str]
    more: int


@dataclass(frozen=True)
class Share:
    """One part of the bar for an area: the rows in one state."""

    state: str
    count: int
    start: int
    """Where the part begins: the number of rows in the states before this one."""


@dataclass(frozen=True)
class Area:
    """An area in the overview at the top of the page."""

    name: Name
    rows: int
    shares: Sequence[Share]

    @property
    def fragment(self) -> str:
        """The part of a link after `#` that limits the page to this area."""
        return f"area={quote(shown(self.name, _LONGEST_NAME), safe='')}"


@dataclass(frozen=True)
class File:
    """The coverage of a file."""

    name: Name
    lines: int
    reached: int
    percent: str
    unreached: str


def page(result: Result, reports: Sequence[Mapping[str, Any]] = ()) -> bytes:
    """The whole page, encoded.

    Args:
        result: the result to show.
        reports: first the report of this result, then those of other versions. They make the table of laws by
            version.
    """
    templates = _templates()

    def render(name: str, **values: Any) -> Markup:
        return Markup(templates.get_template(f"{name}.html.jinja").render(**values))

    found = [*_findings(result)]
    findings, more_findings = _fitting(
        found,
        _ROOM_FOR_FINDINGS,
        [
            lambda one: render("finding", one=one, runs=one.runs, program=one.program),
            lambda one: render("finding", one=one, runs=one.runs, program=None),
            lambda one: render("finding", one=one, runs=[], program=None),
        ],
    )
    laws, more_laws = _fitting(
        _laws(result),
        _ROOM_FOR_LAWS,
        [lambda law: render("law", line=law, names=True), lambda law: render("law", line=law, names=False)],
    )
    beside, more_beside = _fitting(
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
        areas=_areas(result),
        sections=[
            (section, len(rows), len({one.cause for one in rows}))
            for section in _SECTIONS
            if (rows := [one for one in found if one.section is section])
        ],
        findings=findings,
        more_findings=more_findings,
        laws=laws,
        more_laws=more_laws,
        versions=[Name(_version(report)) for report in reports[:_MOST_VERSIONS]],
        more_versions=max(0, len(reports) - _MOST_VERSIONS),
        beside=beside,
        more_beside=more_beside,
        levels=[level.value for level in Level],
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
    """Yield the findings, ordered by section and cause."""
    failing = {id(row) for row in result.failing}
    sections: dict[str, dict[tuple[str, str, str], list[Row]]] = {section.id: {} for section in _SECTIONS}
    for row in sorted(result.rows, key=lambda row: list(Status).index(row.status)):
        if row.status in _SECTION_OF:
            section = _COUNTED if id(row) in failing else _SECTION_OF[row.status]
            broken = row.status is Status.BROKEN
            reason = row.cause.title if row.cause else row.message or row.observed
            key = (row.law, row.facet, "") if broken else ("", "", reason)
            sections[section.id].setdefault(key, []).append(row)
    number = 0
    for section in _SECTIONS:
        for place, ((law, facet, reason), rows) in enumerate(sections[section.id].items()):
            cause = _cause(law, facet, reason, rows)
            for nth, row in enumerate(rows):
                number += 1
                opens = place == nth == 0
                yield Finding(row, number, section, opens, cause, nth == 0, trace_name(row), repro_name(row))


def _cause(law: str, facet: str, reason: str, rows: Sequence[Row]) -> Cause:
    if reason or rows[0].status is not Status.BROKEN:
        return Cause(None, "", reason or "No reason given", None, "", "", len(rows), rows[0].cause)
    broken = LAWS.get(law)
    statement, why = (broken.statement, broken.why) if broken else ("", "")
    return Cause(law, facet, "", rows[0].level, statement, why, len(rows))


def _areas(result: Result) -> list[Area]:
    """The areas. In each, the rows are counted by state, with the worst state first."""
    areas: dict[str, list[Row]] = {}
    for row in result.rows:
        areas.setdefault(_area(row.law), []).append(row)
    return [Area(Name(name), len(rows), [*_shares(rows)]) for name, rows in [*areas.items()][:_MOST_AREAS]]


def _shares(rows: Sequence[Row]) -> Iterator[Share]:
    start = 0
    for status in Status:
        if count := sum(row.status is status for row in rows):
            yield Share(status.value, count, start)
            start += count


def _laws(result: Result) -> Iterator[LawLine]:
    """Yield the laws, ordered by area."""
    areas: dict[str, dict[str, list[Row]]] = {}
    for row in result.rows:
        areas.setdefault(_area(row.law), {}).setdefault(row.law, []).append(row)
    for area, laws in areas.items():
        for number, (law, rows) in enumerate(laws.items()):
            yield LawLine(law, rows[0].level, LAWS.get(law), rows, area, number == 0)


def _beside(result: Result, reports: Sequence[Mapping[str, Any]]) -> Iterator[VersionsLine]:
    """Yield each law of the result with its state in each report. For a single report, yield nothing."""
    if len(reports) < 2:
        return
    found: list[dict[str, list[Any]]] = [{} for _ in reports]
    for rows, report in zip(found, reports, strict=True):
        for row in report["laws"]:
            rows.setdefault(row["id"], []).append(row)
    for line in _laws(result):
        cells = [cell(rows[line.id]) if line.id in rows else None for rows in found]
        yield VersionsLine(line.id, line.level, line.area, line.first, cells, [*line.states])


def _version(report: Mapping[str, Any]) -> str:
    target = report["target"]
    plugin = f" with {target['plugin']}" if target["plugin"] else ""
    return f"{target['name']} {target['version']}{plugin}"


def _area(law: str) -> str:
    return law.partition(".")[0]


def _fitting(
    items: Iterable[T], room: int, forms: Sequence[Callable[[T], Markup]]
) -> tuple[list[Markup], int]:
    """Show as many items as fit into `room` bytes. Returns their texts, and the number of the others.

    `forms` are ways to show an item, from long to short. An item gets the first form that fits. If a form
    does not fit into the room that is left, later items do not try it again. A quarter of the room is kept
    for the shortest form. No item takes more than an eighth of the room.
    """
    fitting: list[Markup] = []
    reserve, most = room // 4, room // 8
    left = [*items]
    tried = [*forms]
    for item in left:
        for form in [*tried]:
            free = room - (reserve if form is not forms[-1] else 0)
            text = form(item) if free > 0 else Markup("")
            size = len(text.encode("utf-8", "backslashreplace"))
            if 0 < size <= min(most, free):
                fitting.append(text)
                room -= size
                break
            if size == 0 or size > free:
                tried.remove(form)
        if not tried:
            break
    return fitting, len(left) - len(fitting)


def _about(result: Result) -> dict[str, Name]:
    """By name, the settings of the run and the versions that it used."""
    facts = {
        "plugin": result.target.get("plugin") or "",
        "depth": result.depth,
        "seed": f"{result.seed}",
        "baseline": result.baseline or "none",
        "profile": result.profile or "none",
        "strict": "broken robustness laws count, too" if result.strict else "",
        "took": f"{result.elapsed_seconds:.1f} s",
    }
    facts |= dict(sorted(result.environment.items()))
    return {name: Name(value) for name, value in [*facts.items()][:_MOST_FACTS] if value}


def _capabilities(result: Result) -> Iterator[str]:
    for name, value in sorted(result.target.get("capabilities", {}).items()):
        yield f"{name} = {json.dumps(plain(value))}"


def _lines(lines: Iterable[str]) -> Lines:
    """The lines that fit, and the number of those that do not."""
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
    """The text with escapes for what cannot be shown, cut to `limit` characters. Escapes count, too."""
    return visible(visible(text, limit), limit)


def _finalize(value: Any) -> Any:
    """The text that a template shows for a value. After this, the template escapes it for HTML."""
    match value:
        case Markup() | int():
            return value
        case Source():
            return visible_lines(value, _LONGEST_PROGRAM)
        case Name():
            return shown(value, _LONGEST_NAME)
        case str():
            return shown(value, _LONGEST_TEXT)
    raise TypeError(f"a template shows text and numbers, not {type(value).__name__}")


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
    templates.globals |= {"kinds": KINDS, "column": COLUMN}
    templates.filters["name"] = Name
    templates.filters["marked"] = _marked
    return templates


def _marked(text: str) -> Markup:
    """A sentence of a law as HTML. Text between backticks becomes code."""
    parts = (escape(shown(part, _LONGEST_TEXT)) for part in text.split("`"))
    return Markup("").join(Markup("<code>{}</code>").format(p) if n % 2 else p for n, p in enumerate(parts))


def _own(name: str) -> str:
    return (resources.files("kvref_conformance.report") / "templates" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """The digest of a style or a script.

    The page's security policy lists these digests, so that the browser runs nothing else.
    """
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
