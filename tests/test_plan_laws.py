"""Laws of planning on events made by hand: correct events break no law, wrong ones do."""

from typing import Any

import pytest

from kvref_conformance.laws import LawBroken
from kvref_conformance.laws.plan import (
    inputs_unchanged,
    one_group,
    one_manager,
    order_free,
    page_unified,
    partition,
    tensors_cover,
    unregistered_refused,
)
from kvref_conformance.processes.answers import problem
from kvref_conformance.report.narrate import describe_operation, describe_outcome

Event = dict[str, Any]
Spec = dict[str, Any]

FULL: Spec = {"class": "FullAttentionSpec", "fields": {"block_size": 16}}
WINDOW: Spec = {"class": "SlidingWindowSpec", "fields": {"block_size": 16}}
LAYERS = {"a": FULL, "b": WINDOW}


def facts(spec: Spec, page: int = 512) -> Spec:
    return {**spec, "page_size_bytes": page}


def group(manager: str | None = "M", /, **specs: Spec) -> dict[str, Any]:
    layers = [{"name": name, "spec": spec, "manager": "M"} for name, spec in specs.items()]
    return {"layers": layers, "manager": manager}


def planned(*groups: dict[str, Any], given: dict[str, Spec] | None = None, **memory: Any) -> dict[str, Any]:
    plan = {"groups": list(groups), "given": given or {name: facts(spec) for name, spec in LAYERS.items()}}
    return {"value": {**plan, **memory}}


def refused(kind: str, message: str = "layer 'a' does not fit") -> dict[str, Any]:
    return {"error": {"type": kind, "message": message}}


def plan(outcome: dict[str, Any], layers: dict[str, Spec] | None = None, memory: int | None = None) -> Event:
    arguments: dict[str, Any] = {"layers": layers or LAYERS}
    if memory is None:
        return {"op": "planner.groups", "args": arguments, "outcome": outcome}
    return {"op": "planner.config", "args": {**arguments, "memory": memory}, "outcome": outcome}


def build(spec: Spec, page: int = 512) -> Event:
    return {"op": "specs.build", "args": {"spec": spec}, "outcome": {"value": facts(spec, page)}}


def facets(law: Any, *events: Event) -> tuple[str, ...]:
    with pytest.raises(LawBroken) as broken:
        law([list(events)])
    return broken.value.facets


A, B = facts(FULL), facts(WINDOW)
APART = planned(group(a=A), group(b=B))
TOGETHER = planned(group(a=A, b=B))


@pytest.mark.parametrize("outcome", [APART, TOGETHER])
def test_a_plan_in_its_own_way(outcome: dict[str, Any]) -> None:
    events = [[build(FULL), build(WINDOW), plan(outcome)]]
    for law in (partition, one_manager, page_unified, inputs_unchanged):
        assert law(events) == 1
    assert order_free(events) == tensors_cover(events) == unregistered_refused(events) == 0


@pytest.mark.parametrize("kind", ["ValueError", "NotImplementedError", "InvalidConfigError"])
def test_a_refusal_that_is_meant(kind: str) -> None:
    events = [[plan(refused(kind)), plan(refused(kind), dict(reversed(LAYERS.items())))]]
    assert page_unified(events) == 2
    assert order_free(events) == 1
    assert partition(events) == one_manager(events) == inputs_unchanged(events) == 0


@pytest.mark.parametrize(
    ("outcome", "wrong"),
    [
        (planned(group(a=A)), ("lost",)),
        (planned(group(a=A, b=B), group(b=B)), ("twice",)),
        (planned(group(a=A, b=B), group(c=B)), ("invented",)),
        (planned(group(a=A, b=B), group()), ("empty group",)),
        (planned(group(a=A, c=B)), ("lost", "invented")),
    ],
)
def test_partition(outcome: dict[str, Any], wrong: tuple[str, ...]) -> None:
    assert facets(partition, plan(outcome)) == wrong


@pytest.mark.parametrize("manager", ["N", None])
def test_one_manager(manager: str | None) -> None:
    mixed = planned(group(manager, a=A, b=B))
    assert facets(one_manager, plan(mixed)) == ("FullAttentionSpec and SlidingWindowSpec",)


def managed_alike(outcome: dict[str, Any], layers: dict[str, Spec] | None = None) -> Event:
    return {"op": "planner.one_group", "args": {"layers": layers or LAYERS}, "outcome": outcome}


OTHERS = {"a": FULL, "b": {"class": "MambaSpec", "fields": {"block_size": 16}}}
LONGER = {"a": FULL, "b": {**WINDOW, "fields": {"block_size": 32}}}


