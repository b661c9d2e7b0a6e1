"""Laws of sharing on events made by hand. Correct events keep each law, wrong ones break it in one facet."""

from typing import Any

import pytest

from kvref.target import perform
from kvref_conformance.laws import LAWS, LawBroken
from kvref_conformance.laws.sharing import (
    alias,
    chain_resolves,
    cycle_refused,
    dangling_refused,
    grouped_once,
    isolated,
    no_cost,
    order_free,
)
from kvref_conformance.processes.answers import problem
from kvref_conformance.targets.faults import FAULTS
from kvref_conformance.targets.reference.target import ReferenceTarget
from kvref_strategies.catalogue import WORKLOADS

Event = dict[str, Any]

JOINING = (chain_resolves, order_free, cycle_refused, dangling_refused, grouped_once)
ALLOCATED = (alias, isolated, no_cost)

GROUPS = [["a"], ["b", "c"]]

VIEW = {
    "buffer": 0,
    "offset": 0,
    "axes": "BC",
    "shape": [3, 64],
    "strides": [64, 1],
    "itemsize": 1,
    "device": "cpu",
}


def pairs(text: str) -> list[list[str]]:
    """`"x>a y>x"` means that layer x shares with a, and y with x."""
    return [each.split(">") for each in text.split()]


def error(kind: str, message: str = "") -> dict[str, Any]:
    return {"error": {"type": kind, "message": message}}


def join(sharing: str, answer: Any, times: int = 1) -> Event:
    """Layers join GROUPS. `answer` has either the resulting groups or a whole outcome."""
    outcome = answer if isinstance(answer, dict) else {"value": {"groups": [each.split() for each in answer]}}
    arguments = {"groups": GROUPS, "sharing": pairs(sharing), "times": times}
    return {"op": "sharing.join", "args": arguments, "outcome": outcome}


def facets(law: Any, *events: Event) -> tuple[str, ...]:
    with pytest.raises(LawBroken) as broken:
        law([list(events)])
    return broken.value.facets


def judged(*events: Event) -> list[int]:
    return [law([list(events)]) for law in JOINING]


RIGHT = ["a x y", "b c z"]
CHAIN = "x>a y>x z>b"


def test_what_is_right_breaks_nothing() -> None:
    """The laws accept any order of the layers within a group."""
    events = [
        join(CHAIN, RIGHT),
        join("z>b y>x x>a", ["a y x", "z b c"]),
        join("z>b y>x x>a", ["a y x", "z b c"], times=2),
    ]
    assert judged(*events) == [2, 1, 0, 0, 3]
    assert judged({"op": "sharing.join", "args": events[0]["args"], "outcome": {"died": "killed"}}) == [0] * 5


@pytest.mark.parametrize(
    ("answer", "facet"),
    [
        (error("KeyError", "'x'"), "KeyError"),
        (error("KVSharingError", "no chains"), "KVSharingError"),
        (["a x", "b c z y"], "another group"),
        (["a x y", "b c z y"], "another group"),
        (["a x", "b c z"], "no group"),
        (["a x y", "b c", "z"], "another group"),
    ],
)
def test_a_chain_leads_to_its_owner(answer: Any, facet: str) -> None:
    assert facets(chain_resolves, join(CHAIN, answer)) == (facet,)
    # The result is the same in any order, so order_free holds. A layer in no group is not in two groups.
    other = join("z>b y>x x>a", answer)
    assert facets(chain_resolves, join(CHAIN, answer), other) == (facet,)
    assert order_free([[join(CHAIN, answer), other]]) == 1
    grouped_once([[join(CHAIN, answer), join(CHAIN, answer, times=2)]])


def test_one_layer_that_shares_is_a_chain_as_well() -> None:
    assert chain_resolves([[join("x>c", ["a", "b c x"])]]) == 1
    assert facets(chain_resolves, join("x>c", ["a x", "b c"])) == ("another group",)


