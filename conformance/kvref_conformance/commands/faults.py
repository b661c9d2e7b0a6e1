"""`kvref faults`: break the reference on purpose, and see which laws notice."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from kvref_conformance.commands.options import jobs_option, output_option, seed_option
from kvref_conformance.documents.results import EXIT_CODES, Verdict
from kvref_conformance.report.faults import page as fault_page, render_faults
from kvref_conformance.report.progress import progress
from kvref_conformance.report.terminal import open_console
from kvref_conformance.running import fault_matrix


@click.command()
@click.option(
    "--area",
    "areas",
    multiple=True,
    metavar="GLOB",
    help="Only faults of these areas, for example 'pool'. Can be repeated.",
)
@click.option(
    "--fields",
    is_flag=True,
    help="Generate a fault for each spec class, field and rule (merge, copy, page, uniform) instead.",
)
@click.option(
    "--only",
    metavar="GLOB",
    multiple=True,
    help="With --fields: only faults of these names, for example 'MambaSpec__*__copy'. Can be repeated.",
)
@seed_option
@jobs_option
@click.option("--json", "as_json", is_flag=True, help="Print the matrix as JSON.")
@output_option
@click.pass_context
def faults(
    context: click.Context,
    areas: tuple[str, ...],
    fields: bool,
    only: tuple[str, ...],
    seed: int,
    jobs: int,
    as_json: bool,
    output: Path | None,
) -> None:
    """Break the reference on purpose, and show which laws notice and how soon.

    The laws of an area judge each fault of that area. They also judge the reference without a fault, as the
    control. All areas take about a quarter of an hour on two cores.

    With --fields, the faults are generated: one rule of one spec class forgets one field. Any law of specs or
    of planning may catch such a fault. A fault that changes no answer does not count.

    \b
    Examples:
      kvref faults --area pool       one area, about a minute
      kvref check kvref_conformance.targets.faults.pool:null_block_gets_a_key
                                     one fault: it is a target like any other

    \b
    Exit codes:  0  each fault broke the law that must catch it, and the control broke none;
                    with --fields: at least 98 of 100 faults were caught
                 1  a fault was not caught by its law, or the control broke a law;
                    with --fields: fewer were caught
                 2  bad usage
                 3  a fault or the control was not judged completely
    """
    if fields:
        if areas or as_json or output:
            raise click.UsageError("--fields has no --area, --json and -o: choose faults with --only")
        _fields(context, only, seed, jobs)
        return
    if only:
        raise click.UsageError("--only goes with --fields: choose other faults with --area")
    chosen = fault_matrix.faults(areas)
    with progress(open_console(stderr=True)) as watcher:
        watcher.phase(f"trying {len(chosen)} faults")
        tried = list(fault_matrix.try_all(chosen, seed, jobs, watcher))
    if output is not None:
        options = "".join(f" --area {shlex.quote(area)}" for area in areas) + (
            f" --seed {seed}" if seed else ""
        )
        output.write_text(fault_page(tried, f"kvref faults{options}"), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(fault_matrix.document(tried, seed), indent=1))
    else:
        render_faults(tried, open_console())
    if not all(each.as_expected for each in tried):
        context.exit(1)
    context.exit(EXIT_CODES[Verdict.INCOMPLETE] if any(each.trial.open for each in tried) else 0)


def _fields(context: click.Context, only: tuple[str, ...], seed: int, jobs: int) -> None:
    """Do what `kvref faults --fields` asks: try the generated faults, print the outcomes, and exit."""
    # They import the reference, and so PyTorch, which no other command needs in this process.
    from kvref_conformance.report.field_faults import render_field_faults
    from kvref_conformance.running import field_faults

    chosen = field_faults.chosen(only)
    with progress(open_console(stderr=True)) as watcher:
        outcomes = list(field_faults.try_all(chosen, seed, jobs, watcher))
    render_field_faults(outcomes, open_console())
    if not field_faults.are_enough(outcomes):
        context.exit(1)
    incomplete = any(each.trial.open for each in outcomes if each.trial)
    context.exit(EXIT_CODES[Verdict.INCOMPLETE] if incomplete else 0)
