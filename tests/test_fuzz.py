"""`kvref fuzz` keeps its findings however it ends, reports each once, and resumes."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import TARGETS, Kvref
from rich.console import Console

from kvref_conformance.documents.folder import ForeignDirectory
from kvref_conformance.documents.results import Status
from kvref_conformance.documents.schemas import validate
from kvref_conformance.laws import LAWS
from kvref_conformance.report.fuzzing import watching
from kvref_conformance.running.confirm import new_row
from kvref_conformance.running.fuzz_store import Finding, Store

LOSING = "hostile_operations:merge_loses_field"
MERGE = ("--laws", "spec.merge-identity", "--subjects", "SlidingWindow*")
FAULT = "kvref_conformance.targets.faults.shadow:salt_not_hashed"
SHADOW = ("--laws", "shadow.hit-content", "--subjects", "FullAttentionSpec")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "fuzz"


def state(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "fuzz.json").read_text())
    validate(document, "fuzz")
    return document


def traces(folder: Path) -> list[Path]:
    return sorted((folder / "traces").glob("*.json"))


def fuzz(kvref: Kvref, target: str, folder: Path, *arguments: object, seconds: int = 1) -> Any:
    places = ("--path", TARGETS, "--dir", folder, "--for", f"{seconds}s")
    return kvref("fuzz", target, *places, *arguments)


def test_help_and_usage(kvref: Kvref, tmp_path: Path) -> None:
    ran = kvref("fuzz", "--help")
    for word in ("kvref replay", "Run the same command again to", "130  interrupted"):
        assert word in ran.out
    assert kvref("fuzz", "--for", "soon").code == 2
    assert kvref("fuzz", "--for", "0s").code == 2
    (tmp_path / "mine").touch()
    ran = kvref("fuzz", "--dir", tmp_path, "--for", "1s")
    assert (ran.code, "it is not empty and has no fuzz.json" in ran.err) == (2, True)


def test_nothing_is_found_in_the_reference(kvref: Kvref, folder: Path) -> None:
    """The control. The second run goes on with new rounds."""
    ran = fuzz(kvref, "reference", folder, *MERGE)
    assert (ran.code, "no findings" in ran.out) == (0, True)
    first = state(folder)
    assert (first["findings"], first["counted"]["examples"] > 0) == ([], True)
    assert fuzz(kvref, "reference", folder, *MERGE).code == 0
    second = state(folder)
    assert second["round"] > first["round"] > 0
    assert second["counted"]["examples"] > first["counted"]["examples"]


def test_a_finding_is_kept_once_with_trace_and_program(kvref: Kvref, folder: Path) -> None:
    ran = fuzz(kvref, LOSING, folder, *MERGE, seconds=2)
    assert ran.code == 1
    found = state(folder)["findings"]
    assert found
    assert {each["status"] for each in found} == {"broken"}
    assert all(each["reduced"] for each in found)
    assert sorted(each["trace"] for each in found) == [f"traces/{path.name}" for path in traces(folder)]
    for each in found:
        assert f"{each['law']} [{each['subject']}: {each['facet']}]" in ran.out
        assert "reduced" not in json.loads((folder / each["trace"]).read_text())
        program = [sys.executable, folder / each["repro"]]
        ended = subprocess.run(program, env={"PYTHONPATH": str(TARGETS)}, capture_output=True)
        assert ended.returncode == 1
    again = fuzz(kvref, LOSING, folder, *MERGE)
    assert (again.code, state(folder)["findings"]) == (1, found)
    assert not list((folder / "examples").glob("*"))
    # If its trace is removed, the fuzz finds the failure again.
    (folder / found[0]["trace"]).unlink()
    fuzz(kvref, LOSING, folder, *MERGE)
    key = ("law", "subject", "facet", "status")
    assert {tuple(each[k] for k in key) for each in state(folder)["findings"]} == {
        tuple(each[k] for k in key) for each in found
    }


def test_what_is_known_is_not_told(kvref: Kvref, folder: Path, tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    assert kvref.check(LOSING, *MERGE, "--save-baseline", baseline).code == 1
    assert fuzz(kvref, LOSING, folder, *MERGE, "--baseline", baseline).code == 0
    assert not traces(folder)


def test_a_death_is_a_finding(kvref: Kvref, folder: Path) -> None:
    fuzz(kvref, "hostile_operations:merge_dies", folder, *MERGE, seconds=3)
    found = next(each for each in state(folder)["findings"] if "SlidingWindowSpec" in each["facet"])
    assert (found["law"], found["facet"]) == ("target.answers", "specs.merge of SlidingWindowSpec")
    assert (found["status"], found["reduced"]) == ("broken", True)


def test_what_is_found_by_who_dies_is_confirmed_as_it_is(kvref: Kvref, folder: Path) -> None:
    ran = fuzz(kvref, "hostile_operations:merge_loses_field_then_dies", folder, *MERGE, seconds=3)
    assert "broken, not reduced: spec.merge-identity" in ran.err
    found = [each for each in state(folder)["findings"] if each["law"] == "spec.merge-identity"]
    assert {(each["status"], each["reduced"]) for each in found} == {("broken", False)}
    assert all(json.loads((folder / each["trace"]).read_text())["reduced"] is False for each in found)
    assert all((folder / each["repro"]).exists() for each in found)


def started(kvref: Kvref, folder: Path) -> subprocess.Popen[str]:
    """Starts a fuzz of a fault. Returns when the first finding is saved."""
    process = kvref.start("fuzz", FAULT, *SHADOW, "--for", "10m", "-n", "2", "--dir", folder)
    deadline = time.monotonic() + 120
    while not traces(folder):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def test_killed_at_once_it_has_lost_nothing_and_goes_on(kvref: Kvref, folder: Path) -> None:
    process = started(kvref, folder)
    process.kill()
    process.communicate()
    kvref.check_nothing_left()
    before = traces(folder)
    for path in before:
        validate(json.loads(path.read_text()), "trace")
        assert kvref("replay", path, FAULT).code == 1
    interrupted = state(folder)["round"]
    # A slow machine may need more than one run to reduce the findings; the same command resumes.
    for _ in range(4):
        assert fuzz(kvref, FAULT, folder, *SHADOW, seconds=12).code == 1
        after = state(folder)
        if all(each["reduced"] for each in after["findings"]):
            break
    assert after["round"] >= interrupted
    found = {(each["law"], each["subject"], each["facet"]): each for each in after["findings"]}
    assert len(found) == len(after["findings"])
    for path in before:
        # Meanwhile the fuzz has reduced this finding, and replaced its file.
        assert not path.exists()
    assert {each["status"] for each in found.values()} == {"broken"}


def test_interrupted_it_ends_with_a_summary(kvref: Kvref, folder: Path) -> None:
    process = started(kvref, folder)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert str(folder) in out
    assert "shadow.hit-content" in out
    assert state(folder)["findings"]
    kvref.check_nothing_left()


def test_a_folder_belongs_to_one_target_and_one_process(folder: Path) -> None:
    target = {"name": "vllm", "version": "0.32.0"}
    store = Store(folder, target, 0)
    with pytest.raises(ForeignDirectory, match="another fuzz is using it"):
        Store(folder, target, 0)
    store.close()
    with pytest.raises(ForeignDirectory, match=r"it belongs to a fuzz of vllm 0\.32\.0"):
        Store(folder, {**target, "version": "0.33.0"}, 0)


def test_a_damaged_trace_is_refused_and_stays(folder: Path) -> None:
    store = Store(folder, {"name": "vllm", "version": "0.32.0"}, 0)
    row = new_row(LAWS["shadow.reads-own"], "FullAttentionSpec", Status.INCOMPLETE, "")
    row.trace = {"runs": [{"flags": [], "operations": [{"op": "cache.new_step", "args": {}}]}]}
    row.trace |= {"schema": "kvref.trace/1", "law": row.law, "subject": row.subject, "facet": row.facet}
    row.trace["target"] = store.target
    store.save(Finding(row, "0/0", "shadow.machine [FullAttentionSpec]"))
    store.close()
    [trace] = traces(folder)
    intact = trace.read_bytes()
    trace.write_bytes(intact[:20])
    with pytest.raises(ForeignDirectory, match=rf"{trace.name} is damaged"):
        Store(folder, store.target, 0)
    assert trace.read_bytes() == intact[:20]
    trace.write_bytes(intact)
    again = Store(folder, store.target, 0)
    assert len(again.findings) == 1
    again.close()


def test_another_seed_is_another_round(folder: Path) -> None:
    store = Store(folder, {"name": "vllm", "version": "0.32.0"}, 0)
    store.done.add("spec.pairs [MLAAttentionSpec]")
    store.save_state()
    store.close()
    again = Store(folder, store.target, 0)
    assert (again.round, again.done) == (0, store.done)
    again.close()
    other = Store(folder, store.target, 1)
    assert (other.round, other.done) == (1, set())
    other.close()


def test_what_a_terminal_shows(folder: Path) -> None:
    store = Store(folder, {"name": "vllm", "version": "0.32.0"}, 0)
    store.tally.behaviours["hits"] = 1234
    store.tally.driven_steps, store.tally.driven_seconds = 90_000, 2.0
    told: Any = SimpleNamespace(store=store, tally=store.tally, elapsed=61.0, seconds=600.0, jobs=2)
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, height=40)
    with watching(told, console) as view:
        view.tick()
    shown = file.getvalue()
    for words in ("vllm 0.32.0: 0:01:01 gone, 0:08:59 left; round 0", "45,000", "1,234", "0 findings"):
        assert words in shown
    store.close()