@pytest.mark.parametrize(
    ("answer", "facet"),
    [
        (error("KeyError", "'x'"), "refused"),
        (["a x", "b c z y"], "groups"),
        (["a x", "b c z"], "groups"),
    ],
)
def test_the_order_does_not_matter(answer: Any, facet: str) -> None:
    first, second = join(CHAIN, RIGHT), join("y>x x>a z>b", answer)
    assert facets(order_free, first, second) == (facet,)
    assert facets(order_free, second, first) == (facet,)
    # Only order_free judges a result that depends on the order.
    assert chain_resolves([[first, second]]) == 0
    # order_free compares only the same sharing, listed in two orders.
    assert order_free([[second]]) == 0
    assert order_free([[first, {**second, "args": first["args"]}]]) == 0
    assert order_free([[first, join("y>c x>a z>b", answer)]]) == 0


def test_a_name_listed_twice_in_one_order_is_not_for_the_law_of_orders() -> None:
    events = [join(CHAIN, RIGHT), join("y>x x>a z>b", ["a x x y", "b c z"])]
    assert order_free([events]) == 1
    assert facets(grouped_once, *events) == ("at once",)


LOOP = "w>a x>y y>z z>x v>z"


@pytest.mark.parametrize(
    ("answer", "facet"),
    [
        (["a w", "b c"], "accepted"),
        (error("RecursionError", "x y z"), "RecursionError"),
        (error("KeyError", "'x'"), "KeyError"),
        (error("KVSharingError", "layers share in a cycle"), "unnamed"),
        (error("KVSharingError", "layer z leads to itself"), "unnamed"),
        # A name that begins with another one's is not that one.
        (error("KVSharingError", "a cycle of x, yy and zz"), "unnamed"),
    ],
)
def test_a_cycle_is_refused_by_name(answer: Any, facet: str) -> None:
    named = error("KVSharingError", "cycle: 'y' -> 'z' -> 'x' -> 'y'")
    assert judged(join(LOOP, named)) == [0, 0, 1, 0, 0]
    assert facets(cycle_refused, join(LOOP, answer)) == (facet,)
    assert [law([[join(LOOP, answer)]]) for law in JOINING if law is not cycle_refused] == [0] * 4


def test_a_layer_that_shares_with_itself_is_a_cycle() -> None:
    assert cycle_refused([[join("x>x", error("ValueError", "x shares with itself"))]]) == 1
    assert facets(cycle_refused, join("x>x", ["a x", "b c"])) == ("accepted",)


def test_of_several_cycles_one_is_named() -> None:
    assert cycle_refused([[join("x>x y>z z>y", error("ValueError", "cycle of y, z"))]]) == 1
    assert facets(cycle_refused, join("x>x y>z z>y", error("ValueError", "cycle of y"))) == ("unnamed",)


LOOSE = "w>a x>y y>ghost z>a"


@pytest.mark.parametrize(
    ("answer", "facet"),
    [
        (["a w z", "b c"], "accepted"),
        (error("KeyError", "y ghost"), "KeyError"),
        (error("ValueError", "there is no ghost"), "unnamed"),
        (error("ValueError", "x has a wrong target, ghost"), "unnamed"),
        (error("ValueError", "w shares with a"), "unnamed"),
    ],
)
def test_a_target_without_a_cache_is_refused_by_name(answer: Any, facet: str) -> None:
    for message in ("y shares with ghost, which has none", "the cache of 'y' for 'x': there is none"):
        assert judged(join(LOOSE, error("ValueError", message))) == [0, 0, 0, 1, 0]
    assert facets(dangling_refused, join(LOOSE, answer)) == (facet,)
    assert [law([[join(LOOSE, answer)]]) for law in JOINING if law is not dangling_refused] == [0] * 4


def test_of_two_mistakes_either_may_be_named() -> None:
    assert judged(join("x>x y>ghost", error("KeyError", "x"))) == [0] * 5


