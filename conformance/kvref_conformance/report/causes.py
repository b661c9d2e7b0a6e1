"""Print the known causes of a target's findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from kvref_conformance.documents.baseline import Baseline, Known
from kvref_conformance.documents.causes import by_cause
from kvref_conformance.report.terminal import SEVERITY_STYLES, Invocation, Printer, number


def render_causes(
    baseline: Baseline,
    programs: Mapping[str, Path],
    notes: Sequence[str],
    console: Console,
    invocation: Invocation,
    *,
    verbose: bool = False,
) -> None:
    """Print each cause with its laws and its program, then the findings without a cause.

    Args:
        baseline: the known findings.
        programs: the paths of the programs that were written, by the title of the finding.
        notes: lines on programs that could not be written, or that did not show their cause.
        console: where to print.
        invocation: what the user typed.
        verbose: also print the details of each cause, and each of its findings.
    """
    printer = Printer(console)
    causes = by_cause(baseline.known)
    for cause, entries in causes.items():
        after = f"  {cause.id}  {number(len(entries), 'row')}"
        printer.line(cause.severity, style=SEVERITY_STYLES[cause.severity], after=after)
        printer.line(cause.title, indent=2, hang=0)
        if verbose and cause.detail:
            printer.line(cause.detail, indent=2, hang=0)
        _entries(entries, printer, programs, verbose)
        if cause.link:
            printer.whole(f"  upstream  {cause.link}")
        printer.blank()
    if others := [entry for entry in baseline.known if entry.cause is None]:
        printer.line(f"{number(len(others), 'finding')} without a cause", style="bold")
        _entries(others, printer, programs, verbose=True)
        printer.blank()
    for note in notes:
        printer.line(f"note: {note}")
    if not baseline.known:
        printer.line(f"no findings are known: {baseline.name or 'kvref ships no baseline for this target'}")
        printer.next(invocation.command("check"))
        return
    printer.line(
        f"{number(len(causes), 'known cause')} of {number(len(baseline.known), 'finding')}; "
        f"baseline {baseline.name}"
    )
    more = () if programs or notes else ("--report", "kvref-causes")
    printer.next(invocation.again("causes", *more) if more else invocation.command("check"))


def _entries(entries: Sequence[Known], printer: Printer, programs: Mapping[str, Path], verbose: bool) -> None:
    if verbose:
        for entry in entries:
            printer.line(f"{entry.title}{': ' + entry.reason if entry.reason else ''}", indent=2)
    else:
        laws = Counter(entry.law for entry in entries)
        printer.line(", ".join(f"{law} ({rows})" for law, rows in laws.items()), indent=2)
    for entry in entries:
        if entry.title in programs:
            printer.whole(f"  program   {programs[entry.title]}")
