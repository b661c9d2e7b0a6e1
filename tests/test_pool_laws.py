"""Laws of the pool on events made by hand. Correct events keep each law, wrong ones break it in one facet."""

from types import SimpleNamespace
from typing import Any

import pytest

from kvref.target import perform
from kvref_conformance.laws import LAWS, LawBroken
from kvref_conformance.laws.pool import (
    bad_input_refused,
    hash_metadata,
    null_block,
    partition,
    ref_model,
    reset,
    reuse_order,
)
from kvref_conformance.processes.answers import problem
from kvref_conformance.processes.host import parts
from kvref_conformance.report.narrate import describe_operation, narrate
from kvref_conformance.targets.faults import FAULTS
from kvref_conformance.targets.reference.pool import CURRENT
from kvref_conformance.targets.reference.target import ReferenceTarget

Event = dict[str, Any]
ORDER = {"unkeyed": "first", "keyed": "last"}
EMPTY: dict[str, list[str]] = {}
REFUSED = {"error": {"type": "ValueError", "message": "no"}}


def event(op: str, value: Any = None, /, **arguments: Any) -> Event:
    outcome = REFUSED if value is REFUSED else {"value": value}
    return {"op": f"pool.{op}", "args": arguments, "outcome": outcome}


def create(order: dict[str, str] | None = None, *, caching: bool = True, **shape: Any) -> Event:
    """By default, a pool of the null block 0 and of blocks 1, 2 and 3."""
    return event(
        "create",
        {"null": 0, "reserved": [], **shape},
        num_blocks=4,
        enable_caching=caching,
        block_size=2,
        hash_block_size=1,
        **({"declared": {"reuse_order": order}} if order else {}),
    )


def state(free: list[int], keys: dict[int, list[str]] | None = None, **other: Any) -> Event:
    """The pool's state. By default, a block that is not free has one reference, and look-ups find keys."""
    carried = {str(block): list(own) for block, own in (keys or {}).items()}
    found: dict[str, list[int]] = {}
    for block, own in (keys or {}).items():
        for key in own:
            found.setdefault(key, []).append(block)
    told = {
        "free": free,
        "free_count": len(free),
        "refs": [0, *(int(block not in free) for block in (1, 2, 3))],
        "keys": carried,
        "found": found,
        **other,
    }
    return event("state", told)


def take(*blocks: int) -> Event:
    return event("get_new_blocks", list(blocks), num_blocks=len(blocks))


def cache(tokens: list[int], *blocks: int, start: int = 0, group: int = 0) -> Event:
    return event("cache", tokens=tokens, blocks=list(blocks), start=start, group=group)


def touch(*blocks: int) -> Event:
    return event("touch", blocks=list(blocks))


def free(*blocks: int) -> Event:
    return event("free", blocks=list(blocks))


def refused(given: Event) -> Event:
    return {**given, "outcome": REFUSED}


def facets(law: Any, *events: Event) -> tuple[str, ...]:
    with pytest.raises(LawBroken) as broken:
        law([list(events)])
    return broken.value.facets


START = (create(), state([1, 2, 3]))
ALL = (partition, ref_model, null_block, bad_input_refused, reuse_order, hash_metadata, reset)


def test_what_is_right_breaks_nothing() -> None:
    """Two requests share a block. The first one ends, then the block is freed, found, evicted and gone."""
    run = [
        create(ORDER),
        state([1, 2, 3]),
        take(1, 2),
        state([3]),
        cache([0, 0, 0, 1], 1, 2),
        state([3], {1: ["a"], 2: ["b"]}),
        event("lookup", [1], tokens=[0, 0], groups=[0]),
        touch(1),
        state([3], {1: ["a"], 2: ["b"]}, refs=[0, 2, 1, 0]),
        event("reset", False),
        state([3], {1: ["a"], 2: ["b"]}, refs=[0, 2, 1, 0]),
        free(2, 1),
        state([3, 2], {1: ["a"], 2: ["b"]}, refs=[0, 1, 0, 0]),
        event("usage", 1 - 2 / 3),
        free(1),
        state([3, 2, 1], {1: ["a"], 2: ["b"]}),
        event("evict", blocks=[2, 0]),
        state([2, 3, 1], {1: ["a"]}),
        event("lookup", None, tokens=[0, 0, 0, 1], groups=[0]),
        event("get_new_blocks", REFUSED, num_blocks=4),
        state([2, 3, 1], {1: ["a"]}),
        event("reset", True),
        state([1, 2, 3]),
        event("lookup", None, tokens=[0, 0], groups=[0]),
    ]
    assert [law([run]) > 0 for law in ALL] == [True] * len(ALL)