@pytest.mark.parametrize(
    ("answer", "facet"),
    [
        (["a x y x y", "b c z z"], "again"),
        (["a x y", "b c c z"], "again"),
        (["x y", "b c z"], "lost"),
        (["a x", "b c z y"], "changed again"),
        (["a x", "b c z"], "changed again"),
        (error("ValueError", "x has joined"), "refused again"),
    ],
)
def test_joining_again_changes_nothing(answer: Any, facet: str) -> None:
    once = join(CHAIN, RIGHT)
    assert facets(grouped_once, once, join(CHAIN, answer, times=2)) == (facet,)
    assert grouped_once([[once, join(CHAIN, RIGHT, times=2)]]) == 2
    # Other laws judge the first join. grouped_once judges it only if a name is there twice.
    refused = error("KeyError", "'x'")
    assert grouped_once([[join(CHAIN, refused), join(CHAIN, refused, times=2)]]) == 0
    for law in (chain_resolves, order_free):
        assert law([[once, join(CHAIN, answer, times=2)]]) == int(law is chain_resolves)


def test_names_are_there_once_at_once() -> None:
    assert facets(grouped_once, join(CHAIN, ["a x y x", "b c z"])) == ("at once",)
    assert facets(grouped_once, join(CHAIN, ["x y", "b c z"])) == ("lost",)


# -- memory: layers a and b are in one group, c in another; x shares with a, and y with x


def allocate(sharing: str = "x>a y>x", **told: Any) -> Event:
    layers = {name: {"class": "FullAttentionSpec", "fields": {}} for name in "abc"}
    page = {"views": [VIEW], "page_size_bytes": 64, "content_size_bytes": 48, "block_stride": 64}
    sharers = [layer for layer, _ in pairs(sharing)]
    value = {
        "num_blocks": 3,
        "groups": [["a", "b", *sharers], ["c"]],
        "buffers": [192, 192],
        "planned": 384,
        "zero": True,
        "layers": dict.fromkeys([*layers, *sharers], page),
        **told,
    }
    arguments = {"layers": layers, "num_blocks": 3, "layout": "LBNHC", "buffers": "each"}
    arguments |= {"kernel_block_size": None, "sharing": pairs(sharing), "device": "cpu"}
    return {"op": "tensors.allocate", "args": arguments, "outcome": {"value": value}}


def write(layer: str, block: int, outcome: Any = None) -> Event:
    arguments = {"layer": layer, "block": block, "seed": 1}
    return {"op": "tensors.write", "args": arguments, "outcome": outcome or {"value": "0102"}}


def read(layer: str, block: int, answer: Any) -> Event:
    outcome = answer if isinstance(answer, dict) else {"value": answer}
    return {"op": "tensors.read", "args": {"layer": layer, "block": block}, "outcome": outcome}


def test_memory_that_is_right_breaks_nothing() -> None:
    run = [
        allocate(""),
        allocate(),
        read("b", 1, "0000"),
        write("a", 1),
        read("a", 1, "0102"),
        read("x", 1, "0102"),
        read("b", 1, "0000"),
        # c is in another group that uses the same memory.
        write("c", 1),
        read("y", 1, "0304"),
        read("a", 1, "0304"),
        read("b", 1, "0304"),
        write("y", 2, {"value": "0506"}),
        read("a", 1, "0304"),
        read("a", 2, "0506"),
        read("y", 2, "0506"),
    ]
    assert [law([run]) for law in ALLOCATED] == [5, 1, 1]


