"""Laws of what an engine makes of a plan, and of substitutes, on events made by hand."""

from typing import Any

import pytest

from kvref_conformance.laws import LawBroken
from kvref_conformance.laws.deployments import (
    constructible,
    enough_memory,
    lcm_bounded,
    reports_agree,
    scheduler_block,
    workers_agree,
)
from kvref_conformance.laws.substitutes import substitute
from kvref_conformance.processes.answers import problem
from kvref_conformance.report.narrate import describe_operation, describe_outcome

Event = dict[str, Any]
Spec = dict[str, Any]


def full(size: int = 16, name: str = "FullAttentionSpec", **fields: Any) -> Spec:
    return {"class": name, "fields": {"block_size": size, **fields}}


FULL = full()
LAYERS = {"a": FULL, "b": full(32, "SlidingWindowSpec")}


def facts(spec: Spec, page: int = 512, **fields: Any) -> Spec:
    return {"class": spec["class"], "fields": {**spec["fields"], **fields}, "page_size_bytes": page}


def group(manager: str | None = "M", /, **specs: Spec) -> dict[str, Any]:
    layers = [{"name": name, "spec": facts(spec), "manager": manager} for name, spec in specs.items()]
    return {"layers": layers, "manager": manager}


def answer(op: str, value: Any, **arguments: Any) -> Event:
    return {"op": op, "args": arguments, "outcome": {"value": value}}


def error(op: str, kind: str = "ValueError", **arguments: Any) -> Event:
    return {"op": op, "args": arguments, "outcome": {"error": {"type": kind, "message": "no"}}}


def facets(law: Any, *events: Event) -> tuple[str, ...]:
    with pytest.raises(LawBroken) as broken:
        law([list(events)])
    return broken.value.facets


# --- block sizes


def resolved(scheduler: int, hashed: int, *said: str, caching: bool = True) -> Event:
    groups = [group(a=LAYERS["a"]), group(b=LAYERS["b"])]
    sizes = {"scheduler_block_size": scheduler, "hash_block_size": hashed}
    return answer(
        "planner.block_sizes",
        {"groups": groups, **sizes, "said": list(said)},
        layers=LAYERS,
        enable_caching=caching,
    )


def construct(scheduler: int, hashed: int, *, caching: bool = True, **shown: dict[str, int] | None) -> Event:
    value = {
        "scheduler_block_size": {"x": scheduler, "y": scheduler},
        "hash_block_size": {"x": hashed},
        **shown,
    }
    return answer("planner.construct", value, **asked(scheduler, hashed, caching))


def asked(scheduler: int, hashed: int, caching: bool = True) -> dict[str, Any]:
    return {
        "layers": LAYERS,
        "enable_caching": caching,
        "scheduler_block_size": scheduler,
        "hash_block_size": hashed,
    }


def refused(scheduler: int, hashed: int, *, caching: bool = True, kind: str = "AssertionError") -> Event:
    return error("planner.construct", kind, **asked(scheduler, hashed, caching))


@pytest.mark.parametrize(
    "event",
    [
        resolved(32, 16),
        resolved(64, 16),
        resolved(128, 16, "cache hits are multiples of 128 tokens"),
        resolved(1600, 16, "lcm block size: 1,600"),
        resolved(1600, 16, "sizes (1600, 16)"),
    ],
)
def test_sizes_that_are_small_or_told(event: Event) -> None:
    assert lcm_bounded([[event]]) == 1


@pytest.mark.parametrize(
    "event",
    [resolved(96, 16), resolved(1600, 16, "16000 and 2,1600"), resolved(96, 16, "hits may be coarser")],
)
def test_lcm_bounded(event: Event) -> None:
    assert facets(lcm_bounded, event) == ("FullAttentionSpec and SlidingWindowSpec",)


def test_without_caching_nothing_need_be_told() -> None:
    assert lcm_bounded([[resolved(96, 16, caching=False)]]) == 0
    assert lcm_bounded([[resolved(64, 16, caching=False)]]) == 1
    assert lcm_bounded([[error("planner.block_sizes", layers=LAYERS, enable_caching=True)]]) == 0


