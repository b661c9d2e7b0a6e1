"""Print the results of `kvref prove`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from kvref_conformance.proofs import Verdict
from kvref_conformance.proofs.prove import Proof
from kvref_conformance.report.terminal import Printer

_STYLES = {
    Verdict.PROVED: "green",
    Verdict.UNBROKEN: "cyan",
    Verdict.BROKEN: "bold red",
    Verdict.UNEXAMINED: "yellow",
}
_WIDTH = max(map(len, Verdict))


def render_proof(proof: Proof, console: Console) -> None:
    """Print the verdict on a contract. For a counterexample, print the claim and a command that shows it."""
    printer = Printer(console)
    contract = proof.contract
    seconds = f"  {proof.seconds:.1f} s"
    printer.line(
        proof.verdict.ljust(_WIDTH), style=_STYLES[proof.verdict], after=f"  {contract.name}{seconds}"
    )
    if proof.counterexample is not None:
        module, name = contract.function.__module__, contract.function.__name__
        arguments = ", ".join(f"{argument}={value}" for argument, value in proof.counterexample.items())
        printer.line(contract.claim, indent=2)
        printer.whole(f'  python -c "from {module} import {name}; print({name}({arguments}))"')
    if proof.reason:
        printer.line(proof.reason, indent=2)


def render_count(proofs: Sequence[Proof], console: Console) -> None:
    """Print how many contracts have each verdict."""
    counts = Counter(proof.verdict for proof in proofs)
    listed = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
    Printer(console).line(f"{len(proofs)} contracts: {listed}")
