"""Laws of connectors on events made by hand: correct events keep each law, wrong ones break it."""

from types import SimpleNamespace
from typing import Any

import pytest

from kvref.target import perform
from kvref_conformance.laws import LAWS, LawBroken
from kvref_conformance.laws.connector import failed_load, held_until_sent, total
from kvref_conformance.processes.answers import problem
from kvref_conformance.processes.host import parts
from kvref_conformance.targets.faults import FAULTS
from kvref_conformance.targets.reference.target import ReferenceTarget

Event = dict[str, Any]
REFUSED = {"error": {"type": "ValueError", "message": "no"}}


def event(op: str, value: Any = None, /, **arguments: Any) -> Event:
    outcome = REFUSED if value is REFUSED else {"value": value}
    return {"op": op, "args": arguments, "outcome": outcome}


def facets(law: Any, *events: Event) -> tuple[str, ...]:
    with pytest.raises(LawBroken) as broken:
        law([list(events)])
    return broken.value.facets


# -- transfers

CREATE = event("connector.create", num_blocks=4, host_blocks=2, device="cpu")
START = event("connector.start_transfers")


def take(*blocks: int) -> Event:
    return event("connector.take", list(blocks), num_blocks=len(blocks))


def no_take(number: int) -> Event:
    return event("connector.take", REFUSED, num_blocks=number)


def free(*blocks: int) -> Event:
    return event("connector.free", blocks=list(blocks))


def write(block: int, content: str) -> Event:
    return event("connector.write", content, block=block, seed=1)


def read(block: int, content: str) -> Event:
    return event("connector.read", content, block=block)


def store(job: str, *pairs: tuple[int, int]) -> Event:
    return event("connector.store", job=job, pairs=[list(pair) for pair in pairs])


def load(job: str, *pairs: tuple[int, int]) -> Event:
    return event("connector.load", job=job, pairs=[list(pair) for pair in pairs])


def done(*jobs: str) -> Event:
    return event("connector.finished", list(jobs))


STORING = (CREATE, take(1, 2), START, write(1, "aa"), write(2, "bb"), store("out", (1, 0), (2, 1)))
STORED = (*STORING, free(2, 1), START, done("out"))


def test_what_a_store_reads_is_not_handed_out() -> None:
    assert held_until_sent([[*STORING, free(2, 1), take(3), START, done("out"), take(1, 2)]]) == 2
    for events in ([], [START], [START, done()], [START, done("another")]):
        assert facets(held_until_sent, *STORING, free(2, 1), *events, take(3, 2)) == ("reused",)


def test_nothing_is_said_of_what_was_not_freed() -> None:
    """If another request gets a block that is still referenced, the connector is not at fault."""
    assert held_until_sent([[*STORING, take(3)]]) == 0
    assert held_until_sent([[CREATE, take(1), take(1), store("out", (1, 0)), take(1)]]) == 0


def test_what_is_loaded_back_is_what_was_stored() -> None:
    loading = [*STORED, take(3, 1), load("in", (3, 1), (1, 0)), START, done("in")]
    assert held_until_sent([[*loading, read(3, "bb"), read(1, "aa"), read(3, "bb")]]) == 4
    assert facets(held_until_sent, *loading, read(3, "aa")) == ("content",)
    assert facets(held_until_sent, *loading, read(3, "bb"), read(1, "a0")) == ("content",)
    # A block that was loaded can be stored and loaded again.
    again = [*loading, store("back", (3, 0)), START, done("back"), take(2), load("more", (2, 0))]
    assert held_until_sent([[*again, START, done("more"), read(2, "bb")]]) == 3
    assert facets(held_until_sent, *again, START, done("more"), read(2, "aa")) == ("content",)


