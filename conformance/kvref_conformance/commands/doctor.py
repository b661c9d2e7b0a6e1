"""`kvref doctor`: show whether a target loads, and what of it can be checked."""

from __future__ import annotations

import click
from rich.console import Console

from kvref_conformance.commands.options import Choice, target_options
from kvref_conformance.report.doctor import render_target
from kvref_conformance.report.progress import progress
from kvref_conformance.running.checker import Options
from kvref_conformance.running.loading import loaded


@click.command()
@target_options
def doctor(
    choice: Choice,
) -> None:
    """Tell whether TARGET can be loaded, what its profile declares, and what of it can be checked."""
    worker, declared = choice.prepare()
    with progress(Console(stderr=True)) as watcher, loaded(worker, (), watcher, declared) as one:
        description = one.description
        planned = one.checker(Options(), watcher).left_out()
        render_target(worker, one.profile, description, planned)