def test_layers_managed_alike() -> None:
    assert one_group([[managed_alike(TOGETHER)]]) == 1
    assert one_group([[managed_alike(refused("ValueError"), layers) for layers in (OTHERS, LONGER)]]) == 2
    assert one_group([[plan(APART), managed_alike({"died": "of old age"})]]) == 0


@pytest.mark.parametrize(
    ("outcome", "layers", "wrong"),
    [
        (APART, LAYERS, "groups, FullAttentionSpec and SlidingWindowSpec"),
        (planned(group(a=A)), LAYERS, "groups, FullAttentionSpec and SlidingWindowSpec"),
        (planned(group("N", a=A, b=B)), LAYERS, "managers, FullAttentionSpec and SlidingWindowSpec"),
        (refused("ValueError"), LAYERS, "ValueError, FullAttentionSpec and SlidingWindowSpec"),
        (refused("KeyError"), OTHERS, "KeyError, FullAttentionSpec and MambaSpec"),
    ],
)
def test_one_group(outcome: dict[str, Any], layers: dict[str, Spec], wrong: str) -> None:
    assert facets(one_group, managed_alike(outcome, layers)) == (wrong,)


def test_pages_of_one_group_may_differ() -> None:
    assert page_unified([[plan(planned(group(a=A, b=facts(WINDOW, 1024))))]]) == 1


@pytest.mark.parametrize(
    ("outcome", "wrong"),
    [
        (planned(group(a=A), group(b=facts(WINDOW, 1024))), ""),
        (refused("AssertionError", ""), "AssertionError, "),
        (refused("KeyError", "'a'"), "KeyError, "),
        (refused("ValueError", "does not fit"), "unnamed, "),
    ],
)
def test_page_unified(outcome: dict[str, Any], wrong: str) -> None:
    assert facets(page_unified, plan(outcome)) == (f"{wrong}FullAttentionSpec and SlidingWindowSpec",)


def test_what_is_refused_for_want_of_memory_need_not_name_layers() -> None:
    assert page_unified([[plan(refused("ValueError", "too little memory"), memory=1)]]) == 0


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"a": A, "b": facts(WINDOW, 1024)}, "SlidingWindowSpec"),
        ({"b": B, "a": A}, "layers"),
        ({"a": A}, "layers"),
    ],
)
def test_inputs_unchanged(given: dict[str, Spec], wrong: str) -> None:
    changed = plan(planned(group(a=A), group(b=B), given=given))
    assert facets(inputs_unchanged, build(FULL), build(WINDOW), changed) == (wrong,)


THREE = {"a": FULL, "b": WINDOW, "c": WINDOW}
BACKWARDS = dict(reversed(THREE.items()))
MIX = "FullAttentionSpec and SlidingWindowSpec"


def test_layers_of_one_spec_may_change_places() -> None:
    """Of two equal layers, either may stand alone in a group, depending on the order of the layers."""
    one = planned(group(a=A, b=B), group(c=B))
    other = planned(group(a=A, c=B), group(b=B))
    assert order_free([[plan(one, THREE), plan(other, BACKWARDS)]]) == 1


def test_the_same_order_again_tells_nothing() -> None:
    assert order_free([[plan(APART), plan(TOGETHER)]]) == 0


@pytest.mark.parametrize(
    ("other", "wrong"),
    [
        (planned(group(a=A, b=B, c=B)), f"groups, {MIX}"),
        (planned(group("N", a=A), group("N", b=B, c=B)), f"managers, {MIX}"),
        (planned(group("N", a=A), group(b=B, c=B)), "managers, FullAttentionSpec"),
        (planned(group(a=facts(FULL, 1024)), group(b=B, c=B)), "specs, FullAttentionSpec"),
        (planned(group(a=A), group(b=B)), "groups, SlidingWindowSpec"),
        (refused("ValueError"), f"refused, {MIX}"),
    ],
)
def test_order_free(other: dict[str, Any], wrong: str) -> None:
    one = planned(group(a=A), group(b=B, c=B))
    assert facets(order_free, plan(one, THREE), plan(other, BACKWARDS)) == (wrong,)
    assert facets(order_free, plan(other, BACKWARDS), plan(one, THREE)) == (wrong,)


def test_tensors_in_any_order_are_the_same() -> None:
    def sized(blocks: int, *tensors: int) -> dict[str, Any]:
        return planned(group(a=A), group(b=B), num_blocks=blocks, tensors=list(tensors), storage={})

    backwards = dict(reversed(LAYERS.items()))
    first = plan(sized(2, 1024, 2048), memory=9000)
    assert order_free([[first, plan(sized(2, 2048, 1024), backwards, 9000)]]) == 1
    assert facets(order_free, first, plan(sized(3, 1024, 2048), backwards, 9000)) == (f"num_blocks, {MIX}",)
    assert facets(order_free, first, plan(sized(2, 1024, 1024), backwards, 9000)) == (f"tensors, {MIX}",)


