from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvref.errors import BlockError, PoolExhaustedError
from kvref.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvref.fast.pool import BlockPool as FastBlockPool
from kvref.pool import NULL_BLOCK, BlockPool

POOLS = {"plain": BlockPool, "fast": FastBlockPool}


class Half:
    """Names the pool class under test, of the plain half or the fast half of the reference."""

    pool_class = BlockPool


@pytest.fixture(autouse=True, params=POOLS)
def half(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Half, "pool_class", POOLS[request.param])


@dataclass
class Tokens:
    """Eight blocks of two tokens. Block i of letter "a" has the hash b"a<i>"."""

    letter: str = "a"
    all_token_ids: list[int] = field(default_factory=lambda: list(range(16)))

    @property
    def block_hashes(self) -> list[bytes]:
        return [f"{self.letter}{place}".encode() for place in range(8)]


def make(num_blocks: int = 6, events: bool = False) -> BlockPool:
    return Half.pool_class(num_blocks, True, 2, events)


def cache(pool: BlockPool, table: list[int], letter: str = "a", start: int = 0, group: int = 0) -> None:
    pool.cache_full_blocks(
        request=Tokens(letter),
        blocks=table,
        num_cached_blocks=start,
        num_full_blocks=len(table),
        block_size=2,
        kv_cache_group_id=group,
        kind="FullAttentionSpec",
    )


def picture(pool: BlockPool) -> object:
    blocks = range(pool.num_gpu_blocks)
    return (
        pool.get_all_free_blocks(),
        pool.get_num_free_blocks(),
        [(pool.get_ref_cnt(block), pool.get_num_pins(block), pool.get_keys(block)) for block in blocks],
        {group: dict(pool.get_index(group)) for group in range(2)},
    )


def test_counts() -> None:
    pool = make()
    assert (pool.get_num_free_blocks(), pool.get_usage()) == (5, 0.0)
    taken = pool.get_new_blocks(4)
    assert NULL_BLOCK not in taken
    assert len(set(taken)) == 4
    assert (pool.get_num_free_blocks(), pool.get_usage()) == (1, 0.8)
    pool.free_blocks(taken)
    assert pool.get_num_free_blocks() == 5
    assert make(1).get_usage() == 0.0


def test_blocks_have_their_keys_whoever_is_served() -> None:
    pool = make(8)
    first, second, other = pool.get_new_blocks(3)
    cache(pool, [first])
    cache(pool, [second, other])
    assert pool.get_cached_block(b"a0", [0]) == [first]
    assert pool.have_keys([first, other], [b"a0", b"a1"], 0)
    assert pool.have_keys([second, other], [b"a0", b"a1"], 0)
    assert not pool.have_keys([second, second], [b"a0", b"a1"], 0)
    assert not pool.have_keys([second], [b"a0", b"a1"], 0)
    assert not pool.have_keys([second, other], [b"a0"], 0)
    assert not pool.have_keys([second], [b"a0"], 1)
    assert not pool.have_keys([NULL_BLOCK], [b"a0"], 0)
    with pytest.raises(BlockError, match="99"):
        pool.have_keys([99], [b"a0"], 0)


@pytest.mark.parametrize("wrong", [0.5, None, "1", -1, 99, 1])
def test_nothing_is_freed_with_what_is_no_block(wrong: Any) -> None:
    pool = Half.pool_class(8, True, 4)
    taken = pool.get_new_blocks(3)
    for blocks in ([taken[1], wrong], [taken[1], 0, wrong], [wrong, taken[1]]):
        with pytest.raises((BlockError, TypeError)):
            pool.free_blocks([*blocks, 1])
        assert [pool.get_ref_cnt(block) for block in taken] == [1, 1, 1]
        assert pool.get_num_free_blocks() == 4


def test_reuse_is_unkeyed_first_then_the_end_of_what_was_freed_first() -> None:
    pool = make(9)
    first, second, plain = (pool.get_new_blocks(2) for _ in range(3))
    cache(pool, first, "a")
    cache(pool, second, "b")
    for table in (first, plain, second):
        pool.free_blocks(reversed(table))
    order = pool.get_all_free_blocks()
    assert order[:2] == plain[::-1]
    assert order[-4:] == first[::-1] + second[::-1]
    pool.touch([first[1]])
    assert pool.get_all_free_blocks() == [block for block in order if block != first[1]]
    assert pool.get_new_blocks(7) == pool_order(order, first[1])
    assert pool.get_cached_block(b"a1", [0]) == [first[1]]
    assert pool.get_cached_block(b"b0", [0]) is None


