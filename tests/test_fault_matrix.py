"""`kvref faults`: which laws it tries on which faults, and what it reports."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conftest import Kvref

from kvref_conformance.documents.schemas import validate
from kvref_conformance.laws import LAWS
from kvref_conformance.report.faults import page
from kvref_conformance.running import fault_matrix
from kvref_conformance.running.checker import DEPTHS
from kvref_conformance.running.fault_matrix import Fault, Tried, document, faults, quantiles
from kvref_conformance.running.time_to_find import Catch, Trial
from kvref_conformance.targets.faults import FAULTS, REPORTED

PAGE = Path(__file__).parents[1] / "docs" / "faults.md"

CAUGHT = Fault("pool:one", "pool.partition")
LIKE_ONE = Fault("pool:two", "pool.ref-model", "vLLM issue 1", "standard")
MISSED = Fault("pool:three", "pool.reset")


def tried(fault: Fault | None, *laws: str, seconds: float = 1.0, left_open: str = "") -> Tried:
    catches = {law: Catch(law, "pool", 3, seconds) for law in laws}
    return Tried(fault, Trial(catches, 10, 2.0, [left_open] if left_open else []))


ALL = [
    tried(MISSED, "pool.partition"),
    tried(CAUGHT, "pool.partition"),
    tried(LIKE_ONE, "pool.partition", "pool.ref-model"),
    tried(None),
]


def test_all_faults_are_there_and_areas_choose() -> None:
    assert {fault.target: (fault.source, fault.depth) for fault in faults()} == {
        **dict.fromkeys(FAULTS, ("", "quick")),
        **{target: (each.source, each.depth) for target, each in REPORTED.items()},
    }
    assert {fault.area for fault in faults(["s*"])} == {"spec", "sharing", "shadow"}
    assert {LAWS[law].area for law in faults(["pool"])[0].judges} == {"pool"}
    with pytest.raises(fault_matrix.NoSuchArea, match="no area matches 'pol'; the areas are: registry, spec"):
        faults(["pool", "pol"])


def test_a_fault_is_caught_by_the_law_that_is_there_for_it() -> None:
    assert [each.as_expected for each in ALL] == [False, True, True, True]
    assert not tried(None, "pool.reset").as_expected
    assert not tried(None, left_open="x").as_expected


def test_the_document_follows_its_schema() -> None:
    told = document(ALL, 3)
    validate(told, "faults")
    assert [each["name"] for each in told["faults"]] == ["pool:one", "pool:two", "pool:three"]
    one, two, three = told["faults"]
    assert (one["caught_by"], one["seconds"], one["examples"]) == (["pool.partition"], 1.0, 3)
    assert two["source"] == "vLLM issue 1"
    assert (three["caught_by"], three["seconds"], three["subject"]) == (["pool.partition"], 2.0, "")
    assert told["control"]["caught_by"] == []


def test_half_take_less_than_the_median() -> None:
    several = [tried(CAUGHT, CAUGHT.law, seconds=float(n)) for n in range(1, 102)]
    assert quantiles(several) == (51.0, 96.0)
    assert quantiles(several[:1]) == (1.0, 1.0)
    assert quantiles([tried(MISSED)]) == (0.0, 0.0)


def test_the_page_shows_what_was_missed_and_what_else_broke() -> None:
    text = page(ALL, "kvref faults")
    assert "| `pool:one` | pool.partition | pool | 3 | 1.00 |  |" in text
    assert (
        "| `pool:two` (vLLM issue 1, standard) | pool.ref-model | pool | 3 | 1.00 | pool.partition |" in text
    )
    assert "| `pool:three` | **missed** pool.reset |  | 10 | 2.00 | pool.partition |" in text
    assert "2 faults, one for each law: 1 caught by their law, 1 by no other" in text


def test_the_page_in_docs_has_every_fault_with_its_law() -> None:
    text = PAGE.read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(\S+)`[^|]*\| (\S+) \|", text, re.MULTILINE))
    assert listed == {fault.name: fault.law for fault in faults()}
    assert "**missed**" not in text


def test_the_command_line(kvref: Kvref, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEPTHS, "quick", 100)
    output = tmp_path / "faults.md"
    ran = kvref("faults", "--area", "hash", "--json", "-o", output)
    told = json.loads(ran.out)
    validate(told, "faults")
    assert ran.code == 0
    assert {each["law"]: each["caught_by"] for each in told["faults"]} == {
        law: [law] for law in LAWS if law.startswith("hash.")
    }
    assert told["control"]["examples"] > 0
    assert "`kvref faults --area hash`" in output.read_text()


def test_a_fault_that_is_missed_is_no_success(kvref: Kvref, monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = {"kvref_conformance.targets.reference.target:ReferenceTarget": "hash.granularity"}
    monkeypatch.setattr(fault_matrix, "FAULTS", harmless)
    monkeypatch.setattr(fault_matrix, "PREFIX", "")
    ran = kvref("faults", "--area", "hash")
    assert ran.code == 1
    assert "MISSED by hash.granularity" in ran.out


def test_no_such_area(kvref: Kvref) -> None:
    ran = kvref("faults", "--area", "nothing")
    assert (ran.code, ran.out) == (2, "")
    assert "no area matches 'nothing'" in ran.told
