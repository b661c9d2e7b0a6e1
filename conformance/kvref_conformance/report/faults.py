"""Show which law catches which fault: on a terminal, and as the page docs/faults.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from kvref_conformance.report.terminal import Printer
from kvref_conformance.running.checker import DEPTH
from kvref_conformance.running.fault_matrix import Fault, Tried, in_order, outcome, quantiles

_HEAD = """# Faults, and the laws that catch them

Made by `{command}`; do not edit it. Each fault breaks the reference in one way. The laws of its area judge
it at the depth of a quick check, or at *standard* if the row says so. Examples and seconds add up all
workloads, run one after the other on one core, until the fault's law first broke. A *reported* fault repeats
a bug from an issue tracker, and takes several operations to show.
"""

_MOST_LINES = 20
"""At most this many faults get a line each. If there are more, there is a line for each area."""

_TITLES = {False: "One for each law", True: "Reported bugs"}


def render_faults(tried: Sequence[Tried], console: Console) -> None:
    """Print the faults that their law missed, then a table, then the counts.

    The table has a line for each fault. If there are many faults, it has a line for each area instead.
    """
    printer = Printer(console)
    faults = [each for each in in_order(tried) if each.fault]
    missed = [each for each in faults if not each.as_expected]
    for each in missed:
        if each.fault:
            printer.line(f"MISSED by {each.fault.law}", style="bold red", after=f"  {each.name}")
            printer.labelled("instead", f"breaks {', '.join(_others(each)) or 'nothing'}")
            printer.whole(f"  {'check':10}{_check(each.fault)}")
            printer.blank()
    if faults:
        printer.table(_by_fault(faults) if len(faults) <= _MOST_LINES else _by_area(faults))
        printer.blank()
    for line in [*_open(tried), *summary(tried)]:
        printer.line(line)
    if missed and missed[0].fault:
        printer.next(_check(missed[0].fault))
    elif len(faults) > _MOST_LINES:
        printer.next("kvref faults -o FILE")
    elif faults and faults[0].fault:
        printer.next(f"kvref explain {faults[0].fault.law}")


def _check(fault: Fault) -> str:
    """The command that judges the fault by its law."""
    depth = f" --depth {fault.depth}" if fault.depth != DEPTH else ""
    return f"kvref check {fault.target} --laws {fault.law}{depth}"


def _by_fault(faults: Sequence[Tried]) -> Table:
    table = _table("fault", "its law", "also breaks")
    table.add_column("seconds", justify="right", no_wrap=True)
    for each in faults:
        law = each.fault.law if each.fault else ""
        seconds = f"{outcome(each)['seconds']:.1f}" if each.as_expected else "missed"
        table.add_row(each.name, law, ", ".join(_others(each)) or "-", seconds)
    return table


def _by_area(faults: Sequence[Tried]) -> Table:
    table = _table("area")
    for column in ("faults", "caught", "only by their law", "median s", "slowest s"):
        table.add_column(column, justify="right", no_wrap=True)
    for area in dict.fromkeys(each.area for each in faults):
        part = [each for each in faults if each.area == area]
        caught = [each for each in part if each.as_expected]
        table.add_row(
            area,
            str(len(part)),
            str(len(caught)),
            str(sum(len(each.trial.catches) == 1 for each in caught)),
            f"{quantiles(part)[0]:.1f}",
            f"{max((each.seconds or 0.0 for each in caught), default=0.0):.1f}",
        )
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _open(tried: Sequence[Tried]) -> Iterator[str]:
    for each in tried:
        for line in each.trial.open:
            yield f"not judged completely: {each.name}: {line}"


def page(tried: Sequence[Tried], command: str) -> str:
    """The page, in Markdown: the faults of each area, with the laws that catch them."""
    lines = [_HEAD.format(command=command), *(f"* {line}" for line in [*_open(tried), *summary(tried)]), ""]
    for reported, title in _TITLES.items():
        part = [each for each in in_order(tried) if each.fault and bool(each.fault.source) is reported]
        if part:
            lines += [f"## {title}\n", *_tables(part)]
    return "\n".join(lines)


def _tables(tried: Sequence[Tried]) -> Iterator[str]:
    for area in dict.fromkeys(each.area for each in tried):
        yield f"### {area}\n"
        yield "| fault | its law | for | examples | seconds | other laws that break |"
        yield "|---|---|---|---|---|---|"
        for each in tried:
            if each.fault and each.area == area:
                of = outcome(each)
                about = [each.fault.source] if each.fault.source else []
                about += [each.fault.depth] if each.fault.depth != DEPTH else []
                source = f" ({', '.join(about)})" if about else ""
                missed = "" if each.as_expected else "**missed** "
                yield (
                    f"| `{each.name}`{source} | {missed}{each.fault.law} | {of['subject']} "
                    f"| {of['examples']} | {of['seconds']:.2f} | {', '.join(_others(each))} |"
                )
        yield ""


def _others(each: Tried) -> list[str]:
    """The laws that broke, except the one that must catch the fault."""
    return [law for law in each.trial.catches if each.fault is None or law != each.fault.law]


def summary(tried: Sequence[Tried]) -> list[str]:
    """Lines on how many faults were caught and how soon, and on the outcome of the control."""
    lines = []
    for reported, what in ((False, "one for each law"), (True, "as reported")):
        part = [each for each in tried if each.fault and bool(each.fault.source) is reported]
        if part:
            caught = [each for each in part if each.as_expected]
            alone = [each for each in caught if len(each.trial.catches) == 1]
            median, most = quantiles(part)
            lines.append(
                f"{len(part)} faults, {what}: {len(caught)} caught by their law, {len(alone)} by no other; "
                f"within {median:.2f} s (median), {most:.2f} s (95 of 100)"
            )
    for each in tried:
        if each.fault is None:
            found = ", ".join(each.trial.catches) or "nothing"
            lines.append(f"the reference without a fault: {found} in {each.trial.examples} examples")
    return lines