def test_a_pool_that_was_not_created_is_not_judged() -> None:
    runs = [[refused(create()), state([1, 1]), event("get_new_blocks", [0], num_blocks=-1)]]
    assert [law(runs) for law in ALL] == [0] * len(ALL)


@pytest.mark.parametrize(
    ("told", "facet"),
    [
        (state([1, 2, 3], free_count=4), "counter"),
        (state([1, 2, 2, 3]), "twice"),
        (state([1, 2, 3, -1]), "unusable"),
        (state([1, 2, 3], refs=[0, 1, 0, 0]), "free and held"),
        (state([1, 2], refs=[0, 0, 0, 0]), "lost"),
        (state([1, 2], refs=[0, 0, 0, -1]), "lost"),
    ],
)
def test_a_block_is_one_thing(told: Event, facet: str) -> None:
    assert partition([[create(), state([1, 2], refs=[7, 0, 0, 1])]]) == 1
    assert facets(partition, create(), told) == (facet,)


def test_reserved_blocks_are_neither_free_nor_held() -> None:
    assert partition([[create(reserved=[3]), state([1, 2], refs=[0, 0, 0, 0])]]) == 1
    assert facets(partition, create(reserved=[3]), state([1, 2, 3])) == ("unusable",)
    assert ref_model([[create(reserved=[3]), state([1, 2], refs=[0, 0, 0, 5])]]) == 1


@pytest.mark.parametrize(
    ("taken", "facet"),
    [
        (event("get_new_blocks", REFUSED, num_blocks=2), "refused"),
        (event("get_new_blocks", [2], num_blocks=2), "number"),
        (event("get_new_blocks", [2, 2], num_blocks=2), "number"),
        (event("get_new_blocks", [1, 2], num_blocks=2), "not free"),
    ],
)
def test_what_is_free_can_be_had(taken: Event, facet: str) -> None:
    before = [*START, take(1), state([2, 3])]
    assert partition([[*before, take(3, 2), state([])]]) == 3
    # The law does not judge a call for more blocks than are free, nor a call before any state was seen.
    assert partition([[*before, event("get_new_blocks", REFUSED, num_blocks=3)]]) == 2
    assert partition([[*START, take(1), event("get_new_blocks", REFUSED, num_blocks=1)]]) == 1
    assert facets(partition, *before, taken) == (facet,)


@pytest.mark.parametrize(("refs", "facet"), [(1, "too few"), (3, "too many"), (-1, "negative")])
def test_references_are_what_was_taken_and_given_back(refs: int, facet: str) -> None:
    shared = [*START, take(1), state([2, 3], {1: ["a"]}), touch(1, 0)]
    assert ref_model([[*shared, state([2, 3], {1: ["a"]}, refs=[9, 2, 0, 0])]]) == 3
    assert facets(ref_model, *shared, state([2, 3], {1: ["a"]}, refs=[0, refs, 0, 0])) == (facet,)


def test_what_may_be_touched_or_freed_is_not_refused() -> None:
    held = [*START, take(1), state([2, 3], {2: ["a"]})]
    for right in (touch(1), touch(2, 0), free(1), free(0, 1)):
        assert facets(ref_model, *held, refused(right)) == ("refused",)
    for wrong in (touch(3), touch(1, 9), free(1, 1), free(2)):
        assert ref_model([[*held, refused(wrong), held[-1]]]) == 3


