"""`kvref diff`: compare two reports."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kvref_conformance.documents import diff as diffs
from kvref_conformance.report.diff import markdown as diff_markdown, render_diff
from kvref_conformance.report.terminal import open_console


@click.command()
@click.argument("old", type=click.Path(exists=True, path_type=Path))
@click.argument("new", type=click.Path(exists=True, path_type=Path))
@click.option("--markdown", "told", flag_value="markdown", help="Print a summary for a pull request.")
@click.option("--json", "told", flag_value="json", help="Print the changes as JSON.")
@click.pass_context
def diff(context: click.Context, old: Path, new: Path, told: str | None) -> None:
    """Tell what has changed from report OLD to report NEW: files report.json, or their folders.

    A row got worse if it held and does not, if it is broken or stale now, or if it was judged and now could
    not be. What was different when the reports were made (depth, seed, versions, ...) is told.

    \b
    Exit codes:  0  nothing got worse
                 1  something did
                 2  bad usage, or a file is no report that this version can read
    """
    changed = diffs.compare(diffs.read(old), diffs.read(new))
    if told == "json":
        click.echo(json.dumps(diffs.document(changed), indent=1))
    elif told == "markdown":
        click.echo(diff_markdown(changed), nl=False)
    else:
        render_diff(changed, open_console())
    context.exit(1 if changed.worse else 0)
