"""Print a result, or the laws, on a terminal.

All text that comes from a target must go through `Printer`. `Printer` shows markup as plain text. It escapes
control codes, and characters that the terminal's encoding lacks.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvref_conformance.documents.causes import Cause, Severity
from kvref_conformance.documents.names import COVERAGE, PAGE, repro_name, trace_name
from kvref_conformance.documents.results import Result, Row, Status, Verdict
from kvref_conformance.laws import ANSWERS, LAWS
from kvref_conformance.laws.core import Law, Level
from kvref_conformance.report.coverage import by_area, heading, percent, places, remarks
from kvref_conformance.report.narrate import narrate, remark
from kvref_conformance.report.text import visible
from kvref_conformance.report.undrawn import lines as undrawn_lines

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
SEVERITY_STYLES = {
    Severity.WRONG_OUTPUT: "red",
    Severity.CRASH: "red",
    Severity.LEAK: "yellow",
    Severity.LOST_REUSE: "yellow",
    Severity.ROBUSTNESS: "cyan",
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
"""The columns of two tables, with the states that each column counts. The table by area counts rows, the
table by law counts subjects."""

_NOT_JUDGED = (Status.NOT_APPLICABLE, Status.DECLARED_GAP)

_MOST_FINDINGS = 10
_MOST_OF_A_LAW = 3
"""Without `verbose`, at most `_MOST_FINDINGS` findings get a paragraph, and at most `_MOST_OF_A_LAW` of one
law. Each of the others gets one line."""
_MOST_OPERATIONS = 8
"""Without `verbose`, only this many operations of a trace are shown: the last ones, where the law breaks."""
_FEW_OPERATIONS = 4
"""If at most this many operations would be left out, all are shown."""
_MOST_NOTES = 5
_MOST_CAUSES = 3
"""Without `verbose`, this many known causes are shown with their titles. The others are only named."""

_MOST_FILES = 20
_MOST_PLACES = 12
"""At most `_MOST_FILES` files with unreached lines are shown, and at most `_MOST_PLACES` places in each
file."""

_MOST_LAWS = 3
"""If laws of one subject, or rows of one law, share a reason, at most this many of them are named."""
_MOST_LAWS_BY_NAME = 12
"""If laws share a reason, at most this many are named. If there are more, they are counted by area."""

_HANG = 4
_LABEL = 10
_LONGEST_NAME = 80
_LONGEST_LINE = 800


def open_console(stderr: bool = False) -> Console:
    """A console for stdout or stderr. With NO_COLOR it prints plain text: no colour, and no bold either."""
    return Console(stderr=stderr, color_system=None if os.environ.get("NO_COLOR") else "auto")


@dataclass(frozen=True)
class Invocation:
    """What the user typed, so that a report can name the next command."""

    target: Sequence[str] = ()
    """The target and the options that say how to load it."""
    options: Sequence[tuple[str, ...]] = ()
    """The options that say what to run, each with its value if it has one."""

    def command(self, name: str, *arguments: str) -> str:
        """The command line that runs the command `name` for the same target."""
        return shlex.join(["kvref", name, *arguments, *self.target])

    def causes(self) -> str:
        """The command line that lists the known causes for the same target and baseline."""
        baseline = [word for option in self.options if option[0] == "--baseline" for word in option]
        return self.command("causes", *baseline)

    def again(self, name: str, *options: str, without: Sequence[str] = ()) -> str:
        """The command line that runs the command `name` for the same target, with the same options.

        Options in `without` are left out. `options` are added.
        """
        kept = [word for option in self.options if option[0] not in without for word in option]
        return shlex.join(["kvref", name, *self.target, *kept, *options])


def render_setup(result: Result, console: Console) -> None:
    """Print in one line what is checked, and how."""
    target = result.target
    plugin = f" with {target['plugin']}" if target.get("plugin") else ""
    about = [f"{target['name']} {target['version']}{plugin}"]
    about += [f"Python {result.environment['python']}"] if "python" in result.environment else []
    about += [f"torch {result.environment['torch']}"] if "torch" in result.environment else []
    about += [f"depth {result.depth}", f"seed {result.seed}"]
    about += [f"baseline {result.baseline}"] if result.baseline else []
    about += [f"profile {result.profile}"] if result.profile else []
    about += ["strict"] if result.strict else []
    printer = Printer(console)
    printer.line(", ".join(about))
    printer.blank()


def render(
    result: Result,
    console: Console,
    directory: Path | None = None,
    *,
    verbose: bool = False,
    invocation: Invocation | None = None,
) -> None:
    """Print the result: what is broken first, the verdict and the next command last.

    Args:
        result: what to print.
        console: where to print.
        directory: the folder of the report, if one was written. Then the paths of programs are printed, too.
        verbose: print every law, every accepted finding and every operation, instead of a line for each area.
        invocation: what the user typed.
    """
    printer, invocation = Printer(console), invocation or Invocation()
    _broken(result, printer, directory, invocation, verbose)
    _open(result, printer)
    if verbose:
        # What the vendor's own classes do comes first.
        _accepted(result, printer, Status.INHERITED)
        _accepted(result, printer, Status.KNOWN)
        _causes_in_full(result, printer)
        _by_law(result, printer)
        _not_run(result, printer, Status.DECLARED_GAP, "declared gap: ")
        _not_run(result, printer, Status.NOT_APPLICABLE, "not applicable: ")
    else:
        _by_area(result, printer, invocation)
        _causes(result, printer, invocation)
    _notes(result, printer, verbose)
    _coverage(result, printer, directory)
    _undrawn(result, printer)
    _end(result, printer, directory, invocation)


def render_laws(laws: Sequence[Law], console: Console, verbose: bool = False) -> None:
    """Print each law's id, level and statement. With `verbose`, also print the reason and the sources."""
    printer = Printer(console)
    for law in laws:
        printer.line(law.id, style="bold", after=f"  {law.level}")
        printer.line(law.statement, indent=2)
        if verbose:
            printer.line(f"why: {law.why}", indent=2)
            for source in law.sources:
                printer.line(f"source: {source}", indent=2)
    areas = {law.area for law in laws}
    printer.blank()
    printer.line(f"{number(len(laws), 'law')} in {number(len(areas), 'area')}")
    printer.next(f"kvref explain {laws[0].id if len(laws) == 1 else 'LAW'}")


