"""`kvref explain`: show one law in full."""

from __future__ import annotations

import click

from kvref_conformance.report.explain import render_explanation
from kvref_conformance.report.terminal import open_console
from kvref_conformance.running.loading import find_law


@click.command()
@click.argument("law")
def explain(law: str) -> None:
    """Explain one LAW: what it requires and why, what it needs, and what to do if it breaks.

    \b
    Examples:
      kvref laws 'pool.*'                 list the laws of an area
      kvref explain spec.merge-identity   explain one of them

    \b
    Exit codes:  0  explained
                 2  there is no such law
    """
    render_explanation(find_law(law), open_console())
