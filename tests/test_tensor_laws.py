"""Laws of memory and of canonical views, on the reference's answers and on answers with a mistake."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from kvref.target import perform
from kvref_conformance.laws import LAWS, LawBroken
from kvref_conformance.processes.answers import problem
from kvref_conformance.targets.reference.target import ReferenceTarget

FIELDS = {"block_size": 4, "num_kv_heads": 2, "head_size": 2, "dtype": "torch.float16"}
FULL = {"class": "FullAttentionSpec", "fields": FIELDS}
OTHER = {"class": "FullAttentionSpec", "fields": {**FIELDS, "num_kv_heads": 1}}
MORE = {"class": "FullAttentionSpec", "fields": {**FIELDS, "num_kv_heads": 4}}
WINDOW = {"class": "SlidingWindowSpec", "fields": {**FIELDS, "sliding_window": 8}}
PADDED = {"class": "FullAttentionSpec", "fields": {**FIELDS, "page_size_padded": 80}}

Change = Callable[[dict[str, Any]], object]


def event(op: str, **arguments: Any) -> dict[str, Any]:
    """An operation with the reference's answer, as a law sees it."""
    answer = perform(ReferenceTarget(), op, arguments)
    return copy.deepcopy({"op": op, "args": arguments, "outcome": answer})


def allocated(*specs: Any, layout: str = "LBNHC", buffers: str = "each", **how: Any) -> dict[str, Any]:
    plain = {"num_blocks": 3, "kernel_block_size": None, "sharing": [], "device": "cpu"}
    layers = {f"layer.{place}": spec for place, spec in enumerate(specs)}
    return event(
        "tensors.allocate", **{**plain, "layers": layers, "layout": layout, "buffers": buffers, **how}
    )


def facets(law: str, *events: dict[str, Any]) -> tuple[str, ...]:
    """The facets in which the events break the law. Empty if the law judged something and holds."""
    try:
        assert LAWS[law].check([list(events)]) > 0
    except LawBroken as broken:
        return broken.facets
    return ()


def view(made: dict[str, Any], layer: str = "layer.0") -> dict[str, Any]:
    one: dict[str, Any] = made["outcome"]["value"]["layers"][layer]["views"][0]
    return one


def broken_by(law: str, change: Change, *events: dict[str, Any]) -> tuple[str, ...]:
    """The broken facets after a change to the last event. Without the change, the events keep the law."""
    assert facets(law, *events) == ()
    changed = copy.deepcopy(list(events))
    change(changed[-1])
    return facets(law, *changed)


def test_in_bounds() -> None:
    law = "tensors.in-bounds"
    two = allocated(FULL, OTHER, buffers="one")
    assert broken_by(law, lambda e: view(e).update(offset=-1), two) == ("outside",)
    assert broken_by(law, lambda e: view(e).update(strides=[64, 8, 16, 0]), two) == ("itself",)
    assert broken_by(law, lambda e: view(e).update(strides=[32, 8, 16, 2]), two) == ("blocks",)
    assert broken_by(law, lambda e: view(e, "layer.1").update(offset=0), two) == ("layers",)
    # Layers of two groups may overlap in one block, which they use in turns, but not in different blocks.
    turns = allocated(FULL, WINDOW)
    assert broken_by(law, lambda e: view(e, "layer.1").update(offset=48), turns) == ("blocks",)


def test_block_stride() -> None:
    law = "tensors.block-stride"
    assert broken_by(law, lambda e: view(e).update(strides=[64, 8, 16, 2]), allocated(PADDED)) == ("BHNC",)
    for layout in ("LHBNC", "LKBNHC", "BHLNC", "BLKNHC"):
        assert facets(law, allocated(FULL, FULL, layout=layout)) == ()
    assert facets(law, allocated(FULL, layout="LKBNHC", kernel_block_size=2)) == ()
    # The stride may count whole pages, although a view with an axis for K and V has half pages.
    halves = allocated(FULL, layout="LKBNHC")
    halves["outcome"]["value"]["layers"]["layer.0"]["block_stride"] *= 2
    assert facets(law, halves) == ()