class Printer:
    """Prints text on a console, with escapes for all that could disturb the terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def text(self, data: str, limit: int = _LONGEST_LINE, style: str = "") -> Text:
        """The text as the console can show it, cut to `limit` characters."""
        return Text(visible(data, limit, self._console.encoding), style=style, overflow="fold")

    def line(
        self, data: str, style: str = "", after: str = "", indent: int = 0, label: str = "", hang: int = _HANG
    ) -> None:
        """Print one item: first `label`, then `data` in the style, then `after`.

        A long item continues on indented lines.
        """
        text = Text.assemble(self.text(data, style=style), self.text(after), overflow="fold")
        indent += len(label)
        lines = text.wrap(self._console, max(20, self._console.width - indent - hang))
        for number, line in enumerate(lines):
            line.rstrip()
            margin = " " * (indent + hang) if number else label.rjust(indent)
            self._console.print(Text.assemble(margin, line), soft_wrap=True)

    def labelled(self, label: str, data: str, width: int = _LABEL, indent: int = 2) -> None:
        """Print an item after a label.

        If the item is long, its other lines begin below the first one, not below the label.
        """
        self.line(data, indent=indent, label=f"{label:{width}}", hang=0)

    def whole(self, data: str) -> None:
        """Print one line without breaking it, so that the user can copy it."""
        self._console.print(self.text(data, limit=5_000), soft_wrap=True)

    def next(self, command: str) -> None:
        """Print the last line: the command to type next."""
        self.whole(f"next: {command}")

    def fits(self, table: Table) -> bool:
        """Whether the table fits the console without breaking a cell."""
        wide = self._console.options.update_width(1_000)
        return self._console.measure(table, options=wide).maximum <= self._console.width

    def table(self, table: Table) -> None:
        self._console.print(table)

    def blank(self) -> None:
        self._console.print()


def by_reason(rows: Iterable[Row]) -> list[str]:
    """A line for each reason why laws were not run. The line names these laws.

    A law is named once, with its subject, or with the number of its subjects if there are several.
    """
    return [f"{reason}: {', '.join(_names(group))}" for reason, group in _grouped(rows, _reason).items()]


def laws_by_reason(rows: Iterable[Row]) -> Iterator[tuple[str, str]]:
    """Yield laws that were not judged, and the reason.

    If many laws share a reason, they are not named but counted.
    """
    for reason, group in _grouped(rows, _reason).items():
        subjects = [*dict.fromkeys(visible(row.subject, _LONGEST_NAME) for row in group)]
        names = _names(group)
        if len(subjects) == 1 and len(group) > _MOST_LAWS and subjects[0]:
            yield f"{len(group)} laws [{subjects[0]}]", reason
        elif len(names) > _MOST_LAWS_BY_NAME:
            listed = f"; on {', '.join(subjects)}" if 1 < len(subjects) <= _MOST_LAWS_BY_NAME else ""
            yield f"{len(names)} laws: {counts_by_area(row.law for row in group)}{listed}", reason
        else:
            yield ", ".join(names), reason


def counts_by_area(laws: Iterable[str]) -> str:
    """The number of laws in each area, as `registry 3, spec 12`."""
    counts = Counter(law.partition(".")[0] for law in dict.fromkeys(laws))
    return ", ".join(f"{visible(area, _LONGEST_NAME)} {count}" for area, count in counts.items())


def _with(result: Result, *statuses: Status) -> list[Row]:
    return [row for row in result.rows if row.status in statuses]


def _grouped(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _area(row: Row) -> str:
    return row.law.partition(".")[0]


def _law(row: Row) -> str:
    return row.law


def _subject(row: Row) -> str:
    return row.subject


def _reason(row: Row) -> str:
    return row.message or row.observed or "no reason given"


def _title(row: Row) -> str:
    law, subject, facet = (visible(name, _LONGEST_NAME) for name in (row.law, row.subject, row.facet))
    return f"{law} [{subject}{': ' + facet if facet else ''}]" if subject else law


def _names(rows: Iterable[Row]) -> list[str]:
    laws = _grouped(rows, _law)
    return [
        _title(each[0]) if len(each) == 1 else f"{law} ({len(each)} subjects)" for law, each in laws.items()
    ]


def number(count: int, noun: str) -> str:
    """The count with its noun, as `1 row` or `2 rows`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _broken(
    result: Result, printer: Printer, directory: Path | None, invocation: Invocation, verbose: bool
) -> None:
    """Print a paragraph for each finding. Those that count for the verdict come first."""
    counted = {id(row) for row in result.failing}
    rows = sorted(_with(result, Status.BROKEN), key=lambda row: id(row) not in counted)
    first = [row for of_law in _grouped(rows, _law).values() for row in of_law[:_MOST_OF_A_LAW]]
    in_full = rows if verbose else first[:_MOST_FINDINGS]
    for row in in_full:
        _finding(row, printer, id(row) in counted, verbose)
        if directory is not None and (name := repro_name(row)) is not None:
            printer.whole(f"  {'program':{_LABEL}}{directory / name}")
        printer.whole(f"  {'explain':{_LABEL}}kvref explain {visible(row.law, _LONGEST_NAME)}")
        if directory is not None and (name := trace_name(row)) is not None:
            printer.whole(f"  {'replay':{_LABEL}}{invocation.command('replay', str(directory / name))}")
        printer.blank()
    if others := [row for row in rows if id(row) not in {*map(id, in_full)}]:
        for row in others:
            printer.line(row.status, style=_STYLES[row.status], after=f"  {_title(row)}")
        printer.line(f"These {len(others)} in full: add -v")
        printer.blank()