def pool_order(order: list[int], without: int) -> list[int]:
    return [block for block in order if block != without]


def all_cached(num_blocks: int) -> tuple[BlockPool, list[int]]:
    """A pool in which all blocks are free and cached. Returns the blocks in the order of reuse as well."""
    pool = make(1 + num_blocks)
    table = pool.get_new_blocks(num_blocks)
    cache(pool, table)
    pool.free_blocks(table)
    return pool, table


def test_who_was_found_again_is_reused_last_however_often() -> None:
    pool, table = all_cached(5)
    for _ in range(2):
        pool.touch(table[1:3])
        pool.free_blocks(table[1:3])
    left = [table[0], *table[3:], *table[1:3]]
    assert pool.get_all_free_blocks() == left
    # The order also holds if blocks are allocated one by one, and if all are allocated at once.
    assert [pool.get_new_blocks(1) for _ in left[:3]] == [[block] for block in left[:3]]
    assert pool.get_new_blocks(2) == left[3:]
    assert pool.get_num_free_blocks() == 0


def test_evicted_and_free_is_reused_before_those_with_keys() -> None:
    pool, table = all_cached(3)
    pool.evict_blocks(table[1:2])
    assert pool.get_all_free_blocks() == [table[1], table[0], table[2]]
    assert pool.get_new_blocks(3) == [table[1], table[0], table[2]]


@pytest.mark.parametrize("wrong", [0.5, None, "1", -1, -8, 99, 1])
def test_what_is_no_block_is_not_freed_alone(wrong: Any) -> None:
    pool = Half.pool_class(8, True, 4)
    pool.get_new_blocks(7)
    pool.free_blocks([1])
    with pytest.raises((BlockError, TypeError)):
        pool.free_blocks([wrong])
    assert [pool.get_ref_cnt(block) for block in range(1, 8)] == [0, 1, 1, 1, 1, 1, 1]


def test_the_queue_gets_no_longer_by_reuse_alone() -> None:
    pool = FastBlockPool(6, True, 2)
    for number in range(1000):
        table = pool.get_new_blocks(1)
        cache(pool, table, f"{number} ")
        pool.free_blocks(table)
    assert len(pool._queue) < 100
    assert len(pool.get_index(0)) == 5


def test_the_queue_gets_no_longer_by_hits_alone() -> None:
    """Without evictions, nothing skips the stale entries of the queue. Their number must stay bounded."""
    Half.pool_class = FastBlockPool
    pool, table = all_cached(5)
    assert isinstance(pool, FastBlockPool)
    for number in range(1000):
        pool.touch([table[number % 5]])
        pool.free_blocks([table[number % 5]])
    assert len(pool._queue) < 100
    assert pool.get_all_free_blocks() == table
    assert pool.get_new_blocks(5) == table


def test_blocks_of_one_key_live_and_die_alone() -> None:
    pool = make(events=True)
    [one], [two] = pool.get_new_blocks(1), pool.get_new_blocks(1)
    cache(pool, [one])
    cache(pool, [two])
    cache(pool, [one])
    assert pool.get_cached_block(b"a0", [0]) == [one]
    pool.evict_blocks([one])
    assert pool.get_cached_block(b"a0", [0]) == [two]
    assert (pool.get_keys(one), pool.get_keys(two)) == ((), ((b"a0", 0),))
    pool.evict_blocks([two])
    assert pool.get_cached_block(b"a0", [0]) is None
    stored = BlockStored((b"a0",), None, (0, 1), 2, 0, "FullAttentionSpec")
    assert pool.take_events() == [stored, BlockRemoved((b"a0",), 0)]
    assert pool.take_events() == []


