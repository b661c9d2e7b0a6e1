"""`kvref explain`: show one law in full."""

from __future__ import annotations

import click

from kvref_conformance.report.explain import render_explanation
from kvref_conformance.report.terminal import open_console
from kvref_conformance.running.loading import find_law


@click.command()
@click.argument("law")
def explain(law: str) -> None:
    """Tell all of one LAW: what it asks for and why, what it needs, what breaks it, and what to do then."""
    render_explanation(find_law(law), open_console())