@pytest.mark.parametrize(
    "events",
    [
        [resolved(32, 16), construct(32, 16)],
        [resolved(64, 32), construct(64, 32), refused(64, 24), construct(64, 16)],
        [resolved(32, 16), refused(64, 16)],  # the engine may refuse block sizes that were not resolved
        [resolved(32, 32, caching=False), construct(32, 32, caching=False), construct(24, 16, caching=False)],
        [resolved(32, 16), construct(32, 16, scheduler_block_size={}, hash_block_size={})],
        [resolved(32, 16), construct(48, 16, scheduler_block_size=None)],
    ],
    ids=["resolved", "others", "a refusal", "without caching", "nothing shown", "not told"],
)
def test_block_sizes_in_their_own_way(events: list[Event]) -> None:
    assert scheduler_block([events]) == len(events)


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ([resolved(16, 16)], "resolved"),
        ([resolved(32, 24)], "resolved"),
        ([resolved(0, 16)], "resolved"),
        ([resolved(32, 16), refused(32, 16)], "refused, AssertionError"),
        ([resolved(32, 16, caching=False), refused(32, 16, kind="TypeError")], "refused, TypeError"),
        ([resolved(32, 16), construct(16, 16)], "accepted"),
        ([resolved(32, 16), construct(48, 16)], "accepted"),
        ([resolved(32, 16), construct(32, 24)], "accepted"),
        (
            [resolved(32, 16), construct(32, 16, scheduler_block_size={"x": 32, "y": 16})],
            "scheduler_block_size changed",
        ),
        ([resolved(32, 16), construct(32, 16, hash_block_size={"x": 32})], "hash_block_size changed"),
        (
            [resolved(32, 16), construct(32, 16, scheduler_block_size=None, hash_block_size={"x": 32})],
            "hash_block_size changed",
        ),
    ],
)
def test_scheduler_block(events: list[Event], wrong: str) -> None:
    assert facets(scheduler_block, *events) == (wrong,)


def test_a_manager_without_what_was_resolved_tells_nothing() -> None:
    lost = error("planner.block_sizes", layers=LAYERS, enable_caching=True)
    assert (
        scheduler_block([[construct(48, 7)]])
        == scheduler_block([[resolved(32, 16), lost, construct(48, 7)]][1:])
        == 0
    )
    assert scheduler_block([[lost, construct(48, 7)]]) == 0


# --- workers


def plan(blocks: int, *groups: dict[str, Any]) -> dict[str, Any]:
    names = [layer["name"] for one in groups for layer in one["layers"]]
    return {
        "groups": list(groups),
        "given": {},
        "num_blocks": blocks,
        "tensors": [512 * blocks] * len(names),
        "storage": {n: {"tensor": t, "offset": 0, "block_stride": 512} for t, n in enumerate(names)},
    }


A, B, NONE = group(a=FULL), group("W", b=LAYERS["b"]), group("W")
NOT_A, NOT_B = group(), NONE


def worker(*names: str, blocks: int = 4) -> dict[str, Any]:
    return {"layers": {name: LAYERS[name] for name in names}, "memory": 512 * blocks * max(1, len(names))}


def planned(workers: list[dict[str, Any]], *plans: dict[str, Any]) -> Event:
    return answer("planner.workers", list(plans), workers=workers)


def alone(blocks: int) -> Event:
    return answer("planner.config", plan(blocks, A), layers={"a": FULL}, memory=512 * blocks)


LOST = answer("planner.groups", {"groups": [A], "given": {}}, layers=LAYERS)
MIXED = answer("planner.groups", {"groups": [{**A, "manager": "W"}, B], "given": {}}, layers=LAYERS)
TOO_MUCH = answer("planner.config", plan(5, A), layers={"a": FULL}, memory=512 * 4)
GROUPS = answer("planner.groups", {"groups": [A, B], "given": {}}, layers=LAYERS)
STAGES = [worker("a"), worker("b")]
RANKS = [worker("a", blocks=4), worker("a", blocks=3)]


