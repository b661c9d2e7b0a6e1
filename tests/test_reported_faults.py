"""Each reported fault is found by its law."""

import importlib

import pytest
from faulty import REPORTED_SHOWN_BY, look_for

from kvref_conformance.laws import LAWS
from kvref_conformance.running.checker import DEPTHS
from kvref_conformance.running.loading import Loaded
from kvref_conformance.targets.faults import FAULTS, REPORTED


def short(fault: str) -> str:
    return fault.partition(":")[2]


@pytest.mark.parametrize("fault", REPORTED)
def test_reported_fault_is_found(fault: str, reference: Loaded) -> None:
    """Here it is only found; tests/nightly also reduces and confirms it."""
    law, _, depth = REPORTED[fault]
    trial = look_for(fault, law, REPORTED_SHOWN_BY[short(fault)], reference, depth)
    assert law in trial.catches, trial.open


def test_every_reported_fault_is_named_once_and_shown_by_something() -> None:
    names = [short(fault) for fault in (*FAULTS, *REPORTED)]
    assert len(set(names)) == len(names)
    assert set(REPORTED_SHOWN_BY) == {short(fault) for fault in REPORTED}


@pytest.mark.parametrize("fault", REPORTED)
def test_where_a_fault_was_reported_is_told_where_it_is(fault: str) -> None:
    law, source, depth = REPORTED[fault]
    module, _, name = fault.partition(":")
    told = getattr(importlib.import_module(module), name).__doc__
    assert source.rpartition(" ")[2].isdigit()
    assert f"({source})." in told
    assert law in LAWS
    assert depth in DEPTHS