@pytest.mark.parametrize(
    ("events", "facet"),
    [
        ([take(0)], "handed out"),
        ([event("lookup", [1, 0], tokens=[0, 0], groups=[0, 1])], "found"),
        ([touch(0), state([0, 1, 2, 3])], "free"),
        ([cache([0, 0], 0), state([1, 2, 3], {0: ["a"]})], "key"),
        ([cache([0, 0], 0), state([1, 2, 3], found={"a": [0]})], "key"),
        ([event("usage", 0.25)], "usage"),
    ],
)
def test_the_null_block_takes_no_part(events: list[Event], facet: str) -> None:
    assert null_block([[*START, event("usage", 0.0), touch(0), state([1, 2, 3], refs=[5, 0, 0, 0])]]) == 3
    assert facets(null_block, *START, *events) == (facet,)


def test_who_has_no_null_block_keeps_the_law() -> None:
    """Without a null block, block 0 is an ordinary block."""
    assert null_block([[create(null=None), event("usage", 0.25), state([0, 1, 2, 3]), take(0)]]) > 0


def test_the_null_block_is_not_counted() -> None:
    assert facets(null_block, create(), state([1, 2, 3], free_count=4)) == ("counted",)


@pytest.mark.parametrize(
    ("wrong", "facet"),
    [
        (event("get_new_blocks", [], num_blocks=-1), "negative number"),
        (event("get_new_blocks", [2, 3, 4], num_blocks=3), "more than are free"),
        (free(2), "freed too often"),
        (free(1, 1), "freed too often"),
        (free(1, -1), "free of a negative block"),
        (free(1, 4), "free of a block beyond the last"),
        (touch(4), "touch of a block beyond the last"),
        (event("evict", blocks=[-1]), "evict of a negative block"),
    ],
)
def test_misuse_is_refused_and_changes_nothing(wrong: Event, facet: str) -> None:
    held = [*START, take(1), state([2, 3])]
    assert bad_input_refused([[*held, refused(wrong), state([2, 3])]]) == 1
    assert bad_input_refused([[*held, refused(wrong)]]) == 1
    assert facets(bad_input_refused, *held, wrong) == (facet,)
    assert facets(bad_input_refused, *held, refused(wrong), state([3, 2])) == (f"{facet}, changed",)


def test_use_is_no_misuse() -> None:
    held = [
        *START,
        take(1),
        state([2, 3]),
        take(3, 2),
        free(0, 3, 0),
        event("evict", blocks=[0, 3]),
        touch(0),
    ]
    assert bad_input_refused([held]) == 0


@pytest.mark.parametrize(
    ("order", "caching", "line"),
    [
        (ORDER, True, [3, 4, 5, 1]),
        ({"unkeyed": "last", "keyed": "last"}, True, [4, 5, 3, 1]),
        ({"unkeyed": "last", "keyed": "first"}, True, [1, 4, 5, 3]),
        ({**ORDER, "without_caching": "last"}, True, [3, 4, 5, 1]),
        ({**ORDER, "without_caching": "last"}, False, [4, 5, 3, 1]),
    ],
)
def test_the_line_is_the_declared_one(order: dict[str, str], caching: bool, line: list[int]) -> None:
    """Block 3 has no key, block 1 has one, 4 and 5 are already in the free list, and 2 stays referenced."""
    made = create(order, caching=caching)
    made["args"]["num_blocks"] = 6
    before = state([4, 5], {1: ["a"]} if caching else {}, refs=[0, 1, 2, 1, 0, 0])

    def after(free: list[int]) -> Event:
        return state(free, {1: ["a"]} if caching else {}, refs=[0, 0, 1, 0, 0, 0])

    assert reuse_order([[made, before, free(3, 2, 1), after(line)]]) == 1
    assert facets(reuse_order, made, before, free(3, 2, 1), after(line[::-1])) == ("free",)


