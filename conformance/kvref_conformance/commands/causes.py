"""`kvref causes`: list the known causes of a target, and write a program for each."""

from __future__ import annotations

import re
from pathlib import Path

import click

from kvref_conformance.commands.options import (
    Choice,
    baseline_option,
    invocation,
    jobs_option,
    target_options,
)
from kvref_conformance.documents.folder import ForeignDirectory, write
from kvref_conformance.documents.names import slug, trace_digest
from kvref_conformance.documents.results import Row
from kvref_conformance.laws import LAWS
from kvref_conformance.report.causes import render_causes
from kvref_conformance.report.progress import progress
from kvref_conformance.report.terminal import open_console
from kvref_conformance.running.checker import Options
from kvref_conformance.running.confirm import in_parallel
from kvref_conformance.running.loading import choose_baseline, given_baseline, loaded, pinned_baseline

_PROGRAM = re.compile(r".*-[0-9a-f]{8}\.py")


@click.command()
@target_options
@baseline_option
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a program for each cause into this folder, and run it.",
)
@jobs_option
@click.option(
    "-v", "--verbose", is_flag=True, help="Print all that is known about a cause, and each finding."
)
@click.pass_context
def causes(
    context: click.Context,
    choice: Choice,
    baseline: str | None,
    report: Path | None,
    jobs: int,
    verbose: bool,
) -> None:
    """List the causes of TARGET's known findings, the worst first.

    A cause is one mistake: one fix removes all of its findings. kvref reads the causes from the baseline and
    runs nothing, so a release such as vllm==0.32.0 need not be installed. With --report, kvref writes the
    smallest program that shows each cause, and runs it on TARGET.

    \b
    Examples:
      kvref causes vllm==0.32.0                list them
      kvref causes vllm==0.32.0 --report out   write a program for each into out/

    \b
    Exit codes:  0  listed; with --report, each program shows its cause
                 1  a program does not show its cause
                 2  bad usage, or the target, the profile or the baseline cannot be used
    """
    known = given_baseline(baseline) if baseline else pinned_baseline(choice.target, choice.profile)
    programs: dict[str, Path] = {}
    notes: list[str] = []
    if report is not None:
        _claim(report)
    if known is None or report is not None:
        worker, declared = choice.prepare()
        with progress(open_console(stderr=True)) as watcher, loaded(worker, (), watcher, declared) as one:
            known = known or choose_baseline(None, one.description)
            if report is not None:
                watcher.phase("confirming known causes, each with a program of its own")
                confirmer = one.checker(Options(), watcher).confirmer
                known_rows = [confirmer.known_row(entry) for entry in known.known if entry.law in LAWS]
                rows, notes = confirmer.write_known_programs(known_rows)
                problems = in_parallel(confirmer.run_program, rows, jobs)
                notes += [f"{row.title}: {each}" for row, each in zip(rows, problems, strict=True) if each]
                programs = _write(report, rows)
    render_causes(known, programs, notes, open_console(), invocation(), verbose=verbose)
    context.exit(1 if notes else 0)


def _claim(directory: Path) -> None:
    """Create the folder. If it exists, it may hold only programs of earlier runs.

    Raises `ForeignDirectory` if it holds anything else.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        if not _PROGRAM.fullmatch(path.name):
            raise ForeignDirectory(
                directory, f"it holds {path.name}, which is no program of kvref", "program"
            )


def _write(directory: Path, rows: list[Row]) -> dict[str, Path]:
    """Write the programs into the folder. Returns the path of each, by the title of its row."""
    files = {}
    for row in rows:
        name = f"{slug(row.cause.id if row.cause else row.law)}-{trace_digest(row.trace or {})}.py"
        files[row.title] = directory / name
        write(directory / name, (row.program or "").encode("utf-8", "backslashreplace"))
    return files