def test_what_was_written_since_is_not_what_was_loaded() -> None:
    loading = [*STORED, take(3), load("in", (3, 1)), START, done("in")]
    assert held_until_sent([[*loading, write(3, "cc"), read(3, "cc")]]) == 1
    assert held_until_sent([[*loading, write(3, "cc"), read(3, "xx")]]) == 1
    assert held_until_sent([[*loading, free(3), take(3), read(3, "xx")]]) == 2
    # The content of an allocated block is unknown until it is written.
    unknown = [CREATE, take(1), store("out", (1, 0)), START, done("out"), load("in", (1, 0)), START]
    assert held_until_sent([[*unknown, done("in"), read(1, "xx")]]) == 0


def test_whatever_is_asked_is_answered_and_loads_end() -> None:
    loading = [*STORED, take(3), load("in", (3, 1)), START]
    assert total([[*loading, done("in")]]) == 10
    assert total([loading]) == 0
    assert total([[*loading, done()]]) == total([[*loading, done("another")]]) == 0
    refused = event("connector.finished", REFUSED)
    assert facets(total, *loading, refused) == ("finished",)
    assert facets(total, *STORING, event("connector.free", REFUSED, blocks=[2, 1])) == ("free",)
    # Another law judges how many blocks are left, and no law judges calls that no engine makes.
    assert total([[*loading, done("in"), no_take(3)]]) == 10
    assert total([[*loading, done("in"), event("connector.free", REFUSED, blocks=[2])]]) == 10


def test_nothing_stays_held() -> None:
    assert held_until_sent([[*STORED, take(1, 2, 3)]]) == 1
    assert facets(held_until_sent, *STORED, no_take(3)) == ("kept",)
    assert facets(held_until_sent, *STORED, take(1), no_take(2)) == ("kept",)
    assert held_until_sent([[*STORED, take(1), no_take(3)]]) == 1
    # Before the transfers end, or without any transfer, other laws judge how many blocks are free.
    assert held_until_sent([[*STORING, free(2, 1), no_take(3)]]) == 0
    assert held_until_sent([[CREATE, no_take(3)]]) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        [free(3)],
        [free(1, 1)],
        [write(1, "cc")],
        [write(3, "cc")],
        [store("out", (1, 0))],
        [store("more", (1, 0))],
        [store("more", (3, 0))],
        [store("more", (1, 2))],
        [load("in", (2, 0))],
        [START, done("out"), load("in", (1, 0)), read(1, "aa")],
        [START, done("out"), load("in", (1, 0)), free(1)],
        [START, done("out"), store("twice", (1, 0), (2, 0))],
        [START, done("out"), store("over", (1, 0)), load("in", (2, 0))],
        [event("connector.start_transfers", REFUSED)],
    ],
)
def test_nothing_is_judged_behind_what_no_engine_asks(wrong: list[Event]) -> None:
    assert held_until_sent([[*STORING, *wrong, free(2, 1), take(1, 2)]]) == 0


def test_each_creation_is_another_pool() -> None:
    assert held_until_sent([[*STORING, free(2, 1), CREATE, take(1, 2)]]) == 0
    refused = event("connector.create", REFUSED, num_blocks=4, host_blocks=2, device="cpu")
    assert held_until_sent([[refused, *STORING[1:], free(2, 1), take(1, 2)]]) == 0


# -- loads into a cache


def cache(*, caching: bool = True, block_size: int = 4) -> Event:
    spec = {"class": "FullAttentionSpec", "fields": {"block_size": block_size}}
    return event(
        "cache.create",
        {"null": 0, "reserved": [], "alignment": block_size, "caps": [None], "reports_new": [True]},
        groups=[{"spec": spec, "eagle": False}],
        num_blocks=6,
        hash_block_size=2,
        enable_caching=caching,
    )


def state(keys: dict[int, list[str]] | None = None, **other: Any) -> Event:
    carried = {str(block): list(own) for block, own in (keys or {}).items()}
    found: dict[str, list[int]] = {}
    for block, own in (keys or {}).items():
        for key in own:
            found.setdefault(key, []).append(block)
    return event("cache.state", {"keys": carried, "found": found, "tables": {}, **other})


def allocate(name: str, *taken: int, delay: bool = True, **arguments: Any) -> Event:
    answer = {"added": [list(taken)], "needed": len(taken), "taken": list(taken)}
    return event("cache.allocate", answer, request=name, new=0, delay=delay, **arguments)


