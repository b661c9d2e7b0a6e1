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
    help="How long, e.g. 30s, 10m, 2h. What is being reduced then gets a minute more.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to keep findings and progress in; by default kvref-fuzz/TARGET-VERSION.",
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
    """Search TARGET for broken laws until time is up, with other examples in each round.

    Hypothesis draws for breadth, and reduces what breaks; long examples made of numbers give depth, where a
    workload has them. A way of breaking a law for a subject is saved the moment it is seen, in the folder
    (--dir), and told once: first as it was found, then reduced, with a program that shows it alone. Known
    deviations (--baseline) are not told. The same command goes on where it was, however it ended.

    \b
      kvref fuzz vllm --for 8h                              overnight, all laws
      kvref fuzz vllm --laws 'shadow.*' --for 30m           end to end: does each request read its own?
      kvref replay DIR/traces/LAW-DIGEST.json vllm          show a finding again
    Remove the trace of a finding to have it searched anew.

    \b
    Exit codes:  0    nothing was found, up to now, in this folder
                 1    something was
                 2    bad usage, or the target, the profile or the folder cannot be used
                 130  interrupted; what was found is in the folder
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
                raise click.UsageError("none of these laws applies to the target; 'kvref doctor' tells why")
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
