"""Show how fast targets are: as tables on a terminal, and as a page in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.table import Table as RichTable

from kvref_conformance.bench.benchmark import Benchmark, Case
from kvref_conformance.bench.comparison import Timed
from kvref_conformance.bench.machine import Environment
from kvref_conformance.bench.serving import NATIVE
from kvref_conformance.report.terminal import Printer
from kvref_conformance.report.text import visible

_HEAD = """# Figures: tensors on {device}

Made by `{command}`; do not edit it. For what each benchmark does and how to read its table,
see [benchmarks.md](benchmarks.md).
"""

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))

_MOST = 3
"""If several cases are left out for the same reason, at most this many of them are named."""

Limits = Mapping[str, Timed]
"""By the key of a case, the timing of the case. A case may have a limit: another case whose time is a lower
bound."""


@dataclass(frozen=True)
class Table:
    """A table, for a terminal or for a page."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = (0,)
    """The indexes of the columns that hold words. The other columns hold numbers."""


@dataclass(frozen=True)
class Section:
    """The results of one benchmark, ready to print."""

    title: str
    tables: Sequence[Table]
    notes: Sequence[str]


def about(environment: Environment) -> list[str]:
    """Lines about the targets, the machine and how the times were measured."""
    labels = [*environment["targets"]]
    lines = [
        f"{label}: {each['name']} {each['version']}, Python {each['python']}, torch {each['torch']}"
        for label, each in environment["targets"].items()
    ]
    lines.append(f"{environment['cpu']}, {environment['cpus']} CPUs; tensors on {environment['device']}")
    lines.append(
        f"medians of {environment['rounds']} rounds; half of the rounds lie within ±, or within the brackets"
    )
    if environment["way"] != NATIVE:
        lines.append("timed through the operations of the parts, so their conversions are timed, too")
    if len(labels) == 2:
        lines.append(f"ratio: {labels[1]} over {labels[0]}; below 1, {labels[1]} is faster")
    if environment["load"] > environment["cpus"] / 2:
        lines.append(f"the machine was busy when the benchmark began (load {environment['load']:.1f})")
    return lines


def section(benchmark: Benchmark, timed: Sequence[Timed], limits: Limits) -> Section:
    """The section with the cases of one benchmark."""
    tables = [_figures(timed, limits), *_growth(benchmark, timed)]
    return Section(f"{benchmark.name}: {benchmark.operation}", tables, [*_notes(timed)])


def sections(timed: Sequence[Timed], limits: Limits) -> Iterator[Section]:
    for _, cases in groupby(timed, key=lambda each: each.case.benchmark.name):
        same = [*cases]
        yield section(same[0].case.benchmark, same, limits)


