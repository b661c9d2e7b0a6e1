"""Laws of block hashes on events made by hand, and what the workloads draw for a target."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import Phase, given, settings, strategies as st

from kvref.target import perform
from kvref_conformance.laws import LawBroken
from kvref_conformance.laws.hashes import (
    difference,
    granularity,
    injective,
    shared,
    sources,
    stable_across_processes,
)
from kvref_conformance.report.narrate import describe_operation
from kvref_conformance.targets.reference.target import ReferenceTarget
from kvref_strategies.contents import KINDS, kinds, pair

Event = dict[str, Any]
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]


def content(tokens: list[int] | None = None, **more: Any) -> dict[str, Any]:
    return {"tokens": tokens or PROMPT, **more}


def item(name: str, offset: int, length: int, is_embed: list[bool] | None = None) -> dict[str, Any]:
    return {"id": name, "offset": offset, "length": length, "is_embed": is_embed}


def hashes(of: dict[str, Any], *values: str, size: int = 4) -> Event:
    arguments = {"content": of, "hash_block_size": size}
    return {"op": "hashing.block_hashes", "args": arguments, "outcome": {"value": list(values)}}


def keys(of: dict[str, Any], block_size: int, *values: str) -> Event:
    arguments = {"content": of, "hash_block_size": 4, "block_size": block_size}
    return {"op": "hashing.keys", "args": arguments, "outcome": {"value": list(values)}}


def refused(event: Event) -> Event:
    return {**event, "outcome": {"error": {"type": "ValueError", "message": "no"}}}


def facets(law: Any, *runs: list[Event]) -> tuple[str, ...]:
    with pytest.raises(LawBroken) as broken:
        law(list(runs))
    return broken.value.facets


CAT, DOG = item("cat", 1, 2), item("dog", 1, 2)
HALF, OTHER_HALF = [True, True, False, False], [False, False, True, True]

DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "token": (content(), content([1, 2, 3, 9, 5, 6, 7, 8]), "token"),
    "adapter": (content(adapter="a"), content(), "adapter"),
    "other adapter": (content(adapter="a"), content(adapter="b"), "adapter"),
    "salt": (content(salt="a"), content(), "salt"),
    "adapter for salt": (content(salt="a"), content(adapter="a"), "adapter"),
    "item": (content(items=[CAT]), content(), "item or token"),
    "other item": (content(items=[CAT]), content(items=[DOG]), "item"),
    "elsewhere": (content(items=[CAT]), content(items=[item("cat", 2, 2)]), "item or token"),
    "masked": (content(items=[CAT]), content(items=[item("cat", 1, 2, [False, True])]), "item or token"),
    "which embedding": (
        content(items=[item("cat", 0, 4, HALF)]),
        content(items=[item("cat", 1, 4)]),
        "item or token",
    ),
    "shared placeholders": (
        content(items=[item("a", 0, 4, HALF), item("b", 0, 4, OTHER_HALF)]),
        content(items=[item("a", 0, 4, HALF), item("c", 0, 4, OTHER_HALF)]),
        "item",
    ),
    "embedding": (content(embeddings={"1": [0.0]}), content(embeddings={"1": [1.0]}), "embedding"),
    "embedding for token": (content(embeddings={"1": [0.0]}), content(), "embedding or token"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_equal_hashes_of_different_content(name: str) -> None:
    one, other, facet = DIFFERENT[name]
    assert injective([[hashes(one, "h"), hashes(other, "g")]]) == 1
    assert facets(injective, [hashes(one, "h"), hashes(other, "h")]) == (facet,)


BEHIND: dict[str, dict[str, Any]] = {
    "tokens": content([1, 2, 3, 4, 9, 9, 9, 9]),
    "more tokens": content([*PROMPT, 9]),
    "item": content(items=[item("cat", 4, 2)]),
    "embedding": content(embeddings={"4": [1.0]}),
    "generated": content(generated=6),
}


@pytest.mark.parametrize("name", BEHIND)
def test_what_lies_behind_the_boundary_does_not_count(name: str) -> None:
    other = BEHIND[name]
    assert injective([[hashes(content(), "h"), hashes(other, "h")]]) == 0
    assert shared([[hashes(content(), "h"), hashes(other, "h")]]) == 1
    assert len(facets(shared, [hashes(content(), "h"), hashes(other, "g")])) == 1


MAYBE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "embeddings behind": (
        content(items=[item("cat", 2, 4, OTHER_HALF)]),
        content(items=[item("dog", 2, 4, OTHER_HALF)]),
    ),
    "masks that differ behind": (
        content(items=[item("cat", 2, 4, [True, True, True, False])]),
        content(items=[item("cat", 2, 4, [True, True, False, True])]),
    ),
    "length behind": (content(items=[item("cat", 2, 4)]), content(items=[item("cat", 2, 5)])),
    "all of a mask": (content(items=[CAT]), content(items=[item("cat", 1, 2, [True, True])])),
    "tokens under an item": (content([9, 9, 9, 9], items=[CAT]), content([9, 8, 8, 9], items=[CAT])),
    "tokens under embeddings": (
        content([9, 9, 9, 9], embeddings={"1": [1.0]}),
        content([9, 8, 9, 9], embeddings={"1": [1.0]}),
    ),
}


@pytest.mark.parametrize("name", MAYBE)
def test_what_may_be_hashed_and_need_not_be(name: str) -> None:
    """The KV is equal but described in two ways. A target may hash it equally or not: no law breaks."""
    one, other = MAYBE[name]
    for answer in ("h", "g"):
        assert injective([[hashes(one, "h"), hashes(other, answer)]]) == 0
        assert shared([[hashes(one, "h"), hashes(other, answer)]]) == 0


def test_hashes_of_one_request_differ() -> None:
    assert injective([[hashes(content([1] * 8), "h", "g")]]) == 1
    assert facets(injective, [hashes(content([1] * 8), "h", "h")]) == ("number of tokens",)


def test_hash_blocks_of_other_sizes_are_not_comparable_but_at_common_ends() -> None:
    assert injective([[hashes(content(), "h", "g"), hashes(content(), "g", size=8)]]) == 2
    assert facets(injective, [hashes(content(), "h", "g"), hashes(content(), "h", size=8)])
    assert shared([[hashes(content(), "h", "g"), hashes(content(), "x", size=8)]]) == 0


def test_equal_requests_have_equal_hashes() -> None:
    assert shared([[hashes(content(), "h", "g"), hashes(content(), "h", "g")]]) == 2
    assert facets(shared, [hashes(content(), "h", "g"), hashes(content(), "h", "x")]) == ("same",)


def test_nothing_to_judge() -> None:
    one = hashes(content(), "h", "g")
    for law in (injective, shared, granularity):
        assert law([[refused(one)]]) == 0
    assert shared([[one, refused(one)]]) == 0
    assert granularity([[one, refused(keys(content(), 8, "g"))]]) == 0
    assert stable_across_processes([[one]]) == 0
    assert stable_across_processes([[one], [refused(one)]]) == 0
    assert stable_across_processes([[one], [hashes(content([9] * 8), "x", "y")]]) == 0


def test_granularity() -> None:
    chain = hashes(content(), "a", "b", "c", "d", "e")
    assert granularity([[chain, keys(content(), 4, "a", "b", "c", "d", "e")]]) == 5
    assert granularity([[chain, keys(content(), 8, "b", "d")]]) == 2
    assert granularity([[chain, keys(content(), 12, "c")]]) == 1
    for wrong in (("a", "c"), ("b", "c"), ("b", "d", "e")):
        assert facets(granularity, [chain, keys(content(), 8, *wrong)])


def test_stable_across_processes() -> None:
    one = hashes(content(), "h", "g")
    assert stable_across_processes([[one], [one]]) == 2
    assert facets(stable_across_processes, [one], [hashes(content(), "h", "x")])


def test_sources_and_their_differences() -> None:
    mixed = content([9, 9, 7, 9], items=[item("a", 0, 4, [True, False, False, True]), item("b", 1, 1)])
    assert sources(mixed) == [("item", "a", 0), ("item", "b", 0), ("token", 7), ("item", "a", 1)]
    assert difference(mixed, mixed, 4) is None
    other = {**mixed, "tokens": [8, 8, 6, 8]}
    assert difference(mixed, other, 2) is None
    assert difference(mixed, other, 3) == ("token", "token 7 and token 6 at position 2")


TARGET = ReferenceTarget()
DESCRIPTION: Any = {"capabilities": dict(TARGET.capabilities)}


@pytest.mark.parametrize("kind", ["tokens", *KINDS])
def test_pairs_are_requests_that_the_reference_takes(kind: str) -> None:
    """The pairs also show the mistake of a hash that leaves this kind of content out."""
    broken: set[str] = set()

    def forgetful(event: Event) -> Event:
        """Replaces the hashes by chained hashes of the tokens alone."""
        size, tokens = event["args"]["hash_block_size"], event["args"]["content"]["tokens"]
        ends = range(size, len(tokens) + 1, size)
        values = [hashlib.sha256(json.dumps(tokens[:end]).encode()).hexdigest() for end in ends]
        return {**event, "outcome": {"value": values}}

    @settings(max_examples=60, database=None, deadline=None, derandomize=True, phases=[Phase.generate])
    @given(st.data())
    def examine(data: st.DataObject) -> None:
        events: list[Event] = []
        for each in pair(data.draw, DESCRIPTION, kind, 4):
            arguments: dict[str, Any] = {"content": json.loads(json.dumps(each)), "hash_block_size": 4}
            outcome = perform(TARGET, "hashing.block_hashes", arguments)
            assert len(outcome["value"]) == len(each["tokens"]) // 4 >= 1
            items = each.get("items", [])
            assert [one["offset"] for one in items] == sorted(one["offset"] for one in items)
            assert not (items and each.get("embeddings"))
            events.append({"op": "hashing.block_hashes", "args": arguments, "outcome": {**outcome}})
        injective([events])
        shared([events])
        try:
            injective([[forgetful(event) for event in events]])
        except LawBroken as error:
            broken.update(error.facets)

    examine()
    assert bool(broken) is (kind != "tokens")


def test_kinds_that_a_target_does_not_take_are_left_out() -> None:
    assert set(kinds(DESCRIPTION).values()) == {None}
    bare: Any = {"capabilities": {}}
    assert [kind for kind, reason in kinds(bare).items() if reason is None] == ["tokens"]
    assert kinds(bare)["salt"] == "the target takes no salt"


def test_narration() -> None:
    told = describe_operation(hashes(content(salt="a"), "h"))
    assert told == f"hash every 4 tokens of a request with tokens {PROMPT}, salt 'a'"
    assert describe_operation(keys(content(), 8)).startswith(
        "compute the keys of blocks of 8 tokens of a request, "
    )
