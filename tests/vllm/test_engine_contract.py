"""The mini-scheduler can make all calls that vLLM's own schedulers make (docs/engine-contract.md).

These tests run by name. KVREF_VLLM_PYTHON names the interpreter of an environment with vLLM (`tox -e vllm`).
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from following import Call, follow, news
from running import PYTHON

from kvref_strategies.engine import Setup

SEEDS = 60


@pytest.fixture(scope="module")
def recordings() -> list[dict[str, Any]]:
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    script = Path(__file__).with_name("recording.py")
    command = [PYTHON, str(script), f"0:{SEEDS}"]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    told: list[dict[str, Any]] = json.loads(ran.stdout)
    return told


def setup_of(engine: dict[str, Any]) -> Setup:
    """The mini-scheduler's setup for the recorded engine."""
    own = {name: engine[name] for name in Setup.__dataclass_fields__ if name in engine}
    groups = [
        {"spec": {"class": spec["kind"], "fields": spec}, "eagle": False, "kind": ""}
        for spec in engine["specs"]
    ]
    priority, max_chunk = engine["policy"] == "priority", engine["threshold"] or None
    return Setup(groups=groups, priority=priority, max_chunk=max_chunk, **own)  # type: ignore[arg-type]


def followed(recording: dict[str, Any], calls: list[Call]) -> bool:
    shape = {"null": 0, "alignment": recording["alignment"]}
    issued, number = follow(setup_of(recording["engine"]), shape, calls)
    return issued == number


def test_all_that_vllm_asks_the_mini_scheduler_can_ask(recordings: list[dict[str, Any]]) -> None:
    lost = []
    for recording in recordings:
        shape = {"null": 0, "alignment": recording["alignment"]}
        issued, number = follow(setup_of(recording["engine"]), shape, recording["calls"])
        if issued < number:
            lost.append((recording["seed"], issued, news(recording["calls"])[issued]))
    assert lost == []


def test_the_recordings_have_all_that_the_contract_speaks_of(recordings: list[dict[str, Any]]) -> None:
    calls = [call for recording in recordings for call in recording["calls"]]
    asked = {name: [call for call in calls if call["op"] == name] for name in {call["op"] for call in calls}}
    allocations = asked["allocate"]
    assert any(call["value"]["added"] is None for call in allocations)
    assert any(call["args"]["hit"] for call in allocations)
    assert any(call["args"]["lookahead"] for call in allocations)
    assert any(call["args"]["external"] and not call["args"]["delay"] for call in allocations)
    assert any(call["args"]["delay"] for call in allocations)
    assert any(call["value"]["junction"] for call in asked["lookup"])
    assert {call["value"] for call in asked["reset"]} == {True, False}
    # Some requests were preempted with tokens in flight, and some of their output came after that.
    waiting = [call["args"] for call in asked["progress"] if call["args"]["computed"] == 0]
    assert any(told["in_flight"] for told in waiting)
    assert any(told["output"] for told in waiting)
    assert asked["cache_blocks"]
    assert asked["evict"]


def first(calls: list[Call], wanted: Callable[[Call], bool]) -> int | None:
    return next((place for place, call in enumerate(calls) if wanted(call)), None)


def running(call: Call) -> bool:
    return call["op"] == "allocate" and call["args"]["hit"] is None and call["value"]["added"] is not None


def changed(calls: list[Call], place: int, **arguments: Any) -> list[Call]:
    call = {**calls[place], "args": {**calls[place]["args"], **arguments}}
    return [*calls[:place], call, *calls[place + 1 :]]


def swapped(calls: list[Call], place: int) -> list[Call]:
    return [*calls[:place], calls[place + 1], calls[place], *calls[place + 2 :]]


def count_is_wrong(calls: list[Call]) -> list[Call] | None:
    place = first(calls, running)
    return None if place is None else changed(calls, place, new=calls[place]["args"]["new"] + 1)


def in_flight_is_forgotten(calls: list[Call]) -> list[Call] | None:
    place = first(calls, lambda call: call["op"] == "progress" and call["args"]["in_flight"] > 0)
    return None if place is None else changed(calls, place, in_flight=0)


def step_begins_late(calls: list[Call]) -> list[Call] | None:
    place = first(calls, lambda call: call["op"] == "new_step")
    return None if place is None or calls[place + 1]["op"] == "add" else swapped(calls, place)


def copies_are_not_taken(calls: list[Call]) -> list[Call] | None:
    place = first(calls, lambda call: call["op"] == "take_copies")
    return None if place is None else [*calls[:place], *calls[place + 1 :]]


def let_in_after_preemption(calls: list[Call]) -> list[Call] | None:
    """The step that preempts a request also looks it up again."""
    for place, call in enumerate(calls):
        refused = call["op"] == "allocate" and call["value"]["added"] is None and not call["args"]["whole"]
        if refused and calls[place + 1]["op"] == "free":
            end = place + (first(calls[place:], lambda call: call["op"] == "take_copies") or 0)
            arguments = {"request": calls[place + 1]["args"]["request"]}
            nothing = {"tokens": 0, "blocks": [[]], "hashes": []}
            return [*calls[:end], {"op": "lookup", "args": arguments, "value": nothing}, *calls[end:]]
    return None


def hit_is_not_passed_on(calls: list[Call]) -> list[Call] | None:
    place = first(calls, lambda call: call["op"] == "allocate" and call["args"]["hit"] is not None)
    return None if place is None else changed(calls, place, hit=None)


def drafts_get_keys(calls: list[Call]) -> list[Call] | None:
    place = first(calls, lambda call: call["op"] == "cache_blocks")
    return None if place is None else changed(calls, place, computed=calls[place]["args"]["computed"] + 1)


def freed_twice(calls: list[Call]) -> list[Call] | None:
    place = first(calls, lambda call: call["op"] == "free")
    return None if place is None else [*calls[:place], calls[place], *calls[place:]]


@pytest.mark.parametrize(
    "change",
    [
        count_is_wrong,
        in_flight_is_forgotten,
        step_begins_late,
        copies_are_not_taken,
        let_in_after_preemption,
        hit_is_not_passed_on,
        drafts_get_keys,
        freed_twice,
    ],
)
def test_what_no_scheduler_asks_it_cannot_ask(
    recordings: list[dict[str, Any]], change: Callable[[list[Call]], list[Call] | None]
) -> None:
    """The search can follow a recording, but not the same recording with one changed call.

    It follows both up to 20 calls after the change. It has to try all decisions, so only recordings are used
    in which the calls show nearly all of them.
    """
    tried = 0
    for recording in recordings:
        engine = recording["engine"]
        if engine["loads"] or (engine["drafts"] and not engine["is_async"]):
            continue
        calls = news(recording["calls"])
        other = change(calls)
        if other is None or tried == 8:
            continue
        place = next(place for place, (a, b) in enumerate(zip(calls, other, strict=False)) if a != b)
        end = place + 20
        if end > 150:
            continue
        tried += 1
        assert followed(recording, calls[:end])
        assert not followed(recording, other[:end]), recording["seed"]
    assert tried > 3
