"""`kvref replay`: run a stored trace again."""

from __future__ import annotations

from pathlib import Path

import click

from kvref_conformance.commands.options import Choice, target_options
from kvref_conformance.documents import schemas
from kvref_conformance.laws import LAWS
from kvref_conformance.report.progress import progress
from kvref_conformance.report.terminal import open_console
from kvref_conformance.report.text import visible
from kvref_conformance.running.checker import Options
from kvref_conformance.running.loading import NoSuchLaw, loaded


@click.command()
@click.argument("trace", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@target_options
@click.pass_context
def replay(
    context: click.Context,
    trace: Path,
    choice: Choice,
) -> None:
    """Run the operations of a stored TRACE again, and judge its law.

    Traces are in the folder traces/ of a report or a fuzz. TARGET may be another version than the one that
    broke the law.

    \b
    Examples:
      kvref replay out/traces/LAW-DIGEST.json vllm==0.32.0   does it break there, too?
      kvref replay out/traces/LAW-DIGEST.json                what does the reference do?

    \b
    Exit codes:  0  the law holds
                 1  the law breaks
                 2  bad usage, or the trace, the profile or the target cannot be used
    """
    document = schemas.parse(trace.read_bytes(), "trace")
    if document["law"] not in LAWS:
        raise NoSuchLaw(f"{trace}: no law is called {document['law']!r}; 'kvref laws' lists them")
    law = LAWS[document["law"]]
    options = Options(laws=(law.id,))
    worker, declared = choice.prepare()
    flags = [" ".join(run["flags"]) for run in document["runs"]]
    with (
        progress(open_console(stderr=True)) as watcher,
        loaded(worker, (), watcher, declared, flags) as one,
    ):
        broken = one.checker(options, watcher).confirmer.judge(law, document)
    subject = visible(document["subject"], 200)
    click.echo(f"{law.id} [{subject}] in {one.description['name']} {one.description['version']}")
    if broken is None:
        click.echo("holds")
        context.exit(0)
    click.echo(f"breaks\n  expected  {visible(broken.expected)}\n  observed  {visible(broken.observed)}")
    context.exit(1)
