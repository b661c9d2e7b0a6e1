"""Benchmarks of the cache manager: prefix hits, and whole lives of requests."""

from __future__ import annotations

from collections import deque
from itertools import count, repeat
from typing import Any

from kvref.target import CacheCalls
from kvref_conformance.bench.benchmark import Benchmark, Limit, Params, Prepared, Subject
from kvref_conformance.targets.bench_models import BLOCK_SIZE, GROUPS

PROMPT, DECODES = 2048, 128
LIVES = 4
"""How many requests a pass runs."""
SIZES = [1_000, 30_000, 1_000_000]
"""How many blocks a cache has. The middle size is realistic for a large model."""


class NoRoom(RuntimeError):
    """A request got no blocks although there should be enough."""


def life(subject: Subject, groups: str, hits: bool, num_blocks: int) -> Prepared:
    """Look up a prompt, compute it, decode one token in each step, then free the request.

    Before timing starts, all blocks have been used: most of them hold prompts that no later request has.
    """
    specs = GROUPS[groups]
    cache = subject.calls.cache(specs, num_blocks, BLOCK_SIZE, 2 * PROMPT)
    numbers = count(1)
    waiting: deque[tuple[Any, int]] = deque()
    new_step, find, allocate, advance, free = (
        cache.new_step,
        cache.find,
        cache.allocate,
        cache.advance,
        cache.free,
    )

    def arrive(shared: bool = hits) -> tuple[Any, int]:
        """A new request, and an output token of its own. If `shared`, all prompts are equal."""
        number = next(numbers)
        return cache.request(f"r{number}", [0 if shared else number] * PROMPT), number

    def compute(request: Any, output: int) -> int:
        new_step()
        blocks, found, *_ = find(request)
        if allocate(request, PROMPT - found, found, blocks) is None:
            raise NoRoom(f"a prompt of {PROMPT} tokens got no blocks from a cache of {num_blocks}")
        advance(request, PROMPT, output)
        return int(found)

    def decode(request: Any, output: int) -> None:
        for computed in range(PROMPT + 1, PROMPT + DECODES + 1):
            new_step()
            if allocate(request, 1) is None:
                raise NoRoom(f"a request got no block for its token {computed}")
            advance(request, computed, output)

    def run() -> None:
        while waiting:
            request, output = waiting.popleft()
            compute(request, output)
            decode(request, output)
            free(request)

    def reset() -> None:
        waiting.extend(arrive() for _ in range(LIVES))

    def did() -> dict[str, Any]:
        request, output = arrive()
        found = compute(request, output)
        decode(request, output)
        tables = [len(table) for table in cache.tables(request)]
        free(request)
        return {"tokens found": found, "blocks": tables}

    for _ in range(num_blocks // (len(specs) * PROMPT // BLOCK_SIZE) + 1):
        request, output = arrive(shared=False)
        compute(request, output)
        free(request)
    reset()
    run()
    return Prepared(run, LIVES, reset, did)


def hit(subject: Subject, groups: str, tokens: int) -> Prepared:
    """Look up a prompt whose blocks are all cached."""
    specs = GROUPS[groups]
    num_blocks = len(specs) * (tokens // BLOCK_SIZE + 2) + 16
    cache = subject.calls.cache(specs, num_blocks, BLOCK_SIZE, 2 * tokens)
    _compute(cache, tokens)
    request = cache.request("again", [0] * (tokens + 1))
    find = cache.find
    loops = max(1, 65_536 // tokens)

    def run() -> None:
        for _ in repeat(None, loops):
            find(request)

    return Prepared(run, loops, did=lambda: {"tokens found": find(request)[1]})


def _compute(cache: CacheCalls, tokens: int) -> None:
    """Compute a prompt and free it, so that its blocks are cached and free."""
    request = cache.request("first", [0] * (tokens + 1))
    cache.new_step()
    blocks, found, *_ = cache.find(request)
    if cache.allocate(request, tokens + 1 - found, found, blocks) is None:
        raise NoRoom(f"a prompt of {tokens} tokens got no blocks")
    cache.advance(request, tokens + 1, 0)
    cache.free(request)


def _each_block_found(params: Params) -> Limit:
    blocks = params["tokens"] // BLOCK_SIZE
    return Limit("limit.dict", {"size": max(1_000, blocks)}, blocks)


BENCHMARKS = [
    Benchmark(
        "cache.life",
        f"a whole request: a prompt of {PROMPT} tokens, {DECODES} decodes, free",
        life,
        {"groups": [*GROUPS], "hits": [False, True], "num_blocks": SIZES},
        quick={"groups": ["full", "4 groups"], "num_blocks": SIZES[:1]},
        growth="num_blocks",
    ),
    Benchmark(
        "cache.hit",
        "looking up a cached prompt",
        hit,
        {"groups": [*GROUPS], "tokens": [256, 2_048, 16_384, 131_072]},
        quick={"tokens": [256, 2_048]},
        growth="tokens",
        limit=_each_block_found,
    ),
]