def test_the_first_in_line_are_handed_out() -> None:
    start = [create(ORDER), state([2, 1, 3])]
    assert reuse_order([[*start, take(1, 2), state([3])]]) == 1
    assert facets(reuse_order, *start, take(1, 3), state([2])) == ("handed out",)
    assert facets(reuse_order, *start, take(2), state([3, 1])) == ("get_new_blocks",)


def test_only_what_is_touched_leaves_the_line() -> None:
    keys = {2: ["a"]}
    start = [create(ORDER), state([1, 2, 3], keys)]
    assert reuse_order([[*start, touch(2), state([1, 3], keys)]]) == 1
    assert facets(reuse_order, *start, touch(2), state([1, 2, 3], keys)) == ("touch",)
    assert facets(reuse_order, *start, touch(2), state([3, 1], keys)) == ("touch",)


def test_where_an_evicted_block_goes_is_left_open() -> None:
    start = [create(ORDER), state([1, 2, 3], {2: ["a"]})]
    for line in ([1, 2, 3], [2, 1, 3], [1, 3, 2]):
        assert reuse_order([[*start, event("evict", blocks=[2]), state(line)]]) == 1
    assert facets(reuse_order, *start, event("evict", blocks=[2]), state([3, 1, 2])) == ("evict",)


def test_no_order_is_asked_of_who_declares_none() -> None:
    assert LAWS["pool.reuse-order"].capabilities == ("reuse_order",)
    assert reuse_order([[create(), state([1, 2, 3]), take(3), state([2, 1])]]) == 0


KEYED = (*START, take(1, 2), state([3]), cache([0, 0, 0, 1], 1, 2), state([3], {1: ["a"], 2: ["b"]}))


@pytest.mark.parametrize(
    ("events", "facet"),
    [
        ([cache([0, 0], 1), state([2, 3], {1: ["a"]}, found={})], "not in the index"),
        ([cache([0, 0], 1), state([2, 3], found={"a": [1]})], "only in the index"),
        ([cache([0, 0], 1), state([2, 3], {1: ["a"]}, found={"a": [1, 2]})], "only in the index"),
    ],
)
def test_blocks_and_index_agree(events: list[Event], facet: str) -> None:
    assert hash_metadata([list(KEYED)]) == 1
    assert hash_metadata([[*KEYED, cache([0, 0], 2), state([3], {1: ["a"], 2: ["a", "b"]})]]) == 2
    assert facets(hash_metadata, *START, take(1), state([2, 3]), *events) == (facet,)


@pytest.mark.parametrize(
    ("events", "facet"),
    [
        ([free(1), state([3, 1], {2: ["b"]})], "changed by free"),
        ([touch(1), state([3], {2: ["b"]})], "changed by touch"),
        ([take(3), state([], {1: ["a"]})], "changed by get_new_blocks"),
        ([take(3), state([], {1: ["a"], 2: ["b"], 3: ["c"]})], "kept by reuse"),
        ([event("evict", blocks=[1]), state([3], {1: ["a"], 2: ["b"]})], "kept by eviction"),
        ([event("evict", blocks=[1]), state([3])], "changed by evict"),
        ([refused(event("evict", blocks=[1]))], "refused"),
        ([refused(cache([0, 0], 1))], "refused"),
        ([refused(event("cache_partial", tokens=[0], block=1, group=0))], "refused"),
        ([refused(event("lookup", tokens=[0, 0], groups=[0]))], "refused"),
        ([event("lookup", [1, 2], tokens=[0, 0], groups=[0])], "number"),
        ([event("lookup", [2], tokens=[0, 0], groups=[0])], "false hit"),
        ([event("lookup", [1], tokens=[0, 0], groups=[1])], "false hit"),
        ([event("lookup", [1], tokens=[0], groups=[0])], "false hit"),
        ([event("lookup", None, tokens=[0, 0], groups=[0])], "not found"),
    ],
)
def test_keys_live_and_die_with_their_content(events: list[Event], facet: str) -> None:
    assert facets(hash_metadata, *KEYED, *events) == (facet,)


