"""`kvref check --backend crosshair`: a solver searches for the numbers of specs, instead of random draws."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import TARGETS, Kvref
from hypothesis import given, settings, strategies as st

from kvref_conformance.laws import LAWS
from kvref_conformance.processes.host import describe
from kvref_conformance.running import loading as check
from kvref_conformance.running.checker import DEPTHS
from kvref_conformance.running.exploring.stage import Journal, LocalStage, Stage
from kvref_conformance.running.exploring.symbolic import SymbolicExplorer
from kvref_conformance.targets.reference.target import ReferenceTarget
from kvref_strategies.catalogue import WORKLOADS
from kvref_strategies.specs import RANGES, class_info, descriptors, legal_block_sizes, menu, one_of, widened
from kvref_strategies.workload import Description

SYMBOLIC = {law.id for law in LAWS.values() if law.workload in WORKLOADS and WORKLOADS[law.workload].symbolic}


@pytest.fixture(scope="module")
def description() -> Description:
    told: Any = {**describe(ReferenceTarget()), "device": "cpu", "threads": 1}
    return told


@pytest.fixture
def all_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw as many examples as a quick check does outside of these tests."""
    monkeypatch.setitem(DEPTHS, "quick", 100)


@pytest.mark.usefixtures("all_examples")
def test_needles_are_found(kvref: Kvref) -> None:
    """The page is wrong for one block size in a million. Only a check with the backend finds it."""
    laws = ["spec.page-positive", "spec.page-covers-content"]
    asked = [option for law in laws for option in ("--laws", law)]
    ran, report = kvref.report("needle:reference", *asked, "--subjects", "FullAttentionSpec")
    assert (ran.code, {row["status"] for row in report["laws"]}) == (0, {"holds"})
    asked += ["--subjects", "FullAttentionSpec", "--backend", "crosshair"]
    ran, report = kvref.report("needle:reference", *asked)
    assert (ran.code, report["verdict"]) == (1, "not conformant")
    assert [(row["id"], row["status"]) for row in report["laws"]] == [(law, "broken") for law in laws]
    assert report["notes"] == [f"CrossHair also makes examples for {', '.join(laws)}"]


