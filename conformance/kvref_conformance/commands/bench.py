"""`kvref bench`: time one target, or compare two."""

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
    "--only",
    "patterns",
    multiple=True,
    metavar="GLOB",
    help="Only these benchmarks, for example 'pool.*'. Can be repeated.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=LEAST_ROUNDS),
    default=ROUNDS,
    show_default=True,
    help="How many rounds to time for each case.",
)
@click.option("--quick", is_flag=True, help="Small sizes and short rounds, for a first look.")
@device_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema kvref.bench/1).")
@output_option
@click.option(
    "--plot",
    "drawing",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=as_writable,
    help="Draw growth curves into this file: .svg, .png or .pdf.",
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
    """Time one TARGET, or compare two.

    The benchmarks call the implementation's own API, through the part `bench`. If a target does not implement
    `bench`, the benchmarks call the operations of both targets instead. With two targets, rounds alternate.
    Each case then gets a ratio (second over first), if both did the same work. 'faults.catch' measures how
    soon each fault is noticed. It takes about ten minutes and runs only if --only names it.

    \b
    Examples:
      kvref bench                                      the reference alone
      kvref bench vllm==0.32.0 reference               how much faster or slower is the reference?
      kvref bench reference reference --only 'pool.*'  the noise: two equal targets

    Nothing else should run on the machine. For what each benchmark does, see docs/benchmarks.md.

    \b
    Exit codes:  0  done; the output lists what a target does not implement
                 1  in some case the two targets did not do the same work
                 2  bad usage, or a target or its profile cannot be used
                 3  nothing could be timed
    """
    if len(choices) > 2:
        raise click.UsageError(f"name one target, or two to compare, not {len(choices)}")
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
    """The target's name. If the target is compared with itself, the second name has a mark."""
    return f"{name} (again)" if any(each.label == name for each in others) else name


def _command(
    choices: Sequence[Choice], patterns: Sequence[str], rounds: int, quick: bool, device: str
) -> str:
    """The command that makes the same page again."""
    words = ["kvref", "bench", *(choice.target or DEFAULT_TARGET for choice in choices)]
    words += [word for glob in patterns for word in ("--only", glob)]
    words += ["--rounds", str(rounds)] * (rounds != ROUNDS)
    words += ["--quick"] * quick
    words += ["--device", device] * (device != "cpu")
    return shlex.join(words)
