"""`kvref doctor`: show whether a target loads, and what can be checked."""

from __future__ import annotations

import click

from kvref_conformance.commands.options import Choice, invocation, target_options
from kvref_conformance.laws import ANSWERS, LAWS
from kvref_conformance.report.doctor import render_target
from kvref_conformance.report.progress import progress
from kvref_conformance.report.terminal import open_console
from kvref_conformance.running.checker import Options
from kvref_conformance.running.loading import loaded


@click.command()
@target_options
def doctor(
    choice: Choice,
) -> None:
    """Show whether TARGET loads, what its profile declares, and what can be checked.

    It runs no law. For each law that a check would leave out, it says why.

    \b
    Examples:
      kvref doctor                         the target of kvref.toml
      kvref doctor vllm:acme --stub acmert a plugin whose hardware is not here

    \b
    Exit codes:  0  the target loads
                 2  bad usage, or the profile or the target cannot be used
    """
    worker, declared = choice.prepare()
    with progress(open_console(stderr=True)) as watcher, loaded(worker, (), watcher, declared) as one:
        description = one.description
        units, left_out = one.checker(Options(), watcher).plan()
    judged = {law.id for unit in units for law in unit.laws} | ({ANSWERS.id} if units else set())
    laws = [law for law in LAWS if law in judged]
    render_target(worker, one.profile, description, laws, left_out, open_console(), invocation())