@pytest.mark.usefixtures("all_examples")
def test_a_needle_is_reduced_and_shown_alone(
    kvref: Kvref, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like any finding, it has a short trace with plain numbers, and a program that shows the failure."""
    asked = ("--laws", "spec.page-positive", "--backend", "crosshair", "--report", tmp_path / "report")
    assert kvref.check("needle:toy", *asked).code == 1
    [trace] = (tmp_path / "report/traces").iterdir()
    [run] = json.loads(trace.read_text())["runs"]
    fields = {"block_size": 131_071, "num_kv_heads": 1, "head_size": 8}
    assert run["operations"] == [
        {"op": "specs.build", "args": {"spec": {"class": "ToySpec", "fields": fields}}}
    ]
    [program] = (tmp_path / "report/repro").iterdir()
    monkeypatch.setenv("PYTHONPATH", str(TARGETS))
    shown = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert shown.returncode == 1
    assert "131071" in shown.stdout


@pytest.mark.parametrize("subject", ["FullAttentionSpec", "SlidingWindowMLASpec"])
def test_the_reference_holds(kvref: Kvref, subject: str) -> None:
    asked = [option for law in sorted(SYMBOLIC) for option in ("--laws", law)]
    ran = kvref("check", "--json", "--backend", "crosshair", "--subjects", subject, *asked)
    rows = json.loads(ran.out)["laws"]
    assert {row["status"] for row in rows} <= {"holds", "not-applicable"}
    assert ran.code == 0


def test_laws_of_other_things_are_checked_as_ever(kvref: Kvref) -> None:
    laws = ["spec.pickle-round-trip", "spec.padding-honoured"]
    asked = [option for law in laws for option in ("--laws", law)]
    ran = kvref("check", "--json", "--backend", "crosshair", "--subjects", "FullAttentionSpec", *asked)
    report = json.loads(ran.out)
    assert ran.code == 0
    assert [(row["id"], row["status"]) for row in report["laws"]] == [(law, "holds") for law in laws]
    assert report["notes"] == ["CrossHair also makes examples for spec.padding-honoured"]


def test_the_backend_is_refused_where_it_has_nothing_to_do(kvref: Kvref) -> None:
    ran = kvref("check", "--backend", "crosshair", "--laws", "hash.*", "--laws", "target.answers")
    assert ran.code == 2
    assert "choose at least one of these: spec." in ran.told


def test_the_backend_is_refused_where_it_is_not_installed(
    kvref: Kvref, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    ran = kvref("check", "--backend", "crosshair")
    assert ran.code == 2
    assert ran.told == "kvref: the backend crosshair comes with the extra: pip install 'kvref[symbolic]'"


def explored(
    description: Description, tmp_path: Path, target: Any, workload: str, subject: str
) -> list[Stage]:
    made: list[Stage] = []
    journal = Journal(tmp_path / "journal")
    laws = [law for law in LAWS.values() if law.workload == workload]
    request = {"description": description, "subject": subject, "seed": 0, "examples": 0, "symbolic": 8}
    explorer = SymbolicExplorer(
        target, laws, WORKLOADS[workload], request, lambda: LocalStage(target, journal)
    )
    explorer.explore(made.append)
    return made


def numbers(value: Any) -> list[Any]:
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return [number for item in items for number in numbers(item)]
    return [] if isinstance(value, str) or value is None else [value]


def test_what_is_judged_is_plain(description: Description, tmp_path: Path) -> None:
    """The judged examples have the numbers that CrossHair chose, but were performed without CrossHair."""
    made = explored(description, tmp_path, ReferenceTarget(), "specs.pages", "FullAttentionSpec")
    assert len(made) >= 8
    assert all(stage.steps for stage in made)
    found = [number for stage in made for number in numbers(stage.runs)]
    assert {type(number) for number in found} <= {int, bool}


def test_only_what_fails_without_crosshair_is_found(description: Description, tmp_path: Path) -> None:
    """The target is wrong only while CrossHair traces it, so no judged example shows a mistake."""
    from crosshair.tracers import is_tracing

    class Shy(ReferenceTarget):
        pass

    specs = ReferenceTarget().specs
    assert specs is not None

    def build(spec: Any) -> Any:
        facts = specs.build(spec)
        return {**facts, "page_size_bytes": 0} if is_tracing() else facts

    target = Shy()
    target.specs = type("Specs", (), {"build": staticmethod(build)})()  # type: ignore[misc, assignment]
    made = explored(description, tmp_path, target, "specs.pages", "FullAttentionSpec")
    outcomes = [event["outcome"] for stage in made for event in stage.runs[0]]
    pages = [outcome["value"]["page_size_bytes"] for outcome in outcomes if "value" in outcome]
    assert pages
    assert min(pages) > 0


def test_ranges_leave_alone_what_is_settled(description: Description) -> None:
    info = class_info(description, "MLAAttentionSpec")
    settled = [{**f, "values": [64]} if f["name"] == "head_size" else f for f in info["fields"]]
    told: Any = {**description, "classes": [{**info, "fields": settled}]}
    wide = class_info(widened(told), "MLAAttentionSpec")
    assert menu(wide, "block_size") == RANGES["block_size"]
    assert menu(wide, "head_size") == [64]  # the target declares these values
    assert menu(wide, "num_kv_heads") == [1]  # latent attention has no heads
    assert menu(wide, "dtype") == menu(info, "dtype")
    assert class_info(told, "MLAAttentionSpec")["fields"] == settled


@pytest.mark.parametrize(
    "name", ["FullAttentionSpec", "MLAAttentionSpec", "SinkFullAttentionSpec", "MambaSpec"]
)
def test_wide_specs_are_legal(description: Description, name: str) -> None:
    info = class_info(widened(description), name)
    specs = ReferenceTarget().specs
    assert specs is not None
    sizes = []

    @settings(max_examples=50, derandomize=True, deadline=None, database=None)
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        spec = data.draw(descriptors(info))
        other = data.draw(one_of(legal_block_sizes(info, spec)))
        specs.build(spec)
        specs.copy(spec, other)
        sizes.append(spec["fields"]["block_size"])

    draw()
    assert max(sizes) > 10_000