def _finding(row: Row, printer: Printer, counts: bool, verbose: bool) -> None:
    level = row.level.value if counts else f"{row.level.value}: counts with --strict only"
    printer.line(row.status, style=_STYLES[row.status], after=f"  {_title(row)}  {level}")
    for label, text in (("expected", row.expected), ("observed", row.observed), ("remark", remark(row))):
        if text:
            printer.labelled(label, text)
    operations = [*narrate(row.trace["runs"])] if row.trace is not None else []
    if (before := len(operations) - _MOST_OPERATIONS) > _FEW_OPERATIONS and not verbose:
        operations = [f"... {before} operations; -v shows them", *operations[before:]]
    for number, operation in enumerate(operations):
        printer.line(operation, indent=2, label=f"{'' if number else 'trace':{_LABEL}}")


def _open(result: Result, printer: Printer) -> None:
    """Print which rows are stale, unconfirmed or incomplete, with the reasons."""
    for row in _with(result, Status.STALE, Status.UNCONFIRMED):
        printer.line(row.status, style=_STYLES[row.status], after=f"  {_title(row)}")
        printer.line(_reason(row), indent=2)
        printer.blank()
    for laws, reason in laws_by_reason(_with(result, Status.INCOMPLETE)):
        printer.line(Status.INCOMPLETE, style=_STYLES[Status.INCOMPLETE], after=f"  {laws}")
        printer.line(reason, indent=2)
        printer.blank()


