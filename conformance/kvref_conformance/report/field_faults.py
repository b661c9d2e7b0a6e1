"""Show on a terminal which generated faults of the spec classes were caught."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from kvref_conformance.report.terminal import Printer
from kvref_conformance.running.field_faults import ENOUGH, Judged, target_of
from kvref_conformance.targets.faults.fields import RULES


def render_field_faults(outcomes: Sequence[Judged], console: Console) -> None:
    """Print the faults that no law caught, a table with a line for each class, and the counts."""
    printer = Printer(console)
    tried = [each for each in outcomes if each.trial]
    missed = [each for each in tried if not each.caught]
    for each in missed:
        printer.line("MISSED", style="bold red", after=f"  {each.fault.name}")
    if missed:
        printer.blank()
    printer.table(_by_class(outcomes))
    printer.blank()
    for each in tried:
        for line in each.trial.open if each.trial else ():
            printer.line(f"not judged completely: {each.fault.name}: {line}")
    caught = len(tried) - len(missed)
    printer.line(
        f"{len(outcomes)} faults generated, {len(outcomes) - len(tried)} change no answer; "
        f"{caught} of {len(tried)} caught ({caught / max(1, len(tried)):.1%}, at least {ENOUGH:.0%} wanted)"
    )
    if missed:
        printer.next(f"kvref check {target_of(missed[0].fault)} --laws 'spec.*'")


def _by_class(outcomes: Sequence[Judged]) -> Table:
    """A table with a row for each class.

    It has the number of generated faults, the number of those that change no answer and, for each rule, how
    many of the tried faults were caught.
    """
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("class", overflow="fold")
    for column in ("generated", "no effect", *(rule.replace("_", " ") for rule in RULES)):
        table.add_column(column, justify="right")
    for name in dict.fromkeys(each.fault.spec_class for each in outcomes):
        own = [each for each in outcomes if each.fault.spec_class == name]
        cells = []
        for rule in RULES:
            tried = [each for each in own if each.fault.rule == rule and each.trial]
            cells.append(f"{sum(each.caught for each in tried)}/{len(tried)}" if tried else "-")
        table.add_row(name, str(len(own)), str(sum(each.trial is None for each in own)), *cells)
    return table
