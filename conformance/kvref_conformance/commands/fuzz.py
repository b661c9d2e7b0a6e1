"""`kvref fuzz`: search a target for broken laws until time is up."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import click

from kvref_conformance.commands.exits import EXIT_INTERRUPTED
from kvref_conformance.commands.options import (
    Choice,
    as_duration,
    baseline_option,
    device_option,
    invocation,
    jobs_option,
    laws_option,
    seed_option,
    subjects_option,
    target_options,
)
from kvref_conformance.documents.names import slug
from kvref_conformance.report.fuzzing import render_fuzz, watching
from kvref_conformance.report.progress import progress
from kvref_conformance.report.terminal import open_console
from kvref_conformance.running.checker import Options
from kvref_conformance.running.fuzz import Fuzz
from kvref_conformance.running.fuzz_store import Store
from kvref_conformance.running.loading import choose_baseline, loaded, select_laws


@click.command()
@target_options
@click.option(
    "--for",
    "seconds",
    metavar="TIME",
    default="10m",
    show_default=True,
    callback=as_duration,
    help="How long: 30s, 10m or 2h, for example. A reduction in progress gets one more minute.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for findings and progress. Default: kvref-fuzz/TARGET-VERSION.",
)
@laws_option
@subjects_option
@seed_option
@device_option
@jobs_option
@baseline_option
@click.pass_context
def fuzz(
    context: click.Context,
    choice: Choice,
    seconds: float,
    directory: Path | None,
    patterns: tuple[str, ...],
    subjects: tuple[str, ...],
    seed: int,
    device: str,
    jobs: int,
    baseline: str | None,
) -> None:
    """Search TARGET for broken laws until the time is up, with new examples in each round.

    Hypothesis draws many different examples, and reduces what breaks a law. Some workloads add driven
    examples, which are much longer. The fuzz saves each new failure at once in its folder (--dir), reduces
    and confirms it like a check, and reports it once, with a stand-alone program. It does not report the
    known deviations of the baseline. Run the same command again to continue, however the last run ended.

    \b
    Examples:
      kvref fuzz vllm --for 8h                       overnight, all laws
      kvref fuzz vllm --laws 'shadow.*' --for 30m    end to end: does each request read its own data?
      kvref replay DIR/traces/LAW-DIGEST.json vllm   show a finding again

    To search for a finding again, remove its trace.

    \b
    Exit codes:  0    the folder has no findings so far
                 1    the folder has findings
                 2    bad usage, or the target, the profile or the folder cannot be used
                 130  interrupted; the findings are in the folder
    """
    laws = select_laws(patterns)
    options = Options(laws, seed=seed, jobs=jobs, subjects=subjects)
    worker, declared = choice.prepare()
    interrupted = False
    stderr = open_console(stderr=True)
    with ExitStack() as stack:
        with progress(stderr) as watcher:
            one = stack.enter_context(loaded(worker, laws, watcher, declared, device=device))
            checker = one.checker(options, watcher)
            checker.check_subjects()
            if not checker.has_work():
                raise click.UsageError("none of these laws applies to the target; 'kvref doctor' says why")
            version = one.description["version"]
            folder = directory or Path("kvref-fuzz") / slug(f"{worker.target}-{version}")
            store = stack.enter_context(
                closing(Store(folder, {"name": worker.target, "version": version}, seed))
            )
            known, notes = checker.replay_known(choose_baseline(baseline, one.description))
        fuzzed = Fuzz(checker, store, known, declared, seconds, jobs)
        try:
            with watching(fuzzed, stderr) as view:
                fuzzed.run(view)
        except KeyboardInterrupt:
            interrupted = True
        render_fuzz(store, notes, open_console(), invocation())
    if interrupted:
        context.exit(EXIT_INTERRUPTED)
    context.exit(1 if store.findings else 0)