@pytest.mark.parametrize(
    ("layers", "facet"), [(("a", "x"), "direct"), (("x", "a"), "direct"), (("a", "y"), "chain")]
)
def test_who_shares_reads_what_was_written(layers: tuple[str, str], facet: str) -> None:
    writer, reader = layers
    written = [allocate(), write(writer, 1), read(writer, 1, "0102")]
    assert alias([[*written, read(reader, 1, "0102")]]) == 2
    assert facets(alias, *written, read(reader, 1, "0000")) == (facet,)
    assert facets(alias, *written, read(reader, 1, "01")) == (facet,)
    # Another block or layer may differ, and so may the same block after another layer has overwritten it.
    apart = [read(reader, 2, "0000"), read("b", 1, "0000"), write("c", 1), read(reader, 1, "0304")]
    assert alias([[*written, *apart]]) == 1
    assert facets(alias, *written[:2], read(writer, 1, "0000")) == ("lost" if writer == "a" else facet,)
    assert isolated([[*written, read(reader, 1, "0000")]]) == 0


def test_who_shares_can_be_written_and_read() -> None:
    refused = error("KeyError", "'x'")
    assert facets(alias, allocate(), write("x", 1, refused)) == ("refused",)
    assert facets(alias, allocate(), read("x", 1, refused)) == ("refused",)
    # Other laws judge layers that have a cache of their own.
    assert alias([[allocate(), write("a", 1, refused), read("a", 1, refused)]]) == 0


def test_what_was_not_allocated_is_not_judged() -> None:
    refused = {**allocate(), "outcome": error("KeyError", "'x'")}
    run = [allocate(), write("a", 1), read("a", 1, "0102"), refused, read("x", 1, "0000"), allocate("")]
    assert [law([run]) for law in ALLOCATED] == [1, 0, 1]
    assert [law([[allocate(""), refused]]) for law in ALLOCATED] == [0, 0, 0]


@pytest.mark.parametrize(
    ("writer", "written", "reader", "block", "facet"),
    [
        ("a", 1, "b", 1, "same block"),
        ("x", 1, "b", 1, "same block"),
        ("b", 1, "y", 1, "same block"),
        ("a", 2, "b", 1, "another block"),
        ("c", 2, "a", 1, "another block"),
    ],
)
def test_others_are_not_written_to(writer: str, written: int, reader: str, block: int, facet: str) -> None:
    before = [allocate(), read(reader, block, "0000"), write(writer, written)]
    assert isolated([[*before, read(reader, block, "0000")]]) == 1
    assert facets(isolated, *before, read(reader, block, "0001")) == (facet,)
    assert alias([[*before, read(reader, block, "0001")]]) == 0


@pytest.mark.parametrize(
    ("writer", "written", "reader", "block"),
    [
        # The law does not compare layers that have the same cache, whatever the block.
        ("a", 1, "a", 1),
        ("a", 1, "y", 1),
        ("y", 2, "a", 1),
        # A layer of another group may use the same memory for the same block.
        ("c", 1, "a", 1),
        ("x", 1, "c", 1),
    ],
)
def test_who_may_be_written_to(writer: str, written: int, reader: str, block: int) -> None:
    before = [allocate(), read(reader, block, "0000"), write(writer, written)]
    assert isolated([[*before, read(reader, block, "0001")]]) == 0


def test_what_was_written_stays_though_nobody_has_read_it() -> None:
    """The law applies once a read has shown that writes to this layer arrive at all."""
    before = [allocate(), write("a", 2), read("a", 2, "0102"), write("a", 1), write("b", 1)]
    assert isolated([[*before, read("a", 1, "0102")]]) == 1
    assert facets(isolated, *before, read("a", 1, "0000")) == ("same block",)
    assert isolated([[allocate(), write("a", 1), write("b", 1), read("a", 1, "0000")]]) == 0
    # Content that is missing right after its own write was not overwritten by another layer.
    assert isolated([[*before[:4], read("a", 1, "0000")]]) == 0
    assert isolated([[*before[:4], read("a", 1, "0000"), write("b", 1), read("a", 1, "0000")]]) == 1
    # A layer with the same cache may overwrite it. So may a layer that uses the memory in turns with it.
    assert isolated([[*before[:4], write("x", 1), read("a", 1, "0000")]]) == 0
    assert isolated([[*before[:4], write("c", 1), read("a", 1, "0000")]]) == 0
    assert facets(isolated, *before[:4], write("c", 2), read("a", 1, "0000")) == ("another block",)


