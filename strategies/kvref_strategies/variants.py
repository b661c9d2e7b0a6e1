"""Performs the same operations on each variant of a part, one variant after the other.

A target may have several implementations of its pool or its cache manager, such as a plain one and a fast
one. It lists these *variants* in the capability `variants`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from kvref.target import Outcome
from kvref_strategies.caches import cache_subjects, setups
from kvref_strategies.engine import CHOICES, GRANTED, NEEDED, Engine as CacheEngine
from kvref_strategies.pools import CHOICE, Engine as PoolEngine
from kvref_strategies.workload import Description, Draw, Stage, Subjects, Workload


class Recorder:
    """A stage that performs operations on one variant of a part, and can repeat them on another variant."""

    def __init__(self, stage: Stage, part: str, variant: str) -> None:
        self.stage, self.part, self.variant = stage, part, variant
        self.operations: list[tuple[str, dict[str, Any]]] = []

    def perform(self, operation: str, /, **arguments: Any) -> Outcome:
        # The arguments are copied, because the engine later changes the lists in them.
        self.operations.append((operation, json.loads(json.dumps(arguments))))
        return self._perform(operation, arguments)

    def fresh(self, *flags: str) -> None:
        raise NotImplementedError("variants are compared in one process")

    def repeat(self, variant: str) -> None:
        self.variant = variant
        for operation, arguments in self.operations:
            self._perform(operation, arguments)

    def _perform(self, operation: str, arguments: dict[str, Any]) -> Outcome:
        if operation == f"{self.part}.create":
            arguments = {**arguments, "variant": self.variant}
        return self.stage.perform(operation, **arguments)


def names(description: Description, part: str) -> Sequence[str]:
    """The names of the variants that the target declares for a part."""
    declared: list[str] = (description["capabilities"].get("variants") or {}).get(part, [])
    return declared


def _missing(description: Description, part: str) -> str | None:
    return None if len(names(description, part)) > 1 else f"the target declares no variants of its {part}"


def pool_variants(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Let an engine drive one variant of the pool, then make illegal calls.

    Repeat all calls on the others.
    """
    first, *others = names(description, "pool")
    recorder = Recorder(stage, "pool", first)
    engine = PoolEngine(draw, recorder, description)
    for choice in _drawn(draw, CHOICE):
        engine.go_on(choice)
    for _ in range(draw(st.integers(0, 3))):
        engine.misuse(draw)
    for variant in others:
        recorder.repeat(variant)


def cache_variants(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Let an engine drive one variant of the cache manager. Repeat all calls on the others."""
    first, *others = names(description, "cache")
    recorder = Recorder(stage, "cache", first)
    engine = CacheEngine(recorder, setups(draw, description, subject), description["parts"])
    for choice in _drawn(draw, st.integers(0, CHOICES - 1)):
        engine.go_on(choice)
    for variant in others:
        recorder.repeat(variant)


def _drawn(draw: Draw, choices: st.SearchStrategy[int]) -> list[int]:
    """Draw up to 96 choices, as six short lists, because Hypothesis rarely draws a long list."""
    return [choice for _ in range(6) for choice in draw(st.lists(choices, max_size=16))]


def _pool_subjects(description: Description) -> Subjects:
    return {"pool": _missing(description, "pool")}


def _cache_subjects(description: Description) -> Subjects:
    missing = _missing(description, "cache")
    return {name: reason or missing for name, reason in cache_subjects(description).items()}


WORKLOADS = [
    Workload("pool.variants", ("pool",), _pool_subjects, pool_variants, weight=3.0),
    Workload(
        "cache.variants",
        ("cache", *(f"cache.{name}" for name in NEEDED)),
        _cache_subjects,
        cache_variants,
        weight=0.25,
        unobserved="no cache for such layers could be made",
        proof=GRANTED,
    ),
]
