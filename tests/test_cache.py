"""The cache manager under a small engine that knows what every block must hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvref.cache import KVCacheBlocks, KVCacheManager
from kvref.errors import InvalidRequestError
from kvref.events import AllBlocksCleared, BlockStored
from kvref.fast.cache import KVCacheManager as FastKVCacheManager
from kvref.hashing import BlockHasher
from kvref.planning import KVCacheConfig, KVCacheGroupSpec
from kvref.pool import NULL_BLOCK
from kvref.request import Request
from kvref.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

MAX_LEN = 40
MAX_STEP = 12
HASH = 2


def attention(block_size: int = 4) -> dict[str, Any]:
    return {"block_size": block_size, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float16}


def full(block_size: int = 4) -> KVCacheSpec:
    return FullAttentionSpec(**attention(block_size))


def window(size: int, block_size: int = 4, extra: int = 0) -> KVCacheSpec:
    return SlidingWindowSpec(**attention(block_size), sliding_window=size, extra_retained_tokens=extra)


def chunk(size: int, block_size: int = 4) -> KVCacheSpec:
    return ChunkedLocalAttentionSpec(**attention(block_size), attention_chunk_size=size)


def mamba(mode: str, speculative: int = 0, block_size: int = 4) -> KVCacheSpec:
    return MambaSpec(
        block_size=block_size,
        shapes=((2,),),
        dtypes=(torch.float32,),
        mamba_cache_mode=mode,
        num_speculative_blocks=speculative,
    )


CONFIGS: dict[str, Sequence[KVCacheSpec]] = {
    "full": [full()],
    "mla": [MLAAttentionSpec(**attention())],
    "window": [window(6)],
    "window of one": [window(1)],
    "window, more retained": [window(4, extra=3)],
    "window mla": [SlidingWindowMLASpec(**attention(), sliding_window=9)],
    "chunk": [chunk(8)],
    "chunk across blocks": [chunk(6)],
    "mamba none": [mamba("none", 1, MAX_LEN)],
    "mamba all": [mamba("all", 2)],
    "mamba align": [mamba("align")],
    "mamba align, drafts": [mamba("align", 2)],
    "sink": [SinkFullAttentionSpec(**attention(), sink_len=4)],
    "full, window": [full(), window(6)],
    "full 8, window 4": [full(8), window(6)],
    "full 4, window 8": [full(), window(10, 8)],
    "full 4, window 6": [full(), window(7, 6)],
    "two windows, chunk": [window(6), window(11), chunk(8)],
    "full, align": [full(), mamba("align", 2)],
    "full, align 8, window": [full(), mamba("align", block_size=8), window(7)],
}


def sizes(specs: Sequence[KVCacheSpec]) -> int:
    size = 1
    while any(size % spec.block_size for spec in specs) or size % HASH:
        size += 1
    return size


def make(
    specs: Sequence[KVCacheSpec],
    num_blocks: int = 24,
    manager_class: type[KVCacheManager] = KVCacheManager,
    **more: Any,
) -> KVCacheManager:
    groups = [KVCacheGroupSpec([f"layer.{place}"], spec) for place, spec in enumerate(specs)]
    arguments = {"scheduler_block_size": sizes(specs), "hash_block_size": HASH, **more}
    arguments.setdefault("max_in_flight_tokens", 2 * MAX_STEP + 4)
    return manager_class(KVCacheConfig(num_blocks, [], groups), MAX_LEN, **arguments)


def request(name: str, tokens: Any, hash_block_size: int = HASH) -> Request:
    return Request(name, tokens, BlockHasher(hash_block_size))


def first_needed(spec: KVCacheSpec, position: int) -> int:
    """The first position that the token at `position` attends to. Written independently of the reference."""
    if isinstance(spec, SlidingWindowSpec):
        return max(0, position - spec.sliding_window + 1)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return position - position % spec.attention_chunk_size
    return 0


def brute_force_hit(manager: KVCacheManager, wanted: Request, eagle: bool = False) -> int:
    """The length of the longest hit. It tries all lengths, with the definition of each kind written out."""
    pool, groups = manager.block_pool, manager.kv_cache_config.kv_cache_groups
    unit = manager.coordinator.scheduler_block_size

    def cached(group: int, block_size: int, place: int) -> bool:
        end = (place + 1) * block_size // HASH
        if end > len(wanted.block_hashes):
            return False
        return pool.get_cached_block(wanted.block_hashes[end - 1], [group]) is not None

    def serves(group: int, spec: KVCacheSpec, length: int) -> bool:
        size = spec.block_size
        if isinstance(spec, MambaSpec):
            return cached(group, size, length // size - 1)
        start = first_needed(spec, length)
        if isinstance(spec, SlidingWindowSpec):
            start = max(0, start - spec.extra_retained_tokens)
        ahead = int(eagle)
        return all(cached(group, size, place) for place in range(start // size, length // size + ahead))

    lengths = range((wanted.num_tokens - 1) // unit * unit, 0, -unit)
    specs = [group.kv_cache_spec for group in groups]
    return next((n for n in lengths if all(serves(g, spec, n) for g, spec in enumerate(specs))), 0)


def state(manager: KVCacheManager, names: Sequence[str]) -> object:
    pool = manager.block_pool
    blocks = range(pool.num_gpu_blocks)
    return (
        pool.get_all_free_blocks(),
        [(pool.get_ref_cnt(block), pool.get_keys(block)) for block in blocks],
        [manager.get_block_ids(name) for name in names],
    )


class Engine:
    """Runs requests and records what each block holds.

    A slot of an attention layer holds the tokens up to that slot. A recurrent layer's block holds the tokens
    that its state has seen.
    """

    def __init__(self, specs: Sequence[KVCacheSpec], eagle: bool = False) -> None:
        self.specs = specs
        self.eagle = eagle
        self.manager = make(specs, use_eagle=eagle, enable_kv_cache_events=True)
        self.content: list[dict[tuple[int, int], tuple[int, ...]]] = [{} for _ in specs]
        self.running: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.last_step: dict[str, int] = {}
        self.count = 0
        self.served: set[tuple[bytes, int]] = set()
        self.new_ids: set[int] = set()
        self.manager.coordinator.allocate = self.watched(self.manager.coordinator.allocate)  # type: ignore

    def watched(self, allocate: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `allocate`: checks that it takes the predicted number of blocks, and notes their numbers."""
        coordinator, pool = self.manager.coordinator, self.manager.block_pool

        def wrapped(request_id: str, *arguments: Any) -> Any:
            before = pool.get_num_free_blocks()
            held = {block for table in coordinator.get_blocks(request_id) for block in table}
            hits = {block for table in arguments[1] for block in table}
            predicted = coordinator.get_num_blocks_to_allocate(request_id, *arguments)
            added = allocate(request_id, *arguments)
            assert before - pool.get_num_free_blocks() == predicted
            after = {block for table in coordinator.get_blocks(request_id) for block in table}
            self.new_ids |= after - held - hits - {NULL_BLOCK}
            return added

        return wrapped

    def start(self, tokens: Sequence[int], limit: int, external: int, lookahead: int, whole: bool) -> None:
        self.count += 1
        self.admit(request(f"r{self.count}", tokens), limit, external, lookahead, whole)

    def admit(self, new: Request, limit: int, external: int, lookahead: int, whole: bool) -> None:
        tokens = new.all_token_ids
        blocks, hit = self.manager.get_computed_blocks(new)
        assert hit == brute_force_hit(self.manager, new, self.eagle)
        self.check_hit(new, blocks, hit)
        external = min(external, len(tokens) - 1 - hit)
        more = min(limit, len(tokens) - hit - external)
        before = state(self.manager, list(self.running))
        added = self.manager.allocate_slots(
            new, more, hit, blocks, lookahead, external, external > 0, full_sequence_must_fit=whole
        )
        if added is None:
            assert state(self.manager, list(self.running)) == before
            assert self.manager.get_block_ids(new.request_id) == tuple([] for _ in self.specs)
            self.waiting.append(new)
            return
        self.running[new.request_id] = new
        if external:
            self.write(new, hit, hit + external, tokens, [hit + external], load=True)
            self.manager.cache_blocks(new, hit + external)
            self.manager.cache_blocks(new, hit + external + more)
        self.compute(new, hit + external, more)

    def check_hit(self, new: Request, blocks: KVCacheBlocks, hit: int) -> None:
        assert hit < new.num_tokens
        assert hit % self.manager.coordinator.scheduler_block_size == 0
        for spec, table in zip(self.specs, blocks.blocks, strict=True):
            assert len(table) * spec.block_size == hit

    def step(self, name: str, limit: int, drafts: int, rejected: int, lookahead: int, in_flight: int) -> None:
        running = self.running[name]
        computed = running.num_computed_tokens
        if computed == running.num_tokens:
            if computed == MAX_LEN:
                return self.free(name)
            running.append_output_token_ids(computed % 2)
        certain = min(limit, running.num_tokens - computed)
        decoding = running.num_tokens - computed == 1
        drafts = min(drafts, self.max_drafts, MAX_LEN - running.num_tokens) if decoding else 0
        running.num_in_flight_tokens = min(in_flight, self.last_step[name])
        # Even a refused call frees skipped blocks. Free them before, so that only the refusal is judged.
        self.manager.coordinator.remove_skipped_blocks(name, computed - running.num_in_flight_tokens)
        before = state(self.manager, list(self.running))
        if self.manager.allocate_slots(running, certain + drafts, num_lookahead_tokens=lookahead) is None:
            assert state(self.manager, list(self.running)) == before
            return self.preempt(name)
        self.compute(running, computed, certain, drafts, min(rejected, drafts))

    @property
    def max_drafts(self) -> int:
        recurrent = [spec.num_speculative_blocks for spec in self.specs if isinstance(spec, MambaSpec)]
        return min([3, *recurrent])

    def compute(self, running: Request, start: int, certain: int, drafts: int = 0, rejected: int = 0) -> None:
        """For each token, read what it needs and write its slot. Then accept all drafts but `rejected`."""
        tokens = [*running.all_token_ids, *(start + i for i in range(drafts))]
        self.read(running, start, certain + drafts)
        boundaries = {end for end in range(start + 1, start + certain) if end % 2 == 0}
        states = sorted({start + certain, *boundaries})
        self.write(running, start, start + certain + drafts, tokens, states, load=False)
        accepted = tokens[running.num_tokens : len(tokens) - rejected] if drafts else []
        running.num_computed_tokens = start + certain + len(accepted)
        self.last_step[running.request_id] = certain
        if accepted:
            running.append_output_token_ids(accepted)
            self.settle(running, len(accepted))
        self.manager.new_step_starts()

    def settle(self, running: Request, accepted: int) -> None:
        """Do what a worker does: put the state of the last accepted draft where the next step looks for it.

        In mode "all", do the same for each accepted draft that ends a block.
        """
        computed = running.num_computed_tokens
        for group, spec in enumerate(self.specs):
            if isinstance(spec, MambaSpec):
                table = self.manager.get_block_ids(running.request_id)[group]
                every = spec.mamba_cache_mode == "all"
                ends = [
                    end
                    for end in range(computed - accepted, computed)
                    if every and end % spec.block_size == 0
                ]
                for end in (*ends, computed):
                    block = table[(end - 1) // spec.block_size]
                    self.content[group][block, 0] = tuple(running.all_token_ids[:end])

    def read(self, running: Request, start: int, count: int) -> None:
        tables = self.manager.get_block_ids(running.request_id)
        for group, (spec, table) in enumerate(zip(self.specs, tables, strict=True)):
            size, content = spec.block_size, self.content[group]
            if isinstance(spec, MambaSpec):
                if start:
                    held = table[(start - 1) // size]
                    assert content[held, 0] == tuple(running.all_token_ids[:start]), (group, table)
                continue
            for position in range(first_needed(spec, start), start):
                block = table[position // size]
                assert block != NULL_BLOCK
                expected = tuple(running.all_token_ids[: position + 1])
                assert content[block, position % size] == expected, (group, table, position)

    def write(
        self,
        running: Request,
        start: int,
        stop: int,
        tokens: Sequence[int],
        states: Sequence[int],
        load: bool,
    ) -> None:
        """Write the slots from `start` to `stop`, and the states after the numbers of tokens in `states`.

        A load skips positions without a block, since no later token needs them.
        """
        tables = self.manager.get_block_ids(running.request_id)
        for group, (spec, table) in enumerate(zip(self.specs, tables, strict=True)):
            size, content = spec.block_size, self.content[group]
            if isinstance(spec, MambaSpec):
                ends = [end for end in states if end == states[-1] or spec.mamba_cache_mode == "all"]
                places = [((end - 1) // size, 0, end) for end in ends]
                for block in table[len(table) - spec.num_speculative_blocks :]:
                    self.own(block)
            else:
                places = [
                    (position // size, position % size, position + 1) for position in range(start, stop)
                ]
            for place, offset, end in places:
                if not load or table[place]:
                    self.own(table[place])
                    content[table[place], offset] = tuple(tokens[:end])

    def own(self, block: int) -> None:
        assert block != NULL_BLOCK
        assert self.manager.block_pool.get_ref_cnt(block) == 1

    def free(self, name: str) -> None:
        self.manager.free(self.running.pop(name))
        self.manager.free(request(name, [0]))
        assert self.manager.get_block_ids(name) == tuple([] for _ in self.specs)

    def preempt(self, name: str) -> None:
        stopped = self.running[name]
        self.free(name)
        stopped.num_computed_tokens = stopped.num_in_flight_tokens = 0
        self.waiting.append(stopped)

    def check(self) -> None:
        pool, coordinator = self.manager.block_pool, self.manager.coordinator
        held = Counter(
            block for name in self.running for table in coordinator.get_blocks(name) for block in table
        )
        del held[NULL_BLOCK]
        reserved = {
            block for m in coordinator.single_type_managers for block in getattr(m, "sink_blocks", ())
        }
        free = pool.get_all_free_blocks()
        assert len(free) == len(set(free)) == pool.get_num_free_blocks()
        assert {*free} | {*held} | reserved == set(range(1, pool.num_gpu_blocks))
        assert not {*free} & {*held}
        for block in range(1, pool.num_gpu_blocks):
            assert pool.get_ref_cnt(block) == held[block] + (block in reserved)
        assert pool.get_ref_cnt(NULL_BLOCK) == 0
        assert pool.get_keys(NULL_BLOCK) == ()
        if not self.running:
            assert len(free) == pool.num_usable_blocks
        told = self.manager.take_new_block_ids()
        assert len(told) == len(set(told))
        assert self.new_ids <= set(told)
        self.new_ids = set()
        for manager in coordinator.single_type_managers:
            cap = manager.max_admission_blocks_per_request
            # In mode "align", a request also holds the state from which the step in flight started.
            more = getattr(manager, "mamba_cache_mode", "") == "align"
            for table in manager.req_to_blocks.values():
                assert cap is None or len([block for block in table if block]) <= cap + more
        self.check_events()

    def check_events(self) -> None:
        for event in self.manager.take_events():
            if isinstance(event, AllBlocksCleared):
                self.served = set()
                continue
            keys = {(block_hash, event.group_idx) for block_hash in event.block_hashes}
            if isinstance(event, BlockStored):
                spec = self.specs[event.group_idx]
                assert (event.block_size, event.kind) == (spec.block_size, type(spec).__name__)
                self.served |= keys
            else:
                self.served -= keys
        pool = self.manager.block_pool
        groups = range(len(self.specs))
        assert self.served == {
            (block_hash, group) for group in groups for block_hash in pool.get_index(group)
        }


PROMPTS = [[0] * MAX_LEN, [1] * MAX_LEN, [0] * 13 + [1] * (MAX_LEN - 13)]


class CacheMachine(RuleBasedStateMachine):
    specs: Sequence[KVCacheSpec]
    eagle = False

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(self.specs, self.eagle)

    @rule(
        prompt=st.sampled_from(PROMPTS),
        length=st.integers(1, MAX_LEN - 4),
        limit=st.integers(1, MAX_STEP),
        external=st.sampled_from([0, 0, 0, 1, 4, 9]),
        lookahead=st.integers(0, 2),
        whole=st.booleans(),
    )
    def start(
        self, prompt: list[int], length: int, limit: int, external: int, lookahead: int, whole: bool
    ) -> None:
        self.engine.start(prompt[:length], limit, external, lookahead, whole)

    @precondition(lambda self: self.engine.running)
    @rule(
        data=st.data(),
        limit=st.integers(1, MAX_STEP),
        drafts=st.integers(0, 3),
        rejected=st.integers(0, 3),
        lookahead=st.integers(0, 2),
        in_flight=st.sampled_from([0, 0, 3, 8]),
    )
    def step(self, data: st.DataObject, **arguments: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.engine.running)))
        self.engine.step(name, **arguments)

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.engine.free(data.draw(st.sampled_from(sorted(self.engine.running))))

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        self.engine.preempt(data.draw(st.sampled_from(sorted(self.engine.running))))

    @precondition(lambda self: self.engine.waiting)
    @rule(limit=st.integers(1, MAX_STEP), whole=st.booleans())
    def resume(self, limit: int, whole: bool) -> None:
        self.engine.admit(self.engine.waiting.pop(0), limit, 0, 0, whole)

    @rule()
    def reset(self) -> None:
        held = self.engine.manager.block_pool.get_num_free_blocks()
        done = self.engine.manager.reset_prefix_cache()
        assert done == (held == self.engine.manager.block_pool.num_usable_blocks)

    @invariant()
    def holds(self) -> None:
        self.engine.check()


EAGLE = ["full", "window", "full, window", "full 8, window 4", "full 4, window 8", "full, align"]


@pytest.mark.parametrize(
    ("name", "eagle"), [*((name, False) for name in CONFIGS), *((name, True) for name in EAGLE)]
)
def test_random_work(name: str, eagle: bool) -> None:
    machine = type("Machine", (CacheMachine,), {"specs": CONFIGS[name], "eagle": eagle})
    steps = settings(max_examples=10, stateful_step_count=20, deadline=None)
    run_state_machine_as_test(machine, settings=steps)  # type: ignore[no-untyped-call]


# Single calls, with results computed by hand.


def run(manager: KVCacheManager, name: str, tokens: Any, **more: Any) -> tuple[Request, int]:
    """Compute all tokens of a request in one step. Returns the request and the length of its hit."""
    new = request(name, tokens, manager.coordinator.hash_block_size)
    blocks, hit = manager.get_computed_blocks(new)
    assert manager.allocate_slots(new, new.num_tokens - hit, hit, blocks, **more) is not None
    new.num_computed_tokens = new.num_tokens
    manager.new_step_starts()
    return new, hit


def test_a_prefix_is_found_and_shared() -> None:
    manager = make([full()])
    first, _ = run(manager, "a", range(11))
    second, hit = run(manager, "b", [*range(8), 99, 98, 97])
    assert hit == 8
    [one], [two] = manager.get_block_ids("a"), manager.get_block_ids("b")
    assert (one[:2], len(one), len(two)) == (two[:2], 3, 3)
    assert one[2] != two[2]
    assert manager.get_num_common_prefix_blocks("a") == manager.get_num_common_prefix_blocks("b") == [2]
    assert manager.get_num_common_prefix_blocks("c") == [0]
    assert manager.usage == pytest.approx(4 / 23)
    manager.free(first)
    manager.free(second)
    assert manager.usage == 0
    assert manager.reset_prefix_cache()
    assert run(manager, "c", range(11))[1] == 0


def test_one_token_is_always_left_to_compute() -> None:
    manager = make([full()])
    run(manager, "a", range(8))
    assert manager.get_computed_blocks(request("b", range(8)))[1] == 4
    assert manager.get_computed_blocks(request("b", range(9)))[1] == 8


def test_reading_the_cache_can_be_skipped_or_be_off() -> None:
    manager = make([full()])
    run(manager, "a", range(9))
    skipping = request("b", range(9))
    skipping.skip_reading_prefix_cache = True
    assert manager.get_computed_blocks(skipping) == (manager.empty_kv_cache_blocks, 0)
    off = make([full()], enable_caching=False)
    run(off, "a", range(9))
    assert run(off, "b", range(9))[1] == 0
    plain = Request("c", range(9))
    assert off.get_computed_blocks(plain)[1] == 0
    assert off.allocate_slots(plain, 9) is not None


def test_drafts_are_not_cached_and_may_be_rejected() -> None:
    manager = make([full()])
    running, _ = run(manager, "a", range(6))
    running.append_output_token_ids(6)
    assert manager.allocate_slots(running, 5) is not None
    [table] = manager.get_block_ids("a")
    assert len(table) == 3
    assert [len(manager.block_pool.get_keys(block)) for block in table] == [1, 0, 0]
    running.num_computed_tokens = 7
    running.append_output_token_ids(7)
    assert manager.allocate_slots(running, 1) == KVCacheBlocks(([],))
    assert [len(manager.block_pool.get_keys(block)) for block in table] == [1, 1, 0]


def test_lookahead_takes_places_up_to_the_longest_request() -> None:
    manager = make([full()])
    running = request("a", range(38))
    added = manager.allocate_slots(running, 38, num_lookahead_tokens=9)
    assert added is not None
    assert [len(table) for table in added.get_block_ids()] == [10]


def test_what_is_loaded_is_cached_when_it_has_arrived() -> None:
    manager = make([full(), window(6)])
    loading = request("a", range(17))
    added = manager.allocate_slots(loading, 0, num_external_computed_tokens=16, delay_cache_blocks=True)
    assert added is not None
    tables = manager.get_block_ids("a")
    assert [len(list(filter(None, table))) for table in tables] == [4, 2]
    assert tables[1][:2] == [0, 0]
    assert manager.get_computed_blocks(request("b", range(17)))[1] == 0
    manager.cache_blocks(loading, 16)
    assert manager.get_computed_blocks(request("b", range(17)))[1] == 16


def test_hits_are_held_before_anything_is_taken() -> None:
    manager = make([full(), window(8)], num_blocks=9)
    done, _ = run(manager, "a", range(13))
    manager.free(done)
    assert manager.get_computed_blocks(request("b", range(13)))[1] == 12
    new, hit = run(manager, "b", [*range(12), 99])
    assert hit == 12
    tables = manager.get_block_ids(new.request_id)
    assert [len(set(table) - {0}) for table in tables] == [4, 3]


def test_what_has_been_evicted_meanwhile_is_refused() -> None:
    manager = make([full()], num_blocks=5)
    done, _ = run(manager, "a", range(9))
    manager.free(done)
    new = request("b", range(9))
    blocks, hit = manager.get_computed_blocks(new)
    assert hit == 8
    assert manager.allocate_slots(request("c", range(90, 106)), 16) is not None
    with pytest.raises(InvalidRequestError, match="evicted"):
        manager.allocate_slots(new, 1, hit, blocks)


def test_what_is_loaded_hides_no_evicted_block() -> None:
    """All tokens are loaded. The last is computed again, and needs a block that the next does not need."""
    manager = make([window(6)])
    done, _ = run(manager, "a", range(9))
    manager.free(done)
    new = request("b", range(9))
    blocks, hit = manager.get_computed_blocks(new)
    assert hit == 8
    manager.evict_blocks(blocks.blocks[0][:1])
    with pytest.raises(InvalidRequestError, match="evicted"):
        manager.allocate_slots(new, 0, hit, blocks, num_external_computed_tokens=1)


def test_the_whole_sequence_can_be_asked_for() -> None:
    manager = make([full()], num_blocks=6)
    long = request("a", range(24))
    assert manager.allocate_slots(long, 4, full_sequence_must_fit=True) is None
    assert manager.allocate_slots(request("b", range(20)), 4, full_sequence_must_fit=True) is not None
    assert manager.allocate_slots(long, 4) is not None


@pytest.mark.parametrize("spec", [window(6), chunk(8), mamba("all"), mamba("align", 1)])
def test_kinds_that_forget_need_no_more_than_their_bound(spec: KVCacheSpec) -> None:
    """The longest request can finish in a pool with just its planned memory. A smaller pool refuses it."""
    probe = make([spec], max_in_flight_tokens=4)
    cap = probe.coordinator.single_type_managers[0].max_admission_blocks_per_request
    assert cap is not None
    manager = make([spec], num_blocks=cap + 1, max_in_flight_tokens=4)
    long = request("a", range(MAX_LEN))
    for start in range(0, MAX_LEN, 4):
        assert manager.allocate_slots(long, 4, full_sequence_must_fit=start == 0) is not None
        long.num_computed_tokens += 4
    tight = make([spec], num_blocks=cap, max_in_flight_tokens=4)
    assert tight.allocate_slots(request("a", range(MAX_LEN)), 4, full_sequence_must_fit=True) is None


def test_a_window_in_flight_is_kept() -> None:
    manager = make([window(6)])
    running, _ = run(manager, "a", range(12))
    running.append_output_token_ids([12] * 4)
    running.num_in_flight_tokens = 4
    assert manager.allocate_slots(running, 1) is not None
    assert NULL_BLOCK not in manager.get_block_ids("a")[0]
    running.num_in_flight_tokens = 0
    assert manager.allocate_slots(running, 1) is not None
    assert manager.get_block_ids("a")[0].count(NULL_BLOCK) == 1


def test_a_state_written_in_this_step_is_for_the_next() -> None:
    manager = make([mamba("all")])
    first = request("a", range(8))
    assert manager.allocate_slots(first, 8) is not None
    second = request("b", range(9))
    blocks, hit = manager.get_computed_blocks(second)
    assert hit == 8
    assert manager.allocate_slots(second, 1, hit, blocks) is None
    manager.new_step_starts()
    assert manager.allocate_slots(second, 1, hit, blocks) is not None


@pytest.mark.parametrize("specs", [[full()], [window(6), full()], [mamba("align")], [mamba("all"), full()]])
def test_who_leaves_a_step_again_leaves_no_key_for_it(specs: list[KVCacheSpec]) -> None:
    manager = make(specs)
    one = request("one", [7] * 13)
    manager.new_step_starts()
    assert manager.allocate_slots(one, 4) is not None
    one.num_computed_tokens = 4
    for hand_over, found in ((False, 4), (True, 8)):
        manager.new_step_starts()
        assert manager.allocate_slots(one, 8 - one.num_computed_tokens) is not None
        if hand_over:
            one.num_computed_tokens = 8
        manager.free(one)
        one.num_computed_tokens = 0
        blocks, tokens = manager.get_computed_blocks(one)
        assert tokens == found
        manager.new_step_starts()
        assert manager.allocate_slots(one, 1, tokens, blocks) is not None
        one.num_computed_tokens = tokens


def test_who_leaves_takes_no_keys_of_others() -> None:
    """The second request hits blocks in the step in which the first one computes them. Then it leaves."""
    manager = make([full()])
    first, second = request("a", range(9)), request("b", range(9))
    assert manager.allocate_slots(first, 9) is not None
    blocks, hit = manager.get_computed_blocks(second)
    assert manager.allocate_slots(second, 1, hit, blocks) is not None
    manager.free(second)
    assert manager.get_computed_blocks(second)[1] == hit == 8


def test_a_state_that_was_loaded_is_there_when_who_loaded_it_has_left() -> None:
    manager = make([mamba("all")])
    first, second = request("a", range(8)), request("b", range(9))
    assert manager.allocate_slots(first, 8) is not None
    first.num_computed_tokens = 8
    manager.free(first)
    blocks, hit = manager.get_computed_blocks(second)
    assert hit == 8
    assert manager.allocate_slots(second, 1, hit, blocks) is not None


def test_steps_without_change_are_over_at_once() -> None:
    """The fast cache manager asks the coordinator only in steps that may change something."""
    manager = make([full(), window(6)], manager_class=FastKVCacheManager)
    running = request("a", range(9))
    assert manager.allocate_slots(running, 9) is not None
    asked: list[int] = []
    manager.coordinator.get_num_blocks_to_allocate = (  # type: ignore[method-assign]
        lambda *arguments, ask=manager.coordinator.get_num_blocks_to_allocate: (
            asked.append(running.num_computed_tokens) or ask(*arguments)
        )
    )
    for computed in range(9, 17):
        running.num_computed_tokens = computed
        assert manager.allocate_slots(running, 1) is not None
        running.append_output_token_ids(0)
        assert len(manager.get_block_ids("a")[0]) == -(-(computed + 1) // 4)
    # At 9 and 13 a block leaves the window, at 11 and 15 a block gets full, at 12 and 16 a block is needed.
    assert asked == [9, 11, 12, 13, 15, 16]


def test_cross_attention_takes_what_the_encoder_needs_once() -> None:
    specs = [full(), CrossAttentionSpec(**attention())]
    manager = make(specs, enable_caching=False, max_encoder_tokens=10)
    running = request("a", range(6))
    assert manager.allocate_slots(running, 6, num_encoder_tokens=10) is not None
    assert [len(table) for table in manager.get_block_ids("a")] == [2, 3]
    running.num_computed_tokens = 6
    assert manager.allocate_slots(running, 4) is not None
    assert [len(table) for table in manager.get_block_ids("a")] == [3, 3]


def test_new_ids_are_told_once() -> None:
    manager = make([full(), window(6)])
    running, _ = run(manager, "a", range(8))
    taken = {block for table in manager.get_block_ids("a") for block in table}
    manager.free(running)
    run(manager, "b", range(50, 58))
    told = manager.take_new_block_ids()
    assert len(told) == len(set(told))
    assert taken | {block for table in manager.get_block_ids("b") for block in table} == set(told)
    assert manager.take_new_block_ids() == []


REFUSALS: dict[str, Callable[[KVCacheManager], object]] = {
    "nothing to do": lambda m: m.allocate_slots(request("b", range(9)), 0),
    "negative": lambda m: m.allocate_slots(request("b", range(9)), -1),
    "negative lookahead": lambda m: m.allocate_slots(request("b", range(9)), 1, num_lookahead_tokens=-1),
    "hit without blocks": lambda m: m.allocate_slots(request("b", range(9)), 1, 8),
    "blocks without hit": lambda m: m.allocate_slots(
        request("b", range(9)), 1, 0, m.get_computed_blocks(request("b", range(9)))[0]
    ),
    "blocks of fewer groups": lambda m: m.allocate_slots(
        request("b", range(9)), 1, 8, KVCacheBlocks(([1, 2],))
    ),
    "blocks of no groups": lambda m: m.allocate_slots(
        request("b", range(9)), 9, new_computed_blocks=KVCacheBlocks(())
    ),
    "null blocks in a hit": lambda m: m.allocate_slots(
        request("b", range(9)), 1, 8, KVCacheBlocks(([0, 0], [0, 0]))
    ),
    "blocks of something else": lambda m: m.allocate_slots(
        request("b", range(9)), 1, 8, KVCacheBlocks(([3, 4], [3, 4]))
    ),
    "adopting twice": lambda m: m.allocate_slots(request("a", range(9)), 1, num_external_computed_tokens=4),
    "computed, but no blocks": lambda m: m.allocate_slots(computed(request("b", range(9))), 1),
    "too long": lambda m: m.allocate_slots(
        request("b", range(9)), 1, num_external_computed_tokens=MAX_LEN + 1
    ),
    "keys for what has no blocks": lambda m: m.cache_blocks(request("b", range(9)), 8),
    "no hashes": lambda m: m.get_computed_blocks(Request("b", range(9))),
    "no hashes, allocating": lambda m: m.allocate_slots(Request("b", range(9)), 9),
    "other hashes": lambda m: m.allocate_slots(request("b", range(9), 4), 9),
}


def computed(of: Request) -> Request:
    of.num_computed_tokens = 4
    return of


@pytest.mark.parametrize("refusal", REFUSALS)
def test_bad_calls_are_refused_and_change_nothing(refusal: str) -> None:
    manager = make([full(), window(6)])
    run(manager, "a", range(9))
    before = state(manager, ["a", "b"])
    with pytest.raises(InvalidRequestError):
        REFUSALS[refusal](manager)
    assert state(manager, ["a", "b"]) == before


def test_the_same_done_right_is_accepted() -> None:
    manager = make([full(), window(6)])
    run(manager, "a", range(9))
    new = request("b", range(9))
    blocks, hit = manager.get_computed_blocks(new)
    assert manager.allocate_slots(new, 0, hit, blocks, num_external_computed_tokens=1) is not None
    assert [len(table) for table in manager.get_block_ids("b")] == [3, 3]
