"""`kvref prove`: have CrossHair prove the contracts of the reference's arithmetic."""

from __future__ import annotations

import json
from contextlib import closing

import click

from kvref_conformance.commands.options import as_seconds, jobs_option
from kvref_conformance.proofs.prove import document, exit_code, prove as prove_all, select
from kvref_conformance.report.progress import progress
from kvref_conformance.report.proving import render_count, render_proof
from kvref_conformance.report.terminal import open_console


@click.command()
@click.option("--only", "patterns", multiple=True, metavar="GLOB", help="Only these, e.g. 'memory.*'.")
@click.option(
    "--limit",
    default=20.0,
    show_default=True,
    callback=as_seconds,
    help="Seconds that each contract gets.",
)
@jobs_option
@click.option("--json", "as_json", is_flag=True, help="Print a document (schema kvref.prove/1).")
@click.pass_context
def prove(context: click.Context, patterns: tuple[str, ...], limit: float, jobs: int, as_json: bool) -> None:
    """Prove what is claimed of the reference's arithmetic, or find numbers for which it does not hold.

    A claim is a contract: a function of numbers, in kvref_conformance.proofs, that says whether it holds for
    them. CrossHair runs it with numbers that are not known yet, and has a solver say which ways through the
    code are possible. Each contract comes to one of these:

    \b
      proved             it holds for all numbers that it is about: every way was followed
      no counterexample  none was found in the time that there was (--limit)
      counterexample     it does not hold for the numbers told; Python, without CrossHair, says so as well

    \b
      kvref prove                                all of them, less than a minute
      kvref prove --only 'pages.*'               those of one area: pages, memory, rules, planning, addresses
      kvref prove --only 'rules.*' --limit 120   with more time to prove what takes more

    \b
    Exit codes:  0  there is no counterexample
                 1  there is one
                 2  bad usage, or CrossHair is not installed
                 3  a contract could not be examined
    """
    chosen = select(patterns)
    stdout, proofs = open_console(), []
    with (
        progress(open_console(stderr=True)) as watcher,
        closing(prove_all(chosen, limit, jobs, watcher)) as found,
    ):
        for proof in found:
            proofs.append(proof)
            if not as_json:
                render_proof(proof, stdout)
    proofs.sort(key=lambda proof: chosen.index(proof.contract))
    if as_json:
        click.echo(json.dumps(document(proofs), indent=1))
    else:
        render_count(proofs, stdout)
    context.exit(exit_code(proofs))