def test_of_two_blocks_with_a_key_one_is_enough() -> None:
    twins = [*START, take(1, 2), cache([0, 0], 1), cache([0, 0], 2)]
    one = event("evict", blocks=[1])
    for block in (1, 2):
        assert hash_metadata([[*twins, event("lookup", [block], tokens=[0, 0], groups=[0])]]) == 1
    assert hash_metadata([[*twins, one, event("lookup", [2], tokens=[0, 0], groups=[0])]]) == 1
    for answer, facet in (([1], "false hit"), (None, "not found")):
        assert facets(hash_metadata, *twins, one, event("lookup", answer, tokens=[0, 0], groups=[0])) == (
            facet,
        )


def test_all_groups_or_none() -> None:
    one = [*START, take(1, 2), cache([0, 0], 1)]
    both = [*one, cache([0, 0], 2, group=1)]
    assert hash_metadata([[*one, event("lookup", None, tokens=[0, 0], groups=[0, 1])]]) == 1
    assert hash_metadata([[*both, event("lookup", [1, 2], tokens=[0, 0], groups=[0, 1])]]) == 1
    assert facets(hash_metadata, *both, event("lookup", None, tokens=[0, 0], groups=[0, 1])) == ("not found",)
    assert facets(hash_metadata, *both, event("lookup", [2, 1], tokens=[0, 0], groups=[0, 1])) == (
        "false hit",
    )


@pytest.mark.parametrize("answer", [None, [1]])
def test_a_key_for_all_of_a_block_may_replace_one_for_its_beginning(answer: Any) -> None:
    part = event("cache_partial", tokens=[0], block=1, group=0)
    asked = event("lookup", answer, tokens=[0], groups=[0])
    whole = cache([0, 1], 1)
    assert hash_metadata([[*START, take(1), part, whole, asked]]) == 1
    if answer is None:
        assert facets(hash_metadata, *START, take(1), part, asked) == ("not found",)
        assert facets(hash_metadata, *START, take(1), whole, part, asked) == ("not found",)


def test_nothing_is_found_where_caching_is_off() -> None:
    off = [create(caching=False), take(1)]
    assert hash_metadata([[*off, event("lookup", None, tokens=[0, 0], groups=[0])]]) == 1
    assert hash_metadata([[*off, state([2, 3]), refused(cache([0, 0], 1))]]) == 0


def test_reset() -> None:
    held = [*START, take(1), state([2, 3], {2: ["a"]})]
    unused = [create(), state([1, 2, 3], {2: ["a"]})]
    assert reset([[*held, event("reset", False), held[-1]]]) == 1
    assert reset([[*unused, event("reset", True), state([3, 2, 1])]]) == 1
    assert facets(reset, *held, event("reset", True)) == ("done while held",)
    assert facets(reset, *held, event("reset", False), state([2, 3])) == ("changed",)
    assert facets(reset, *unused, event("reset", False)) == ("refused",)
    assert facets(reset, *unused, event("reset", REFUSED)) == ("refused",)
    assert facets(reset, *unused, event("reset", True), unused[-1]) == ("key left",)
    left = state([1, 2, 3], found={"a": [2]})
    assert facets(reset, *unused, event("reset", True), left) == ("key left",)


def test_a_reset_of_a_pool_in_disorder_is_not_judged() -> None:
    """Another law reports a pool whose state is inconsistent. A reset of it proves nothing."""
    assert reset([[create(), state([1, 2, 3], free_count=4), event("reset", False)]]) == 0


def test_each_law_of_the_pool_has_a_fault() -> None:
    # tests/test_variants.py tests the law of variants.
    own = [law for law in LAWS if law.startswith("pool.") and law != "pool.variants-agree"]
    assert len(own) == len(ALL)
    assert set(own) <= set(FAULTS.values())


