"""`kvref laws`: list the laws."""

from __future__ import annotations

import click

from kvref_conformance.laws import LAWS
from kvref_conformance.report.lawbook import laws_page
from kvref_conformance.report.terminal import open_console, render_laws
from kvref_conformance.running.loading import select_laws


@click.command()
@click.argument("patterns", nargs=-1, metavar="[GLOB]...")
@click.option("-v", "--verbose", is_flag=True, help="Also why each law matters, and its sources.")
@click.option("--markdown", is_flag=True, help="As the page docs/laws.md.")
def laws(patterns: tuple[str, ...], verbose: bool, markdown: bool) -> None:
    """List the laws, all or those that match."""
    selected = [LAWS[law] for law in select_laws(patterns)]
    if markdown:
        click.echo(laws_page(selected), nl=False)
    else:
        render_laws(selected, open_console(), verbose)