def test_what_a_refused_write_did_nobody_knows() -> None:
    run = [allocate(), read("b", 1, "0000"), write("a", 1, error("ValueError")), read("b", 1, "0001")]
    assert isolated([run]) == 0


def pages(**other: Any) -> dict[str, Any]:
    """The pages of all layers. `other` replaces facts about the pages of the layers that it names."""
    page: dict[str, Any] = allocate()["outcome"]["value"]["layers"]["a"]
    return {name: {**page, **other.get(name, {})} for name in "abcxy"}


@pytest.mark.parametrize(
    ("told", "facet"),
    [
        ({"buffers": [192, 192, 192]}, ("memory",)),
        ({"planned": 576}, ("memory",)),
        ({"groups": [["a", "b"], ["c"], ["x", "y"]]}, ("groups",)),
        ({"groups": [["a"], ["b", "x", "y"], ["c"]]}, ("groups",)),
        ({"layers": pages(a={"block_stride": 128})}, ("specs",)),
        ({"layers": pages(x={"page_size_bytes": 128})}, ("specs",)),
        ({"buffers": [576], "planned": 576, "layers": pages(y={"block_stride": 8})}, ("memory", "specs")),
    ],
)
def test_sharing_costs_nothing(told: dict[str, Any], facet: tuple[str, ...]) -> None:
    assert no_cost([[allocate(), allocate("")]]) == 1
    assert facets(no_cost, allocate(""), allocate(**told)) == facet
    # Two allocations with different numbers of blocks cannot be compared.
    other = allocate("")
    other["args"]["num_blocks"] = 4
    assert no_cost([[other, allocate(**told)]]) == 0


def test_one_allocation_for_all_is_as_much() -> None:
    assert no_cost([[allocate(""), allocate(buffers=[384])]]) == 1


# -- around the laws: answers, faults, and targets that do nothing


def test_answers_have_the_shape_that_the_protocol_asks_for() -> None:
    asked = {"groups": GROUPS, "sharing": pairs(CHAIN), "times": 2}
    answered = perform(ReferenceTarget(), "sharing.join", asked)
    assert answered == {"value": {"groups": [["a", "x", "y"], ["b", "c", "z"]]}}
    assert not problem("sharing.join", answered["value"])
    for wrong in (None, [], {}, {"groups": None}, {"groups": ["a"]}, {"groups": [[1]]}, {"groups": [None]}):
        assert problem("sharing.join", wrong)


def test_every_law_is_fed_and_has_a_fault() -> None:
    laws = [law for law in LAWS.values() if law.area == "sharing"]
    assert {law.check for law in laws} == {*JOINING, *ALLOCATED}
    assert all(law.workload in WORKLOADS and law.id in FAULTS.values() for law in laws)


def test_who_does_nothing_keeps_nothing() -> None:
    """`order_free`, `grouped_once` and `no_cost` have nothing to judge if the target does nothing.

    Here no layer joins a group, and memory is not reported.
    """
    graph = pairs("x>a y>x")
    idle = [
        {
            "op": "sharing.join",
            "args": {"groups": GROUPS, "sharing": listed, "times": times},
            "outcome": {"value": {"groups": GROUPS}},
        }
        for listed, times in ((graph, 1), (graph[::-1], 1), (graph, 2))
    ]
    assert facets(chain_resolves, *idle) == ("no group",)
    assert [law([idle]) for law in (order_free, grouped_once)] == [0, 0]
    plain, sharing = allocate(""), allocate()
    assert no_cost([[plain, sharing]]) == 1
    for layer in sharing["outcome"]["value"]["layers"].values():
        layer["views"] = []
    assert no_cost([[plain, sharing]]) == 0
