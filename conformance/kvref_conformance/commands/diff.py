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
@click.option("--markdown", "form", flag_value="markdown", help="Print a summary for a pull request.")
@click.option("--json", "form", flag_value="json", help="Print the changes as JSON.")
@click.pass_context
def diff(context: click.Context, old: Path, new: Path, form: str | None) -> None:
    """Show what changed from report OLD to report NEW.

    Give two report folders, or their report.json files. A row of a report is a law with one subject and, if
    it broke, one facet. A row got worse if it held before and does not now, if it is newly broken or stale,
    or if it was judged before and is not now. The output also lists how the checks themselves differ: depth,
    seed, versions and so on.

    \b
    Examples:
      kvref diff old-report new-report
      kvref diff main-report pr-report --markdown >> "$GITHUB_STEP_SUMMARY"

    \b
    Exit codes:  0  nothing got worse
                 1  something got worse
                 2  bad usage, or this version cannot read one of the reports
    """
    changed = diffs.compare(diffs.read(old), diffs.read(new))
    if form == "json":
        click.echo(json.dumps(diffs.document(changed), indent=1))
    elif form == "markdown":
        click.echo(diff_markdown(changed), nl=False)
    else:
        render_diff(changed, open_console())
    context.exit(1 if changed.worse else 0)
