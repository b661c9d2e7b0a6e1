"""Tell a result, or the laws, on a terminal.

Everything a target had a hand in goes through `Printer`, which shows it as text whatever it contains: no
markup, no control codes, nothing the terminal's encoding cannot say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvref_conformance.documents.names import COVERAGE, PAGE, repro_name
from kvref_conformance.documents.results import Result, Row, Status, Verdict
from kvref_conformance.laws import LAWS
from kvref_conformance.laws.core import Law, Level
from kvref_conformance.report.coverage import by_area, heading, percent, places, remarks
from kvref_conformance.report.narrate import narrate, remark
from kvref_conformance.report.text import visible

_STYLES = {
    Status.BROKEN: "bold red",
    Status.STALE: "bold red",
    Status.UNCONFIRMED: "yellow",
    Status.INCOMPLETE: "yellow",
    Status.KNOWN: "cyan",
    Status.INHERITED: "cyan",
    Status.DECLARED_GAP: "cyan",
    Status.HOLDS: "green",
    Status.NOT_APPLICABLE: "dim",
}
VERDICT_STYLES = {
    Verdict.CONFORMANT: "bold green",
    Verdict.CONFORMANT_WITH_GAPS: "bold green",
    Verdict.NOT_CONFORMANT: "bold red",
    Verdict.INCOMPLETE: "bold yellow",
}
_COLUMNS = {
    "holds": (Status.HOLDS,),
    "known": (Status.KNOWN,),
    "inh.": (Status.INHERITED,),
    "gaps": (Status.DECLARED_GAP,),
    "broken": (Status.BROKEN,),
    "stale": (Status.STALE,),
    "open": (Status.UNCONFIRMED, Status.INCOMPLETE),
    "n.a.": (Status.NOT_APPLICABLE,),
}
"""Columns of the summary that count subjects."""

_MOST_FILES = 20
_MOST_PLACES = 12
"""What is shown of unreached lines: files, and places in each."""

_MOST_LAWS = 3
"""That are named where one reason keeps all of them from being judged; rows of a law that break for one."""

_HANG = 4
_LONGEST_NAME = 80
_LONGEST_LINE = 800


def render(result: Result, console: Console, directory: Path | None = None) -> None:
    """Print the result, what is broken first and the verdict last.

    `directory` is where the report was written, if it was: broken laws then name their programs.
    """
    printer = Printer(console)
    _broken(result, printer, directory)
    for row in _with(result, Status.STALE, Status.UNCONFIRMED):
        printer.line(row.status, style=_STYLES[row.status], after=f"  {_title(row)}")
        printer.line(row.message or row.observed or "no reason given", indent=2)
        printer.blank()
    for laws, reason in unjudged(result.rows):
        printer.line(Status.INCOMPLETE, style=_STYLES[Status.INCOMPLETE], after=f"  {laws}")
        printer.line(reason, indent=2)
        printer.blank()
    # What the vendor's own classes do comes first.
    _accepted(result, printer, Status.INHERITED)
    _accepted(result, printer, Status.KNOWN)
    _summary(result, printer)
    _not_run(result, printer, Status.DECLARED_GAP, "declared gap: ")
    _not_run(result, printer, Status.NOT_APPLICABLE, "not applicable: ")
    for note in result.notes:
        printer.line(f"note: {note}")
    if result.notes:
        printer.blank()
    _coverage(result, printer, directory)
    _totals(result, printer, directory)


def render_laws(laws: Sequence[Law], console: Console, verbose: bool = False) -> None:
    """List laws: id, level and statement; with `verbose` also why, and the sources."""
    printer = Printer(console)
    for law in laws:
        printer.line(law.id, style="bold", after=f"  {law.level}")
        printer.line(law.statement, indent=2)
        if verbose:
            printer.line(f"why: {law.why}", indent=2)
            for source in law.sources:
                printer.line(f"source: {source}", indent=2)


class Printer:
    """Prints data on a console, safely."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def text(self, data: str, limit: int = _LONGEST_LINE, style: str = "") -> Text:
        """The data as text that a console shows as it is."""
        return Text(visible(data, limit, self._console.encoding), style=style, overflow="fold")

    def line(self, data: str, style: str = "", after: str = "", indent: int = 0) -> None:
        """One item: `data` in the style, `after` plain; what does not fit goes on below, further in."""
        text = Text.assemble(self.text(data, style=style), self.text(after), overflow="fold")
        lines = text.wrap(self._console, max(20, self._console.width - indent - _HANG))
        for number, line in enumerate(lines):
            line.rstrip()
            margin = " " * (indent + (_HANG if number else 0))
            self._console.print(Text.assemble(margin, line), soft_wrap=True)

    def whole(self, data: str) -> None:
        """A line that is not broken whatever its length, so that it can be copied."""
        self._console.print(self.text(data, limit=5_000), soft_wrap=True)

    def fits(self, table: Table) -> bool:
        """Whether no cell has to be broken."""
        wide = self._console.options.update_width(1_000)
        return self._console.measure(table, options=wide).maximum <= self._console.width

    def table(self, table: Table) -> None:
        self._console.print(table)

    def blank(self) -> None:
        self._console.print()


