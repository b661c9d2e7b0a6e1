"""Laws of the cache: each holds for the reference's answers, and breaks if one answer is changed."""

import copy
import random
from collections.abc import Callable
from functools import cache as remembered
from typing import Any

import pytest

from kvref.target import Json, Outcome, perform
from kvref_conformance.laws import LAWS, LawBroken
from kvref_conformance.targets.reference.target import ReferenceTarget
from kvref_strategies.engine import CHOICES, Engine, Setup
from kvref_strategies.specs import minimal

Event = dict[str, Any]

TARGET = ReferenceTarget()
CLASSES = {info["name"]: info for info in TARGET.specs.classes()}
OFFERED = [f"cache.{name}" for name in dir(TARGET.cache)]


class Recorder:
    """A stage that records the operations it performs."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def perform(self, operation: str, /, **arguments: Json) -> Outcome:
        outcome = perform(TARGET, operation, arguments)
        self.events.append(copy.deepcopy({"op": operation, "args": arguments, "outcome": outcome}))
        return outcome

    def fresh(self, *flags: str) -> None:
        raise NotImplementedError


def setup(name: str, **fields: Any) -> Setup:
    spec = {"class": name, "fields": {**minimal(CLASSES[name])["fields"], "block_size": 2, **fields}}
    kind = "FullAttentionSpec" if name == "FullAttentionSpec" else name
    return Setup(
        groups=[{"spec": spec, "eagle": False, "kind": kind}],  # type: ignore[typeddict-item]
        num_blocks=12,
        scheduler_block_size=2,
        hash_block_size=2,
        max_model_len=16,
        max_num_batched_tokens=8,
    )


SETUPS = {
    "full": setup("FullAttentionSpec"),
    "window": setup("SlidingWindowSpec", sliding_window=4),
    "state": setup("MambaSpec", mamba_cache_mode="all"),
}


@remembered
def recorded(which: str) -> list[Event]:
    """The events of an engine that made 400 random decisions."""
    stage = Recorder()
    one = SETUPS[which]
    spec = one.groups[0]["spec"]
    stage.perform("specs.build", spec=spec)
    stage.perform(
        "specs.max_memory", spec=spec, max_model_len=16, max_in_flight_tokens=8, max_encoder_tokens=0
    )
    engine = Engine(stage, one, OFFERED)
    decide = random.Random(7)
    for _ in range(400):
        engine.go_on(decide.randrange(CHOICES))
    return stage.events


@remembered
def resent() -> list[Event]:
    """The events of a prompt that is computed and looked up again, first without EAGLE, then with it."""
    stage = Recorder()
    for eagle in (False, True):
        one = SETUPS["full"]
        group = {**one.groups[0], "eagle": eagle}
        engine = Engine(
            stage,
            Setup(
                **{**vars(one), "groups": [group], "use_eagle": eagle, "drafts": int(eagle), "num_blocks": 40}
            ),
            OFFERED,
        )
        engine.finish(engine.submit([0] * 9, 1))
        engine.do("lookup", request=engine.submit([0] * 7, 1).name)
    return stage.events


def granted(events: list[Event], where: Callable[[Event, Event], bool] = lambda event, state: True) -> int:
    """The index of the first granted allocation for which `where` holds."""
    return next(
        place
        for place, event in enumerate(events)
        if event["op"] == "cache.allocate"
        and event["outcome"]["value"]["added"] is not None
        and where(event, events[place + 1]["outcome"]["value"])
    )


def of(events: list[Event], op: str, where: Callable[[Event], Any] = lambda event: True) -> int:
    return next(place for place, event in enumerate(events) if event["op"] == op and where(event))


def table_of(events: list[Event], place: int) -> list[int]:
    table: list[int] = events[place + 1]["outcome"]["value"]["tables"][events[place]["args"]["request"]][0]
    return table


def block_nulled(events: list[Event]) -> None:
    place = granted(events)
    table_of(events, place)[-1] = 0


def nulled_block_back(events: list[Event]) -> None:
    place = granted(events, lambda event, state: state["tables"][event["args"]["request"]][0][0] == 0)
    table_of(events, place)[0] = 11


def one_more_needed(events: list[Event]) -> None:
    events[granted(events)]["outcome"]["value"]["needed"] += 1


def taken_for_nothing(events: list[Event]) -> None:
    place = granted(events, lambda event, state: not event["outcome"]["value"]["taken"])
    events[place]["outcome"]["value"]["taken"] = [5]


def cap_too_small(events: list[Event]) -> None:
    events[of(events, "cache.create")]["outcome"]["value"]["caps"] = [0]


def reference_lost(events: list[Event]) -> None:
    place = granted(events)
    events[place + 1]["outcome"]["value"]["refs"][table_of(events, place)[-1]] -= 1


def written_block_shared(events: list[Event]) -> None:
    place = granted(events)
    events[place + 1]["outcome"]["value"]["tables"]["other"] = [[table_of(events, place)[-1]]]


def told_twice(events: list[Event]) -> None:
    place = of(events, "cache.take_new_block_ids", lambda event: event["outcome"]["value"])
    told = events[place]["outcome"]["value"]
    told.append(told[0])


def not_told(events: list[Event]) -> None:
    place = of(events, "cache.take_new_block_ids", lambda event: event["outcome"]["value"])
    events[place]["outcome"]["value"].pop()


def table_left(events: list[Event]) -> None:
    place = of(events, "cache.free")
    events[place + 1]["outcome"]["value"]["tables"][events[place]["args"]["request"]] = [[]]


def hit_that_is_not_there(events: list[Event]) -> None:
    place = of(events, "cache.lookup", lambda event: event["outcome"]["value"]["tokens"])
    found = next(event for event in reversed(events[:place]) if event["op"] == "cache.state")
    found["outcome"]["value"]["found"] = {}


def list_one_longer(events: list[Event]) -> None:
    place = of(events, "cache.lookup", lambda event: event["outcome"]["value"]["tokens"])
    events[place]["outcome"]["value"]["blocks"][0].append(3)


def lookup_failed(events: list[Event]) -> None:
    events[of(events, "cache.lookup")]["outcome"] = {"error": {"type": "IndexError", "message": "no"}}


def one_more_in_common(events: list[Event]) -> None:
    place = of(events, "cache.common_prefix")
    events[place]["outcome"]["value"] = [99]


def key_lost_by_refusal(events: list[Event]) -> None:
    place = of(events, "cache.allocate", lambda event: event["outcome"]["value"]["added"] is None)
    events[place + 1]["outcome"]["value"]["keys"] = {"1": ["lost"]}


def allocation_failed(events: list[Event]) -> None:
    events[granted(events)]["outcome"] = {"error": {"type": "ValueError", "message": "too few"}}


def found_block_taken(events: list[Event]) -> None:
    place = granted(events, lambda event, state: bool((event["args"].get("hit") or {}).get("tokens")))
    events[place]["outcome"]["value"]["taken"] += [max(events[place]["args"]["hit"]["blocks"][0])]


def refused_alone(events: list[Event]) -> None:
    place = granted(events, lambda event, state: len(state["tables"]) == 1)
    events[place]["outcome"]["value"]["added"] = None


def stored_not_told(events: list[Event]) -> None:
    place = of(events, "cache.take_events", lambda event: event["outcome"]["value"])
    events[place]["outcome"]["value"] = []


def other_block_size(events: list[Event]) -> None:
    place = of(events, "cache.take_events", lambda event: event["outcome"]["value"])
    events[place]["outcome"]["value"][0]["block_size"] = 16


def other_tokens(events: list[Event]) -> None:
    place = of(events, "cache.take_events", lambda event: event["outcome"]["value"])
    events[place]["outcome"]["value"][0]["tokens"][0] += 1


def parent_of_none(events: list[Event]) -> None:
    place = of(events, "cache.take_events", lambda event: event["outcome"]["value"])
    events[place]["outcome"]["value"][0]["parent"] = "stored by nobody"


def not_made(events: list[Event]) -> None:
    events[of(events, "cache.create")]["outcome"] = {"error": {"type": "TypeError", "message": "no"}}


def little_memory(events: list[Event]) -> None:
    events[1]["outcome"]["value"] = 1


CHANGES: list[tuple[str, str, Callable[[list[Event]], None]]] = [
    ("manager.window-kept", "full", block_nulled),
    ("manager.window-kept", "window", block_nulled),
    ("manager.window-kept", "state", block_nulled),
    ("manager.window-freed", "window", nulled_block_back),
    ("manager.need-exact", "full", one_more_needed),
    ("manager.need-shrinks", "full", taken_for_nothing),
    ("manager.held-bounded", "window", cap_too_small),
    ("manager.references", "full", reference_lost),
    ("manager.written-owned", "full", written_block_shared),
    ("manager.state-owned", "state", written_block_shared),
    ("manager.new-ids", "full", told_twice),
    ("manager.zeroing-reported", "full", not_told),
    ("manager.free-returns-all", "full", table_left),
    ("coordinator.constructible", "full", not_made),
    ("coordinator.hit-maximal", "full", hit_that_is_not_there),
    ("coordinator.hit-aligned", "full", list_one_longer),
    ("coordinator.lookup-total", "full", lookup_failed),
    ("coordinator.common-prefix", "full", one_more_in_common),
    ("admission.none-changes-nothing", "full", key_lost_by_refusal),
    ("admission.never-raises", "full", allocation_failed),
    ("admission.hits-pinned", "full", found_block_taken),
    ("admission.progress", "full", refused_alone),
    ("events.replay", "full", stored_not_told),
    ("events.metadata", "full", other_block_size),
    ("events.content", "full", other_tokens),
    ("events.content", "full", parent_of_none),
    ("spec.memory-covers-held", "full", little_memory),
]


@pytest.mark.parametrize(("law", "which", "change"), CHANGES)
def test_each_law_tells_right_from_wrong(law: str, which: str, change: Callable[[list[Event]], None]) -> None:
    assert LAWS[law].check([recorded(which)]) > 0
    events = copy.deepcopy(recorded(which))
    change(events)
    with pytest.raises(LawBroken):
        LAWS[law].check([events])


@pytest.mark.parametrize("law", ["coordinator.resend-hits", "coordinator.eagle-one-unit"])
def test_a_prompt_that_is_not_found_again(law: str) -> None:
    events = copy.deepcopy(resent())
    assert LAWS[law].check([events]) > 0
    lookups = [event for event in events if event["op"] == "cache.lookup"]
    which = 1 if law == "coordinator.resend-hits" else -1
    lookups[which]["outcome"]["value"]["tokens"] = 0
    if law == "coordinator.eagle-one-unit":
        lookups[1]["outcome"]["value"]["tokens"] = 6
    with pytest.raises(LawBroken):
        LAWS[law].check([events])


def test_alone_with_all_that_is_counted() -> None:
    law = LAWS["admission.feasible-completes"]
    events = copy.deepcopy(resent())
    assert law.check([events]) > 0
    events[granted(events)]["outcome"]["value"]["added"] = None
    with pytest.raises(LawBroken):
        law.check([events])


def test_no_cache_is_asked_of_a_spec_that_is_refused() -> None:
    events = copy.deepcopy(recorded("full"))
    not_made(events)
    with pytest.raises(LawBroken):
        LAWS["coordinator.constructible"].check([events])
    [group, *_] = events[of(events, "cache.create")]["args"]["groups"]
    refusal = {"error": {"type": "AssertionError", "message": ""}}
    events.insert(0, {"op": "specs.build", "args": {"spec": group["spec"]}, "outcome": refusal})
    assert LAWS["coordinator.constructible"].check([events]) == 0
