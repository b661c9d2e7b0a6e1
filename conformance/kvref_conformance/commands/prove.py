"""`kvref prove`: prove the contracts of the reference's arithmetic with CrossHair."""

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
@click.option(
    "--only",
    "patterns",
    multiple=True,
    metavar="GLOB",
    help="Only these contracts, for example 'memory.*'. Can be repeated.",
)
@click.option(
    "--limit",
    default=20.0,
    show_default=True,
    callback=as_seconds,
    help="Seconds for each contract.",
)
@jobs_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema kvref.prove/1).")
@click.pass_context
def prove(context: click.Context, patterns: tuple[str, ...], limit: float, jobs: int, as_json: bool) -> None:
    """Prove the contracts of the reference's arithmetic, or find counterexamples.

    A contract is a function in kvref_conformance.proofs that takes numbers and returns whether a claim holds
    for them. CrossHair runs it with symbolic numbers, and a solver decides which paths through the code are
    possible. Each contract gets one of these results:

    \b
      proved             the claim holds for all its numbers: every path was followed
      no counterexample  none was found within the time (--limit)
      counterexample     the claim fails for the numbers shown; plain Python confirmed it

    \b
    Examples:
      kvref prove                                all contracts, less than a minute
      kvref prove --only 'pages.*'               one area: pages, memory, rules, planning or addresses
      kvref prove --only 'rules.*' --limit 120   more time for each contract

    \b
    Exit codes:  0  there is no counterexample
                 1  there is a counterexample
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