def _with(result: Result, *statuses: Status) -> list[Row]:
    return [row for row in result.rows if row.status in statuses]


def _grouped(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _title(row: Row) -> str:
    law, subject, facet = (visible(name, _LONGEST_NAME) for name in (row.law, row.subject, row.facet))
    return f"{law} [{subject}{': ' + facet if facet else ''}]" if subject else law


def _accepted(result: Result, printer: Printer, status: Status) -> None:
    """What breaks and does not count, each reason told once."""
    rows = _with(result, status)
    for reason, group in _grouped(rows, lambda row: row.message).items():
        names: list[str] = []
        for law, each in _grouped(group, lambda row: row.law).items():
            few = len(each) <= _MOST_LAWS
            names += map(_title, each) if few else [f"{law} ({len(each)} rows)"]
        told = f"  {reason}" if reason else ""
        printer.line(status, style=_STYLES[status], after=f"  {', '.join(names)}{told}")
    if rows:
        printer.blank()


def _broken(result: Result, printer: Printer, directory: Path | None) -> None:
    counted = {id(row) for row in result.failing}
    for row in sorted(_with(result, Status.BROKEN), key=lambda row: id(row) not in counted):
        reservation = "" if id(row) in counted else " (counts only with --strict)"
        level = row.level.value.upper() if row.level is Level.SAFETY else row.level.value
        printer.line(_title(row), style=_STYLES[row.status], after=f"  {level}  {row.status}{reservation}")
        for label, told in (("expected", row.expected), ("observed", row.observed), ("remark", remark(row))):
            if told:
                printer.line(f"{label:8}  {told}", indent=2)
        for line in narrate(row.trace["runs"]) if row.trace is not None else ():
            printer.line(line, indent=2)
        if directory is not None and (name := repro_name(row)) is not None:
            printer.whole(f"  program   {directory / name}")
        printer.blank()


def _summary(result: Result, printer: Printer) -> None:
    """One line a law; columns of zeros are left out, and rates where they would break the names of laws."""
    laws = _grouped(result.rows, lambda row: row.law)
    if not laws:
        return
    rates = {"steps/s": _rate}
    if any(row.driven_steps for row in result.rows):
        rates["driven/s"] = _driven_rate
    tables = [_law_table(laws, printer, chosen) for chosen in (rates, {})]
    printer.table(next((table for table in tables if printer.fits(table)), tables[-1]))
    if any(row.status in (Status.UNCONFIRMED, Status.INCOMPLETE) for row in result.rows):
        printer.line("open: unconfirmed or incomplete")
    printer.blank()


def _law_table(
    laws: dict[str, list[Row]], printer: Printer, rates: Mapping[str, Callable[[list[Row]], str]]
) -> Table:
    counts = {law: _subjects_by_column(rows) for law, rows in laws.items()}
    shown = [column for column in _COLUMNS if any(count[column] for count in counts.values())]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("law", overflow="fold")
    table.add_column("level", no_wrap=True)
    for column in [*shown, "examples", *rates, "time"]:
        table.add_column(column, justify="right", no_wrap=True)
    for law, rows in laws.items():
        table.add_row(
            printer.text(law, _LONGEST_NAME),
            "safety" if rows[0].level is Level.SAFETY else "robust",
            *(_cell(counts[law][column], _STYLES[_COLUMNS[column][0]]) for column in shown),
            str(_once_a_subject(rows, lambda row: row.examples)),
            *(rate(rows) for rate in rates.values()),
            f"{_once_a_subject(rows, lambda row: row.seconds):.1f}s",
        )
    return table


def _subjects_by_column(rows: list[Row]) -> dict[str, int]:
    """How many subjects of a law go in each column. A subject counts once, by the worst of its rows."""
    severity = list(Status)  # declared worst first
    subjects = _grouped(rows, lambda row: row.subject).values()
    worst = [min((row.status for row in rows), key=severity.index) for rows in subjects]
    return {column: sum(status in statuses for status in worst) for column, statuses in _COLUMNS.items()}


def _once_a_subject(rows: list[Row], number: Callable[[Row], float]) -> float:
    """The sum over subjects: the rows of one subject (its facets) share their examples and time."""
    return sum(max(map(number, rows)) for rows in _grouped(rows, lambda row: row.subject).values())


def _rate(rows: list[Row]) -> str:
    """Operations a second, for one unit of work at a time."""
    seconds = _once_a_subject(rows, lambda row: row.exploring_seconds)
    return f"{_once_a_subject(rows, lambda row: row.steps) / seconds:.0f}" if seconds else "-"


def _driven_rate(rows: list[Row]) -> str:
    """The same for driven examples."""
    seconds = _once_a_subject(rows, lambda row: row.driven_seconds)
    return f"{_once_a_subject(rows, lambda row: row.driven_steps) / seconds:.0f}" if seconds else "-"


def _cell(count: int, style: str) -> Text:
    return Text(str(count), style) if count else Text("-", "dim")


def _not_run(result: Result, printer: Printer, status: Status, title: str) -> None:
    reasons = by_reason(_with(result, status))
    for number, reason in enumerate(reasons):
        printer.line(f"{'' if number else title}{reason}", indent=2 if number else 0)
    if reasons:
        printer.blank()


def by_reason(rows: Iterable[Row]) -> list[str]:
    """What was not run, a line for each reason: a law is named once, with its subject if that is one."""
    return [f"{reason}: {', '.join(_names(group))}" for reason, group in _grouped(rows, _reason).items()]


def unjudged(rows: Iterable[Row]) -> Iterator[tuple[str, str]]:
    """What could not be judged, by reason: the laws, or how many they are if many are about one subject."""
    incomplete = [row for row in rows if row.status is Status.INCOMPLETE]
    for reason, group in _grouped(incomplete, _reason).items():
        subjects = {visible(row.subject, _LONGEST_NAME) for row in group}
        many = len(subjects) == 1 and len(group) > _MOST_LAWS
        yield f"{len(group)} laws [{subjects.pop()}]" if many else ", ".join(_names(group)), reason


def _reason(row: Row) -> str:
    return row.message or row.observed or "no reason given"


def _names(rows: Iterable[Row]) -> list[str]:
    laws = _grouped(rows, lambda row: row.law)
    return [
        _title(each[0]) if len(each) == 1 else f"{law} ({len(each)} subjects)" for law, each in laws.items()
    ]


def _coverage(result: Result, printer: Printer, directory: Path | None) -> None:
    """What no law reached, a line a file; then what each area of laws reached."""
    reached = result.coverage
    if reached is None:
        return
    printer.line(heading(result, reached), style="bold")
    table = _table("file", "lines", "reached", "%")
    table.add_column("unreached", overflow="fold")
    wanting = [file for file in reached.files if places(file)]
    cut = False
    for file in wanting[:_MOST_FILES]:
        found = places(file)
        cut = cut or len(found) > _MOST_PLACES
        more = f", and {len(found) - _MOST_PLACES} more" if len(found) > _MOST_PLACES else ""
        table.add_row(
            printer.text(file.name, _LONGEST_NAME),
            str(len(file.lines)),
            str(file.reached),
            percent(len(file.lines), file.reached),
            printer.text(", ".join(found[:_MOST_PLACES]) + more),
        )
    table.add_row("all", str(reached.lines), str(reached.reached), percent(reached.lines, reached.reached))
    printer.table(table)
    if len(wanting) > _MOST_FILES:
        printer.line(f"and {len(wanting) - _MOST_FILES} more files of which something was not reached")
    if cut or len(wanting) > _MOST_FILES:
        where = directory / COVERAGE if directory is not None else "--report DIR and --json tell"
        printer.line(f"all of it: {where}")
    for told in remarks(reached):
        printer.line(told)
    printer.blank()
    if areas := by_area(reached, {law: LAWS[law].area for law in LAWS}):
        table = _table("laws", "reached", "alone")
        for area, (lines, alone) in areas.items():
            table.add_row(printer.text(area), str(lines), str(alone))
        printer.table(table)
        printer.blank()


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(first, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _totals(result: Result, printer: Printer, directory: Path | None) -> None:
    target = result.target
    plugin = f" with {target['plugin']}" if target.get("plugin") else ""
    about = [f"{target['name']} {target['version']}{plugin}", f"depth {result.depth}", f"seed {result.seed}"]
    about += [f"baseline {result.baseline}"] if result.baseline else []
    about += [f"profile {result.profile}"] if result.profile else []
    about += ["strict"] if result.strict else []
    printer.line(", ".join(about))
    totals = ", ".join(f"{count} {status}" for status, count in result.totals.items()) or "no law was run"
    printer.line(f"{totals}; {result.elapsed_seconds:.1f} s")
    if directory is not None:
        printer.whole(f"page: {visible(str(directory / PAGE))}")
    printer.line(f"verdict: {result.verdict}", style=VERDICT_STYLES[result.verdict])
