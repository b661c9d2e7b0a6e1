"""Tell what a target is, and what of it can be checked, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import click

from kvref_conformance.documents import baseline as baselines
from kvref_conformance.documents.profile import Profile
from kvref_conformance.documents.results import Row, Status
from kvref_conformance.processes.launch import Worker
from kvref_conformance.report.terminal import by_reason, unjudged
from kvref_conformance.report.text import visible
from kvref_strategies.workload import Description


def render_target(
    worker: Worker, declared: Profile, description: Description, left_out: Sequence[Row]
) -> None:
    """Print it; `left_out` are rows for what no law can, or shall, be run on."""
    click.echo(f"target       {description['name']} {description['version']}")
    if plugin := description["plugin"]:
        click.echo(f"plugin       {plugin['name']} ({plugin['version']})")
    click.echo(f"interpreter  {worker.python} (Python {description['environment']['python']})")
    click.echo(f"torch        {description['environment']['torch']}")
    parts = [part for part in description["parts"] if "." not in part]
    click.echo(f"parts        {', '.join(parts) or 'none'}")
    known = baselines.shipped(description["name"], description["version"])
    click.echo(f"baseline     {known.name or 'none shipped for this version'}")
    classes = ", ".join(info["name"] for info in description["classes"])
    click.echo(f"classes      {visible(classes) or 'none'}")
    if description["threads"] > 1:
        click.echo(
            f"threads      {description['threads']} run after import: forked processes have one, and may "
            "wait for the others"
        )
    for note in (plugin or {"notes": []})["notes"]:
        click.echo(f"note         {note}")
    click.echo(f"profile      {declared.name or 'none'}")
    for line in declared.told():
        click.echo(f"  {line}")
    for note in declared.notes:
        click.echo(f"note         {note}")
    for laws, reason in unjudged(left_out):
        click.echo(visible(f"unjudged     {laws}: {reason}"))
    for status, what in ((Status.DECLARED_GAP, "declared gap"), (Status.NOT_APPLICABLE, "left out")):
        for line in by_reason(row for row in left_out if row.status is status):
            click.echo(visible(f"{what:12} {line}"))
