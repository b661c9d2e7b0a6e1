"""`kvref matrix`: check several releases of vLLM, law by law."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from kvref_conformance.commands import release_matrix as matrices
from kvref_conformance.commands.options import (
    depth_option,
    jobs_option,
    laws_option,
    output_option,
    seed_option,
)
from kvref_conformance.documents.results import EXIT_CODES, Verdict
from kvref_conformance.processes import releases
from kvref_conformance.report.progress import progress
from kvref_conformance.report.terminal import open_console
from kvref_conformance.running.checker import DEPTH, Options
from kvref_conformance.running.loading import select_laws


@click.command()
@laws_option
@click.option("--versions", metavar="VERSION,...", help="Only these releases. Default: all of them.")
@depth_option
@seed_option
@jobs_option
@output_option
@click.pass_context
def matrix(
    context: click.Context,
    patterns: tuple[str, ...],
    versions: str | None,
    depth: str | None,
    seed: int,
    jobs: int,
    output: Path | None,
) -> None:
    """Check all prepared releases of vLLM, and show which law holds in which release.

    Each release takes some minutes. kvref keeps the result of each, so the same command continues after an
    interrupt. It prints a page of Markdown, or writes it to a file (-o).

    \b
    Examples:
      kvref matrix -o docs/matrix.md
      kvref matrix --versions 0.30.0,0.32.0 --laws 'spec.*'

    \b
    Exit codes:  0  every law was judged for every release; laws may be broken
                 2  bad usage, or none of the releases is prepared
                 3  a release is not prepared, or a law was not judged completely
    """
    options = Options(laws=select_laws(patterns), depth=depth or DEPTH, seed=seed, jobs=jobs)
    chosen = [releases.find(version) for version in (versions.split(",") if versions else releases.VERSIONS)]
    if not any(host.prepared for host in chosen):
        raise releases.HostError("none of these releases is prepared; run: kvref hosts prepare")
    with progress(open_console(stderr=True)) as watcher:
        reports = matrices.check_all(chosen, options, watcher)
    words = [f" --laws {shlex.quote(pattern)}" for pattern in patterns]
    words += [f" --versions {versions}"] if versions else []
    words += [f" --depth {options.depth}"] if options.depth != DEPTH else []
    words += [f" --seed {seed}"] if seed else []
    text = matrices.page(reports, options, f"kvref matrix{''.join(words)}")
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
    context.exit(0 if matrices.is_complete(reports, options.laws) else EXIT_CODES[Verdict.INCOMPLETE])
