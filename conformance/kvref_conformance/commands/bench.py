"""The command `kvref bench`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

import click
from rich.console import Console

from kvref_conformance.bench.comparison import (
    QUICK_ROUND_SECONDS,
    ROUND_SECONDS,
    Contender,
    Timed,
    choose,
    compare,
    document,
)
from kvref_conformance.bench.machine import environment
from kvref_conformance.commands.options import (
    Choice,
    as_writable,
    device_option,
    output_option,
    targets_options,
)
from kvref_conformance.report.benching import about, page, render, section
from kvref_conformance.report.plotting import check as check_plot, plot
from kvref_conformance.report.progress import progress
from kvref_conformance.report.terminal import Printer
from kvref_conformance.running.loading import loaded
from kvref_conformance.targets import DEFAULT_TARGET

LEAST_ROUNDS, ROUNDS = 5, 7


@click.command()
@targets_options
@click.option(
    "--only", "patterns", multiple=True, metavar="GLOB", help="Only these benchmarks, e.g. 'pool.*'."
)
@click.option(
    "--rounds",
    type=click.IntRange(min=LEAST_ROUNDS),
    default=ROUNDS,
    show_default=True,
    help="Rounds that are timed of each case.",
)
@click.option("--quick", is_flag=True, help="Small sizes and short rounds, for a first look.")
@device_option
@click.option("--json", "as_json", is_flag=True, help="Print a document (schema kvref.bench/1).")
@output_option
@click.option(
    "--plot",
    "drawing",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=as_writable,
    help="File to draw growth curves to: .svg, .png or .pdf.",
)
@click.pass_context
def bench(
    context: click.Context,
    choices: Sequence[Choice],
    patterns: tuple[str, ...],
    rounds: int,
    quick: bool,
    device: str,
    as_json: bool,
    output: Path | None,
    drawing: Path | None,
) -> None:
    """Time TARGET, or two of them side by side: a round of the first, one of the second, and so on.

    What is timed is an implementation's own API, by the part `bench`; where a target has none, both are timed
    by their operations. There is a ratio, the second over the first, wherever both did the same work.
    'faults.catch', the time to notice each fault, takes some ten minutes and has to be asked for by --only.

    \b
      kvref bench                                      the reference alone
      kvref bench vllm==0.32.0 reference               how much faster, or slower, the reference is
      kvref bench reference reference --only 'pool.*'  how far equal targets lie apart: what is only noise

    docs/benchmarks.md tells what each benchmark does. The machine should have nothing else to do.

    \b
    Exit codes:  0  it was timed; what a target has nothing of was left out, and is told
                 1  the two targets did not do the same work somewhere
                 2  bad usage, or a target or its profile cannot be used
                 3  nothing could be timed
    """
    if len(choices) > 2:
        raise click.UsageError(f"one target is timed, or two beside each other, not {len(choices)}")
    cases = choose(patterns, device, quick)
    if drawing is not None:
        check_plot(drawing, cases)
    printer = Printer(Console())
    timed: list[Timed] = []
    limits: dict[str, Timed] = {}
    with ExitStack() as stack:
        watcher = stack.enter_context(progress(Console(stderr=True)))
        contenders: list[Contender] = []
        for choice in choices:
            worker, declared = choice.prepare()
            one = stack.enter_context(loaded(worker, (), watcher, declared, device=device))
            contenders.append(Contender(_label(choice.target or worker.target, contenders), one))
        where = environment(contenders, rounds)
        if not as_json:
            for line in about(where):
                printer.line(line)
            printer.blank()
        seconds = QUICK_ROUND_SECONDS if quick else ROUND_SECONDS
        found = compare(cases, contenders, rounds, seconds, watcher)
        for _, group in groupby(found, key=lambda each: each.case.benchmark.name):
            same = [*group]
            timed += same
            limits |= {each.case.key: each for each in same}
            if not as_json:
                render(section(same[0].case.benchmark, same, limits), printer)
    if as_json:
        click.echo(json.dumps(document(timed, where), indent=1))
    if output is not None:
        output.write_text(page(timed, limits, where, _command(choices, patterns, rounds, quick, device)))
    if drawing is not None:
        plot(timed, drawing)
    if not any(each.rounds for each in timed):
        context.exit(3)
    context.exit(1 if any(each.unequal for each in timed) else 0)


def _label(name: str, others: Sequence[Contender]) -> str:
    """The name, told apart from that of the same target beside it."""
    return f"{name} (again)" if any(each.label == name for each in others) else name


def _command(
    choices: Sequence[Choice], patterns: Sequence[str], rounds: int, quick: bool, device: str
) -> str:
    """What makes the page anew."""
    asked = ["kvref", "bench", *(choice.target or DEFAULT_TARGET for choice in choices)]
    asked += [word for glob in patterns for word in ("--only", glob)]
    asked += ["--rounds", str(rounds)] * (rounds != ROUNDS)
    asked += ["--quick"] * quick
    asked += ["--device", device] * (device != "cpu")
    return shlex.join(asked)
