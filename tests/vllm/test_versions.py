"""Releases of stock vLLM side by side. General laws find the known differences between them.

`kvref hosts prepare` has prepared the releases (`tox -e vllm`). They run without a baseline.
"""

import io
import os
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import pytest
from rich.console import Console
from running import facets, rows

from kvref_conformance.documents.baseline import NO_BASELINE
from kvref_conformance.processes.releases import VERSIONS
from kvref_conformance.report.files import report_document
from kvref_conformance.report.progress import progress
from kvref_conformance.running.checker import Options
from kvref_conformance.running.loading import loaded, prepare

LATENT = "SlidingWindowMLASpec"
FULL = "FullAttentionSpec"
EVERY = "KVREF_EVERY_RELEASE" in os.environ
CHECKED = VERSIONS if EVERY else ("0.22.1", "0.25.1", "0.32.0")
"""The oldest release, one from the middle and the newest take minutes. All of them take more than an hour."""

SEEDS = range(10) if EVERY else range(1)


@dataclass(frozen=True)
class Row:
    """A deviation that the releases `bad` have, and the releases `clean` do not have."""

    law: str
    subject: str
    """A glob. At least one of the subjects that match must show the deviation."""
    facet: str
    bad: tuple[str, ...]
    clean: tuple[str, ...]
    control: str = ""
    """A subject for which the law holds in each release that has this subject."""
    depth: str = "quick"
    """The depth at which every seed shows the deviation."""


WITH_REGISTRY = tuple(version for version in VERSIONS if version != "0.22.1")
UP_TO_0_25 = ("0.22.1", "0.23.0", "0.25.1")
FROM_0_26 = tuple(version for version in VERSIONS if version not in UP_TO_0_25)

WITH_LAYOUTS = ("0.30.0", "0.32.0")
"""Releases with layouts that can put heads before blocks."""

ROWS = [
    Row("registry.order-free", "registry", "unknown", WITH_REGISTRY, ()),
    Row(
        "registry.constructible",
        "SinkFullAttentionSpec",
        "TypeError",
        WITH_REGISTRY,
        (),
        control=FULL,
    ),
    Row("spec.merge-refuses-unequal", LATENT, "head_size", VERSIONS, (), control="SlidingWindowSpec"),
    Row("pool.bad-input-refused", "pool", "negative number", VERSIONS, ()),
    Row("manager.window-kept", "SlidingWindow*", "freed, under way", UP_TO_0_25, FROM_0_26, FULL),
    Row(
        "plan.page-unified",
        "recurrent states",
        "AssertionError, FullAttentionSpec and MambaSpec",
        UP_TO_0_25,
        FROM_0_26,
        control="full attention",
    ),
    Row("sharing.chain-resolves", "chains", "KeyError", VERSIONS, ()),
    Row(
        "canonical.covers-once",
        "attention",
        "missing",
        WITH_LAYOUTS,
        tuple(version for version in VERSIONS if version not in WITH_LAYOUTS),
        control="latent attention",
    ),
    Row(
        "shadow.reads-own",
        "SlidingWindowSpec",
        "SlidingWindowSpec, freed",
        UP_TO_0_25,
        FROM_0_26,
        control=FULL,
        depth="standard",
    ),
    Row("admission.withdrawn-uncached", FULL, "", VERSIONS, ()),
    Row("manager.need-shrinks", "MambaSpec", "raised", ("0.22.1",), WITH_REGISTRY, FULL, "standard"),
]

LAWS = {"pool.reuse-order": "quick", **{row.law: row.depth for row in ROWS}}
"""The laws to check, each with its depth."""

SUBJECTS = tuple(sorted({subject for row in ROWS for subject in (row.subject, row.control) if subject}))
"""The subjects that run with every seed. The first seed runs all subjects."""


@cache
def reports_of(version: str) -> list[dict[str, Any]]:
    """One report for each seed, all from one host that has loaded the release."""
    worker, _ = prepare(f"vllm=={version}", None, python=None, paths=(), stubs=())
    reports = []
    with progress(Console(file=io.StringIO())) as watcher, loaded(worker, tuple(LAWS), watcher) as one:
        for seed in SEEDS:
            options = Options(seed=seed, jobs=os.cpu_count() or 1, subjects=SUBJECTS if seed else ())
            found = [
                report_document(one.check(replace(options, laws=laws, depth=depth), NO_BASELINE, watcher))
                for depth in sorted({*LAWS.values()})
                if (laws := tuple(law for law in LAWS if LAWS[law] == depth))
            ]
            reports.append({**found[0], "laws": [row for report in found for row in report["laws"]]})
    return reports


def report_of(version: str, seed: int) -> dict[str, Any]:
    return reports_of(version)[seed]


@pytest.fixture(scope="module", params=CHECKED)
def checked(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return request.param, report_of(request.param, 0)


CASES = [
    pytest.param(version, row, id=f"{version}-{row.law}-{row.subject}")
    for version in CHECKED
    for row in ROWS
    # In some releases the law has nothing to judge.
    if version in (*row.bad, *row.clean)
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("version", "row"), CASES)
def test_what_is_known_to_differ(version: str, row: Row, seed: int) -> None:
    """Bad releases break the law. Clean ones do not, although the law judged them. The control holds."""
    report = report_of(version, seed)
    broken = {
        subject
        for subject, facet in facets(report, row.law, "broken")
        if fnmatchcase(subject, row.subject) and facet == row.facet
    }
    assert bool(broken) == (version in row.bad)
    judged = {each["subject"]: each["examples"] for each in rows(report, row.law)}
    assert any(examples for subject, examples in judged.items() if fnmatchcase(subject, row.subject))
    if row.control:
        assert (row.control, "") in facets(report, row.law, "holds")
        assert judged[row.control] > 0


def is_before(version: str, other: str) -> bool:
    return VERSIONS.index(version) < VERSIONS.index(other)


def test_it_is_the_release_that_was_asked_for(checked: tuple[str, dict[str, Any]]) -> None:
    version, report = checked
    assert report["target"]["version"] == version
    assert {row["status"] for row in report["laws"]} <= {"broken", "holds", "not-applicable"}


def test_the_order_of_registrations(checked: tuple[str, dict[str, Any]]) -> None:
    """The law is broken in each release that has a registry."""
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
    """Older releases declare another order."""
    version, report = checked
    unkeyed = "last" if is_before(version, "0.25.1") else "first"
    assert report["target"]["capabilities"]["reuse_order"] == {"unkeyed": unkeyed, "keyed": "last"}
    assert facets(report, "pool.reuse-order", "holds") == {("pool", "")}
