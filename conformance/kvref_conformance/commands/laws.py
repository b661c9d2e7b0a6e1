"""`kvref laws`: list the laws."""

from __future__ import annotations

import click

from kvref_conformance.laws import LAWS
from kvref_conformance.report.lawbook import laws_page
from kvref_conformance.report.terminal import open_console, render_laws
from kvref_conformance.running.loading import select_laws


@click.command()
@click.argument("patterns", nargs=-1, metavar="[GLOB]...")
@click.option("-v", "--verbose", is_flag=True, help="Also print why each law matters, and its sources.")
@click.option("--markdown", is_flag=True, help="Print Markdown: the page docs/laws.md.")
def laws(patterns: tuple[str, ...], verbose: bool, markdown: bool) -> None:
    """List all laws, or those that match a GLOB.

    \b
    Examples:
      kvref laws               all of them, by area
      kvref laws 'pool.*' -v   one area, with reasons and sources

    \b
    Exit codes:  0  listed
                 2  no law matches
    """
    selected = [LAWS[law] for law in select_laws(patterns)]
    if markdown:
        click.echo(laws_page(selected), nl=False)
    else:
        render_laws(selected, open_console(), verbose)
