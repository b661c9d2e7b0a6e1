"""Which examples a run makes, and how kvref reduces the operations that end a process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLES, Kvref

from kvref_conformance.documents.results import Trace
from kvref_conformance.laws import LAWS
from kvref_conformance.running import checker as runner
from kvref_conformance.running.checker import flags_needed
from kvref_conformance.running.dispatch import seed_of
from kvref_conformance.running.exploring.stage import Journal
from kvref_conformance.running.reducer import reduce_death
from kvref_conformance.targets.plugins import NO_PLUGIN

TOY = "hostile_toy:target"
MERGING = ("--laws", "spec.merge-identity", "--laws", "spec.merge-refuses-unequal")

# -- the same examples ---------------------------------------------------------------------------------------


def without_times(report: dict[str, Any]) -> dict[str, Any]:
    rows = [
        {**row, "seconds": None, "exploring_seconds": None, "driven_seconds": None} for row in report["laws"]
    ]
    return {**report, "elapsed_seconds": None, "laws": rows}


class Recorder:
    """Runs checks of the toy, and records the operations that each process got."""

    def __init__(self, kvref: Kvref, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._kvref = kvref
        self._folder = folder
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str) -> tuple[dict[str, Any], list[str]]:
        """Returns the report without its times, and the operations of each process, processes sorted."""
        self._folder.mkdir()
        self._monkeypatch.setenv("RECORD", str(self._folder))
        ran, report = self._kvref.report(TOY, *arguments)
        assert ran.code in (0, 3)
        asked = sorted(path.read_text() for path in self._folder.iterdir())
        for path in self._folder.iterdir():
            path.unlink()
        self._folder.rmdir()
        return without_times(report), asked


@pytest.fixture
def recorded(kvref: Kvref, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(kvref, tmp_path / "record", monkeypatch)


def test_same_seed_same_examples(recorded: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other laws, their order and other jobs do not change the examples. Another seed does."""
    laws = [
        f"--laws={glob}"
        for glob in (
            "registry.conflict-refused",
            "registry.refusals-survive-O",
            "spec.merge-[ir]*",
            "spec.c*",
        )
    ]
    report, asked = recorded("-n", "1", *laws)
    assert report["verdict"] == "conformant"
    assert report["totals"]["holds"] == 8
    assert sum(text.count("\n") for text in asked) > 500

    monkeypatch.setenv("CI", "1")  # Hypothesis changes its settings if it sees this
    monkeypatch.setenv("PYTHONHASHSEED", "12345")
    assert recorded("-n", "2", *laws) == (report, asked)

    # A law gets the same examples and the same result alone as among others.
    for law in ("registry.conflict-refused", "spec.merge-refuses-unequal"):
        alone, asked_alone = recorded("--laws", law)
        assert alone["laws"] == [row for row in report["laws"] if row["id"] == law]
        assert set(asked_alone) < set(asked)

    _, asked_otherwise = recorded("--laws", law, "--seed", "1")
    assert len(asked_otherwise) == len(asked_alone)
    assert set(asked_otherwise) & set(asked) == {"specs classes {}\nregistry managers {}\n"}


def test_law_that_everything_feeds(kvref: Kvref) -> None:
    """`target.answers` runs all workloads even if it is checked alone."""
    target = "hostile_operations:without_registry"
    _, full = kvref.report(target)
    _, alone = kvref.report(target, "--laws", "target.answers")
    [row] = without_times(alone)["laws"]
    assert row == without_times(full)["laws"][-1]
    assert (row["status"], row["examples"] > 3 * EXAMPLES) == ("holds", True)


def test_same_seed_same_findings(kvref: Kvref, tmp_path: Path) -> None:
    """Also the same: reduced traces, messages and names of files."""
    found = []
    for jobs in ("1", "2"):
        folder = tmp_path / jobs
        target = "hostile_operations:merge_loses_field"
        ran, report = kvref.report(target, *MERGING, "--report", folder, "-n", jobs)
        assert ran.code == 1
        files = {path.relative_to(folder): path for path in folder.rglob("*.*") if path.parent != folder}
        found.append((without_times(report), {name: path.read_text() for name, path in files.items()}))
    assert found[0] == found[1]
    assert found[0][0]["totals"]["broken"] == 2
    assert len(found[0][1]) == 4


def test_seeds_differ() -> None:
    seeds = {
        seed_of(root, workload, subject)
        for root in (0, 1)
        for workload in ("specs.copy", "specs.padding")
        for subject in ("A", "B")
    }
    assert len(seeds) == 8
    assert seed_of(0, "specs.copy", "A") == seed_of(0, "specs.copy", "A")


