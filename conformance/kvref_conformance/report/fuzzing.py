"""Show a fuzz while it runs, and its findings afterwards.

A terminal gets a live table of the running fuzz. A pipe or a file gets a line now and then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvref_conformance.documents.results import Status
from kvref_conformance.report.narrate import remark
from kvref_conformance.report.progress import is_live
from kvref_conformance.report.terminal import Invocation, Printer
from kvref_conformance.report.text import visible
from kvref_conformance.running.exploring.behaviours import BEHAVIOURS, GROUPS, SAMPLED
from kvref_conformance.running.fuzz import Fuzz, View
from kvref_conformance.running.fuzz_store import UNFINISHED, Finding, Store, Tally

_SECONDS_BETWEEN_LINES = 10.0
_REFRESHES = 2
_LATEST = 8
"""The live table shows this many of the latest findings."""
_WIDTH = 40
"""The width of a column of behaviours, in characters."""
_STYLES = {
    UNFINISHED: "yellow",
    Status.BROKEN: "bold red",
    Status.UNCONFIRMED: "yellow",
    Status.INHERITED: "cyan",
}


@contextmanager
def watching(fuzz: Fuzz, console: Console, clock: Callable[[], float] = time.monotonic) -> Iterator[View]:
    """Show the fuzz while the `with` statement runs."""
    if is_live(console):
        with Live(
            get_renderable=lambda: _live(fuzz, console),
            console=console,
            refresh_per_second=_REFRESHES,
            transient=True,
        ):
            yield _Quiet()
    else:
        yield _Plain(fuzz, clock)


class _Quiet:
    """Shows nothing: the live table reads the fuzz by itself."""

    def tick(self) -> None:
        pass


class _Plain:
    """Prints a line when a finding is new or its state changes. Every ten seconds, prints the progress."""

    def __init__(self, fuzz: Fuzz, clock: Callable[[], float]) -> None:
        self._fuzz = fuzz
        self._clock = clock
        self._last = clock()
        self._shown = {key: finding.status for key, finding in fuzz.store.findings.items()}

    def tick(self) -> None:
        for key, finding in self._fuzz.store.findings.items():
            if self._shown.get(key) != finding.status:
                self._shown[key] = finding.status
                self._print(f"{_status(finding)}: {finding.row.title}")
        if self._clock() - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = self._clock()
            tally = self._fuzz.tally
            rates = f"{_rate(tally.steps, tally.seconds)}/s"
            if tally.driven_steps:
                rates += f" and {_rate(tally.driven_steps, tally.driven_seconds)}/s driven"
            fuzz, operations = self._fuzz, tally.steps + tally.driven_steps
            found = len(fuzz.store.findings)
            self._print(
                f"{_time(fuzz.elapsed)} of {_time(fuzz.seconds)}, round {fuzz.store.round}, "
                f"{tally.examples} examples, {operations} operations ({rates}), {found} found"
            )

    @staticmethod
    def _print(line: str) -> None:
        print(f"kvref: {visible(line, 500)}", file=sys.stderr)


def render_fuzz(store: Store, notes: list[str], console: Console, invocation: Invocation) -> None:
    """Print the counts and the findings of the fuzz, and the next command last.

    The counts and the findings are those of all runs in the folder, not only of the last run.
    """
    printer = Printer(console)
    printer.table(_generated(store.tally))
    printer.blank()
    if any(store.tally.behaviours.values()):
        printer.line(f"in the drawn examples, and in every {SAMPLED}th driven example:")
        printer.table(_behaviours(store.tally, console.width))
        printer.blank()
    for finding in store.findings.values():
        row = finding.row
        printer.line(_status(finding), style=_STYLES[finding.status], after=f"  {row.title}  {row.level}")
        for label, text in (("expected", row.expected), ("observed", row.observed), ("remark", remark(row))):
            if text:
                printer.labelled(label, text)
        for label, name in zip(("trace", "program"), finding.files, strict=False):
            printer.whole(f"  {label:10}{store.directory / name}")
        printer.whole(f"  {'explain':10}kvref explain {visible(row.law, 80)}")
        printer.blank()
    for note in notes:
        printer.line(f"note: {note}")
    printer.line(f"{store.target['name']} {store.target['version']}, seed {store.seed}, round {store.round}")
    printer.line(
        f"{len(store.findings) or 'no'} findings in {_time(store.seconds)}; kept in {store.directory}"
    )
    if traces := [finding.files[0] for finding in store.findings.values() if finding.files]:
        printer.next(invocation.command("replay", str(store.directory / traces[0])))
    else:
        printer.line("Run the same command again to continue.")


def _live(fuzz: Fuzz, console: Console) -> RenderableType:
    """The live table. Findings are above the behaviours, which may not fit on a small screen."""
    printer, store, tally = Printer(console), fuzz.store, fuzz.tally
    target = f"{store.target['name']} {store.target['version']}"
    left = max(0.0, fuzz.seconds - fuzz.elapsed)
    found = [*store.findings.values()]
    return Group(
        printer.text(
            f"{target}: {_time(fuzz.elapsed)} gone, {_time(left)} left; round {store.round}, "
            f"{fuzz.jobs} processes",
            style="bold",
        ),
        "",
        _generated(tally),
        "",
        printer.text(f"{len(found)} findings, kept in {store.directory}", style="bold"),
        *(
            Text.assemble(
                printer.text(_status(each), style=_STYLES[each.status]),
                printer.text(f"  {each.row.title}", 100),
            )
            for each in found[-_LATEST:]
        ),
        "",
        _behaviours(tally, console.width),
    )


def _generated(tally: Tally) -> Table:
    """A table of examples and operations, with the operations per second of one process."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("examples")
    for column in ("number", "operations", "operations/s"):
        table.add_column(column, justify="right")
    for name, examples, steps, seconds in (
        ("drawn", tally.examples - tally.driven_examples, tally.steps, tally.seconds),
        ("driven", tally.driven_examples, tally.driven_steps, tally.driven_seconds),
    ):
        table.add_row(name, f"{examples:,}", f"{steps:,}", _rate(steps, seconds))
    return table


def _behaviours(tally: Tally, width: int) -> Table:
    """A table of all behaviours with their counts, including behaviours that never occurred."""
    counted = tally.behaviours
    names = [*BEHAVIOURS, *sorted(name for name in counted if name.startswith(GROUPS))]
    columns = max(1, width // _WIDTH)
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(columns):
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
    height = -(-len(names) // columns)
    for place in range(height):
        cells = []
        for name in names[place::height]:
            cells += [Text(visible(name, _WIDTH)), Text(f"{counted[name]:,}", "" if counted[name] else "dim")]
        table.add_row(*cells)
    return table


def _status(finding: Finding) -> str:
    return (
        f"{finding.status}, not reduced"
        if not finding.reduced and finding.status != UNFINISHED
        else finding.status
    )


def _rate(steps: int, seconds: float) -> str:
    return f"{steps / seconds:,.0f}" if seconds else "-"


def _time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