def test_a_block_of_several_keys_loses_all_when_reused() -> None:
    pool = make(2)
    taken = pool.get_new_blocks(1)
    cache(pool, taken)
    cache(pool, taken, "b")
    cache(pool, taken, "b", group=1)
    assert pool.get_keys(taken[0]) == ((b"a0", 0), (b"b0", 0), (b"b0", 1))
    assert pool.get_cached_block(b"b0", [0, 1]) == [taken[0], taken[0]]
    assert pool.get_cached_block(b"a0", [0, 1]) is None
    pool.free_blocks(taken)
    assert pool.get_cached_block(b"a0", [0]) == taken
    assert pool.get_new_blocks(1) == taken
    assert pool.get_keys(taken[0]) == ()
    assert pool.get_cached_block(b"b0", [1]) is None


def test_larger_blocks_have_the_hash_at_their_end() -> None:
    pool = make()
    table = pool.get_new_blocks(3)
    arguments = {"request": Tokens(), "blocks": table, "kv_cache_group_id": 0, "block_size": 4}
    pool.cache_full_blocks(num_cached_blocks=1, num_full_blocks=3, **arguments)  # type: ignore[arg-type]
    assert [pool.get_keys(block) for block in table] == [(), ((b"a3", 0),), ((b"a5", 0),)]


def test_events_speak_of_runs_of_blocks() -> None:
    pool = make(events=True)
    table = pool.get_new_blocks(5)
    pool.cache_full_blocks(
        Tokens(), [table[0], NULL_BLOCK, *table[2:]], 0, 5, 2, 1, [True, True, True, True, False], "Window"
    )
    assert pool.get_keys(table[4]) == ()
    assert pool.take_events() == [
        BlockStored((b"a0",), None, (0, 1), 2, 1, "Window"),
        BlockStored((b"a2", b"a3"), b"a1", (4, 5, 6, 7), 2, 1, "Window"),
    ]


def test_reset_needs_all_blocks_free() -> None:
    pool = make(events=True)
    table = pool.get_new_blocks(2)
    cache(pool, table)
    pool.take_events()
    before = picture(pool)
    assert not pool.reset_prefix_cache()
    assert picture(pool) == before
    pool.free_blocks(table)
    assert pool.reset_prefix_cache()
    assert pool.take_events() == [AllBlocksCleared()]
    assert pool.get_cached_block(b"a0", [0]) is None
    assert sorted(pool.get_new_blocks(5)) == [1, 2, 3, 4, 5]


def test_pins_hold_a_block_beyond_its_table() -> None:
    pool = make()
    table = pool.get_new_blocks(1)
    pool.pin(table)
    pool.free_blocks(table)
    assert pool.get_ref_cnt(table[0]) == pool.get_num_pins(table[0]) == 1
    with pytest.raises(BlockError, match="1 are pins"):
        pool.free_blocks(table)
    pool.unpin(table)
    assert pool.get_num_free_blocks() == 5
    with pytest.raises(BlockError, match="has 0 pins, not 1"):
        pool.unpin(table)


def test_reserved_blocks_are_no_part_of_what_can_be_used() -> None:
    pool = make()
    reserved = pool.reserve_blocks(2)
    assert (pool.num_usable_blocks, pool.get_num_free_blocks(), pool.get_usage()) == (3, 3, 0.0)
    assert pool.reset_prefix_cache()
    assert not set(reserved) & set(pool.get_new_blocks(3))
    pool.pin(reserved)
    pool.unpin(reserved)
    for refused in (pool.free_blocks, pool.unpin):
        with pytest.raises(BlockError):
            refused(reserved)
    assert pool.num_usable_blocks == 3


