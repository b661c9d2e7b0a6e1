"""The shadow: which faults it finds from the outside, and how it reports them."""

import io
import json
from typing import Any

import pytest
from conftest import Kvref
from faulty import look_for
from rich.console import Console

from kvref_conformance.documents.baseline import NO_BASELINE
from kvref_conformance.documents.results import Row, Status
from kvref_conformance.laws import LAWS, LawBroken
from kvref_conformance.laws.shadow_blocks import shadow_of
from kvref_conformance.processes.launch import Launch
from kvref_conformance.report.progress import progress
from kvref_conformance.running.checker import Options
from kvref_conformance.running.exploring.stage import SwiftStage
from kvref_conformance.running.loading import Loaded, loaded
from kvref_conformance.targets.reference.target import ReferenceTarget
from kvref_strategies.catalogue import WORKLOADS
from kvref_strategies.engine import Engine, Setup

ORACLE = tuple(law for law in LAWS if law.startswith("shadow."))

MANY = {"drafts_get_keys"}
"""Faults that show only in hundreds of long examples."""

FAULTS = [
    ("manager:window_freed_one_block_early", "shadow.reads-own", "SlidingWindowSpec"),
    ("shadow:block_of_two_groups", "shadow.reads-own", "FullAttentionSpec"),
    ("shadow:found_blocks_handed_out", "shadow.hit-content", "FullAttentionSpec"),
    ("shadow:hit_longer_in_one_group", "shadow.hit-content", "ChunkedLocalAttentionSpec"),
    ("shadow:salt_not_hashed", "shadow.hit-content", "FullAttentionSpec"),
    ("shadow:sharer_bound_to_another_owner", "shadow.memory", "attention"),
    ("shadow:blocks_too_close", "shadow.memory", "attention"),
    ("shadow:state_of_the_block_before", "shadow.hit-content", "MambaSpec"),
    ("shadow:drafts_get_keys", "shadow.hit-content", "FullAttentionSpec"),
    ("shadow:freed_under_a_step", "shadow.reads-own", "SlidingWindowSpec"),
]


def check(target: str, subject: str) -> list[Row]:
    with progress(Console(file=io.StringIO())) as watcher, loaded(Launch(target), ORACLE, watcher) as one:
        options = Options(laws=ORACLE, subjects=(subject,), depth="standard", jobs=2)
        return one.check(options, NO_BASELINE, watcher).rows


