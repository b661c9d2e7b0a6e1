"""`kvref causes`, and the programs of known causes in a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import TARGETS, Kvref

LOSING = "hostile_operations:merge_loses_field"
MERGE = ("--laws", "spec.merge-identity", "--subjects", "FullAttentionSpec")


@pytest.fixture
def baseline(kvref: Kvref, tmp_path: Path) -> Path:
    """A baseline with one target's finding. Its entry names a known cause instead of a reason."""
    file = tmp_path / "toy.json"
    assert kvref.check(LOSING, *MERGE, "--save-baseline", file).code == 1
    document = json.loads(file.read_text())
    [entry] = document["known"]
    del entry["reason"]
    entry["cause"] = "mla-merge-drops-fields"
    file.write_text(json.dumps(document))
    return file


def test_a_release_need_not_be_installed(
    kvref: Kvref, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVREF_CACHE", str(tmp_path / "empty"))
    monkeypatch.delenv("KVREF_VLLM_PYTHON", raising=False)
    ran = kvref("causes", "vllm==0.32.0")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].startswith("wrong output  ")
    place = lines.index("wrong output  withdrawn-request-keeps-keys  6 rows")
    assert "  admission.withdrawn-uncached (6)" in lines[place:]
    assert "  upstream  https://github.com/vllm-project/vllm/issues/57580" in lines[place:]
    assert lines[-2].endswith("known causes of 154 findings; baseline vllm-0.32.0")
    assert lines[-1] == "next: kvref causes vllm==0.32.0 --report kvref-causes"
    assert len(kvref("causes", "vllm==0.32.0", "-v").out.splitlines()) > 154
    assert kvref("causes", "vllm==0.32.0", "--report", tmp_path / "out").code == 2


def test_each_cause_gets_a_program(kvref: Kvref, tmp_path: Path, baseline: Path) -> None:
    arguments = ("causes", LOSING, "--path", TARGETS, "--baseline", baseline, "--report", tmp_path / "out")
    ran = kvref(*arguments)
    assert ran.code == 0
    [program] = (tmp_path / "out").iterdir()
    assert program.name.startswith("mla-merge-drops-fields-")
    assert f"  program   {program}" in ran.out.splitlines()
    assert "1 known cause of 1 finding; baseline toy" in ran.out
    # Now the folder is that of an earlier run, which may be overwritten.
    assert kvref(*arguments).out == ran.out
    (tmp_path / "out" / "mine.txt").touch()
    refused = kvref(*arguments)
    assert refused.code == 2
    assert "it holds mine.txt" in refused.err


def test_a_program_that_shows_nothing_is_an_error(kvref: Kvref, tmp_path: Path, baseline: Path) -> None:
    ran = kvref("causes", "reference", "--baseline", baseline, "--report", tmp_path / "out")
    assert ran.code == 1
    assert "note: spec.merge-identity [FullAttentionSpec: " in ran.out
    assert "its program did not exit with 1 but: 0" in " ".join(ran.out.split())


def test_a_target_without_a_baseline(kvref: Kvref) -> None:
    ran = kvref("causes", "reference")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "no findings are known: kvref ships no baseline for this target",
        "next: kvref check reference",
    ]


def test_a_report_has_the_programs_of_known_causes(kvref: Kvref, tmp_path: Path, baseline: Path) -> None:
    ran = kvref.check(LOSING, *MERGE, "--baseline", baseline, "--report", tmp_path / "out")
    assert ran.code == 0
    assert ", with 1 known cause in " in ran.out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    [row] = [row for row in report["laws"] if row["status"] == "known"]
    assert row["cause"] == "mla-merge-drops-fields"
    assert (tmp_path / "out" / row["repro"]).is_file()
