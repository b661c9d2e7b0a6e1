"""Benchmarks of the pool: allocate, free, look up and touch blocks."""

from __future__ import annotations

import random
import tracemalloc
from collections import deque
from collections.abc import Sequence
from itertools import cycle, islice, repeat
from typing import Any

from kvref.target import PoolCalls
from kvref_conformance.bench.benchmark import Benchmark, Limit, Params, Prepared, Subject
from kvref_conformance.targets.bench_models import BLOCK_SIZE

CHUNK = 16
"""How many blocks each request has."""
PASS = 4096
"""How many blocks or look-ups a pass has, if the pool has enough blocks."""

SIZES = [1_000, 10_000, 100_000, 1_000_000]
BATCHES = [1, 16, 256, 4_096]


def create(subject: Subject, num_blocks: int) -> Prepared:
    made: list[PoolCalls] = []

    def run() -> None:
        made.append(subject.calls.pool(num_blocks, BLOCK_SIZE, False))

    def memory() -> int:
        made.clear()
        tracemalloc.start()
        try:
            run()
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    return Prepared(run, reset=made.clear, did=lambda: {"free": made[-1].num_free()}, memory=memory)


def take_and_free(subject: Subject, num_blocks: int, batch: int, state: str, events: bool) -> Prepared:
    """Allocate a batch of blocks, and free a batch."""
    pool = subject.calls.pool(num_blocks, BLOCK_SIZE, events)
    return _STATES[state](pool, num_blocks, batch)


