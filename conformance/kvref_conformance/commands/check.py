"""`kvref check`: run laws against a target."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click

from kvref_conformance.commands.options import (
    Choice,
    as_writable,
    backend_option,
    baseline_option,
    coverage_option,
    coverage_source_option,
    depth_option,
    device_option,
    inputs_option,
    invocation,
    jobs_option,
    laws_option,
    seed_option,
    subjects_option,
    target_options,
    verbose_option,
)
from kvref_conformance.documents import baseline as baselines, diff as diffs
from kvref_conformance.documents.folder import claim
from kvref_conformance.documents.results import EXIT_CODES
from kvref_conformance.report.files import report_document, write_report
from kvref_conformance.report.progress import progress
from kvref_conformance.report.terminal import open_console, render, render_setup
from kvref_conformance.running.checker import DEPTH, Options
from kvref_conformance.running.line_coverage import needs_library
from kvref_conformance.running.loading import choose_baseline, is_symbolic, loaded, select_laws


@click.command()
@target_options
@laws_option
@subjects_option
@depth_option
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Stop after this time. Default: the profile's budget, if it has one.",
)
@seed_option
@backend_option
@device_option
@click.option(
    "--report", type=click.Path(file_okay=False, path_type=Path), help="Write a report into this folder."
)
@click.option(
    "--beside",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Report of another version: the page gets a table of laws by version. Can be repeated.",
)
@jobs_option
@click.option("--json", "as_json", is_flag=True, help="Print report.json instead of text.")
@click.option("--strict", is_flag=True, help="Broken robustness laws count as failures, too.")
@baseline_option
@click.option(
    "--save-baseline",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=as_writable,
    help="Write the findings into this file, as a baseline to review.",
)
@coverage_option
@coverage_source_option
@inputs_option
@verbose_option
@click.pass_context
def check(
    context: click.Context,
    choice: Choice,
    patterns: tuple[str, ...],
    subjects: tuple[str, ...],
    depth: str | None,
    budget: float | None,
    seed: int,
    backend: str,
    device: str,
    report: Path | None,
    beside: tuple[Path, ...],
    jobs: int,
    as_json: bool,
    strict: bool,
    baseline: str | None,
    save_baseline: Path | None,
    coverage: bool,
    sources: tuple[str, ...],
    inputs: bool,
    verbose: bool,
) -> None:
    """Run laws against TARGET and report which of them it breaks.

    Hypothesis draws examples for each law and subject. kvref reduces what breaks a law, and confirms it in a
    new process. Each finding comes with a trace, and with a program that shows it without kvref.

    \b
    Examples:
      kvref check                                          the target of kvref.toml
      kvref check vllm==0.32.0 --laws 'pool.*'             one area, in a release
      kvref check acme.kv:target --report out              write a report with traces and programs
      kvref check acme.kv:target --depth deep --budget 600 more examples, at most ten minutes

    \b
    Exit codes:  0  conformant, with or without declared gaps
                 1  a law is broken, or holds although the profile lists it as known
                 2  bad usage, or the profile or the target cannot be used
                 3  incomplete: a law ran out of time, a process died, or a failure was not confirmed
    """
    started = time.monotonic()
    measured = sources if coverage or sources else None
    if measured is not None:
        needs_library()
    laws = select_laws(patterns)
    if beside and report is None:
        raise click.UsageError("--beside adds to the page of a report: give its folder with --report DIR")
    others = [diffs.read(path) for path in beside]
    if report is not None:
        claim(report)
    symbolic = is_symbolic(backend, laws)
    worker, declared = choice.prepare()
    depth, budget = depth or declared.depth or DEPTH, declared.budget if budget is None else budget
    options = Options(
        laws,
        depth,
        seed,
        budget,
        jobs,
        strict,
        subjects,
        symbolic=symbolic,
        inputs=inputs,
        known_programs=report is not None,
    )
    worker = replace(worker, measured=measured, symbolic=symbolic)
    with ExitStack() as stack:
        with progress(open_console(stderr=True)) as watcher:
            one = stack.enter_context(loaded(worker, laws, watcher, declared, device=device))
        known = choose_baseline(baseline, one.description)
        watcher = stack.enter_context(progress(open_console(stderr=True)))
        checker = one.checker(options, watcher)
        checker.check_subjects()
        if not as_json:
            render_setup(checker.setup(known), open_console())
        result = checker.run(known)
    result.elapsed_seconds = time.monotonic() - started
    if report is not None:
        write_report(result, report, others)
    if save_baseline is not None:
        baselines.save(result, save_baseline)
    if as_json:
        click.echo(json.dumps(report_document(result), indent=1))
    else:
        render(result, open_console(), report, verbose=verbose, invocation=invocation())
    context.exit(EXIT_CODES[result.verdict])