@pytest.mark.parametrize(
    "events",
    [
        [GROUPS, planned(STAGES, plan(4, A, NOT_B), plan(4, NOT_A, B))],
        [GROUPS, planned(STAGES, plan(3, A, NOT_B), plan(3, NOT_A, B))],  # nothing shows that 4 would fit
        [GROUPS, planned([worker("a"), worker()], plan(4, A), plan(4, NOT_A))],
        [GROUPS, planned([*STAGES, worker("a")], plan(4, A, NOT_B), plan(4, NOT_A, B), plan(4, A, NOT_B))],
        [alone(4), alone(3), planned(RANKS, plan(3, A), plan(3, A))],
        [GROUPS, error("planner.workers", workers=STAGES)],  # memory may be too small
        [
            alone(4),
            error("planner.config", layers={"a": FULL}, memory=1),
            error("planner.workers", workers=RANKS),
        ],
        [LOST, planned(STAGES, plan(4, A, NOT_B), plan(4, NOT_A, NOT_B))],
        [MIXED, planned(STAGES, plan(4, A, NOT_B), plan(4, group("W"), B))],
        [TOO_MUCH, planned(RANKS[:1], plan(5, A))],
    ],
    ids=[
        "stages",
        "less",
        "a bare stage",
        "stages and ranks",
        "ranks",
        "refused",
        "refused alone, too",
        "lost",
        "mixed",
        "too much",
    ],
)
def test_workers_in_their_own_way(events: list[Event]) -> None:
    assert workers_agree([events]) == 1


def test_a_planner_that_refuses_everything_is_not_judged_by_its_workers() -> None:
    assert (
        workers_agree([[error("planner.groups", layers=LAYERS), error("planner.workers", workers=STAGES)]])
        == 0
    )


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ([GROUPS, planned(STAGES, plan(4, A, NOT_B), plan(3, NOT_A, B))], "num_blocks"),
        ([GROUPS, planned(STAGES, plan(5, A, NOT_B), plan(5, NOT_A, B))], "budget"),
        ([GROUPS, planned(STAGES, plan(4, A), plan(4, NOT_A, B))], "groups"),
        ([GROUPS, planned(STAGES, plan(4, A, NOT_B), plan(4, B, NOT_A))], "groups"),
        ([GROUPS, planned(STAGES, plan(4, A), plan(4, group(b=full(32))))], "groups"),
        ([GROUPS, planned(STAGES, plan(4, A, NOT_B))], "workers"),
        ([GROUPS, planned(STAGES, plan(4, A, NOT_B), plan(4, NOT_A, NOT_B))], "layers"),
        ([GROUPS, planned(RANKS[:1] * 2, plan(4, A, NOT_A), plan(4, NOT_A, A))], "groups"),
        ([GROUPS, planned(STAGES, {**plan(4, A, NOT_B), "storage": {}}, plan(4, NOT_A, B))], "missing"),
        ([alone(4), alone(3), planned(RANKS, plan(2, A), plan(2, A))], "smallest"),
        ([alone(4), alone(3), error("planner.workers", workers=RANKS)], "refused, ValueError"),
        (
            [GROUPS, error("planner.workers", "ZeroDivisionError", workers=STAGES)],
            "refused, ZeroDivisionError",
        ),
    ],
)
def test_workers_agree(events: list[Event], wrong: str) -> None:
    assert facets(workers_agree, *events) == (wrong,)


# --- reports


def capacity(concurrency: float, tokens: int | None, *needs: int, sinks: int = 0, **others: Any) -> Event:
    told: dict[str, Any] = {"worker": {"max_concurrency": concurrency, "num_tokens": tokens}, **others}
    if tokens is None:
        del told["worker"]["num_tokens"]
    value = {"num_blocks": 41, "blocks_per_request": list(needs), "told": told}
    layers = {"a": full(sink_len=sinks)} if sinks else LAYERS
    return answer("planner.capacity", value, layers=layers, memory=4199, max_model_len=100)


