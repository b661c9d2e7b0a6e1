"""Every law finds a deliberate fault of the reference. Without faults, all laws hold."""

import pytest
from faulty import SHOWN_BY, breaks_exactly_its_law, check, left_out, look_for
from undrawn import differences

from kvref_conformance.documents.results import Status
from kvref_conformance.laws import ANSWERS, LAWS
from kvref_conformance.running.checker import Options
from kvref_conformance.running.loading import Loaded
from kvref_conformance.targets.faults import FAULTS

ONE_OF_EACH_AREA = {LAWS[law].area: fault for fault, law in reversed(FAULTS.items()) if law != ANSWERS.id}
"""One fault of each area, which these tests reduce and confirm, and try on all laws of the area.

tests/nightly does the same with every fault. Only there runs the fault of `target.answers`: it needs the laws
of several areas, which takes minutes.
"""


def test_every_law_has_a_fault() -> None:
    assert sorted(FAULTS.values()) == sorted(LAWS)


def test_the_reference_keeps_every_law() -> None:
    """The control: without a fault, every law holds for every subject, with examples.

    docs/undrawn.toml lists each input that the examples never have, with a reason.
    """
    result = check("reference", Options(jobs=2, inputs=True))[0]
    rows = result.rows
    assert {row.law for row in rows} == set(LAWS)
    rest = [row for row in rows if not left_out(row)]
    assert [row.title for row in rest if row.status is not Status.HOLDS or not row.examples] == []
    # Laws about plugins do not apply here: test_plugin.py checks them on a reference with a plugin.
    # Hits within a block occur only in vLLM.
    missing = set(LAWS) - {row.law for row in rest}
    plugins = {row.law for row in rows if row.message == "there is no plugin"}
    assert missing == {*plugins, "manager.copies-reported"}
    assert differences(result.undrawn or (), "reference") == ([], [])


@pytest.mark.parametrize("fault", FAULTS)
def test_the_law_finds_its_fault(fault: str, reference: Loaded) -> None:
    law = FAULTS[fault]
    trial = look_for(fault, law, SHOWN_BY.get(law), reference)
    assert law in trial.catches, trial.open


@pytest.mark.parametrize("fault", ONE_OF_EACH_AREA.values(), ids=ONE_OF_EACH_AREA)
def test_a_fault_breaks_exactly_its_law(fault: str) -> None:
    breaks_exactly_its_law(fault)
