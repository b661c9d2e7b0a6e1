from __future__ import annotations

import copy
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator

from kvref_conformance import proofs
from kvref_conformance.documents.diff import Kind, compare, document as diff_document
from kvref_conformance.documents.results import Status, Verdict
from kvref_conformance.documents.schemas import (
    BASELINE,
    BENCH,
    DIFF,
    FAULTS,
    FUZZ,
    PROVE,
    REPORT,
    TRACE,
    InvalidDocument,
    Name,
    schema,
    validate,
)
from kvref_conformance.laws.core import Level

NAMES: tuple[Name, ...] = get_args(Name)
RUNS = [{"flags": ["-O"], "operations": [{"op": "specs.build", "args": {"spec": {}}}]}]


def trace() -> dict[str, Any]:
    return {
        "schema": "kvref.trace/1",
        "law": "spec.merge-identity",
        "subject": "MLAAttentionSpec",
        "facet": "alignment",
        "target": {"name": "vllm", "version": "0.32.0"},
        "runs": copy.deepcopy(RUNS),
    }


def baseline() -> dict[str, Any]:
    known = {"law": "spec.merge-identity", "subject": "MLAAttentionSpec", "facet": "alignment"}
    return {
        "schema": "kvref.baseline/1",
        "target": "vllm",
        "version": "0.32.0",
        "known": [
            {
                **known,
                "reason": "merge drops it",
                "link": "https://example.org/1",
                "trace": {"runs": copy.deepcopy(RUNS)},
            },
            {
                **known,
                "cause": "merge-drops",
                "reason": "merge drops it",
                "trace": {"runs": copy.deepcopy(RUNS)},
            },
        ],
    }


def report() -> dict[str, Any]:
    return {
        "schema": "kvref.report/1",
        "target": {"name": "vllm", "version": "0.32.0", "plugin": None, "capabilities": {"padding": True}},
        "verdict": "not conformant",
        "seed": 0,
        "depth": "quick",
        "strict": False,
        "baseline": "vllm-0.32.0",
        "profile": "kvref.toml",
        "environment": {"python": "3.11", "torch": "2.13.0"},
        "elapsed_seconds": 41.2,
        "totals": {"broken": 1},
        "notes": [],
        "laws": [
            {
                "id": "spec.merge-identity",
                "level": "safety",
                "subject": "MLAAttentionSpec",
                "facet": "alignment",
                "status": "broken",
                "examples": 37,
                "steps": 0,
                "seconds": 0.4,
                "exploring_seconds": 0.3,
                "driven_steps": 0,
                "driven_seconds": 0.0,
                "message": "",
                "cause": "merge-drops",
                "expected": "merge([s]) == s",
                "observed": "alignment is None",
                "trace": "traces/spec.merge-identity-1a2b3c4d.json",
                "repro": "repro/spec.merge-identity-1a2b3c4d.py",
            }
        ],
        "causes": [
            {
                "id": "merge-drops",
                "title": "merge drops it.",
                "severity": "wrong output",
                "detail": "",
                "link": None,
                "rows": 1,
            }
        ],
        "coverage": {
            "modules": ["vllm.v1.core"],
            "without": ["vllm.v1.core.sched"],
            "lines": 4,
            "reached": 2,
            "files": [
                {
                    "name": "vllm/v1/core/block_pool.py",
                    "lines": 4,
                    "reached": 2,
                    "unreached": [[7, 9]],
                    "unreached_branches": [[4, -2]],
                    "laws": {"pool.partition": [[3, 4]]},
                }
            ],
            "not_loaded": [],
            "unread": [],
            "ended_early": ["pool.machine [pool]"],
        },
    }


def profile() -> dict[str, Any]:
    return {
        "target": "vllm:rbln",
        "stubs": ["rebel"],
        "path": ["build"],
        "capabilities": {"block_sizes": [16]},
        "known": [
            {
                "law": "spec.merge-identity",
                "subject": "MLAAttentionSpec",
                "facet": "alignment",
                "issue": "https://example.org/1",
                "until": "2026-12-31",
                "reason": "merge drops it",
            }
        ],
        "gap": [{"law": "spec.*", "subject": "Dummy*", "reason": "holds nothing"}],
        "strategies": {"VendorSpec": {"lanes": [4, 8]}},
    }


def fuzz() -> dict[str, Any]:
    return {
        "schema": "kvref.fuzz/1",
        "target": {"name": "vllm", "version": "0.32.0"},
        "seed": 0,
        "round": 3,
        "done": ["shadow.machine [MambaSpec]"],
        "seconds": 41.2,
        "counted": {
            "examples": 37,
            "steps": 400,
            "seconds": 0.3,
            "driven_examples": 7,
            "driven_steps": 4000,
            "driven_seconds": 0.2,
            "behaviours": {"hits": 12},
        },
        "findings": [
            {
                "law": "spec.merge-identity",
                "subject": "MLAAttentionSpec",
                "facet": "alignment",
                "status": "unfinished",
                "reduced": False,
                "seed": "0/3",
                "unit": "spec.pairs [MLAAttentionSpec]",
                "message": "",
                "expected": "merge([s]) == s",
                "observed": "alignment is None",
                "trace": "traces/spec.merge-identity-1a2b3c4d.json",
                "repro": None,
            }
        ],
    }