REFUSALS: dict[str, Callable[[BlockPool, list[int]], object]] = {
    "negative": lambda pool, _: pool.get_new_blocks(-1),
    "too many": lambda pool, _: pool.get_new_blocks(4),
    "free a free one": lambda pool, held: pool.free_blocks([*held, 5]),
    "free twice": lambda pool, held: pool.free_blocks([*held, held[0]]),
    "free a foreign one": lambda pool, held: pool.free_blocks([*held, 6]),
    "free a negative one": lambda pool, held: pool.free_blocks([NULL_BLOCK, *held, -1]),
    "touch a foreign one": lambda pool, held: pool.touch([*held, 6]),
    "touch a negative one": lambda pool, held: pool.touch([*held, -1]),
    "evict a foreign one": lambda pool, held: pool.evict_blocks([*held, 6]),
    "pin a foreign one": lambda pool, held: pool.pin([*held, 6]),
    "key for a free one": lambda pool, held: cache(pool, [*held, 5]),
    "key for a foreign one": lambda pool, held: cache(pool, [*held, 6]),
    "no hash": lambda pool, held: cache(pool, [held[0]] * 9),
    "no block": lambda pool, held: pool.cache_full_blocks(Tokens(), held, 0, 3, 2, 0),
    "short mask": lambda pool, held: pool.cache_full_blocks(Tokens(), held, 0, 2, 2, 0, [True]),
    "odd size": lambda pool, held: pool.cache_full_blocks(Tokens(), held, 0, 2, 3, 0),
    "negative size": lambda pool, held: pool.cache_full_blocks(Tokens(), held, 0, 2, -2, 0),
    "negative start": lambda pool, held: pool.cache_full_blocks(Tokens(), held, -1, 2, 2, 0),
    "small size": lambda pool, held: pool.cache_full_blocks(Tokens(), held, 0, 2, 1, 0),
}


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("pinned", [False, True])
def test_bad_input_is_refused_and_changes_nothing(refusal: str, pinned: bool) -> None:
    pool = make()
    held = pool.get_new_blocks(2)
    cache(pool, held[:1])
    if pinned:
        pool.pin(held)
    before = picture(pool)
    with pytest.raises(BlockError):
        REFUSALS[refusal](pool, held)
    assert picture(pool) == before


def test_a_failed_free_is_undone_whatever_was_given() -> None:
    pool = make()
    held = pool.get_new_blocks(2)
    before = picture(pool)
    with pytest.raises(TypeError):
        pool.free_blocks([*held, "1"])  # type: ignore[list-item]
    assert picture(pool) == before


def test_the_same_done_right_is_accepted() -> None:
    pool = make()
    assert pool.get_new_blocks(0) == []
    held = pool.get_new_blocks(2)
    pool.touch([held[0], NULL_BLOCK, held[0]])
    pool.free_blocks([held[0], held[0], NULL_BLOCK, held[1], held[0]])
    assert pool.get_num_free_blocks() == 5
    assert len(pool.get_new_blocks(5)) == 5
    with pytest.raises(PoolExhaustedError, match="1 blocks wanted, 0 free"):
        pool.get_new_blocks(1)


@pytest.mark.parametrize("arguments", [(0, True, 2), (-1, True, 2), (2, True, 0)])
def test_impossible_pools_are_refused(arguments: tuple[int, bool, int]) -> None:
    with pytest.raises(BlockError):
        Half.pool_class(*arguments)


def test_no_keys_without_caching() -> None:
    pool = Half.pool_class(3, False, 2)
    with pytest.raises(BlockError, match="caching is off"):
        cache(pool, pool.get_new_blocks(1))


