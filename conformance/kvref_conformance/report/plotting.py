"""Draw growth curves: seconds by size, a figure for each benchmark that has sizes, in one file."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

from kvref_conformance.bench.comparison import Timed
from kvref_conformance.report.benching import lines_of

SUFFIXES = (".svg", ".png", ".pdf")

_WIDTH, _HEIGHT = 12, 5
"""Inches of a figure, legend included."""


class CannotPlot(Exception):
    """Why nothing can be drawn, and what to do."""


def check(path: Path) -> None:
    """Make sure that such a file can be drawn. Raises `CannotPlot`."""
    if path.suffix not in SUFFIXES:
        raise CannotPlot(f"{str(path)!r} ends in none of {', '.join(SUFFIXES)}, by which a plot is chosen")
    if find_spec("matplotlib") is None:
        raise CannotPlot("--plot needs matplotlib, which comes with the extra: pip install 'kvref[plot]'")


def plot(timed: Sequence[Timed], path: Path) -> None:
    """Raises `CannotPlot` where no benchmark was timed at several sizes."""
    from matplotlib.figure import Figure

    drawn = []
    for _, cases in groupby(timed, key=lambda each: each.case.benchmark.name):
        same = [*cases]
        if lines := [*lines_of(same)]:
            drawn.append((same[0].case.benchmark, same[0].labels, lines))
    if not drawn:
        raise CannotPlot("there is nothing to draw: no benchmark was timed at several sizes")
    figure = Figure(figsize=(_WIDTH, _HEIGHT * len(drawn)), layout="constrained")
    for place, (benchmark, labels, lines) in enumerate(drawn, start=1):
        axes = figure.add_subplot(len(drawn), 1, place)
        for number, (told, points) in enumerate(lines):
            # One colour for the same work; the second target's lines are broken.
            second = not told.startswith(labels[0])
            axes.plot(
                [size for size, _ in points],
                [seconds for _, seconds in points],
                label=told,
                color=f"C{number // len(labels) % 10}",
                linestyle="--" if second else "-",
                marker="o",
                markersize=3,
            )
        axes.set(xscale="log", yscale="log", xlabel=benchmark.growth, ylabel="seconds", title=benchmark.name)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="xx-small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path)