def faults() -> dict[str, Any]:
    told = {"caught_by": ["pool.reset"], "subject": "pool", "seconds": 0.2, "examples": 24, "open": []}
    return {
        "schema": "kvref.faults/1",
        "seed": 0,
        "control": {"name": "reference", **told, "caught_by": [], "subject": ""},
        "faults": [{"name": "pool:one", "area": "pool", "law": "pool.reset", "source": "", **told}],
    }


def prove() -> dict[str, Any]:
    contract = {"claim": "A page is what it holds.", "seconds": 0.4, "counterexample": None}
    return {
        "schema": "kvref.prove/1",
        "contracts": [
            {**contract, "name": "pages.pages_are_aligned", "verdict": "proved"},
            {
                **contract,
                "name": "pages.states_do_not_grow",
                "verdict": "counterexample",
                "counterexample": {"block_size": 131_071, "wide": True},
            },
        ],
    }


def diff() -> dict[str, Any]:
    old = report()
    old["laws"][0]["status"] = "holds"
    return diff_document(compare(old, {**report(), "depth": "standard"}))


def bench() -> dict[str, Any]:
    target = {"name": "vllm", "version": "0.32.0", "python": "3.11", "torch": "2.13.0"}
    timed = {"median_seconds": 2e-6, "iqr_seconds": 0.0}
    return {
        "schema": "kvref.bench/1",
        "environment": {
            "targets": {"vllm==0.32.0": target, "reference": {**target, "name": "reference"}},
            "cpu": "chip",
            "cpus": 2,
            "load": 0.1,
            "device": "cpu",
            "rounds": 7,
            "way": "bench",
        },
        "benchmarks": [
            {
                "name": "pool.take-free",
                "params": {"state": "fresh", "events": False, "batch": 1, "num_blocks": 1000},
                "targets": {"vllm==0.32.0": timed, "reference": timed},
                "ratio": 1.0,
            },
            {"name": "suite.machine", "params": {}, "targets": {"reference": timed}, "ratio": None},
        ],
    }


DOCUMENTS = {
    "trace": trace,
    "baseline": baseline,
    "report": report,
    "profile": profile,
    "fuzz": fuzz,
    "faults": faults,
    "prove": prove,
    "diff": diff,
    "bench": bench,
}


def test_every_shipped_schema_is_a_schema_and_has_a_document_here() -> None:
    assert set(NAMES) == set(DOCUMENTS)
    versions: dict[Name, str] = {
        "report": REPORT,
        "trace": TRACE,
        "baseline": BASELINE,
        "fuzz": FUZZ,
        "faults": FAULTS,
        "prove": PROVE,
        "diff": DIFF,
        "bench": BENCH,
    }
    for name, versioned in versions.items():
        document = schema(name)
        Draft202012Validator.check_schema(document)
        assert document["properties"]["schema"] == {"const": versioned}


@pytest.mark.parametrize("name", NAMES)
def test_a_good_document_is_accepted(name: Name) -> None:
    validate(DOCUMENTS[name](), name)


@pytest.mark.parametrize("name", NAMES)
def test_every_required_key_is_missed_and_every_unknown_key_refused(name: Name) -> None:
    good = DOCUMENTS[name]()
    for key in schema(name)["required"]:
        with pytest.raises(InvalidDocument, match=f"'{key}' is a required property"):
            validate({k: v for k, v in good.items() if k != key}, name)
    with pytest.raises(InvalidDocument, match="'extra' was unexpected"):
        validate({**good, "extra": 1}, name)


def test_a_report_of_a_check_that_did_not_measure_has_no_coverage() -> None:
    validate({key: value for key, value in report().items() if key != "coverage"}, "report")


def test_the_vocabulary_is_that_of_results() -> None:
    document = schema("report")
    row = document["$defs"]["row"]["properties"]
    assert document["$defs"]["status"]["enum"] == [status.value for status in Status]
    assert row["level"]["enum"] == [level.value for level in Level]
    assert document["properties"]["verdict"]["enum"] == [verdict.value for verdict in Verdict]
    contract = schema("prove")["$defs"]["contract"]["properties"]
    assert contract["verdict"]["enum"] == [verdict.value for verdict in proofs.Verdict]
    of_diff = schema("diff")["$defs"]
    assert of_diff["status"] == document["$defs"]["status"]
    assert of_diff["report"]["properties"]["verdict"] == document["properties"]["verdict"]
    assert of_diff["change"]["properties"]["kind"]["enum"] == [kind.value for kind in Kind]


