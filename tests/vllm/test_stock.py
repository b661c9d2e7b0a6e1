"""Stock vLLM 0.32.0: what is known of it is found, and nothing else.

Runs by name, with KVREF_VLLM_PYTHON naming the interpreter of an environment with vLLM (`tox -e vllm`).
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from running import PYTHON, facets, kvref, rows

OF_NO_KIND = (
    "kvref does not know the kind of these classes and judges them by the laws for any kind: HiSparse"
)


UNAIDED = (
    "registry.nearest-base",
    "registry.order-free",
    "registry.conflict-refused",
    "registry.refusals-survive-O",
    "registry.constructible",
    "spec.merge-*",
)
"""Laws that are run without the baseline, to see that they find by themselves what that lists."""


@pytest.fixture(scope="module")
def unknowing(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any], Path]:
    """A run without a baseline."""
    folder = tmp_path_factory.mktemp("stock") / "report"
    laws = [argument for law in UNAIDED for argument in ("--laws", law)]
    code, report = kvref("vllm", "--baseline", "none", "--report", str(folder), *laws)
    return code, report, folder


def test_it_is_the_version_that_is_known(unknowing: tuple[int, dict[str, Any], Path]) -> None:
    assert unknowing[1]["target"]["version"] == "0.32.0"


def test_known_deviations_are_found_by_general_laws(unknowing: tuple[int, dict[str, Any], Path]) -> None:
    code, report, _ = unknowing
    assert code == 1
    assert report["verdict"] == "not conformant"
    # A spec registered before anything else leaves the built-ins out.
    assert facets(report, "registry.order-free", "broken") == {("registry", "unknown")}
    # Windowed MLA specs merge whatever their head sizes and block sizes; other classes do not.
    unequal = facets(report, "spec.merge-refuses-unequal", "broken")
    assert {("SlidingWindowMLASpec", "head_size"), ("SlidingWindowMLASpec", "block_size")} <= unequal
    for clean in ("FullAttentionSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec", "MambaSpec"):
        assert (clean, "") in facets(report, "spec.merge-refuses-unequal", "holds")
    # A stock layer takes a subclass's layer into its group, if it is listed first.
    assert ("FullAttentionSpec", "VendorSpec") in facets(report, "spec.merge-keeps-class", "broken")
    # One manager lacks a keyword that all are made with.
    assert facets(report, "registry.constructible", "broken") == {("SinkFullAttentionSpec", "TypeError")}
    # Refusals of the registry are asserts.
    assert facets(report, "registry.refusals-survive-O", "broken") >= {("registry", "conflict")}


def test_the_rest_holds(unknowing: tuple[int, dict[str, Any], Path]) -> None:
    """The control: laws that vLLM keeps are seen to hold, so what breaks does not break for our own sake."""
    report = unknowing[1]
    for law in ("registry.nearest-base", "registry.conflict-refused"):
        assert {(row["status"], row["examples"] > 0) for row in rows(report, law)} == {("holds", True)}
    states = {row["status"] for row in report["laws"]}
    assert states - {"not-applicable"} == {"broken", "holds"}


def test_programs_show_it_with_vllm_alone(unknowing: tuple[int, dict[str, Any], Path]) -> None:
    """One of each law; the check has run them all, in processes in which kvref cannot be imported."""
    _, report, folder = unknowing
    broken = {row["id"]: folder / row["repro"] for row in report["laws"] if row["status"] == "broken"}
    programs = list(broken.values())
    assert programs
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    for program in programs:
        ran = subprocess.run(
            [PYTHON, "-I", str(program)], capture_output=True, text=True, env=environment, check=False
        )
        assert ran.returncode == 1, f"{program.name}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}"


def test_the_environment_has_no_kvref() -> None:
    """What the programs are run with cannot lean on the suite."""
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('kvref_conformance') is not None)"
    assert subprocess.run([PYTHON, "-I", "-c", find], check=False).returncode == 0


def test_the_shipped_baseline_lists_all_of_it() -> None:
    code, report = kvref("vllm")
    assert code == 0
    assert report["baseline"] == "vllm-0.32.0"
    assert [note for note in report["notes"] if not note.startswith(OF_NO_KIND)] == []
    assert {row["status"] for row in report["laws"]} == {"known", "holds", "not-applicable"}
    assert all(row["message"] for row in report["laws"] if row["status"] == "known")


def test_the_finding_that_the_front_pages_show() -> None:
    docs = Path(__file__).parents[2] / "docs"
    ran = subprocess.run([PYTHON, docs / "finding.py"], capture_output=True, text=True, check=True)
    assert ran.stdout in (docs / "index.md").read_text(encoding="utf-8")
    assert ran.stdout.startswith("prefix hit of 2 tokens")