def test_layout_stable() -> None:
    law = "tensors.layout-stable"
    three, two = allocated(FULL), allocated(FULL, num_blocks=2)
    assert broken_by(law, lambda e: view(e).update(strides=[64, 32, 8, 2]), three, two) == ("order",)
    assert broken_by(law, lambda e: view(e).update(strides=[128, 16, 32, 2]), three, two) == ("strides",)
    refused = {**two, "outcome": {"error": {"type": "AssertionError", "message": ""}}}
    assert facets(law, three, refused) == ("refused, AssertionError",)
    assert facets(law, refused, {**three, "outcome": refused["outcome"]}) == ()
    more = allocated(MORE)
    assert broken_by(law, lambda e: view(e).update(strides=[128, 32, 8, 2]), three, more) == ("order",)
    assert LAWS[law].check([[three, allocated(FULL, layout="LBHNC")]]) == 0


def test_kernel_split() -> None:
    law = "tensors.kernel-split"
    whole, split = allocated(FULL), allocated(FULL, kernel_block_size=2)
    assert broken_by(law, lambda e: view(e).update(shape=[3, 2, 2, 4]), whole, split) == ("missing",)
    assert broken_by(law, lambda e: view(e).update(shape=[6, 2, 4, 4]), whole, split) == ("more",)
    assert LAWS[law].check([[split]]) == 0


def test_sum_is_plan() -> None:
    law = "tensors.sum-is-plan"
    one = allocated(FULL)
    assert broken_by(law, lambda e: e["outcome"]["value"].update(buffers=[256]), one) == ("bytes",)
    assert broken_by(law, lambda e: view(e).update(shape=[2, 2, 4, 4]), one) == ("blocks",)
    assert broken_by(law, lambda e: view(e).update(shape=[4, 2, 4, 4]), one) == ("blocks",)


def test_a_stub_keeps_no_law() -> None:
    """If a target reports no memory, `tensors.sum-is-plan` breaks. Other laws have nothing to judge."""
    events = [
        *registered(FULL, WINDOW),
        allocated(FULL, WINDOW, num_blocks=2),
        allocated(FULL, WINDOW, buffers="one"),
    ]
    # Leave out the laws that accept any answer.
    laws = [
        law for law in LAWS.values() if law.area in ("tensors", "canonical") and not law.id.endswith("total")
    ]
    assert facets("tensors.sum-is-plan", *events) == ()
    for told in ({"layers": {}}, {"layers": {n: {"views": []} for n in ("layer.0", "layer.1")}}):
        stubbed = copy.deepcopy(events)
        for each in stubbed:
            if each["op"] == "tensors.allocate":
                each["outcome"]["value"].update(told)
        assert facets("tensors.sum-is-plan", *stubbed) == ("layer",)
        assert {law.id for law in laws if law.id != "tensors.sum-is-plan" and law.check([stubbed])} == set()
    less = copy.deepcopy(events[0])
    less["outcome"]["value"]["layers"]["layer.0"]["content_size_bytes"] = 32
    assert facets("tensors.sum-is-plan", less) == ("content",)


def test_zeroed() -> None:
    assert broken_by(
        "tensors.zeroed", lambda e: e["outcome"]["value"].update(zero=False), allocated(FULL)
    ) == ("",)


def test_one_buffer() -> None:
    law = "tensors.one-buffer"
    each, one = allocated(FULL, OTHER), allocated(FULL, OTHER, buffers="one")
    assert LAWS[law].check([[each]]) == 0
    assert broken_by(law, lambda e: e["outcome"]["value"].update(buffers=[1, 2]), each, one) == (
        "allocations",
    )
    assert broken_by(law, lambda e: view(e).update(strides=[64, 32, 8, 2]), each, one) == ("views",)


def test_answers_are_looked_at_first() -> None:
    """If laws cannot use an answer, kvref reports that to the author of the target."""
    allocation, registration = registered(FULL, WINDOW, layout="LKBNHC")
    for told in (allocation, registration):
        assert not problem(told["op"], told["outcome"]["value"])
    made, canonical = allocation["outcome"]["value"], registration["outcome"]["value"]
    layer = made["layers"]["layer.0"]
    for wrong in (
        {"buffers": "96"},
        {"zero": 1},
        {"groups": [[0]]},
        {"layers": []},
        {"layers": {"layer.0": {**layer, "block_stride": None}}},
        {"layers": {"layer.0": {**layer, "views": [{**layer["views"][0], "axes": "KBHN"}]}}},
        {"layers": {"layer.0": {**layer, "views": [{**layer["views"][0], "buffer": 7}]}}},
    ):
        assert problem("tensors.allocate", {**made, **wrong})
    for wrong in (
        {"tensors": [{**canonical["tensors"][0], "strides": []}]},
        {"tensors": [{**canonical["tensors"][0], "dtype": 8}]},
        {"groups": [[0]]},
        {"groups": [[{"tensor": "0", "page_size_bytes": 1}]]},
    ):
        assert problem("canonical.register", {**canonical, **wrong})
    assert not problem("tensors.read", "00ff")
    assert all(problem("canonical.write", value) for value in ("", "0", "0g", None, 7))


