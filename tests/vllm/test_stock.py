"""Stock vLLM 0.32.0: kvref finds the known deviations, and nothing else.

These tests run by name. KVREF_VLLM_PYTHON names the interpreter of an environment with vLLM (`tox -e vllm`).
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
"""Laws that run without the baseline, which shows that they find its entries by themselves."""


@pytest.fixture(scope="module")
def unknowing(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any], Path]:
    """A run without the baseline."""
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
    # If a spec class is registered before anything else, the built-in classes stay unregistered.
    assert facets(report, "registry.order-free", "broken") == {("registry", "unknown")}
    # Windowed MLA specs merge although their head sizes or block sizes differ. Other classes do not.
    unequal = facets(report, "spec.merge-refuses-unequal", "broken")
    assert {("SlidingWindowMLASpec", "head_size"), ("SlidingWindowMLASpec", "block_size")} <= unequal
    for clean in ("FullAttentionSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec", "MambaSpec"):
        assert (clean, "") in facets(report, "spec.merge-refuses-unequal", "holds")
    # If a stock layer is listed first, a layer of a subclass joins its group.
    assert ("FullAttentionSpec", "VendorSpec") in facets(report, "spec.merge-keeps-class", "broken")
    # One manager lacks a keyword that every manager is called with.
    assert facets(report, "registry.constructible", "broken") == {("SinkFullAttentionSpec", "TypeError")}
    # The registry refuses with asserts.
    assert facets(report, "registry.refusals-survive-O", "broken") >= {("registry", "conflict")}


def test_the_rest_holds(unknowing: tuple[int, dict[str, Any], Path]) -> None:
    """The control: other laws hold on vLLM, so the broken ones are not broken by a mistake of kvref."""
    report = unknowing[1]
    for law in ("registry.nearest-base", "registry.conflict-refused"):
        assert {(row["status"], row["examples"] > 0) for row in rows(report, law)} == {("holds", True)}
    states = {row["status"] for row in report["laws"]}
    assert states - {"not-applicable"} == {"broken", "holds"}


def test_programs_show_it_with_vllm_alone(unknowing: tuple[int, dict[str, Any], Path]) -> None:
    """Run one program of each broken law in a new interpreter. The check ran them in forks of its host."""
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
    """So the programs cannot use the suite."""
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
