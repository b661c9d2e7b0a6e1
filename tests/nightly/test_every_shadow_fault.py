"""What the shadow alone finds is reduced and confirmed, too, within two minutes for each fault."""

import time

import pytest
from test_shadow import FAULTS, MANY, check

from kvref_conformance.documents.results import Status
from kvref_strategies.catalogue import WORKLOADS

SECONDS = 120
"""Usually a few are enough."""


@pytest.mark.parametrize(("fault", "law", "subject"), FAULTS)
def test_the_shadow_alone_finds(fault: str, law: str, subject: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driven = WORKLOADS["shadow.machine"].driven
    assert driven is not None
    monkeypatch.setitem(driven.examples, "standard", 400 if fault.partition(":")[2] in MANY else 40)
    start = time.monotonic()
    rows = check(f"kvref_conformance.targets.faults.{fault}", subject)
    assert time.monotonic() - start < SECONDS
    found = [row for row in rows if row.status is Status.BROKEN]
    assert law in {row.law for row in found}
    assert all(row.program for row in found)