def _accepted(result: Result, printer: Printer, status: Status) -> None:
    """Print the rows in an accepted state (known or inherited), by reason.

    They do not count for the verdict. Rows with a known cause are left out.
    """
    rows = [row for row in _with(result, status) if row.cause is None]
    for reason, group in _grouped(rows, lambda row: row.message).items():
        why = f"  {reason}" if reason else ""
        printer.line(status, style=_STYLES[status], after=f"  {_titles(group)}{why}")
    if rows:
        printer.blank()


def _titles(rows: Sequence[Row]) -> str:
    """The laws of the rows. If a law has only few rows, its subjects and facets are named, too."""
    names: list[str] = []
    for law, each in _grouped(rows, _law).items():
        names += map(_title, each) if len(each) <= _MOST_LAWS else [f"{law} ({len(each)} rows)"]
    return ", ".join(names)


def _causes(result: Result, printer: Printer, invocation: Invocation) -> None:
    """Print the known causes: the worst ones with their titles, the others only by name."""
    causes = result.causes
    if not causes:
        return
    first, others = [*causes][:_MOST_CAUSES], [*causes][_MOST_CAUSES:]
    printer.line(f"{number(len(causes), 'known cause')}, worst first; all of them: {invocation.causes()}")
    for cause in first:
        _cause(cause, len(causes[cause]), printer)
    for severity in dict.fromkeys(cause.severity for cause in others):
        names = [f"{each.id} ({len(causes[each])})" for each in others if each.severity is severity]
        printer.line(severity, style=SEVERITY_STYLES[severity], after=f"  {', '.join(names)}")
    printer.blank()


def _cause(cause: Cause, rows: int, printer: Printer) -> None:
    after = f"  {cause.id} ({rows}): {cause.title}"
    printer.line(cause.severity, style=SEVERITY_STYLES[cause.severity], after=after)


def _causes_in_full(result: Result, printer: Printer) -> None:
    """Print each known cause with its rows."""
    for cause, rows in result.causes.items():
        _cause(cause, len(rows), printer)
        for text in filter(None, (cause.detail, cause.link)):
            printer.line(text, indent=2)
        for reason, group in _grouped(rows, lambda row: row.message).items():
            own = "" if reason == cause.title else f": {reason}"
            printer.line(f"{_titles(group)}{own}", indent=2)
        printer.blank()


