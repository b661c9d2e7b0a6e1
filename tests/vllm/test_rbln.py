"""vllm-rbln 0.12.0, a vendor's plugin, on the vLLM that it was made for and on a later one.

KVREF_RBLN and KVREF_VLLM_030 name folders that `.ci/vllm-env --beside` made (`tox -e vllm`).
"""

import os
from pathlib import Path
from typing import Any

import pytest
from running import facets, kvref, rows

PROFILE = Path(__file__).parents[2] / "docs" / "profiles" / "vllm-rbln.toml"
RBLN = ("--profile", str(PROFILE), "--path", os.environ["KVREF_RBLN"])
SPEC, MANAGER = "RBLNSlidingWindowSpec", "RBLNSlidingWindowManager"
HOME = (
    "spec.*",
    "drift.*",
    "registry.order-free",
    "registry.hook-once",
    "registry.stock-untouched",
    "registry.constructible",
)
"""Laws that take a minute or two. The others are about the registry, which the plugin does not change."""


def laws(*globs: str) -> list[str]:
    return [argument for glob in globs for argument in ("--laws", glob)]


@pytest.fixture(scope="module")
def at_home() -> tuple[int, dict[str, Any]]:
    """The plugin on vLLM 0.30.0, for which it was released."""
    return kvref("vllm:rbln", *RBLN, *laws(*HOME), "--path", os.environ["KVREF_VLLM_030"])


@pytest.fixture(scope="module")
def later() -> tuple[int, dict[str, Any]]:
    """The plugin on vLLM 0.32.0."""
    return kvref("vllm:rbln", *RBLN, *laws("drift.*", "spec.merge-*"))


def test_it_fits_its_own_vllm(at_home: tuple[int, dict[str, Any]]) -> None:
    code, report = at_home
    assert (report["target"]["version"], report["target"]["plugin"]) == ("0.30.0", "rbln (vllm_rbln 0.12.0)")
    assert [row for row in report["laws"] if row["status"] in ("broken", "unconfirmed", "incomplete")] == []
    assert (code, report["verdict"]) == (0, "conformant")


def test_its_spec_and_manager_are_judged(at_home: tuple[int, dict[str, Any]]) -> None:
    """vLLM's own classes are not judged here. They are judged in a check without the plugin."""
    report = at_home[1]
    for law in (
        "spec.merge-identity",
        "spec.page-scaling",
        "spec.memory-window-flat",
        "drift.hook-reached",
        "registry.constructible",
    ):
        assert [(row["subject"], row["status"]) for row in rows(report, law)] == [(SPEC, "holds")], law
        assert all(row["examples"] for row in rows(report, law))
    assert (MANAGER, "") in facets(report, "drift.signature", "holds")


def test_what_vllm_breaks_is_not_held_against_it(at_home: tuple[int, dict[str, Any]]) -> None:
    assert {row["id"] for row in at_home[1]["laws"] if row["status"] in ("inherited", "known")} >= {
        "registry.order-free",
        "spec.illegal-refused",
    }


def test_a_keyword_that_it_lacks_is_found(later: tuple[int, dict[str, Any]]) -> None:
    """In 0.32.0, the coordinator calls two methods with a keyword that the plugin's manager does not accept.

    Nothing else breaks.
    """
    code, report = later
    assert (code, report["target"]["version"]) == (1, "0.32.0")
    broken = {
        (row["id"], row["subject"], row["facet"]) for row in report["laws"] if row["status"] == "broken"
    }
    assert broken == {
        ("drift.signature", MANAGER, "get_num_blocks_to_allocate"),
        ("drift.signature", MANAGER, "allocate_external_computed_blocks"),
    }
    assert [row for row in report["laws"] if row["status"] in ("unconfirmed", "incomplete")] == []
