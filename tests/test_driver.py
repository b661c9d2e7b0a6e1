"""Driven examples: equal for equal seeds, reported unchanged, and reduced when they break a law."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Kvref

from kvref_conformance.processes.host import describe
from kvref_conformance.running.checker import DEPTHS
from kvref_conformance.running.exploring.driver import LENGTH, Driver, Example
from kvref_conformance.running.exploring.explorer import Explorer
from kvref_conformance.running.exploring.stage import Journal, LocalStage
from kvref_conformance.targets.reference.target import ReferenceTarget
from kvref_strategies.catalogue import WORKLOADS

TARGET = ReferenceTarget()
MACHINE = WORKLOADS["cache.machine"]
REFERENCES = ("--laws", "manager.references", "--depth", "standard", "--seed", "1")


def request(subject: str, seed: int = 0) -> dict[str, Any]:
    return {"description": describe(TARGET), "subject": subject, "seed": seed, "examples": 1}


def examples(subject: str, seed: int, number: int, journal: Path) -> tuple[Driver, list[Example]]:
    asked = request(subject, seed)
    driver = Driver(TARGET, MACHINE, asked, Journal(journal))
    setups = Explorer(MACHINE, asked, lambda: LocalStage(TARGET, Journal(journal))).setups(number)
    return driver, list(driver.examples(setups))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEPTHS, "standard", 10)
    assert MACHINE.driven is not None
    monkeypatch.setitem(MACHINE.driven.examples, "standard", 3)


def test_the_same_seed_makes_the_same_examples(journal: Path) -> None:
    first, again, other = (examples("MambaSpec", seed, 4, journal)[1] for seed in (1, 1, 2))
    assert first == again
    assert [len(example.choices) for example in first] == [LENGTH] * 4
    assert len({json.dumps(vars(example)) for example in [*first, *other]}) == 8


@pytest.mark.parametrize("subject", ["FullAttentionSpec", "SlidingWindowSpec", "MambaSpec"])
def test_what_is_kept_is_what_any_stage_keeps(subject: str, journal: Path) -> None:
    """The driver's swift stage keeps the same operations and answers as an ordinary stage, in plain JSON."""
    driver, made = examples(subject, 3, 3, journal)
    for example in made:
        swift, careful = driver.perform_swiftly(example), LocalStage(TARGET, Journal(journal))
        assert MACHINE.driven is not None
        MACHINE.driven.go(careful, request(subject)["description"], example.setup, example.choices)
        assert swift.steps > LENGTH
        assert json.loads(json.dumps(swift.runs)) == careful.runs


def test_what_breaks_is_reduced(journal: Path) -> None:
    """The condition is "ten requests were added". Reduction must leave ten short requests and few steps."""
    driver, made = examples("FullAttentionSpec", 0, 1, journal)
    sizes = []

    def ten_requests(stage: Any) -> bool:
        added = [event for event in stage.runs[0] if event["op"] == "cache.add"]
        if len(added) >= 10:
            sizes.append((len(added), stage.steps, sum(len(event["args"]["tokens"]) for event in added)))
        return len(added) >= 10

    driver.reduce(made[0], ten_requests)
    requests, steps, tokens = sizes[-1]
    assert requests == 10
    assert steps < sizes[0][1] / 5
    assert tokens < sizes[0][2] / 5


def test_what_does_not_break_again_is_left_alone(journal: Path) -> None:
    driver, made = examples("FullAttentionSpec", 0, 1, journal)
    asked: list[Any] = []
    driver.reduce(made[0], lambda stage: bool(asked.append(stage)))
    assert len(asked) == 1


@pytest.mark.usefixtures("few")
def test_what_only_driving_finds(kvref: Kvref) -> None:
    """The target fails only after more requests than an example of Hypothesis has."""
    ran, report = kvref.report("hostile_reference:loses_references_of_many_requests", *REFERENCES)
    assert ran.code == 1
    row = next(row for row in report["laws"] if row["status"] == "broken")
    assert (row["id"], row["facet"]) == ("manager.references", "too many")
    assert row["driven_steps"] > 1000
    assert row["driven_seconds"] > 0


@pytest.mark.usefixtures("few")
def test_rates_are_told(kvref: Kvref) -> None:
    ran = kvref("check", *REFERENCES, "--subjects", "FullAttentionSpec", "-v")
    assert ran.code == 0
    assert "steps/s driven/s" in ran.out


@pytest.mark.usefixtures("few")
def test_a_death_while_driven_is_told_in_full(kvref: Kvref, tmp_path: Path) -> None:
    """The journal has the example's numbers only. Performed again, they give the same operations."""
    laws = ("--laws", "target.answers", "--laws", "manager.references", *REFERENCES[2:])
    folder = tmp_path / "report"
    ran = kvref.check("hostile_reference:dies_of_many_requests", *laws, "--report", folder)
    assert ran.code == 1
    report = json.loads((folder / "report.json").read_text())
    row = next(row for row in report["laws"] if row["id"] == "target.answers")
    assert (row["status"], row["facet"]) == ("broken", "cache.add of FullAttentionSpec")
    operations = json.loads((folder / row["trace"]).read_text())["runs"][0]["operations"]
    assert [each["op"] for each in operations].count("cache.add") == 15
