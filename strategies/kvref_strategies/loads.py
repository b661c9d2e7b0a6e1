"""Runs engines with a connector that loads many tokens for requests. Its loads often fail."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from hypothesis import strategies as st

from kvref_strategies.caches import cache_subjects, setups
from kvref_strategies.engine import CHOICES, GRANTED, NEEDED, Digits, Engine, Setup
from kvref_strategies.workload import Description, Draw, Driven, Stage, Workload

LOADING = ("loaded", "fail", "admit", "close", "output", "run", "arrive", "abort")
"""The actions of an `Engine` that lead to loads and end them. The first ones are chosen most often."""

ROOMY = 100
"""The number of blocks: enough for every load."""


class Often:
    """Makes decisions like `Digits`. But if there are eight options, it takes the last one half of the time.

    In an `Engine`, the last of eight options is the rare event, for example a bad load.
    """

    def __init__(self, number: int) -> None:
        self.digits = Digits(number)

    def __call__(self, count: int) -> int:
        return 7 * self.digits(2) if count == 8 else self.digits(count)


def loading_setups(draw: Draw, description: Description, subject: str) -> Setup | None:
    """Draw the setup of an engine with prefix caching and a connector.

    None if the drawn layers or the drawn settings do not allow these two.
    """
    setup = setups(draw, description, subject)
    crossing = any(group.get("kind") == "CrossAttentionSpec" for group in setup.groups)
    states = setup.align is None or description["capabilities"].get("loads_states", True)
    if not setup.enable_caching or crossing or not states:
        return None
    if draw(st.booleans()):
        # Only an engine with one step at a time tells running requests about bad loaded blocks.
        setup = replace(setup, max_batches=1, is_async=False)
    return replace(setup, loads=True, num_blocks=ROOMY)


def go_on_loading(engine: Engine, choice: int) -> None:
    """Take one of the actions in `LOADING`. Choice 0 takes none, so that Hypothesis can reduce examples."""
    if not engine.possible or not choice:
        return
    pick = Often(choice - 1)
    actions = {getattr(act, "__name__", ""): (these, act) for these, act in engine.actions()}
    possible = [actions[name] for name in LOADING if name in actions]
    if possible:
        these, act = possible[min(pick(len(possible)), pick(len(possible)))]
        act(these[pick(len(these))], pick)


def loads(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Run an engine that loads many tokens, often without success."""
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
    """Draw the setup for `drive`. The setup is empty if `loading_setups` returns None."""
    setup = loading_setups(draw, description, subject)
    return {} if setup is None else asdict(setup)


def drive(stage: Stage, description: Description, setup: dict[str, Any], choices: Iterable[int]) -> None:
    """Run the same engine as `loads`, with this setup and these choices."""
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