def _by_area(result: Result, printer: Printer, invocation: Invocation) -> None:
    """Print a table with a line for each area. Columns that have only zeros are left out."""
    areas = _grouped(result.rows, _area)
    if not areas:
        return
    lines = {**areas, "all": result.rows} if len(areas) > 1 else areas
    tables = [_area_table(lines, printer, with_subjects) for with_subjects in (True, False)]
    printer.table(next((table for table in tables if printer.fits(table)), tables[-1]))
    found = {row.status for row in result.rows}
    accepted = [status.value for status in (Status.KNOWN, Status.INHERITED) if status in found]
    printer.blank()
    if accepted:
        printer.line(f"{' and '.join(accepted)}: accepted, does not count; reasons: add -v")
    if found & {Status.UNCONFIRMED, Status.INCOMPLETE}:
        printer.line("open: unconfirmed or incomplete")
    if found & {*_NOT_JUDGED}:
        names = {Status.DECLARED_GAP: "gaps: declared", Status.NOT_APPLICABLE: "n.a.: not applicable"}
        what = "; ".join(name for status, name in names.items() if status in found)
        printer.whole(f"{what}; reasons: {invocation.command('doctor')}")
    if found - {Status.HOLDS, Status.BROKEN, Status.STALE}:
        printer.blank()


def _area_table(areas: Mapping[str, Sequence[Row]], printer: Printer, with_subjects: bool) -> Table:
    shown = [
        column
        for column, statuses in _COLUMNS.items()
        if any(row.status in statuses for rows in areas.values() for row in rows)
    ]
    columns = ["laws", *(["subjects"] if with_subjects else []), *shown, "examples", "seconds"]
    table = _table("area", *columns)
    for area, rows in areas.items():
        judged = [row for row in rows if row.status not in _NOT_JUDGED]
        laws, subjects = ({each(row) for row in judged} for each in (_law, _subject))
        table.add_row(
            printer.text(area, _LONGEST_NAME),
            _cell(len(laws)),
            *([_cell(len(subjects))] if with_subjects else []),
            *(
                _cell(sum(row.status in _COLUMNS[column] for row in rows), _STYLES[_COLUMNS[column][0]])
                for column in shown
            ),
            _cell(_examples(judged)),
            f"{_seconds(judged):.1f}" if judged else _cell(0),
        )
    return table


def _examples(rows: Sequence[Row]) -> int:
    """The examples that gave a law something to judge, added up over laws and subjects."""
    return int(sum(_once_a_subject(each, lambda row: row.examples) for each in _grouped(rows, _law).values()))


def _seconds(rows: Sequence[Row]) -> float:
    """How long the units behind these rows took. A unit that feeds several laws counts once."""
    units: dict[tuple[str, str], float] = {}
    # All units feed `target.answers`: with its rows, they would count twice.
    others = [row for row in rows if row.law != ANSWERS.id] or rows
    for row in others:
        workload = LAWS[row.law].workload if row.law in LAWS else row.law
        unit = workload, row.subject
        units[unit] = max(row.seconds, units.get(unit, 0.0))
    return sum(units.values())


def _by_law(result: Result, printer: Printer) -> None:
    """Print a table with a line for each law. Columns that have only zeros are left out.

    The rates (operations per second) are left out if the table would be too wide for the console.
    """
    laws = _grouped(result.rows, _law)
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
    table = _table("law")
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
    """How many subjects of a law are in each column. A subject counts once, by its worst row."""
    severity = list(Status)  # declared worst first
    subjects = _grouped(rows, _subject).values()
    worst = [min((row.status for row in rows), key=severity.index) for rows in subjects]
    return {column: sum(status in statuses for status in worst) for column, statuses in _COLUMNS.items()}


def _once_a_subject(rows: list[Row], number: Callable[[Row], float]) -> float:
    """Add up a number over subjects. All rows of a subject have the same number, so one row is enough."""
    return sum(max(map(number, rows)) for rows in _grouped(rows, _subject).values())


def _rate(rows: list[Row]) -> str:
    """Operations per second of one process, without those of driven examples."""
    seconds = _once_a_subject(rows, lambda row: row.exploring_seconds)
    return f"{_once_a_subject(rows, lambda row: row.steps) / seconds:.0f}" if seconds else "-"