def test_flags_needed() -> None:
    assert flags_needed(["spec.merge-identity"], plugin=False) == [""]
    assert flags_needed(["spec.merge-identity", "target.answers"], plugin=False) == [""]
    assert flags_needed(["registry.refusals-survive-O"], plugin=False) == ["", "-O"]
    assert flags_needed(["target.answers"], plugin=False) == flags_needed(LAWS, plugin=False)
    assert flags_needed(LAWS, plugin=False) == ["", "-O", "-R"]
    assert flags_needed(LAWS, plugin=True) == ["", "-O", "-R", NO_PLUGIN]


# -- ends of processes ---------------------------------------------------------------------------------------


def trace(*runs: str) -> Trace:
    """A trace with a run for each string, and an operation for each letter."""
    return {"runs": [{"flags": [], "operations": [{"op": name, "args": {}} for name in run]} for run in runs]}


def letters(reduced: Trace) -> list[str]:
    return ["".join(operation["op"] for operation in run["operations"]) for run in reduced["runs"]]


@pytest.mark.parametrize(
    ("runs", "needed", "left"),
    [
        (["abcdefgh"], "h", ["h"]),
        (["abcdefgh"], "adh", ["adh"]),
        (["abc", "defg"], "g", ["g"]),
        (["abc", "defg"], "bg", ["b", "g"]),
        (["a"], "a", ["a"]),
    ],
)
def test_reduced_to_what_is_needed(runs: list[str], needed: str, left: list[str]) -> None:
    def dies(smaller: Trace) -> bool:
        text = "".join(letters(smaller))
        return all(letter in text for letter in needed)

    assert letters(reduce_death(trace(*runs), dies)) == left


def test_reducing_takes_few_runs() -> None:
    """Each run may hang. So 100 operations, of which one is needed, must take a few runs, not a hundred."""
    tried = 0

    def dies(smaller: Trace) -> bool:
        nonlocal tried
        tried += 1
        return letters(smaller)[-1].endswith("z")

    assert letters(reduce_death(trace("a" * 99 + "z"), dies)) == ["z"]
    assert tried < 25


def test_reducing_ends() -> None:
    assert letters(reduce_death(trace("abcz"), lambda _: True, seconds=0)) == ["abcz"]


def test_journal(tmp_path: Path) -> None:
    """It shows whether an operation is running, and which operations to replay if one does not return."""
    path = tmp_path / "journal"
    assert (Journal.state(path)[0], Journal.read(path)) == (False, None)
    journal = Journal(path)
    assert (Journal.state(path)[0], Journal.read(path)) == (False, None)
    states = []
    for name in ("specs.build", "specs.merge"):
        journal.note(name, '{"spec": "\\n"}')
        performing, state = Journal.state(path)
        assert performing
        journal.came_back()
        performing, after = Journal.state(path)
        assert not performing
        states += [state, after]
    assert len(set(states)) == 4
    operations = [{"op": name, "args": {"spec": "\n"}} for name in ("specs.build", "specs.merge")]
    assert Journal.read(path) == {"runs": [{"flags": [], "operations": operations}]}
    journal.clear()
    assert (Journal.state(path)[0], Journal.read(path)) == (False, None)


def test_many_deaths(kvref: Kvref, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the first deaths are reduced. The others are only named."""
    monkeypatch.setattr(runner, "MAX_DEATHS", 1)
    laws = (*MERGING, "--laws", "target.answers")
    ran, report = kvref.report("hostile_operations:merge_dies", *laws)
    [death] = [row for row in report["laws"] if row["id"] == "target.answers"]
    assert (ran.code, death["status"], death["facet"]) == (1, "broken", "specs.merge of FullAttentionSpec")
    assert death["message"].startswith(
        "specs.merge-equal [FullAttentionSpec]: expected the operation returns"
    )
    named = death["message"].partition("; also ended: ")[2].split(", ")
    assert named == [
        "specs.merge-equal [SlidingWindowSpec]",
        "specs.merge-unequal [FullAttentionSpec]",
        "specs.merge-unequal [SlidingWindowSpec]",
    ]
    assert {row["status"] for row in report["laws"] if row is not death} == {"incomplete"}


def test_known_death(kvref: Kvref, tmp_path: Path) -> None:
    """A death in the baseline is `known`. What it cut off is still incomplete."""
    target, file = "hostile_operations:merge_segfaults", tmp_path / "baseline.json"
    laws = ("--laws", "spec.merge-identity", "--laws", "target.answers")
    assert kvref.check(target, *laws, "--save-baseline", file).code == 1
    [entry] = json.loads(file.read_text())["known"]
    assert (entry["law"], entry["facet"]) == ("target.answers", "specs.merge of FullAttentionSpec")
    ran, report = kvref.report(target, *laws, "--baseline", str(file))
    assert ran.code == 3
    assert [(row["id"], row["status"]) for row in report["laws"]] == [
        ("spec.merge-identity", "incomplete"),
        ("target.answers", "known"),
    ]