class PoolMachine(RuleBasedStateMachine):
    """Compares the pool with a plain model of references, keys, the free list and events."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = make(8, events=True)
        self.refs: Counter[int] = Counter()
        self.pins: Counter[int] = Counter()
        self.keys: dict[int, list[tuple[bytes, int]]] = {block: [] for block in range(8)}
        self.line = list(range(1, 8))
        self.served: set[tuple[bytes, int]] = set()

    def release(self, blocks: list[int]) -> None:
        for block in blocks:
            self.refs[block] -= 1
        freed = [block for block in dict.fromkeys(reversed(blocks)) if not self.refs[block]][::-1]
        keyed = [block for block in freed if self.keys[block]]
        self.line = [block for block in freed if not self.keys[block]] + self.line + keyed

    def held(self, data: st.DataObject, count: Counter[int]) -> list[int]:
        tokens = sorted(count.elements())
        if not tokens:
            return []
        return data.draw(
            st.lists(st.sampled_from(tokens), max_size=4).filter(lambda x: not Counter(x) - count)
        )

    @rule(count=st.integers(0, 9))
    def take(self, count: int) -> None:
        if count > len(self.line):
            with pytest.raises(PoolExhaustedError):
                self.pool.get_new_blocks(count)
            return
        taken = self.pool.get_new_blocks(count)
        assert taken == self.line[:count]
        self.line = self.line[count:]
        for block in taken:
            self.refs[block] = 1
            self.keys[block] = []

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        blocks = self.held(data, self.refs - self.pins)
        self.pool.free_blocks([*blocks, NULL_BLOCK])
        self.release(blocks)

    @rule(blocks=st.lists(st.integers(0, 9), max_size=4))
    def free_anything(self, blocks: list[int]) -> None:
        wanted = Counter(block for block in blocks if block)
        if wanted - (self.refs - self.pins):
            with pytest.raises(BlockError):
                self.pool.free_blocks(blocks)
        else:
            self.pool.free_blocks(blocks)
            self.release([block for block in blocks if block])

    @rule(blocks=st.lists(st.integers(0, 7), max_size=3), pin=st.booleans())
    def touch(self, blocks: list[int], pin: bool) -> None:
        (self.pool.pin if pin else self.pool.touch)(blocks)
        for block in filter(None, blocks):
            self.refs[block] += 1
            self.pins[block] += pin
            if block in self.line:
                self.line.remove(block)

    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        blocks = self.held(data, +self.pins)
        self.pool.unpin(blocks)
        self.pins -= Counter(blocks)
        self.release(blocks)

    @precondition(lambda self: +self.refs)
    @rule(data=st.data(), letter=st.sampled_from("ab"), start=st.integers(0, 2), group=st.integers(0, 1))
    def cache(self, data: st.DataObject, letter: str, start: int, group: int) -> None:
        held = st.sampled_from([NULL_BLOCK, *(+self.refs)])
        table = data.draw(st.lists(held, min_size=start, max_size=4, unique=True))
        cache(self.pool, table, letter, start, group)
        for place, block in enumerate(table):
            key = (f"{letter}{place}".encode(), group)
            if place >= start and block and key not in self.keys[block]:
                self.keys[block].append(key)

    @rule(blocks=st.sets(st.integers(0, 7), max_size=3))
    def evict(self, blocks: set[int]) -> None:
        order = sorted(blocks)
        self.pool.evict_blocks(order)
        for block in order:
            if block in self.line and self.keys[block]:
                self.line.remove(block)
                self.line.insert(0, block)
            self.keys[block] = []

    @rule()
    def reset(self) -> None:
        assert self.pool.reset_prefix_cache() == (len(self.line) == 7)
        if len(self.line) == 7:
            self.keys = {block: [] for block in range(8)}

    @invariant()
    def agrees(self) -> None:
        pool = self.pool
        assert pool.get_all_free_blocks() == self.line
        assert pool.get_num_free_blocks() == len(self.line)
        assert pool.get_usage() == pytest.approx(1 - len(self.line) / 7)
        assert [pool.get_ref_cnt(block) for block in range(8)] == [self.refs[block] for block in range(8)]
        assert {block: list(pool.get_keys(block)) for block in range(8)} == self.keys
        served = {key for keys in self.keys.values() for key in keys}
        for group in range(2):
            index = pool.get_index(group)
            assert {block_hash for block_hash, of in served if of == group} == set(index)
            assert all((block_hash, group) in self.keys[block] for block_hash, block in index.items())

    @invariant()
    def events_tell_what_is_served(self) -> None:
        for event in self.pool.take_events():
            if isinstance(event, AllBlocksCleared):
                self.served = set()
                continue
            keys = {(block_hash, event.group_idx) for block_hash in event.block_hashes}
            if isinstance(event, BlockStored):
                assert not keys & self.served
                assert len(event.token_ids) == 2 * len(event.block_hashes)
                self.served |= keys
            else:
                assert keys <= self.served
                self.served -= keys
        assert self.served == {key for keys in self.keys.values() for key in keys}


def test_any_history() -> None:
    few = settings(max_examples=60, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(PoolMachine, settings=few)  # type: ignore[no-untyped-call]


def test_a_million_blocks() -> None:
    """The cost of a call depends on its blocks, not on the size of the pool."""
    pool = make(10**6)
    letters = [chr(ord("a") + place) for place in range(26)]
    for letter in letters:
        table = pool.get_new_blocks(8)
        cache(pool, table, letter)
        pool.free_blocks(table[::-1])
    everything = pool.get_new_blocks(10**6 - 1)
    assert (pool.get_num_free_blocks(), pool.get_usage()) == (0, 1.0)
    assert NULL_BLOCK not in everything
    assert len(set(everything)) == 10**6 - 1
    assert not pool.get_index(0)
    with pytest.raises(PoolExhaustedError):
        pool.get_new_blocks(1)
    pool.free_blocks(everything)
    assert pool.get_num_free_blocks() == 10**6 - 1
