"""How kvref puts the operations and outcomes of a trace into words."""

from __future__ import annotations

from typing import Any

import pytest
from sample_results import FULL, MLA, op

from kvref_conformance.report.narrate import describe_operation, describe_outcome, narrate


@pytest.mark.parametrize(
    ("operation", "told"),
    [
        (op("specs.build", spec=FULL), "build FullAttentionSpec(block_size=16)"),
        (
            op("specs.copy", spec=FULL, block_size=32),
            "copy FullAttentionSpec(block_size=16) with block_size=32",
        ),
        (op("specs.merge", specs=[FULL, FULL]), "merge [FullAttentionSpec(block_size=16), the same]"),
        (op("specs.merge", specs=[]), "merge []"),
        (op("registry.define_spec", name="A", bases=["B", "C"]), "define class A(B, C)"),
        (op("registry.define_manager", name="M", base="N"), "define class M(N)"),
        (op("registry.initialise"), "initialise the registry, as an engine does at start"),
        (
            op("registry.install_hook", registrations=[{"spec_class": "A", "manager": "M", "base": "B"}]),
            "install a platform hook that registers A -> M (base B)",
        ),
        (op("registry.install_hook", registrations=[]), "install a platform hook that registers nothing"),
        (op("registry.register", spec_class="A", manager="M", base=None), "register A -> M"),
        (
            op("registry.decorate", spec_class="A", manager="M", base="B"),
            "register A -> M (base B) with the decorator",
        ),
        (op("registry.lookup", spec=FULL), "look up FullAttentionSpec(block_size=16)"),
        (op("registry.table"), "look up every spec class"),
        (
            op("registry.check", layers={"layer.0": FULL}),
            "check that the layers layer.0: FullAttentionSpec(block_size=16) are registered",
        ),
        (
            op(
                "tensors.allocate",
                layers={"a": FULL},
                num_blocks=3,
                layout="LBNHC",
                kernel_block_size=None,
                sharing=[["b", "a"]],
            ),
            "allocate the layers a: FullAttentionSpec(block_size=16) with num_blocks=3, layout='LBNHC'; "
            "b shares with a",
        ),
        (
            op("sharing.join", groups=[["a"]], sharing=[["b", "a"], ["c", "b"]], times=2),
            "let layers join the groups [['a']], 2 times: b shares with a, c shares with b",
        ),
        (
            op("sharing.join", groups=[["a"]], sharing=[], times=1),
            "let layers join the groups [['a']], once: none",
        ),
        (op("other.free", blocks=[1, 2], dtype="torch.int8"), "other.free(blocks=[1, 2], dtype=int8)"),
        (op("specs.merge", things=3), "specs.merge(things=3)"),
        (op("specs.merge", specs=3), "specs.merge(specs=3)"),
    ],
)
def test_operations_are_told(operation: dict[str, Any], told: str) -> None:
    assert describe_operation(operation) == told


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        ({"value": None}, "done"),
        ({"value": [0, 1]}, "[0, 1]"),
        ({"value": list(range(20))}, "[0, 1, 2, 3, 4, 5, 6, 7, ... 12 more]"),
        ({"value": {"manager": "M", "base": "A"}}, "manager M, base A"),
        ({"value": {"manager": None, "base": None}}, "not registered"),
        ({"value": {**FULL, "page_size_bytes": 64}}, "FullAttentionSpec(block_size=16), 64 bytes a page"),
        ({"value": {"enum": "KVQuantMode", "name": "NONE"}}, "KVQuantMode.NONE"),
        ({"value": "0f" * 32}, repr("0f" * 32)),
        ({"value": "0f" * 33}, "0f" * 32 + "... (33 bytes)"),
        (
            {"value": {"buffers": [96], "groups": [["a"]], "layers": {"a": {}}}},
            "allocations of [96] bytes, layers in groups [['a']]",
        ),
        (
            {"value": {"tensors": [{"shape": [3, 32]}], "groups": [[{"tensor": 0}], []]}},
            "tensors of shape [[3, 32]], those of each group [[0], []]",
        ),
        ({"value": {"groups": [["a", "b"]]}}, "{groups: [['a', 'b']]}"),
        ({"value": {"fraction": [1, 4]}}, "1/4"),
        ({"value": {"opaque": "<x>"}}, "<x>"),
        ({"value": {"a": "torch.float16", "b": "text"}}, "{a: float16, b: 'text'}"),
        ({"error": {"type": "ValueError", "message": "no"}}, "raises ValueError: no"),
        ({"error": {"type": "AssertionError", "message": ""}}, "raises AssertionError"),
        ({"died": "killed by SIGSEGV"}, "the process died: killed by SIGSEGV"),
        ({"odd": 1}, "{'odd': 1}"),
    ],
)
def test_outcomes_are_told(outcome: dict[str, Any], told: str) -> None:
    assert describe_outcome(outcome) == told


def test_built_specs_are_referred_to() -> None:
    one = {"flags": [], "operations": [op("specs.build", spec=FULL), op("specs.merge", specs=[FULL, MLA])]}
    assert list(narrate([one]))[1].startswith("merge [the spec, MLAAttentionSpec(")
    two = {"flags": [], "operations": [op("specs.build", spec=FULL), op("specs.build", spec=MLA)]}
    two["operations"].append(op("specs.merge", specs=[MLA, MLA, FULL]))
    lines = list(narrate([two]))
    assert lines[0] == "build FullAttentionSpec(block_size=16) as s1"
    assert lines[2] == "merge [s2, s2, s1]"


def test_processes_are_told_apart() -> None:
    run = [op("registry.initialise")]
    told = "initialise the registry, as an engine does at start"
    plain, optimised = {"flags": [], "operations": run}, {"flags": ["-O"], "operations": run}
    assert list(narrate([plain])) == [told]
    assert list(narrate([optimised])) == ["in a fresh process, python -O:", told]
    assert list(narrate([plain, optimised])) == [
        "in a fresh process, python:",
        told,
        "in a fresh process, python -O:",
        told,
    ]


def test_events_are_told_with_what_they_answered() -> None:
    answer = {"value": {**FULL, "page_size_bytes": 64}}
    events = [
        {**op("specs.build", spec=FULL), "outcome": answer},
        {**op("specs.merge", specs=[FULL]), "outcome": answer},
    ]
    assert list(narrate([{"flags": [], "operations": events}])) == [
        "build FullAttentionSpec(block_size=16)",
        "merge [the spec]  -> FullAttentionSpec(block_size=16), 64 bytes a page",
    ]


def test_a_refused_build_says_so() -> None:
    refused = {**op("specs.build", spec=FULL), "outcome": {"error": {"type": "ValueError", "message": "no"}}}
    assert list(narrate([{"flags": [], "operations": [refused]}])) == [
        "build FullAttentionSpec(block_size=16)  -> raises ValueError: no"
    ]