def _driven_rate(rows: list[Row]) -> str:
    """Operations per second of one process in driven examples."""
    seconds = _once_a_subject(rows, lambda row: row.driven_seconds)
    return f"{_once_a_subject(rows, lambda row: row.driven_steps) / seconds:.0f}" if seconds else "-"


def _cell(count: int, style: str = "") -> Text:
    return Text(str(count), style) if count else Text("-", "dim")


def _not_run(result: Result, printer: Printer, status: Status, title: str) -> None:
    reasons = by_reason(_with(result, status))
    for number, reason in enumerate(reasons):
        printer.line(f"{'' if number else title}{reason}", indent=2 if number else 0)
    if reasons:
        printer.blank()


def _notes(result: Result, printer: Printer, verbose: bool) -> None:
    most = len(result.notes) if verbose else _MOST_NOTES
    for note in result.notes[:most]:
        printer.line(f"note: {note}")
    if more := result.notes[most:]:
        printer.line(f"and {number(len(more), 'more note')}: add -v")
    if result.notes:
        printer.blank()


def _undrawn(result: Result, printer: Printer) -> None:
    if result.undrawn is None:
        return
    printer.line("inputs that were never drawn", style="bold")
    for about, what in undrawn_lines(result.undrawn):
        printer.line(f"{about}: {what}", indent=2)
    if not result.undrawn:
        printer.line("none", indent=2)
    printer.blank()


def _coverage(result: Result, printer: Printer, directory: Path | None) -> None:
    """Print the unreached lines of each file, then the number of lines that each area of laws reached."""
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
        printer.line(f"and {len(wanting) - _MOST_FILES} more files with lines that no law reached")
    if cut or len(wanting) > _MOST_FILES:
        where = directory / COVERAGE if directory is not None else "add --report DIR, or --json"
        printer.line(f"all of it: {where}")
    for line in remarks(reached):
        printer.line(line)
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


def _end(result: Result, printer: Printer, directory: Path | None, invocation: Invocation) -> None:
    """Print the counts, the verdict, and the next command."""
    if directory is not None:
        printer.whole(f"page: {directory / PAGE}")
    totals = ", ".join(f"{count} {status}" for status, count in result.totals.items()) or "no law was run"
    printer.line(f"{totals}; depth {result.depth}, {result.elapsed_seconds:.1f} s")
    printer.line(f"verdict: {result.verdict}", style=VERDICT_STYLES[result.verdict], after=_known(result))
    printer.next(_next(result, directory, invocation))


def _known(result: Result) -> str:
    """The words after a conformant verdict: how many known causes the target has. Otherwise ""."""
    causes = len(result.causes)
    passed = result.verdict in (Verdict.CONFORMANT, Verdict.CONFORMANT_WITH_GAPS)
    release = f"{result.target['name']} {result.target['version']}"
    return f", with {number(causes, 'known cause')} in {release}" if causes and passed else ""


def _next(result: Result, directory: Path | None, invocation: Invocation) -> str:
    """The command that the report suggests next. It depends on the result."""
    broken = [row for row in result.failing if row.status is Status.BROKEN] or _with(result, Status.BROKEN)
    unconfirmed = _with(result, Status.UNCONFIRMED)
    if found := broken or unconfirmed:
        law = visible(found[0].law, _LONGEST_NAME)
        if directory is not None:
            return f"kvref explain {law}"
        return invocation.again("check", "--laws", law, "--report", "kvref-report", without=("--laws",))
    if result.failing or any("budget" in row.message for row in _with(result, Status.INCOMPLETE)):
        return invocation.again("check")
    if result.verdict is Verdict.INCOMPLETE:
        return invocation.command("doctor")
    if result.selected:
        return invocation.again("check", without=("--laws", "--subjects"))
    if result.depth == "quick":
        return invocation.again("check", "--depth", "standard", without=("--depth",))
    return invocation.again("fuzz", without=("--depth", "--strict", "--backend"))