@pytest.mark.parametrize(("fault", "law", "subject"), FAULTS)
def test_the_shadow_alone_finds(
    fault: str, law: str, subject: str, reference: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven = WORKLOADS["shadow.machine"].driven
    assert driven is not None
    monkeypatch.setitem(driven.examples, "standard", 400 if fault.partition(":")[2] in MANY else 40)
    trial = look_for(f"kvref_conformance.targets.faults.{fault}", law, subject, reference, "standard")
    assert law in trial.catches, trial.open


@pytest.mark.parametrize("subject", ["SlidingWindowSpec", "MambaSpec", "several classes", "windows"])
def test_it_finds_nothing_in_the_reference(subject: str) -> None:
    rows = [row for row in check("reference", subject) if row.status is not Status.NOT_APPLICABLE]
    assert rows
    assert {row.status for row in rows} == {Status.HOLDS}
    assert all(row.examples for row in rows)


FULL: Any = {
    "class": "FullAttentionSpec",
    "fields": {"block_size": 2, "num_kv_heads": 1, "head_size": 8, "dtype": "torch.float16"},
}
OPERATIONS = [
    f"cache.{name}" for name in ("add", "lookup", "allocate", "progress", "block_ids", "free", "new_step")
]


def two_requests() -> SwiftStage:
    """One request computes a prompt of four tokens and ends. A second request begins with the same tokens."""
    stage = SwiftStage(ReferenceTarget())
    setup = Setup([{"spec": FULL, "eagle": False, "kind": "FullAttentionSpec"}], 10, 2, 2, 16, 16)
    engine = Engine(stage, setup, OPERATIONS, tables_only=True)
    engine.finish(engine.submit([0, 0, 0, 0], 1))
    engine.finish(engine.submit([0, 0, 0, 0, 1], 1))
    return stage


def events_with(stage: SwiftStage, number: int, **changed: Any) -> list[dict[str, Any]]:
    """The stage's events. Call `number` of `cache.block_ids`, counted from 0, has another answer."""
    told = [place for place, event in enumerate(stage.runs[0]) if event["op"] == "cache.block_ids"]
    events = [dict(event) for event in stage.runs[0]]
    events[told[number]]["outcome"] = {"value": changed["tables"]}
    return events


def test_what_is_right_is_found_right() -> None:
    shadow = shadow_of(two_requests().runs[0])
    assert shadow.wrong == []
    assert (shadow.readings, shadow.hits, shadow.resumed) == (2 + 3, 1, 0)


def test_the_story_of_a_wrong_hit() -> None:
    """The message says which request reads which position, what the block holds, and which step wrote it."""
    stage = two_requests()
    [_, (first, second, last)] = [
        event["outcome"]["value"][0] for event in stage.runs[0] if event["op"] == "cache.block_ids"
    ]
    for tables, observed in (
        ([[second, first, last]], f"block {second} holds position 2 of r1, written by r1 in step 1"),
        ([[7, second, last]], "block 7 holds nothing ever written"),
        ([[0, second, last]], "the null block"),
    ):
        with pytest.raises(LawBroken) as broken:
            LAWS["shadow.hit-content"].check([events_with(stage, 1, tables=tables)])
        expected = "in step 2, group 0 (FullAttentionSpec): r2 reads its own position 0, part of its"
        assert broken.value.expected.startswith(expected)
        assert broken.value.observed == observed
        LAWS["shadow.reads-own"].check([events_with(stage, 1, tables=tables)])


def test_the_story_of_a_table_that_is_too_short() -> None:
    stage = two_requests()
    [_, (first, second, _)] = [
        event["outcome"]["value"][0] for event in stage.runs[0] if event["op"] == "cache.block_ids"
    ]
    with pytest.raises(LawBroken) as broken:
        LAWS["shadow.reads-own"].check([events_with(stage, 1, tables=[[first, second]])])
    assert "r2 reads its own position 4" in broken.value.expected
    assert broken.value.observed == "no block"


def test_tables_that_are_never_told_are_no_reason_to_judge_nothing() -> None:
    stage = two_requests()
    events = events_with(stage, 0, tables=[])
    for event in events:
        if event["op"] == "cache.block_ids":
            event["outcome"] = {"error": {"type": "TypeError", "message": "no tables"}}
    with pytest.raises(LawBroken) as broken:
        LAWS["shadow.reads-own"].check([events])
    assert broken.value.facets == ("tables are not told",)
    assert broken.value.observed == "TypeError: no tables"


def test_who_wrote_is_told_for_each_place() -> None:
    """The block table has one block twice, so the request has overwritten its own tokens."""
    stage = two_requests()
    [(first, _), _] = [
        event["outcome"]["value"][0] for event in stage.runs[0] if event["op"] == "cache.block_ids"
    ]
    with pytest.raises(LawBroken) as broken:
        LAWS["shadow.reads-own"].check([events_with(stage, 0, tables=[[first, first]])])
    assert broken.value.observed == f"block {first} holds position 2 of r1, written by r1 in step 1"


def test_salts_are_drawn_only_where_requests_can_have_them() -> None:
    def salts(contents: list[str]) -> set[str | None]:
        stage = SwiftStage(ReferenceTarget())
        setup = Setup(
            [{"spec": FULL, "eagle": False, "kind": "FullAttentionSpec"}],
            *(10, 2, 2, 16, 16),
            salts="salt" in contents,
        )
        engine = Engine(stage, setup, OPERATIONS, tables_only=True)
        for choice in range(0, 400_000, 997):
            engine.go_on(choice)
        return {event["args"]["salt"] for event in stage.runs[0] if event["op"] == "cache.add"}

    assert salts([]) == {None}
    assert salts(["salt"]) == {None, "salt"}


def on_slots(operation: str, outcome: Any, told: str = "r1, positions 0 to 1, FullAttentionSpec") -> Any:
    arguments = {"layer": "a", "slots": [2, 3], "marks": [5, 6]}
    arguments |= {"told": told} if operation == "compare_slots" else {}
    return {"op": f"tensors.{operation}", "args": arguments, "outcome": outcome}


WRITTEN = on_slots("write_slots", {"value": None})


@pytest.mark.parametrize(
    ("event", "facet", "observed"),
    [
        (on_slots("compare_slots", {"value": []}), None, ""),
        (on_slots("compare_slots", {"value": [[9, 1]]}), None, ""),
        (
            on_slots("compare_slots", {"value": [[0, 6]]}),
            "FullAttentionSpec, other content",
            "content that a wrote, for the slot +1 from there",
        ),
        (
            on_slots("compare_slots", {"value": [[1, -1]]}),
            "FullAttentionSpec, torn",
            "content that no layer wrote as a whole",
        ),
        (on_slots("compare_slots", {"value": [[0, 5], [1, 6]]}, "nobody"), None, ""),
        (
            on_slots("compare_slots", {"value": [[0, 5]]}, "nobody"),
            "differences are not told",
            "no difference",
        ),
        *(
            (on_slots(name, {"error": {"type": "E", "message": "m"}}), f"{name} fails", "E: m")
            for name in ("write_slots", "compare_slots")
        ),
    ],
)
def test_what_is_told_of_slots(event: Any, facet: str | None, observed: str) -> None:
    law = LAWS["shadow.memory"]
    if facet is None:
        assert law.check([[WRITTEN, event]]) == 1
        return
    with pytest.raises(LawBroken) as broken:
        law.check([[WRITTEN, event]])
    assert (broken.value.facets, broken.value.observed) == ((facet,), observed)


def test_a_target_that_tells_no_differences_is_found(kvref: Kvref) -> None:
    ran = kvref.check("silent_memory:target", "--laws", "shadow.memory", "--json")
    broken = [row for row in json.loads(ran.out)["laws"] if row["status"] == "broken"]
    assert broken
    assert {row["facet"] for row in broken} == {"differences are not told"}


def test_each_way_of_being_wrong_is_told() -> None:
    """The law reports the missing block, and also the block that has the wrong content."""
    stage = two_requests()
    [_, (first, second, _)] = [
        event["outcome"]["value"][0] for event in stage.runs[0] if event["op"] == "cache.block_ids"
    ]
    with pytest.raises(LawBroken) as broken:
        LAWS["shadow.hit-content"].check([events_with(stage, 1, tables=[[0, first]])])
    assert broken.value.facets == ("FullAttentionSpec, freed", "FullAttentionSpec, other")
    assert (
        broken.value.observed == f"the null block; block {first} holds position 0 of r1, "
        "written by r1 in step 1"
    )
    assert second