def _fresh(pool: PoolCalls, num_blocks: int, batch: int) -> Prepared:
    """Prepare a new pool. Each batch is freed as soon as it is allocated."""
    take, free = pool.take, pool.free
    loops = max(1, PASS // batch)

    def run() -> None:
        for _ in repeat(None, loops):
            free(take(batch))

    return Prepared(run, loops, did=lambda: _taken(pool, batch))


def _churning(pool: PoolCalls, num_blocks: int, batch: int) -> Prepared:
    """Prepare a pool in which half of the blocks are referenced, in random order.

    A batch is freed long after its allocation.
    """
    take, free = pool.take, pool.free
    used = [*take(num_blocks * 3 // 4)]
    random.Random(0).shuffle(used)
    batches = [used[start : start + batch] for start in range(0, len(used) - batch + 1, batch)]
    kept = max(1, len(batches) * 2 // 3)
    for blocks in batches[kept:]:
        free(blocks)
    held: list[Sequence[Any]] = [*batches[:kept]]
    places = cycle(range(kept))
    loops = max(1, PASS // batch)

    def run() -> None:
        for place in islice(places, loops):
            blocks = held[place]
            held[place] = take(batch)
            free(blocks)

    return Prepared(run, loops, did=lambda: _taken(pool, batch))


def _taken(pool: PoolCalls, batch: int) -> dict[str, int]:
    blocks = pool.take(batch)
    pool.free(blocks)
    return {"blocks": len(blocks), "free": pool.num_free()}


def _hashed(pool: PoolCalls, num_blocks: int, batch: int) -> Prepared:
    """Prepare a pool in which half of the blocks are referenced and all others are cached.

    So each allocation evicts a block.
    """
    take, free = pool.take, pool.free
    keyed = Keyed(pool, num_blocks)
    unit = max(CHUNK, batch)
    blocks_in_pass = unit * max(1, min(PASS, keyed.count) // unit)
    loops = blocks_in_pass // batch
    lost = 0

    def reset() -> None:
        nonlocal lost
        keyed.give(lost)
        lost = blocks_in_pass
        pool.take_events()

    def run() -> None:
        taken = [take(batch) for _ in repeat(None, loops)]
        for blocks in taken:
            free(blocks)

    def did() -> dict[str, int]:
        reset()
        before = keyed.found(2 * blocks_in_pass)
        run()
        return {"free": pool.num_free(), "keys lost": before - keyed.found(2 * blocks_in_pass)}

    return Prepared(run, loops, reset, did)


_STATES = {"fresh": _fresh, "churning": _churning, "half hashed": _hashed}


class Keyed:
    """A pool with half of its blocks free and cached, and the others referenced."""

    def __init__(self, pool: PoolCalls, num_blocks: int) -> None:
        self._pool = pool
        self.count = num_blocks // 2 // CHUNK * CHUNK
        self.requests = deque(pool.request(tokens(number)) for number in range(self.count // CHUNK))
        self._held = pool.take(pool.num_free() - self.count)
        self.chunks = self.give(self.count)
        """The cached blocks, in the order in which they got their keys."""

    def give(self, count: int) -> list[Sequence[Any]]:
        """Allocate `count` blocks, cache them with the keys that were used longest ago, and free them."""
        chunks: list[Sequence[Any]] = []
        for _ in range(count // CHUNK):
            request, blocks = self.requests.popleft(), self._pool.take(CHUNK)
            self._pool.cache(request, blocks)
            self._pool.free(blocks)
            self.requests.append(request)
            chunks.append(blocks)
        return chunks

    def hashes(self) -> list[Any]:
        return [each for request in self.requests for each in self._pool.hashes(request)]

    def found(self, blocks: int = PASS) -> int:
        """How many of the `blocks` oldest keys the pool still finds."""
        oldest = islice(self.requests, blocks // CHUNK)
        hashes = [each for request in oldest for each in self._pool.hashes(request)]
        return sum(self._pool.find(each, [0]) is not None for each in hashes)


def tokens(number: int) -> list[int]:
    """The tokens of a request. Requests with different numbers share no token."""
    return [number] * (CHUNK * BLOCK_SIZE)


def lookup(subject: Subject, num_blocks: int, cached: bool) -> Prepared:
    """Look up one block hash after the other: hashes of cached blocks, or hashes that no block has."""
    pool = subject.calls.pool(num_blocks, BLOCK_SIZE, False)
    keyed = Keyed(pool, num_blocks)
    hashes = keyed.hashes()
    if not cached:
        strangers = [pool.request(tokens(num_blocks + number)) for number in range(PASS // CHUNK)]
        hashes = [each for request in strangers for each in pool.hashes(request)]
    chosen = random.Random(0).choices(hashes, k=PASS)
    find, groups = pool.find, [0]

    def run() -> None:
        for block_hash in chosen:
            find(block_hash, groups)

    def did() -> dict[str, int]:
        return {"found": sum(find(each, groups) is not None for each in chosen)}

    return Prepared(run, len(chosen), did=did)


def touch(subject: Subject, num_blocks: int, batch: int) -> Prepared:
    """Touch a batch of free cached blocks, then free it."""
    pool = subject.calls.pool(num_blocks, BLOCK_SIZE, False)
    keyed = Keyed(pool, num_blocks)
    blocks = [block for chunk in keyed.chunks for block in chunk][: max(batch, PASS)]
    random.Random(0).shuffle(blocks)
    batches = [blocks[start : start + batch] for start in range(0, len(blocks) - batch + 1, batch)]
    hold, free = pool.touch, pool.free

    def run() -> None:
        for each in batches:
            hold(each)
            free(each)

    return Prepared(run, len(batches), did=lambda: {"keys": keyed.found(), "free": pool.num_free()})


def _fits(params: Params) -> bool:
    return bool(4 * params["batch"] <= params["num_blocks"])


def _each_block_twice(params: Params) -> Limit:
    """A lower bound: the reference count of each block changes twice."""
    return Limit("limit.dict", {"size": params["num_blocks"]}, 2 * params["batch"])


_QUICK = {"num_blocks": [1_000, 10_000], "batch": [1, 256]}

BENCHMARKS = [
    Benchmark(
        "pool.create",
        "making a pool",
        create,
        {"num_blocks": SIZES},
        quick={"num_blocks": _QUICK["num_blocks"]},
        growth="num_blocks",
    ),
    Benchmark(
        "pool.take-free",
        "allocating and freeing a batch of blocks",
        take_and_free,
        {"state": [*_STATES], "events": [False, True], "batch": BATCHES, "num_blocks": SIZES},
        quick=_QUICK,
        growth="num_blocks",
        possible=_fits,
        limit=_each_block_twice,
    ),
    Benchmark(
        "pool.lookup",
        "looking up a block hash",
        lookup,
        {"cached": [True, False], "num_blocks": SIZES},
        quick={"num_blocks": _QUICK["num_blocks"]},
        growth="num_blocks",
        limit=lambda params: Limit("limit.dict", {"size": params["num_blocks"]}, 1),
    ),
    Benchmark(
        "pool.touch",
        "touching and freeing a batch of free cached blocks",
        touch,
        {"batch": BATCHES, "num_blocks": SIZES},
        quick=_QUICK,
        growth="num_blocks",
        possible=_fits,
        limit=_each_block_twice,
    ),
]
