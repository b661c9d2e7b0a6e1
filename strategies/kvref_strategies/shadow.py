"""Engines for the laws of the shadow, which check whether requests read what they computed.

The examples are long, and kvref sees only what a model runner gets from the cache (see docs/architecture.md).
A subject is a spec class, or `HYBRID`: caches with groups of several spec classes, as in models with
different kinds of layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from kvref_strategies.caches import cache_subjects, kind_of, setups
from kvref_strategies.engine import CHOICES, GRANTED, NEEDED, Engine, Setup
from kvref_strategies.specs import judged
from kvref_strategies.workload import Description, Draw, Driven, Machine, Stage, Subjects, Workload

HYBRID = "several classes"
"""The subject for caches with groups of several spec classes."""


def _of_decoders(description: Description) -> list[str]:
    """The spec classes that one model may combine: all that are drawn, except cross attention."""
    kinds = {info["name"]: kind_of(info) for info in judged(description)}
    subjects = cache_subjects(description)
    return [name for name in kinds if subjects[name] is None and kinds[name] != "CrossAttentionSpec"]


def shadow_subjects(description: Description) -> Subjects:
    """The subjects of `cache_subjects`, and `HYBRID` if one model can combine several of these classes."""
    subjects = cache_subjects(description)
    return {**subjects, HYBRID: None} if len(_of_decoders(description)) > 1 else subjects


def shadow_setups(draw: Draw, description: Description, subject: str) -> Setup:
    """Draw the setup of an engine, as `caches.setups` does. With `HYBRID`, groups may have any spec class.

    A third of the setups have draft tokens wherever the layers allow them, also with several steps in flight.
    Recurrent layers with draft tokens get one step at a time: with several in flight, only the model runner
    knows where the states are. No request is withdrawn from a step: the workload `cache.withdrawn` does that.
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
    """Runs an engine. Each call of the rule makes the engine take one of the possible actions."""

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        setup = shadow_setups(data.draw, self.description, self.subject)
        self.engine = Engine(self.stage, setup, self.description["parts"], tables_only=True)

    @rule(choice=st.integers(0, CHOICES - 1))
    def go_on(self, choice: int) -> None:
        self.engine.go_on(choice)


def drive(stage: Stage, description: Description, setup: dict[str, Any], choices: Iterable[int]) -> None:
    """Run the same engine as `ShadowMachine`, with this setup and these choices."""
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
        unobserved="the target made no cache for these layers, or no step computed anything to judge",
        proof=GRANTED,
        driven=Driven(drawn, drive, CHOICES, {"quick": 20, "standard": 200, "deep": 2000}),
    ),
]