@pytest.mark.parametrize(
    "events",
    [
        [capacity(4.0, 400, 8, 2), capacity(4.0, 400, 2, 8)],
        [capacity(4.1, 410, 8, 2), capacity(4.1, 410, 2, 8)],
        [capacity(4.1, 409, 10, scheduler={"max_concurrency": 4.1, "num_tokens": 409})],
        [capacity(6.0, 600, 10, sinks=128)],
        [capacity(4.0, None, 8, 2), capacity(4.0, None, 2, 8)],
    ],
    ids=["without the null block", "with it", "two views", "sinks are shared", "no tokens told"],
)
def test_reports_in_their_own_way(events: list[Event]) -> None:
    assert reports_agree([events]) == len(events)


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ([capacity(4.0, 400, 8, 2), capacity(4.1, 410, 2, 8)], "order"),
        ([capacity(4.0, 400, 10, scheduler={"max_concurrency": 2.0, "num_tokens": 200})], "views"),
        ([capacity(4.0, 402, 10)], "tokens"),
        ([capacity(5.0, 500, 10)], "concurrency"),
        ([capacity(5.0, None, 10)], "concurrency"),
        ([capacity(3.9, 390, 10)], "concurrency"),
        ([capacity(6.0, 400, 10, sinks=128)], "tokens"),
    ],
)
def test_reports_agree(events: list[Event], wrong: str) -> None:
    assert facets(reports_agree, *events) == (wrong,)


def test_no_plan_no_report() -> None:
    refused = error("planner.capacity", "KeyError", layers=LAYERS, memory=9)
    assert reports_agree([[refused, refused, error("planner.config", layers=LAYERS, memory=9)]]) == 0
    made = answer("planner.config", None, layers=LAYERS, memory=9)
    assert facets(reports_agree, refused, made) == ("refused, KeyError",)


def test_memory_for_one_request() -> None:
    told = capacity(4.0, 400, 8, 2)  # 41 blocks in 4199 bytes: a block has at most 103
    judged = answer("planner.config", None, layers=LAYERS, memory=11 * 103)
    assert enough_memory([[told, told, judged]]) == 1
    assert enough_memory([[told, error("planner.config", layers=LAYERS, memory=11 * 103 - 1)]]) == 0
    assert enough_memory([[error("planner.config", layers=LAYERS, memory=11 * 103)]]) == 0
    refused = error("planner.config", layers=LAYERS, memory=11 * 103)
    assert facets(enough_memory, told, refused) == ("FullAttentionSpec and SlidingWindowSpec",)


# --- construction


def test_a_manager_with_caching_or_without() -> None:
    one = {"layers": {"a": FULL}}
    sizes = answer("planner.block_sizes", {}, **one)
    built, not_built = answer("planner.construct", {}, **one), error("planner.construct", "TypeError", **one)
    unresolved = error("planner.block_sizes", "KeyError", **one)
    assert constructible([[sizes, built]]) == constructible([[sizes, not_built, sizes, built]]) == 1
    assert constructible([[unresolved, sizes, built]]) == 1
    assert constructible([[]]) == 0
    assert facets(constructible, sizes, not_built, sizes, not_built) == ("TypeError",)
    assert facets(constructible, unresolved) == ("KeyError",)


# --- substitutes


def derive(name: str, *mro: str) -> Event:
    return answer("specs.derive", [name, *mro], name=name)


def put(old: str, new: str | None) -> Event:
    return answer("registry.substitute", None, spec_class=old, substitute=new)


def not_put(old: str, new: str | None) -> Event:
    return error("registry.substitute", spec_class=old, substitute=new)


DECLARED = full(sliding_window=8)
OWN = DECLARED["class"]
BUILD = answer("specs.build", facts(DECLARED), spec=DECLARED)
START = [derive("P", OWN), derive("Q", "P", OWN), BUILD]


def as_(name: str, **fields: Any) -> Event:
    spec = {"class": name, "fields": {**DECLARED["fields"], **fields}}
    return answer("planner.groups", {"groups": [group(a=spec)]}, layers={"a": DECLARED})


UNPLANNED = error("planner.groups", layers={"a": DECLARED})


