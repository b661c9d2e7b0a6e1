"""Engines with a connector that loads many tokens for requests, and often fails to load all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from hypothesis import strategies as st

from kvref_strategies.caches import cache_subjects, setups
from kvref_strategies.engine import CHOICES, GRANTED, NEEDED, Digits, Engine, Setup
from kvref_strategies.workload import Description, Draw, Driven, Stage, Workload

LOADING = ("loaded", "fail", "admit", "close", "output", "run", "arrive", "abort")
"""The actions that lead to loads and to their ends. The first ones are chosen more often than the last."""

ROOMY = 100
"""A number of blocks with which no load is refused."""


class Often:
    """Like `Digits`, but a decision between eight ways takes the eighth one half of the time."""

    def __init__(self, number: int) -> None:
        self.digits = Digits(number)

    def __call__(self, count: int) -> int:
        return 7 * self.digits(2) if count == 8 else self.digits(count)


def loading_setups(draw: Draw, description: Description, subject: str) -> Setup | None:
    """Draw the setup of an engine with prefix caching and a connector; None if it cannot have both."""
    setup = setups(draw, description, subject)
    crossing = any(group.get("kind") == "CrossAttentionSpec" for group in setup.groups)
    states = setup.align is None or description["capabilities"].get("loads_states", True)
    if not setup.enable_caching or crossing or not states:
        return None
    if draw(st.booleans()):
        # One step at a time: only then can a running request learn of a bad loaded block.
        setup = replace(setup, max_batches=1, is_async=False)
    return replace(setup, loads=True, num_blocks=ROOMY)


def go_on_loading(engine: Engine, choice: int) -> None:
    """Take one of the actions in `LOADING`. Choice 0 does nothing, so that Hypothesis can reduce examples."""
    if not engine.possible or not choice:
        return
    pick = Often(choice - 1)
    actions = {getattr(act, "__name__", ""): (these, act) for these, act in engine.actions()}
    possible = [actions[name] for name in LOADING if name in actions]
    if possible:
        these, act = possible[min(pick(len(possible)), pick(len(possible)))]
        act(these[pick(len(these))], pick)


def loads(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Run an engine that loads many tokens for requests. The loads often fail."""
    setup = loading_setups(draw, description, subject)
    if setup is not None:
        # Hypothesis draws larger numbers less evenly.
        choices = draw(st.lists(st.integers(0, (1 << 24) - 1), min_size=24, max_size=48))
        _load(stage, description, setup, choices)


def _load(stage: Stage, description: Description, setup: Setup, choices: Iterable[int]) -> None:
    engine = Engine(stage, setup, description["parts"])
    for choice in choices:
        go_on_loading(engine, choice)


def drawn(draw: Draw, description: Description, subject: str) -> dict[str, Any]:
    """Draw the setup for `drive`; empty if there is none."""
    setup = loading_setups(draw, description, subject)
    return {} if setup is None else asdict(setup)


def drive(stage: Stage, description: Description, setup: dict[str, Any], choices: Iterable[int]) -> None:
    """Run the engine of `loads` with this setup and these choices."""
    if setup:
        _load(stage, description, Setup(**setup), choices)


WORKLOADS = [
    Workload(
        "cache.loads",
        ("cache", *(f"cache.{name}" for name in (*NEEDED, "evict", "state"))),
        cache_subjects,
        loads,
        weight=0.4,
        unobserved="the target made no cache for these layers, cannot load into it, or never cached a block",
        proof=GRANTED,
        driven=Driven(drawn, drive, CHOICES),
    ),
]
