"""Every law finds a deliberate fault of the reference; without faults, all hold."""

from collections.abc import Iterable, Iterator

import pytest
from faulty import SHOWN_BY, breaks_exactly_its_law, check, left_out
from undrawn import differences

from kvref_conformance.documents.results import Status
from kvref_conformance.laws import ANSWERS, LAWS, Law
from kvref_conformance.processes.launch import Launch
from kvref_conformance.running.checker import Options
from kvref_conformance.running.dispatch import Unit
from kvref_conformance.running.loading import Loaded, loaded
from kvref_conformance.running.progress import Silence
from kvref_conformance.running.time_to_find import Trial, try_on
from kvref_conformance.targets.faults import FAULTS
from kvref_strategies.catalogue import WORKLOADS

ONE_OF_EACH_AREA = {LAWS[law].area: fault for fault, law in reversed(FAULTS.items()) if law != ANSWERS.id}
"""Reduced, confirmed and examined by all laws of the area here; tests/nightly does so with every fault.

`target.answers` needs the laws of several areas, which takes minutes: tests/nightly does this one alone.
"""


def test_every_law_has_a_fault() -> None:
    assert sorted(FAULTS.values()) == sorted(LAWS)


def test_the_reference_keeps_every_law() -> None:
    """The control: without the faults, every law holds for every subject, with examples.

    Inputs that the examples never had are listed with a reason.
    """
    result = check("reference", Options(jobs=2, inputs=True))[0]
    rows = result.rows
    assert {row.law for row in rows} == set(LAWS)
    rest = [row for row in rows if not left_out(row)]
    assert [row.title for row in rest if row.status is not Status.HOLDS or not row.examples] == []
    # What speaks of plugins is held by the reference with one, in test_plugin.py, and hits within blocks by
    # vLLM.
    missing = set(LAWS) - {row.law for row in rest}
    plugins = {row.law for row in rows if row.message == "there is no plugin"}
    assert missing == {*plugins, "manager.copies-reported"}
    assert differences(result.undrawn or (), "reference") == ([], [])


@pytest.fixture(scope="module")
def reference() -> Iterator[Loaded]:
    """One host for most of the faults: loading a host takes longer than finding a fault."""
    with loaded(Launch("reference"), tuple(LAWS), Silence()) as host:
        yield host


@pytest.mark.parametrize("fault", FAULTS)
def test_the_law_finds_its_fault(fault: str, reference: Loaded) -> None:
    law = FAULTS[fault]
    if needs_its_own_host(LAWS[law]):
        with loaded(Launch(fault), (law,), Silence()) as host:
            trial = tried(host, law)
    else:
        trial = tried(reference, law, fault)
    assert law in trial.catches, trial.open


def needs_its_own_host(law: Law) -> bool:
    """Whether only a host that has loaded a fault of this law shows it.

    That is so if examples run in processes forked from the host, or if the fault comes with a plugin or a
    capability.
    """
    isolated = law is ANSWERS or WORKLOADS[law.workload].isolated
    return isolated or law.area == "drift" or bool(law.capabilities)


def tried(host: Loaded, law: str, fault: str = "") -> Trial:
    """Look for an example in which the law breaks, on the subject that shows it."""

    def shown_by(units: list[Unit]) -> Iterable[Unit]:
        return [unit for unit in units if unit.subject == SHOWN_BY.get(law, unit.subject)]

    return try_on(host, (law,), chosen=shown_by, until=(law,), fault=fault)


@pytest.mark.parametrize("fault", ONE_OF_EACH_AREA.values(), ids=ONE_OF_EACH_AREA)
def test_a_fault_breaks_exactly_its_law(fault: str) -> None:
    breaks_exactly_its_law(fault)