def test_the_reference_does_what_the_protocol_says() -> None:
    target = ReferenceTarget()

    def ask(op: str, **arguments: Any) -> Any:
        outcome = perform(target, f"pool.{op}", arguments)
        assert "value" in outcome, outcome
        assert not problem(f"pool.{op}", outcome["value"])
        return outcome["value"]

    made = {"num_blocks": 4, "enable_caching": True, "block_size": 2, "hash_block_size": 1}
    assert ask("create", **made) == {"null": 0, "reserved": []}
    first, second = ask("get_new_blocks", num_blocks=2)
    ask("cache", tokens=[0, 0, 0, 1], blocks=[first, second], start=0, group=1)
    ask("cache_partial", tokens=[0, 0, 0], block=second, group=1)
    assert ask("lookup", tokens=[0, 0], groups=[1]) == [first]
    assert ask("lookup", tokens=[0, 0, 0], groups=[1]) == [second]
    assert ask("lookup", tokens=[0, 0], groups=[0]) is None
    ask("touch", blocks=[first, 0])
    ask("free", blocks=[second, first])
    assert ask("usage") == pytest.approx(1 / 3)
    told = ask("state")
    assert told["refs"][first] == 1
    assert sorted(map(len, told["keys"].values())) == [1, 2]
    assert {key for keys in told["keys"].values() for key in keys} == set(told["found"])
    assert ask("reset") is False
    ask("evict", blocks=[second])
    ask("free", blocks=[first])
    assert ask("reset") is True
    assert ask("state")["found"] == {}


def test_the_probe_tells_what_is_free_twice() -> None:
    target = ReferenceTarget()
    made = {"num_blocks": 4, "enable_caching": True, "block_size": 2, "hash_block_size": 2}
    perform(target, "pool.create", made)
    told = perform(target, "pool.state", {})["value"]
    assert disorder_in(create(), told) == ""
    CURRENT.pool._free = [*CURRENT.pool._free, 1]
    assert disorder_in(create(), perform(target, "pool.state", {})["value"]) == "twice"


def disorder_in(created: Event, told: dict[str, Any]) -> str:
    try:
        partition([[created, event("state", told)]])
    except LawBroken as broken:
        return broken.facets[0]
    return ""


@pytest.mark.parametrize(
    ("op", "value"),
    [
        ("create", None),
        ("create", {"null": "0", "reserved": []}),
        ("get_new_blocks", None),
        ("get_new_blocks", ["1"]),
        ("lookup", [None]),
        ("reset", None),
        ("usage", "all"),
        ("state", {"free": [1]}),
        ("state", {"free": [], "free_count": 0, "refs": [], "keys": {}, "found": {"a": 1}}),
    ],
)
def test_other_answers_cannot_be_judged(op: str, value: Any) -> None:
    assert problem(f"pool.{op}", value)


def test_a_target_need_not_have_a_pool() -> None:
    assert parts(SimpleNamespace()) == []  # type: ignore[arg-type]
    some = SimpleNamespace(pool=SimpleNamespace(create=None, get_new_blocks=None, other=None))
    assert parts(some) == ["pool", "pool.create", "pool.get_new_blocks"]  # type: ignore[arg-type]


def test_narration() -> None:
    told = [describe_operation(each) for each in (create(), take(1, 2), cache([0, 0, 0, 1], 1, 2, start=1))]
    assert told == [
        "create a pool of 4 blocks of 2 tokens, hashed every 1",
        "allocate 2 blocks",
        "cache block 2 after block 1 for the tokens [0, 0, 0, 1] in group 0",
    ]
    assert describe_operation(create(caching=False)).endswith("caching off")
    assert describe_operation(touch(1)) == "touch block 1"
    probe = {"op": "pool.state", "args": {}}
    assert list(narrate([{"flags": [], "operations": [probe, touch(1), probe]}])) == [
        "touch block 1  -> done"
    ]