HASHES = [f"h{tokens}" for tokens in (2, 4, 6, 8, 10, 12)]
"""The hashes of a request of twelve tokens, one for every two tokens. Blocks have four tokens."""

ADDED = event("cache.add", request="r", tokens=[0] * 12, max_tokens=1, salt=None)
LOOKED_UP = event("cache.lookup", {"tokens": 4, "blocks": [[1]], "hashes": HASHES}, request="r")
FOUND = {1: ["h4/0"]}
"""Block 1 holds the first four tokens."""

LOADING = (
    cache(),
    state(FOUND),
    ADDED,
    LOOKED_UP,
    allocate("r", 2, 3, external=8, hit={"tokens": 4, "blocks": [[1]]}),
)


def loaded(computed: int) -> Event:
    return event("cache.cache_blocks", request="r", computed=computed)


@pytest.mark.parametrize(
    "behind",
    [
        {**FOUND, 2: ["h8/0"]},
        {**FOUND, 3: ["something"]},
        {2: ["h4/0"]},
    ],
)
def test_what_is_being_loaded_has_no_key(behind: dict[int, list[str]]) -> None:
    assert failed_load([[*LOADING, state(FOUND)]]) == 1
    assert facets(failed_load, *LOADING, state(behind)) == ("being loaded",)
    # The block gets no key later either, nor when the request is freed.
    other = allocate("s", 4, delay=False)
    for later in (other, event("cache.free", request="r")):
        assert failed_load([[*LOADING, state(FOUND), later, state(FOUND)]]) == 1
        assert facets(failed_load, *LOADING, state(FOUND), later, state(behind)) == ("being loaded",)


def test_a_key_in_the_index_alone_is_one() -> None:
    index = state(FOUND, found={"h4/0": [1], "h8/0": [2]})
    assert facets(failed_load, *LOADING, index) == ("being loaded",)


def test_other_blocks_may_get_keys() -> None:
    """Other blocks are the found block, blocks of other requests, and blocks that the request has freed."""
    others = {1: ["h4/0", "h2/0"], 4: ["h8/0"]}
    assert failed_load([[*LOADING, state(others)]]) == 1
    freed = [*LOADING, state(FOUND), event("cache.free", request="r"), state(FOUND)]
    assert failed_load([[*freed, allocate("s", 2, delay=False), state({2: ["h8/0"]})]]) == 1
    refused = {**LOADING[-1], "outcome": {"value": {"added": None, "needed": 2, "taken": []}}}
    assert failed_load([[*LOADING[:-1], refused, state({2: ["h8/0"]})]]) == 0


@pytest.mark.parametrize(
    ("computed", "right", "wrong"),
    [
        (12, {2: ["h8/0"], 3: ["h12/0"]}, None),
        (8, {2: ["h8/0"]}, {3: ["h12/0"]}),
        (8, {2: ["h6/0", "h8/0"]}, {3: ["h10/0"]}),
        (7, {2: ["h6/0"]}, {2: ["h8/0"]}),
        (4, {}, {2: ["h8/0"]}),
        (4, {2: ["h4/0"]}, {1: ["h4/0", "h6/0"]}),
    ],
)
def test_what_has_arrived_gets_keys(
    computed: int, right: dict[int, list[str]], wrong: dict[int, list[str]] | None
) -> None:
    before = [*LOADING, state(FOUND), loaded(computed)]
    assert failed_load([[*before, state({**FOUND, **right})]]) == 2
    if wrong:
        assert facets(failed_load, *before, state({**FOUND, **right, **wrong})) == ("not loaded",)


