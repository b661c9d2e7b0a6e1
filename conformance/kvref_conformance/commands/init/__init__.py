"""`kvref init`: write a profile and a workflow to start with."""

from __future__ import annotations

from pathlib import Path

import click

from kvref_conformance.commands.init.starter import Wanted, badge, start
from kvref_conformance.commands.options import Choice, target_options
from kvref_conformance.report.progress import progress
from kvref_conformance.report.terminal import open_console
from kvref_conformance.report.text import visible
from kvref_conformance.running.loading import loaded


@click.command()
@target_options
def init(choice: Choice) -> None:
    """Write a profile (kvref.toml) and a workflow for GitHub Actions for TARGET.

    Run it in the root of your repository. kvref loads TARGET to find out what its profile must declare.
    Existing files stay unchanged.

    \b
    Examples:
      kvref init acme.kv:target
      kvref init vllm==0.32.0:acme --stub acmert --path build/plugin

    \b
    Exit codes:  0  done; the output lists the files
                 2  bad usage, or the profile or the target cannot be used
    """
    worker, declared = choice.prepare()
    with progress(open_console(stderr=True)) as watcher, loaded(worker, (), watcher, declared) as one:
        name = declared.target if choice.target in (None, declared.label) else choice.target
        wanted = Wanted(name or worker.target, worker.stubs, (*choice.paths, *declared.paths))
        made = start(Path(), wanted, one.description)
    for path in made.written:
        click.echo(f"written      {path}")
    for path in made.kept:
        about = f", about {declared.target}" if str(path) == declared.name and declared.target else ""
        click.echo(f"left as is   {path}{about}")
    for note in declared.notes:
        click.echo(f"note         {visible(note)}")
    click.echo(f"badge        {badge()}")
