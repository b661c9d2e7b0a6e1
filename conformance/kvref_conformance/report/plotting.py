"""Draw growth curves, seconds by size, into one file.

The file has one figure for each benchmark that ran at several sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

from kvref_conformance.bench.benchmark import Case
from kvref_conformance.bench.comparison import Timed
from kvref_conformance.report.benching import lines_of

SUFFIXES = (".svg", ".png", ".pdf")

_STYLES = ("-", "--")

_WIDTH, _HEIGHT = 12, 5
"""The size of a figure in inches, with its legend."""


_NOTHING = (
    "there is nothing to draw: none of these benchmarks ran at several sizes; choose others with --only"
)


class CannotPlot(Exception):
    """Nothing can be drawn. The message says why and what to do."""


def check(path: Path, cases: Sequence[Case]) -> None:
    """Raise `CannotPlot` if a plot of these cases cannot be written to this path."""
    if path.suffix not in SUFFIXES:
        raise CannotPlot(f"--plot needs a file that ends in one of {', '.join(SUFFIXES)}, not {str(path)!r}")
    if find_spec("matplotlib") is None:
        raise CannotPlot("--plot needs matplotlib, which comes with the extra: pip install 'kvref[plot]'")
    if all(case.benchmark.growth is None for case in cases):
        raise CannotPlot(_NOTHING)


def plot(timed: Sequence[Timed], path: Path) -> None:
    """Draw the curves into the file. Raises `CannotPlot` if nothing was timed at several sizes."""
    from matplotlib.figure import Figure

    groups = [[*cases] for _, cases in groupby(timed, key=lambda each: each.case.benchmark.name)]
    drawn = [(cases[0], lines) for cases in groups if (lines := lines_of(cases))]
    if not drawn:
        raise CannotPlot(_NOTHING)
    figure = Figure(figsize=(_WIDTH, _HEIGHT * len(drawn)), layout="constrained")
    for place, (one, lines) in enumerate(drawn, start=1):
        benchmark = one.case.benchmark
        axes = figure.add_subplot(len(drawn), 1, place)
        series = [*dict.fromkeys(line.others for line in lines)]
        for line in lines:
            # The same work has the same colour; the second target's lines are dashed.
            axes.plot(
                [*line.seconds.keys()],
                [*line.seconds.values()],
                label=str(line),
                color=f"C{series.index(line.others)}",
                linestyle=_STYLES[list(one.labels).index(line.label)],
                marker="o",
                markersize=3,
            )
        axes.set(xscale="log", yscale="log", xlabel=benchmark.growth, ylabel="seconds", title=benchmark.name)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="xx-small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path)