def place(offset: int = 0, stride: int = 512, tensor: int = 0) -> dict[str, int]:
    return {"tensor": tensor, "offset": offset, "block_stride": stride}


def stored(*groups: dict[str, Any], size: int = 2048, **storage: dict[str, int]) -> Event:
    return plan(planned(*groups, num_blocks=2, tensors=[size], storage=storage), memory=2048)


@pytest.mark.parametrize(
    "event",
    [
        stored(group(a=A, b=B), a=place(), b=place(1024)),
        stored(group(a=A, b=B), a=place(0, 1024), b=place(512, 1024)),
        stored(group(a=A), group(b=B), a=place(), b=place()),
        stored(group(a=A), group(b=B), a=place(0, 1024), b=place(256, 1024)),
        plan(refused("ValueError", "too little memory"), memory=1),
    ],
    ids=["one after the other", "interleaved", "in turns", "in turns, elsewhere in the block", "refused"],
)
def test_storage_in_its_own_way(event: Event) -> None:
    assert tensors_cover([[event]]) == ("value" in event["outcome"])


@pytest.mark.parametrize(
    ("event", "wrong"),
    [
        (stored(group(a=A), size=4096, a=place()), "budget"),
        (stored(group(a=A, b=B), a=place()), "missing"),
        (stored(group(a=A), size=1023, a=place()), "outside"),
        (stored(group(a=A), a=place(-512)), "outside"),
        (stored(group(a=A), a=place(tensor=1)), "outside"),
        (stored(group(a=A), a=place(stride=511)), "overlap"),
        (stored(group(a=A, b=B), a=place(), b=place()), "overlap"),
        (stored(group(a=A), group(b=B), a=place(), b=place(512)), "overlap"),
        (stored(group(a=facts(FULL, 1024)), group(b=B), a=place(0, 1024), b=place(0)), "overlap"),
    ],
)
def test_tensors_cover(event: Event, wrong: str) -> None:
    assert facets(tensors_cover, event) == (wrong,)


def lookup(spec: Spec, manager: str | None) -> Event:
    entry = {"manager": manager, "base": manager}
    return {"op": "registry.lookup", "args": {"spec": spec}, "outcome": {"value": entry}}


def test_an_unregistered_layer_is_refused_by_name() -> None:
    refusal = plan(refused("ValueError", "layer b: SlidingWindowSpec is not registered"))
    assert unregistered_refused([[lookup(WINDOW, None), refusal]]) == 1
    assert unregistered_refused([[lookup(WINDOW, "M"), plan(APART)]]) == 0


@pytest.mark.parametrize(
    ("outcome", "wrong"),
    [
        (APART, "planned"),
        (refused("AttributeError", "b SlidingWindowSpec"), "AttributeError"),
        (refused("ValueError", "layer b has an unregistered spec"), "unnamed"),
        (refused("ValueError", "SlidingWindowSpec is not registered"), "unnamed"),
        (refused("ValueError", "pages of a cannot be unified"), "unnamed"),
    ],
)
def test_unregistered_refused(outcome: dict[str, Any], wrong: str) -> None:
    assert facets(unregistered_refused, lookup(WINDOW, None), plan(outcome)) == (wrong,)


def test_what_died_is_for_another_law() -> None:
    events = [[plan({"died": "by signal 9"})]]
    for law in (partition, order_free, one_manager, page_unified, inputs_unchanged, tensors_cover):
        assert law(events) == 0


def test_answers_that_the_laws_can_work_with() -> None:
    sized = stored(group(a=A), a=place())["outcome"]["value"]
    assert not problem("planner.groups", APART["value"])
    assert not problem("planner.one_group", TOGETHER["value"])
    assert not problem("planner.config", sized)
    assert problem("planner.config", APART["value"])
    for broken in ({"storage": {"a": {}}}, {"tensors": ["1"]}, {"num_blocks": None}):
        assert problem("planner.config", {**sized, **broken})
    for broken in ({"groups": [{}]}, {"groups": [{"layers": [{}], "manager": None}]}, {"given": {"a": 1}}):
        assert problem("planner.groups", {**APART["value"], **broken})


def test_told() -> None:
    assert describe_operation(plan(APART)) == (
        "group the layers a: FullAttentionSpec(block_size=16), b: SlidingWindowSpec(block_size=16)"
    )
    assert describe_operation(plan(APART, {"a": FULL}, 1024)) == (
        "plan the layers a: FullAttentionSpec(block_size=16) with memory=1024"
    )
    assert describe_outcome(stored(group(a=A, b=A), a=place())["outcome"]) == (
        "(a b as FullAttentionSpec, block_size=16, 512 bytes a page, for M), 2 blocks"
    )