@pytest.mark.parametrize(
    "events",
    [
        [as_(OWN), put(OWN, "P"), as_("P", platform_field=1), put(OWN, None), as_(OWN)],
        [as_(OWN), put(OWN, "P"), as_("P"), put("P", "Q"), as_("Q"), put(OWN, None), as_(OWN)],
        [as_(OWN), put(OWN, "P"), as_("P"), put("P", "Q"), as_("P")],  # the second may apply or not
        [as_(OWN), put(OWN, "P"), as_("P"), not_put("P", OWN), as_("P")],
        [UNPLANNED, not_put(OWN, "P"), UNPLANNED],
    ],
    ids=["and undone", "in turn", "not in turn", "a loop refused", "a class that has no entry"],
)
def test_substitutes_in_their_own_way(events: list[Event]) -> None:
    judged = [e for e in events if e["op"] == "planner.groups" or e["args"]["spec_class"] != OWN]
    undone = [e for e in events if e["args"].get("substitute", "") is None]
    assert substitute([[*START, *events]]) == len(judged) + len(undone)


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ([as_(OWN), put(OWN, "P"), as_(OWN)], "class"),
        ([as_(OWN), put(OWN, "P"), as_("P", sliding_window=None)], "sliding_window"),
        ([as_(OWN), put(OWN, "P"), as_("P"), put(OWN, None), as_("P")], "not undone"),
        ([as_(OWN), put(OWN, "P"), as_("P"), put(OWN, None), as_(OWN, block_size=32)], "not undone"),
        ([as_(OWN), put(OWN, "P"), UNPLANNED], "refused"),
        ([put(OWN, "P"), put("P", OWN)], "loop"),
        ([put(OWN, OWN)], "loop"),
        ([put(OWN, "P"), not_put("P", "Q")], "not possible"),
        ([put(OWN, "P"), not_put(OWN, None)], "not possible"),
    ],
)
def test_substitute(events: list[Event], wrong: str) -> None:
    assert facets(substitute, *START, *events) == (wrong,)


# --- invalid answers


def test_answers_that_the_laws_can_work_with() -> None:
    sizes, made, told = (
        resolved(32, 16)["outcome"]["value"],
        construct(32, 16)["outcome"]["value"],
        capacity(4, 400, 10),
    )
    assert not problem("planner.workers", [plan(4, A)])
    assert problem("planner.workers", plan(4, A))
    assert problem("planner.workers", [{**plan(4, A), "num_blocks": "4"}])
    assert not problem("planner.block_sizes", sizes)
    for broken in ({"said": None}, {"said": [1]}, {"hash_block_size": "16"}, {"groups": [{}]}):
        assert problem("planner.block_sizes", {**sizes, **broken})
    assert not problem("planner.construct", made)
    assert problem("planner.construct", {**made, "hash_block_size": {"x": "16"}})
    assert problem("planner.construct", None)
    assert not problem("planner.construct", {**made, "scheduler_block_size": None})
    assert problem("planner.construct", {**made, "hash_block_size": None})
    assert problem("planner.construct", {"hash_block_size": {}})
    assert not problem("planner.capacity", told["outcome"]["value"])
    for wrong in ({"told": {}}, {"told": {"worker": {}}}, {"blocks_per_request": []}, {"num_blocks": None}):
        assert problem("planner.capacity", {**told["outcome"]["value"], **wrong})


def test_told() -> None:
    layers = {"a": FULL}
    told = "a: FullAttentionSpec(block_size=16)"
    shares = answer("planner.workers", None, workers=[worker("a"), worker()], max_model_len=128)
    assert describe_operation(shares) == (
        f"plan for workers that have {told} with memory=2048; no layers with memory=2048; "
        "with max_model_len=128"
    )
    both = answer("planner.block_sizes", None, layers=layers, enable_caching=False)
    assert describe_operation(both) == f"resolve the block sizes of the layers {told}, caching off"
    made = answer(
        "planner.construct",
        None,
        layers=layers,
        enable_caching=True,
        scheduler_block_size=32,
        hash_block_size=16,
    )
    assert describe_operation(made) == (
        f"create a cache manager for the layers {told}, caching on, "
        "with scheduler_block_size=32, hash_block_size=16"
    )
    alike = answer("planner.one_group", None, layers=layers)
    assert describe_operation(alike) == f"put the layers {told} into one group"
    report = answer("planner.capacity", None, layers=layers, memory=9, backwards=True)
    assert describe_operation(report) == (
        f"report the capacity of a plan of {told} with memory=9, its groups listed backwards"
    )
    assert describe_operation(put("A", "B")) == "substitute B for A"
    assert describe_operation(put("A", None)) == "undo the substitute for A"
    assert describe_outcome(resolved(32, 16, "a line")["outcome"]).endswith(
        "scheduler blocks of 32, hashed every 16; said: a line"
    )
