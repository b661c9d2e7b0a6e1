"""Have CrossHair prove the contracts of `kvref_conformance.proofs`, or find arguments that break them."""

from __future__ import annotations

import fnmatch
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from kvref_conformance.documents import results
from kvref_conformance.documents.results import EXIT_CODES
from kvref_conformance.documents.schemas import PROVE
from kvref_conformance.processes.session import Tail
from kvref_conformance.proofs import Contract, Verdict, contracts
from kvref_conformance.running.progress import Progress


class CannotProve(Exception):
    """Nothing can be proved. The message says why."""


@dataclass(frozen=True)
class Proof:
    """The result for one contract."""

    contract: Contract
    verdict: Verdict
    seconds: float
    counterexample: dict[str, Any] | None = None
    reason: str = ""
    """Why the contract was not examined."""


def select(patterns: Sequence[str]) -> list[Contract]:
    """The contracts whose names match any of the globs, or all of them if there is no glob.

    Raises `CannotProve` if a glob matches nothing, or if CrossHair is not installed.
    """
    if find_spec("crosshair") is None:
        raise CannotProve("CrossHair comes with the extra: pip install 'kvref[symbolic]'")
    with warnings.catch_warnings():
        # PyTorch warns if NumPy is not installed.
        warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)
        known = contracts()
    for pattern in patterns:
        if not fnmatch.filter(known, pattern):
            areas = dict.fromkeys(name.partition(".")[0] for name in known)
            raise CannotProve(f"no contract matches {pattern!r}; there are those of {', '.join(areas)}")
    return [
        contract
        for name, contract in known.items()
        if not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]


def prove(chosen: Sequence[Contract], limit: float, jobs: int, watcher: Progress) -> Generator[Proof]:
    """Examine each contract for at most `limit` seconds. Yields the results as they come.

    Raises `CannotProve` if the process that proves ends early.
    """
    named = {contract.name: contract for contract in chosen}
    modules = dict.fromkeys(contract.function.__module__ for contract in chosen)
    request = {"modules": [*modules], "names": [*named], "limit": limit, "jobs": jobs}
    reading, writing = os.pipe()
    complaints = Tail(reading)
    watcher.phase(f"examining {len(named)} contracts, {limit:g} s at most for each")
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "kvref_conformance.proofs.prover", json.dumps(request)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=writing,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        start_new_session=True,
    )
    os.close(writing)
    try:
        for line in process.stdout or ():
            told = json.loads(line)
            if "began" in told:
                watcher.unit_started(told["began"])
                continue
            name = told.pop("name")
            watcher.unit_done(name)
            yield Proof(named.pop(name), Verdict(told.pop("verdict")), **told)
        if named:
            how = f"exit code {process.wait()}"
            raise CannotProve(
                f"the process that proves has ended ({how}).\n{complaints.text()[-1500:]}".strip()
            )
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()


def document(proofs: Sequence[Proof]) -> dict[str, Any]:
    """The document that `kvref prove --json` prints."""
    told = [
        {
            "name": proof.contract.name,
            "claim": proof.contract.claim,
            "verdict": proof.verdict,
            "seconds": proof.seconds,
            "counterexample": proof.counterexample,
        }
        for proof in proofs
    ]
    return {"schema": PROVE, "contracts": told}


def exit_code(proofs: Sequence[Proof]) -> int:
    verdicts = {proof.verdict for proof in proofs}
    if Verdict.BROKEN in verdicts:
        return 1
    return EXIT_CODES[results.Verdict.INCOMPLETE] if Verdict.UNEXAMINED in verdicts else 0
