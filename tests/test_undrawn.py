"""`kvref check --inputs`: which inputs no example had."""

from typing import Any, cast

from conftest import Kvref
from undrawn import differences

from kvref_conformance.report.undrawn import lines
from kvref_conformance.running.exploring.inputs import inputs_of
from kvref_conformance.running.undrawn import undrawn
from kvref_strategies.workload import Description

FULL, WINDOW = "FullAttentionSpec", "SlidingWindowSpec"


def description() -> Description:
    fields = [{"name": "block_size"}, {"name": "alignment", "default": None}]
    classes = [
        {"name": name, "mro": [name, "KVCacheSpec"], "fields": fields, "role": "layer"}
        for name in (FULL, WINDOW)
    ]
    return cast(Description, {"classes": classes, "plugin": None, "capabilities": {}})


def spec(name: str = FULL, **fields: Any) -> dict[str, Any]:
    return {"class": name, "fields": {"block_size": 16, **fields}}


def event(operation: str, value: Any = None, /, **arguments: Any) -> dict[str, Any]:
    return {"op": operation, "args": arguments, "outcome": {"value": value}}


def test_fields_off_their_defaults_and_at_the_ends_of_their_menus() -> None:
    assert inputs_of([event("specs.build", spec=spec())], description()) == {f"build: {FULL}"}
    large = inputs_of([event("specs.build", spec=spec(block_size=128, alignment=576))], description())
    assert large == {
        f"build: {FULL}",
        *(f"build: {FULL}.block_size{end}" for end in ("", " highest")),
        *(f"build: {FULL}.alignment{end}" for end in ("", " lowest")),
    }


def test_a_merge_with_itself_is_not_a_merge() -> None:
    one, other = spec(), spec(WINDOW)
    assert inputs_of([event("specs.merge", specs=[one, one])], description()) == {
        f"merge with itself: {FULL}"
    }
    assert f"merge: {FULL} beside {WINDOW}" in inputs_of(
        [event("specs.merge", specs=[one, other])], description()
    )


def test_calls_of_a_pool() -> None:
    run = [
        event("pool.create", {"null": 0}, num_blocks=9, enable_caching=True, block_size=4, hash_block_size=2),
        event("pool.get_new_blocks", [1, 2], num_blocks=2),
        event("pool.cache", tokens=[1] * 4, blocks=[1], start=0, group=0),
        event("pool.cache", tokens=[1] * 4, blocks=[2], start=0, group=1),
        event("pool.touch", blocks=[0, 1, 1]),
        event("pool.free", blocks=[1, 2]),
    ]
    assert inputs_of(run, description()) == {
        "pool: create with hash blocks smaller than blocks",
        "pool: touch of a block twice in one list",
        "pool: touch of the null block",
        "pool: touch of a referenced block",
        "pool: free of blocks of several groups",
    }


def test_contents_of_requests() -> None:
    item = {"id": "cat", "offset": 0, "length": 5, "is_embed": None}
    content = {"tokens": [9] * 6, "items": [item], "adapter": "a"}
    one = event("hashing.block_hashes", content=content, hash_block_size=4)
    assert inputs_of([one], description()) == {
        "content: a text token equal to a placeholder",
        "content: an item over several blocks",
        "content: adapter beside items",
    }


def test_what_was_never_drawn_is_what_could_have_been() -> None:
    assert undrawn(description(), set()) == []
    seen = {f"build: {FULL}", f"build: {FULL}.block_size", f"build: {FULL}.block_size lowest"}
    assert undrawn(description(), seen) == [
        f"build: {FULL}.block_size highest",
        *(f"build: {FULL}.alignment{end}" for end in ("", " lowest", " highest")),
        f"build: {WINDOW}",
    ]


def test_lines_say_each_pair_of_classes_once() -> None:
    keys = ["merge: A beside B", "merge: B beside A", "merge: A", "merge: A.x highest"]
    assert [*lines(keys)] == [
        ("merge", "A"),
        ("merge, at an end", "A.x highest"),
        ("merge, beside", "A + B"),
    ]


def test_a_missing_input_and_a_useless_glob_are_differences() -> None:
    unlisted, useless = differences(["build: NewSpec.new"], "reference")
    assert unlisted == ["build: NewSpec.new"]
    assert "pool: touch of the null block" in useless


def test_check_prints_and_reports_them(kvref: Kvref) -> None:
    options = ("check", "reference", "--inputs", "--laws", "hash.stable-across-processes")
    ran = kvref(*options)
    assert "inputs that were never drawn" in ran.out
