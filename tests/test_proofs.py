"""Contracts: each holds, each is about something, and each breaks if the arithmetic has a mistake."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from typing import Any

import pytest
from conftest import TARGETS, Kvref
from crosshair.core import ConditionCheckable, analyze_function
from crosshair.options import AnalysisKind, AnalysisOptionSet
from wrong_arithmetic import FAULTS

from kvref_conformance import proofs
from kvref_conformance.documents.schemas import validate
from kvref_conformance.proofs import contracts, prove, prover

CONTRACTS = contracts()


def breaks(name: str, arguments: dict[str, Any]) -> bool:
    contract = CONTRACTS[name]
    [found] = analyze_function(contract.function, AnalysisOptionSet(analysis_kind=[AnalysisKind.PEP316]))
    assert isinstance(found, ConditionCheckable)
    conditions = found.conditions
    assert all(condition.evaluate and condition.evaluate(arguments) for condition in conditions.pre)
    return prover.breaks(contract.function, conditions, arguments)


def test_every_contract_has_a_fault() -> None:
    assert list(FAULTS) == list(CONTRACTS)


def test_every_contract_says_what_it_claims() -> None:
    for contract in CONTRACTS.values():
        assert contract.claim.endswith(".")
        assert "pre:" not in contract.claim


@pytest.mark.parametrize("name", FAULTS)
def test_a_contract_holds_and_a_fault_breaks_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain Python evaluates the contract, for arguments within its preconditions."""
    fault = FAULTS[name]
    assert not breaks(name, fault.arguments)
    monkeypatch.setattr(fault.owner, fault.name, fault.wrong, raising=False)
    assert breaks(name, fault.arguments)


@pytest.mark.parametrize(
    "name",
    [
        "pages.pages_are_aligned",
        "memory.windows_hold_no_more",
        "rules.chunks_skip_earlier_chunks",
        "planning.tensors_are_whole_pages",
        "addresses.blocks_lie_apart",
    ],
)
def test_crosshair_finds_the_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a proof means something: CrossHair finds the mistake if there is one."""
    fault = FAULTS[name]
    monkeypatch.setattr(fault.owner, fault.name, fault.wrong, raising=False)
    found = prover.examine(CONTRACTS[name].function, limit=60)
    assert found["verdict"] == "counterexample"
    assert breaks(name, found["counterexample"])


# -- the command ---------------------------------------------------------------------------------------------


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the contracts of tests/targets/wrong_proofs.py are known."""
    monkeypatch.syspath_prepend(str(TARGETS))
    monkeypatch.setenv("PYTHONPATH", str(TARGETS))
    monkeypatch.setattr(proofs, "MODULES", ["wrong_proofs"])


def proved(kvref: Kvref, code: int, *arguments: object) -> dict[str, dict[str, Any]]:
    ran = kvref("prove", "--json", *arguments)
    assert "Traceback" not in ran.err
    document = json.loads(ran.out)
    validate(document, "prove")
    assert ran.code == code
    return {each["name"]: each for each in document["contracts"]}


def verdicts(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name.partition(".")[2]: each["verdict"] for name, each in found.items()}


def test_contracts_are_proved(kvref: Kvref) -> None:
    found = proved(kvref, 0, "--only", "pages.every_*", "--only", "rules.chunks*")
    assert verdicts(found) == {
        "every_token_takes_the_same": "proved",
        "every_head_takes_the_same": "proved",
        "chunks_skip_earlier_chunks": "proved",
    }
    told = {name: CONTRACTS[name].claim for name in found}
    assert {name: each["claim"] for name, each in found.items()} == told


@pytest.mark.usefixtures("wrong")
def test_counterexamples_are_found(kvref: Kvref) -> None:
    """A contract has a counterexample if it is false, and also if it raises an exception."""
    found = proved(kvref, 1, "--only", "*.nothing_*", "--only", "*.says_much")
    assert [each["counterexample"] for each in found.values()] == [{"number": 131_071}, {"number": 77}, None]
    assert verdicts(found)["says_much"] == "proved"


@pytest.mark.usefixtures("wrong")
def test_a_counterexample_comes_with_a_command_that_shows_it(kvref: Kvref) -> None:
    ran = kvref("prove", "--only", "*.nothing_is_1*")
    [shown] = [line for line in ran.out.splitlines() if "python -c" in line]
    command = shlex.split(shown)
    done = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, check=True)
    assert (ran.code, done.stdout) == (1, "False\n")
    assert ran.out.splitlines()[-1] == "1 contracts: 1 counterexample"


@pytest.mark.usefixtures("wrong")
def test_what_crosshair_alone_sees_is_not_told(kvref: Kvref) -> None:
    assert verdicts(proved(kvref, 0, "--only", "*.wrong_while_traced")) == {
        "wrong_while_traced": "no counterexample"
    }


@pytest.mark.usefixtures("wrong")
def test_a_hang_takes_no_longer_than_the_limit(kvref: Kvref) -> None:
    found = proved(kvref, 0, "--only", "*.goes_on_for_ever", "--limit", 2)
    [each] = found.values()
    assert each["verdict"] == "no counterexample"
    assert 2 <= each["seconds"] < 10


@pytest.mark.usefixtures("wrong")
def test_what_could_not_be_examined_is_neither_good_nor_bad(kvref: Kvref) -> None:
    found = proved(kvref, 3, "--only", "*.is_about_nothing", "--only", "*.ends_its_process")
    assert set(verdicts(found).values()) == {"not examined"}
    ran = kvref("prove", "--only", "*.is_about_nothing", "--only", "*.ends_its_process")
    assert "Unable to meet precondition" in ran.out
    assert "exit code 7" in ran.out


def test_no_such_contract(kvref: Kvref) -> None:
    ran = kvref("prove", "--only", "page.*")
    assert (ran.code, ran.out) == (2, "")
    assert ran.told == (
        "kvref: no contract matches 'page.*'; there are those of pages, memory, rules, planning, addresses"
    )


def test_without_crosshair_the_extra_is_named(kvref: Kvref, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "find_spec", lambda name: None)
    ran = kvref("prove")
    assert (ran.code, ran.out) == (2, "")
    assert ran.told == "kvref: CrossHair comes with the extra: pip install 'kvref[symbolic]'"


def test_a_prover_that_ends_is_told(kvref: Kvref, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    ran = kvref("prove", "--only", "pages.every_*")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("kvref: the process that proves has ended (exit code 1).\n")
