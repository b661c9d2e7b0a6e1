"""Releases of stock vLLM side by side: what is known to differ between them is found by general laws.

`kvref hosts prepare` has prepared them all (`tox -e vllm`). Nothing is told about what is known.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from running import facets

from kvref_conformance.hosts import VERSIONS

LAWS = (
    "registry.order-free",
    "spec.merge-refuses-unequal",
    "plan.page-unified",
    "pool.bad-input-refused",
    "pool.reuse-order",
)
LATENT = "SlidingWindowMLASpec"


CHECKED = VERSIONS if "KVREF_EVERY_RELEASE" in os.environ else ("0.22.1", "0.25.1")
"""The oldest one and one from the middle take minutes; the newest is checked whole in test_stock.py."""


@pytest.fixture(scope="module", params=CHECKED)
def checked(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    laws = [argument for law in LAWS for argument in ("--laws", law)]
    command = [sys.executable, "-m", "kvref_conformance", "check", f"vllm=={request.param}", "--json"]
    ran = subprocess.run(
        [*command, "--baseline", "none", *laws], capture_output=True, text=True, timeout=1200, check=False
    )
    assert ran.stdout, ran.stderr
    return request.param, json.loads(ran.stdout)


def is_before(version: str, other: str) -> bool:
    return VERSIONS.index(version) < VERSIONS.index(other)


def test_it_is_the_release_that_was_asked_for(checked: tuple[str, dict[str, Any]]) -> None:
    version, report = checked
    assert report["target"]["version"] == version
    assert {row["status"] for row in report["laws"]} <= {"broken", "holds", "not-applicable"}


def test_the_order_of_registrations(checked: tuple[str, dict[str, Any]]) -> None:
    """Broken wherever there is a registry."""
    version, report = checked
    state = "not-applicable" if version == "0.22.1" else "broken"
    assert {row["status"] for row in report["laws"] if row["id"] == "registry.order-free"} == {state}


def test_unequal_specs_that_merge(checked: tuple[str, dict[str, Any]]) -> None:
    version, report = checked
    broken = facets(report, "spec.merge-refuses-unequal", "broken")
    assert {(LATENT, "head_size"), (LATENT, "block_size")} <= broken
    assert (("MLAAttentionSpec", "head_size") in broken) == is_before(version, "0.28.0")
    assert ("SlidingWindowSpec", "") in facets(report, "spec.merge-refuses-unequal", "holds")


def test_padded_states_beside_larger_pages(checked: tuple[str, dict[str, Any]]) -> None:
    version, report = checked
    broken = {subject for subject, _ in facets(report, "plan.page-unified", "broken")}
    assert ("recurrent states" in broken) == is_before(version, "0.26.0")
    if not is_before(version, "0.26.0"):
        assert broken == set()
    assert ("full attention", "") in facets(report, "plan.page-unified", "holds")


def test_numbers_and_references_that_make_no_sense(checked: tuple[str, dict[str, Any]]) -> None:
    broken = facets(checked[1], "pool.bad-input-refused", "broken")
    assert broken >= {("pool", "negative number"), ("pool", "freed too often")}


def test_blocks_are_reused_as_declared(checked: tuple[str, dict[str, Any]]) -> None:
    """Which is another order in older releases."""
    version, report = checked
    unkeyed = "last" if is_before(version, "0.25.1") else "first"
    assert report["target"]["capabilities"]["reuse_order"] == {"unkeyed": unkeyed, "keyed": "last"}
    assert facets(report, "pool.reuse-order", "holds") == {("pool", "")}
