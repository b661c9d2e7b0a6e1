"""Engines for the shadow oracle: long workloads, of which nothing is probed that a model runner is not told.

A subject is a class, or `HYBRID`: groups of several classes, as models with different kinds of layers have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from kvref_strategies.caches import cache_subjects, kind_of, setups
from kvref_strategies.engine import CHOICES, NEEDED, Engine, Setup
from kvref_strategies.specs import judged
from kvref_strategies.workload import Description, Draw, Driven, Machine, Stage, Subjects, Workload

HYBRID = "several classes"
"""The subject of caches whose groups are of any classes."""


def _of_decoders(description: Description) -> list[str]:
    """The classes whose layers a model may have side by side: those that decode."""
    kinds = {info["name"]: kind_of(info) for info in judged(description)}
    subjects = cache_subjects(description)
    return [name for name in kinds if subjects[name] is None and kinds[name] != "CrossAttentionSpec"]


def shadow_subjects(description: Description) -> Subjects:
    """The classes of caches, and all of them together."""
    subjects = cache_subjects(description)
    return {**subjects, HYBRID: None} if len(_of_decoders(description)) > 1 else subjects


def shadow_setups(draw: Draw, description: Description, subject: str) -> Setup:
    """An engine for layers of the class, beside others as in `setups`, or beside any.

    Often with drafts in steps that are under way at the same time: then what was scheduled goes back. Not
    with recurrent layers: where a state is then, the model runner alone knows. Who is taken out of a step
    again has a workload of its own.
    """
    ahead = draw(st.sampled_from([False, False, True]))
    if subject != HYBRID:
        setup = setups(draw, description, subject, ahead)
    else:
        classes = _of_decoders(description)
        setup = setups(draw, description, draw(st.sampled_from(classes)), ahead, classes)
    if setup.drafts and any(group.get("kind") == "MambaSpec" for group in setup.groups):
        setup = replace(setup, max_batches=1, is_async=False)
    return replace(
        setup,
        is_async=setup.is_async or (ahead and setup.max_batches > 1),
        withdraws=False,
        salts="salt" in description["capabilities"].get("contents", ()),
        adapters="adapter" in description["capabilities"].get("contents", ()),
    )


class ShadowMachine(Machine):
    """An engine that goes on as it likes."""

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        setup = shadow_setups(data.draw, self.description, self.subject)
        self.engine = Engine(self.stage, setup, self.description["parts"], tables_only=True)

    @rule(choice=st.integers(0, CHOICES - 1))
    def go_on(self, choice: int) -> None:
        self.engine.go_on(choice)


def drive(stage: Stage, description: Description, setup: dict[str, Any], choices: Iterable[int]) -> None:
    """The same, told beforehand how it goes on."""
    engine = Engine(stage, Setup(**setup), description["parts"], tables_only=True)
    for choice in choices:
        engine.go_on(choice)


def drawn(draw: Draw, description: Description, subject: str) -> dict[str, Any]:
    return asdict(shadow_setups(draw, description, subject))


WORKLOADS = [
    Workload(
        "shadow.machine",
        ("cache", *(f"cache.{name}" for name in (*NEEDED, "block_ids", "evict", "reset"))),
        shadow_subjects,
        ShadowMachine,
        weight=0.5,
        unobserved="no cache for such layers could be made, or nothing was computed that could be judged",
        driven=Driven(drawn, drive, CHOICES, {"quick": 20, "standard": 200, "deep": 2000}),
    ),
]