def test_keys_that_were_there_are_not_new() -> None:
    """Another request computed the same tokens, or may compute tokens that these events do not show."""
    there = {**FOUND, 5: ["h12/0"]}
    assert failed_load([[*LOADING, state(there), loaded(8), state({**there, 2: ["h8/0"]})]]) == 2
    assert failed_load([[*LOADING, state(FOUND), loaded(8), state({**FOUND, 3: ["unknown/0"]})]]) == 2
    # Once its tokens are loaded, the request is like any other.
    computed = [*LOADING, state(FOUND), loaded(8), state(FOUND), loaded(8), state({**FOUND, 3: ["h12/0"]})]
    assert failed_load([computed]) == 2


def test_what_was_evicted_has_no_key() -> None:
    keyed = {1: ["h4/0"], 2: ["h8/0", "h6/0"], 3: ["h4/0"]}
    evicted = event("cache.evict", blocks=[0, 1, 2])
    before = [cache(), state(keyed), evicted]
    assert failed_load([[*before, state({3: ["h4/0"]})]]) == 1
    assert failed_load([before]) == 1
    assert facets(failed_load, *before, state({**keyed, 1: []})) == ("kept by eviction",)
    assert facets(failed_load, *before, state({2: ["h6/0"]})) == ("kept by eviction",)
    assert facets(failed_load, *before, state(found={"h4/0": [3, 1]})) == ("kept by eviction",)
    assert facets(failed_load, *before[:-1], {**evicted, "outcome": REFUSED}) == ("refused",)


def test_a_cache_without_any_keys_has_kept_no_promise() -> None:
    nothing = [cache(), state(), *LOADING[2:], state(), loaded(8), state()]
    assert failed_load([nothing]) == 0
    # The control: any key counts, even that of the last block.
    assert failed_load([[*nothing[:-1], state({2: ["h8/0"]})]]) == 2
    assert facets(failed_load, *nothing[:-1], state({3: ["h12/0"]})) == ("not loaded",)


def test_without_caching_there_is_nothing_to_promise() -> None:
    off = [cache(caching=False), *LOADING[1:], state(), event("cache.evict", blocks=[1]), state()]
    assert failed_load([off]) == 0


def test_each_law_of_connectors_has_a_fault() -> None:
    own = {law for law in LAWS if law.startswith("connector.")}
    assert own == {"connector.total", "connector.held-until-sent", "connector.failed-load"}
    assert own <= set(FAULTS.values())


# -- the protocol


def test_the_reference_does_what_the_protocol_says() -> None:
    target = ReferenceTarget()
    events: list[Event] = []

    def ask(op: str, **arguments: Any) -> Any:
        outcome = perform(target, f"connector.{op}", arguments)
        assert "value" in outcome, outcome
        assert not problem(f"connector.{op}", outcome["value"])
        events.append({"op": f"connector.{op}", "args": arguments, "outcome": outcome})
        return outcome["value"]

    ask("create", num_blocks=4, host_blocks=2, device="cpu")
    first, second = ask("take", num_blocks=2)
    one, other = ask("write", block=first, seed=1), ask("write", block=second, seed=2)
    assert one != other
    ask("store", job="out", pairs=[[first, 1], [second, 0]])
    assert ask("finished") == []
    ask("free", blocks=[second, first])
    [third] = ask("take", num_blocks=1)
    assert third not in (first, second)
    ask("start_transfers")
    assert ask("finished") == ["out"]
    ask("load", job="in", pairs=[[third, 0]])
    ask("start_transfers")
    assert ask("finished") == ["in"]
    assert ask("read", block=third) == other
    ask("free", blocks=[third])
    assert len(ask("take", num_blocks=3)) == 3
    assert held_until_sent([events]) == 3


@pytest.mark.parametrize(
    ("op", "value"),
    [
        ("take", None),
        ("take", ["1"]),
        ("read", None),
        ("write", [1, 2]),
        ("finished", None),
        ("finished", [1]),
    ],
)
def test_other_answers_cannot_be_judged(op: str, value: Any) -> None:
    assert problem(f"connector.{op}", value)


def test_a_target_need_not_have_a_connector() -> None:
    some: Any = SimpleNamespace(connector=SimpleNamespace(create=None, take=None, other=None))
    assert parts(some) == ["connector", "connector.create", "connector.take"]
