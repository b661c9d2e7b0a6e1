"""Tell which law catches which fault: on a terminal, and as the page docs/faults.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from kvref_conformance.running.checker import DEPTH
from kvref_conformance.running.fault_matrix import Tried, in_order, outcome, quantiles

_HEAD = """# Faults, and the laws that catch them

Made by `{command}`; not to be edited. Each fault breaks the reference in one way; the laws of its area
judge it, at the depth of a quick check, or at *standard* where that is said. Examples and seconds are those
of all workloads, one after the other on one core, until its law broke first. What is *reported* is a bug that
somebody had, and takes several operations to show.
"""

_TITLES = {False: "One for each law", True: "As bugs that were reported"}


def render_faults(tried: Sequence[Tried], console: Console) -> None:
    """Print a line for each fault, and the summary last. Lines are not folded: they are a table."""
    for each in in_order(tried):
        if each.fault:
            of = outcome(each)
            state = "caught by" if each.as_expected else "MISSED by"
            others = f"; breaks {', '.join(others)}, too" if (others := _others(each)) else ""
            console.print(
                f"{each.name:60} {state} {each.fault.law:30} {of['seconds']:6.1f} s{others}",
                style=None if each.as_expected else "bold red",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
    for line in [*_open(tried), *summary(tried)]:
        console.print(line, markup=False, highlight=False)


def _open(tried: Sequence[Tried]) -> Iterator[str]:
    for each in tried:
        for line in each.trial.open:
            yield f"not judged to the end: {each.name}: {line}"


def page(tried: Sequence[Tried], command: str) -> str:
    """Markdown: the faults of each area, and what catches them."""
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
    """Laws that break, and are not there for this."""
    return [law for law in each.trial.catches if each.fault is None or law != each.fault.law]


def summary(tried: Sequence[Tried]) -> list[str]:
    """How many were caught, how soon, and what came of the control."""
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
            lines.append(f"the reference as it is: {found} in {each.trial.examples} examples")
    return lines