def test_traces_and_baselines_agree_on_runs() -> None:
    """Both schemas contain the definition, because each must be usable alone."""
    assert schema("trace")["$defs"] == schema("baseline")["$defs"]


@pytest.mark.parametrize(
    ("name", "place", "value", "path"),
    [
        ("trace", ("runs", 0, "flags", 0), "-c", "$.runs[0].flags[0]"),
        ("trace", ("runs", 0, "flags"), "-O", "$.runs[0].flags"),
        ("trace", ("runs", 0, "operations", 0, "op"), "build", "$.runs[0].operations[0].op"),
        ("trace", ("runs", 0, "operations", 0, "op"), "specs.__init__", "$.runs[0].operations[0].op"),
        ("trace", ("runs", 0, "operations", 0, "args"), [], "$.runs[0].operations[0].args"),
        ("trace", ("runs", 0, "operations", 0, "why"), "", "$.runs[0].operations[0]"),
        ("trace", ("runs",), [], "$.runs"),
        ("trace", ("schema",), "kvref.trace/2", "$.schema"),
        ("trace", ("target", "version"), 32, "$.target.version"),
        ("baseline", ("known", 1, "trace", "law"), "x", "$.known[1].trace"),
        ("baseline", ("known", 1, "reason"), "", "$.known[1].reason"),
        ("baseline", ("known", 1, "cause"), "No Id", "$.known[1].cause"),
        ("report", ("causes", 0, "severity"), "bad", "$.causes[0].severity"),
        ("baseline", ("known", 0, "link"), "javascript:alert(1)", "$.known[0].link"),
        ("baseline", ("known", 0, "trace", "runs", 0, "flags"), ["-m"], "$.known[0].trace.runs[0].flags[0]"),
        ("profile", ("known", 0, "until"), "soon", "$.known[0].until"),
        ("profile", ("known", 0, "issue"), "javascript:alert(1)", "$.known[0].issue"),
        ("profile", ("gap", 0, "subject"), "", "$.gap[0].subject"),
        ("profile", ("stubs", 0), "a-b", "$.stubs[0]"),
        ("profile", ("strategies", "VendorSpec", "lanes"), 4, "$.strategies.VendorSpec.lanes"),
        ("prove", ("contracts", 0, "verdict"), "counterexample", "$.contracts[0].counterexample"),
        ("prove", ("contracts", 1, "verdict"), "proved", "$.contracts[1].counterexample"),
        ("prove", ("contracts", 1, "counterexample", "wide"), "yes", "$.contracts[1].counterexample.wide"),
        ("report", ("laws", 0, "status"), "passed", "$.laws[0].status"),
        ("report", ("laws", 0, "trace"), "traces/../../x.json", "$.laws[0].trace"),
        ("report", ("laws", 0, "repro"), "/tmp/x.py", "$.laws[0].repro"),
        ("report", ("laws", 0, "seconds"), -1, "$.laws[0].seconds"),
        ("report", ("totals", "passed"), 1, "$.totals"),
        ("report", ("verdict",), "fine", "$.verdict"),
        ("report", ("coverage", "files", 0, "unreached"), [[7]], "$.coverage.files[0].unreached[0]"),
        ("report", ("coverage", "files", 0, "laws", "x"), ["3-4"], "$.coverage.files[0].laws.x[0]"),
        ("report", ("coverage", "percent"), 50, "$.coverage"),
        ("diff", ("changes", 0, "new"), "passed", "$.changes[0].new"),
        ("diff", ("changes", 0, "kind"), "worse", "$.changes[0].kind"),
        ("diff", ("old", "laws"), [], "$.old"),
        ("bench", ("benchmarks", 0, "ratio"), 0, "$.benchmarks[0].ratio"),
        ("bench", ("benchmarks", 0, "spread"), [1, 2], "$.benchmarks[0]"),
        ("bench", ("environment", "rounds"), 3, "$.environment.rounds"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    name: Name, place: tuple[str | int, ...], value: object, path: str
) -> None:
    document = DOCUMENTS[name]()
    parent: Any = document
    for step in place[:-1]:
        parent = parent[step]
    parent[place[-1]] = value
    with pytest.raises(InvalidDocument) as caught:
        validate(document, name)
    assert (caught.value.name, caught.value.path) == (name, path)
    assert str(caught.value) == f"invalid {name} at {path}: {caught.value.problem}"


@pytest.mark.parametrize("document", [None, [], "kvref.trace/1", 3])
def test_something_else_altogether_is_refused(document: object) -> None:
    with pytest.raises(InvalidDocument, match=r"invalid trace at \$: "):
        validate(document, "trace")


def test_the_error_stays_short_however_long_the_document() -> None:
    with pytest.raises(InvalidDocument) as caught:
        validate({**trace(), "runs": "x" * 1_000_000}, "trace")
    assert len(str(caught.value)) < 1_000
    assert "is not of type 'array'" in caught.value.problem