def render(results: Section, printer: Printer) -> None:
    printer.line(results.title, style="bold")
    for table in results.tables:
        shown = RichTable(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
        for place, name in enumerate(table.head):
            shown.add_column(printer.text(name), justify="left" if place in table.words else "right")
        for row in table.rows:
            shown.add_row(*map(printer.text, row))
        printer.table(shown)
    for note in results.notes:
        printer.line(note)
    printer.blank()


def page(timed: Sequence[Timed], limits: Limits, environment: Environment, command: str) -> str:
    """The whole page, in Markdown."""
    lines = [
        _HEAD.format(command=command, device=_cell(environment["device"])),
        *(f"* {_cell(line)}" for line in about(environment)),
        "",
    ]
    for results in sections(timed, limits):
        lines += [f"## {results.title}", ""]
        for table in results.tables:
            rules = ["---" if place in table.words else "--:" for place in range(len(table.head))]
            lines += [_row(table.head), f"|{'|'.join(rules)}|", *map(_row, table.rows), ""]
        lines += [*(f"* {_cell(note)}" for note in results.notes), *[""] * bool(results.notes)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return visible(text, 300).replace("|", "\\|").replace("<", "&lt;")


def in_words(seconds: float) -> str:
    """A time with three digits and a unit, such as `1.23 ms`."""
    unit, name = next((each for each in _UNITS if seconds >= each[0]), _UNITS[-1])
    return f"{seconds / unit:.3g} {name}"


def _figures(timed: Sequence[Timed], limits: Limits) -> Table:
    labels = timed[0].labels
    params = [*timed[0].case.params]
    limited = next((limit.benchmark for each in timed if (limit := each.case.limit) is not None), None)
    head = [*params, *labels, *["ratio"] * (len(labels) > 1), *([f"x {limited}"] if limited else [])]
    rows = []
    for each in timed:
        row = [_value(each.case.params[name]) for name in params]
        row += [_seconds(each, label) for label in labels]
        row += [_ratio(each)] * (len(labels) > 1)
        row += [_of_limit(each, labels, limits)] if limited else []
        rows.append(row)
    words = [place for place, name in enumerate(params) if not _is_number(timed[0].case.params[name])]
    return Table(head, rows, words)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if _is_number(value) else str(value)


def _seconds(timed: Timed, label: str) -> str:
    if label not in timed.rounds:
        return "-"
    return f"{in_words(timed.median(label))} ±{timed.iqr(label) / timed.median(label) / 2:.0%}"


def _ratio(timed: Timed) -> str:
    if timed.ratio is None or timed.spread is None:
        return "-"
    low, high = timed.spread
    return f"{_times(timed.ratio)} [{_times(low)}, {_times(high)}]"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def _of_limit(timed: Timed, labels: Sequence[str], limits: Limits) -> str:
    """For each target, its median time as a multiple of the limit, the lower bound of the case."""
    limit = timed.case.limit
    reached = limit and limits.get(Case.key_of(limit.benchmark, limit.params))
    if not limit or not reached:
        return "-"
    return " / ".join(
        _times(timed.median(label) / (limit.times * reached.median(label)))
        if label in timed.rounds and label in reached.rounds
        else "-"
        for label in labels
    )


def _growth(benchmark: Benchmark, timed: Sequence[Timed]) -> Iterator[Table]:
    """Yield a table of medians by size, as multiples of the median at the smallest size."""
    name = benchmark.growth
    sizes = sorted({each.case.params[name] for each in timed}) if name else []
    if name is None or len(sizes) < 2:
        return
    rows = []
    for line in lines_of(timed):
        least = line.seconds[min(line.seconds)]
        cells = [f"{line.seconds[size] / least:.2f}" if size in line.seconds else "" for size in sizes]
        rows.append([str(line), *cells])
    if rows:
        yield Table([f"growth by {name}", *map(_value, sizes)], rows)


@dataclass(frozen=True)
class Line:
    """A growth curve: by size, the median in seconds. `others` are the values of the other parameters."""

    label: str
    others: tuple[str, ...]
    seconds: dict[int, float]

    def __str__(self) -> str:
        return ", ".join([self.label, *self.others])


def lines_of(timed: Sequence[Timed]) -> list[Line]:
    """The growth curves. There is one for each target and each choice of the other parameters."""
    size = timed[0].case.benchmark.growth
    found: dict[tuple[str, tuple[str, ...]], dict[int, float]] = {}
    for each in timed:
        others = (*_different(each, timed, without=size),)
        for label in each.rounds:
            if size is not None:
                found.setdefault((label, others), {})[each.case.params[size]] = each.median(label)
    return [Line(*key, seconds) for key, seconds in found.items() if len(seconds) > 1]


def _different(one: Timed, among: Sequence[Timed], without: str | None = None) -> list[str]:
    """As `name=value`, the parameters of a case that are not the same in all cases of `among`."""
    return [
        f"{name}={_value(value)}"
        for name, value in one.case.params.items()
        if name != without and any(each.case.params[name] != value for each in among)
    ]


def _notes(timed: Sequence[Timed]) -> Iterator[str]:
    reasons: dict[tuple[str, str], list[Timed]] = {}
    for each in timed:
        for label, reason in each.left_out.items():
            reasons.setdefault((label, reason), []).append(each)
    for (label, reason), cases in reasons.items():
        where = [", ".join(_different(each, timed)) for each in cases]
        at = "" if len(cases) == len(timed) else f" at {'; '.join(where[:_MOST])}"
        more = f" and {len(where) - _MOST} more" if at and len(where) > _MOST else ""
        yield f"{label} is left out{at}{more}: {reason}"
    for each in timed:
        if each.bytes:
            at = ", ".join(_different(each, timed)) or "all"
            sizes = [f"{label} {size / 1e6:.3g} MB" for label, size in each.bytes.items()]
            yield f"memory at {at}: {', '.join(sizes)}"
        if each.unequal:
            at = ", ".join(_different(each, timed)) or "all"
            yield f"no ratio at {at}, since the targets did different work: {each.unequal}"