def registered(*specs: Any, **how: Any) -> list[dict[str, Any]]:
    return [allocated(*specs, **how), event("canonical.register")]


@pytest.mark.parametrize(
    ("change", "facet"),
    [
        ({"shape": [3, 63]}, "shape"),
        ({"shape": [2, 64]}, "shape"),
        ({"strides": [64, 2]}, "rows"),
        ({"dtype": "torch.uint8"}, "dtype"),
        ({"device": "cuda"}, "device"),
        ({"buffer": None}, "copy"),
    ],
)
def test_canonical_shape(change: dict[str, Any], facet: str) -> None:
    changed = lambda e: e["outcome"]["value"]["tensors"][0].update(change)  # noqa: E731
    assert broken_by("canonical.shape", changed, *registered(FULL)) == (facet,)


def test_covers_once() -> None:
    law = "canonical.covers-once"
    shared = registered(FULL, FULL, sharing=[["layer.2", "layer.0"]])
    refs = lambda e: e["outcome"]["value"]["groups"][0]  # noqa: E731
    assert broken_by(law, lambda e: refs(e).pop(), *shared) == ("missing",)
    assert broken_by(law, lambda e: refs(e).append(refs(e)[0]), *shared) == ("several times",)
    assert broken_by(law, lambda e: refs(e)[0].update(page_size_bytes=63), *shared) == ("missing",)
    # Two groups may use one region. A reference may also cover more than the group's own bytes.
    assert facets(law, *registered(FULL, WINDOW)) == ()
    packed = registered(FULL, OTHER, layout="BLNHC", buffers="one")
    value = packed[1]["outcome"]["value"]
    value["tensors"] = [{**value["tensors"][0], "shape": [3, 96], "page_size_bytes": 96}]
    value["groups"] = [[{"tensor": 0, "page_size_bytes": 96}]]
    assert facets(law, *packed) == facets("canonical.group-refs", *packed) == ()


def test_group_refs() -> None:
    law = "canonical.group-refs"
    events = registered(FULL, WINDOW)
    value = lambda e: e["outcome"]["value"]  # noqa: E731
    assert broken_by(law, lambda e: value(e)["groups"].pop(), *events) == ("groups",)
    assert broken_by(law, lambda e: value(e)["groups"][1][0].update(tensor=1), *events) == ("tensor",)
    assert broken_by(law, lambda e: value(e)["groups"][1][0].update(page_size_bytes=65), *events) == ("size",)
    assert broken_by(law, lambda e: value(e)["groups"][1][0].update(page_size_bytes=0), *events) == ("size",)
    assert broken_by(law, lambda e: value(e)["tensors"][0].update(offset=32), *events) == ("block",)


@pytest.mark.parametrize("layout", ["LBNHC", "LKBNHC", "BHLNC"])
def test_round_trip(layout: str) -> None:
    law = "canonical.round-trip"
    events = registered(FULL, WINDOW, layout=layout)
    events += [event("tensors.write", layer="layer.0", block=1, seed=2)]
    rows = [
        event("canonical.read", tensor=n, row=1) for n in range(len(events[1]["outcome"]["value"]["tensors"]))
    ]
    assert broken_by(law, spoil, *events, rows[0]) == ("rows",)
    events += [event("canonical.write", tensor=0, row=1, seed=3)]
    assert broken_by(law, spoil, *events, event("tensors.read", layer="layer.1", block=1)) == ("layers",)
    events += [event("canonical.copy", group=0, source=1, destination=2)]
    assert broken_by(law, spoil, *events, event("tensors.read", layer="layer.0", block=2)) == ("layers",)
    short = event("tensors.read", layer="layer.0", block=2)
    assert broken_by(
        law, lambda e: e["outcome"].update(value=short["outcome"]["value"][:-2]), *events, short
    ) == ("length",)
    # Bytes that were never written may hold anything.
    assert LAWS[law].check([[*events, event("tensors.read", layer="layer.0", block=0)]]) == 0


def spoil(read: dict[str, Any]) -> None:
    told = read["outcome"]["value"]
    read["outcome"]["value"] = f"{told[:-2]}{(int(told[-2:], 16) + 1) % 256:02x}"
