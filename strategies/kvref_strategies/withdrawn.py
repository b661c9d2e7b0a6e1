"""Preempts a request in the step in which it was scheduled, to make room for another request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import strategies as st

from kvref.target import CacheGroup
from kvref_strategies.caches import cache_subjects, setups, without_drafts
from kvref_strategies.engine import GRANTED, NEEDED, Engine
from kvref_strategies.workload import Description, Draw, Stage, Workload


class Scripted:
    """Makes the given decisions in order. After the last one it always decides for 0."""

    def __init__(self, decisions: Iterable[int] = ()) -> None:
        self._decisions = iter(decisions)

    def __call__(self, count: int) -> int:
        return min(next(self._decisions, 0), count - 1)


def chunk(tokens: int) -> Scripted:
    """The decisions that make an engine schedule `tokens` tokens of a request."""
    return Scripted([1, tokens - 1])


def withdrawn(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Compute a few tokens of two requests. In the next step, schedule one, then preempt it for the other.

    If that happened, abort the other request in the end, and admit the preempted one again.
    """
    setup = setups(draw, description, subject)
    if not setup.enable_caching:
        return
    size, longest = setup.scheduler_block_size, setup.max_model_len - 2
    lengths = st.integers(min(2 * size, longest), longest)
    one_length, other_length = draw(lengths), draw(lengths)
    one_first, other_first = draw(st.integers(1, size)), draw(st.integers(1, size))
    more = min(draw(st.integers(size, 2 * size)), one_length - one_first)
    # The blocks that both requests would hold together. The pool will have one or two blocks fewer.
    ends = (one_first + more, other_length)
    blocks = sum(_held(group, end) for group in setup.groups for end in ends)
    setup = replace(
        without_drafts(setup),
        num_blocks=blocks,
        max_num_batched_tokens=setup.max_model_len,
        max_batches=1,
        is_async=False,
        loads=False,
        whole=False,
        priority=True,
    )
    trial = stage.perform("cache.create", **setup.arguments)
    if "value" not in trial:
        return
    kept = {trial["value"]["null"], *trial["value"]["reserved"]} - {None}
    engine = Engine(
        stage,
        replace(setup, num_blocks=blocks + len(kept) - draw(st.integers(1, 2))),
        description["parts"],
    )
    one, other = engine.submit([0] * one_length, 2), engine.submit([1] * other_length, 2)
    for request, tokens in ((one, one_first), (other, other_first)):
        if engine.possible:
            engine.admit(request, chunk(tokens))
    _hand_over(engine)
    for request, pick in ((one, chunk(more)), (other, Scripted())):
        if engine.possible and request in engine.to_run():
            engine.run(request, pick)
    _hand_over(engine)
    if engine.possible and one in engine.waiting and other in engine.running:
        engine.abort(other, Scripted())
        engine.admit(one, Scripted())


def _held(group: CacheGroup, tokens: int) -> int:
    """How many blocks of the group a request with `tokens` tokens holds.

    A recurrent layer in the mode "align" holds two blocks: one for the last state, and one for the next.
    """
    fields = group["spec"]["fields"]
    if group.get("kind") == "MambaSpec" and fields.get("mamba_cache_mode") == "align":
        return 2
    return -(-tokens // int(fields["block_size"]))


def _hand_over(engine: Engine) -> None:
    """Submit the open step, and process its output."""
    for step in engine.open_steps():
        engine.close(step, Scripted())
    for step in engine.oldest_in_flight():
        engine.output(step, Scripted())


WORKLOADS = [
    Workload(
        "cache.withdrawn",
        ("specs", "cache", *(f"cache.{name}" for name in NEEDED)),
        cache_subjects,
        withdrawn,
        weight=0.3,
        unobserved="the target made no cache for these layers, or no request had to leave a step",
        proof=GRANTED,
    ),
]
