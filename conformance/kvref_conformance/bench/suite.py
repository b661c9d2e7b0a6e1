"""Benchmarks of the suite itself: how many operations per second its engines and its shadow process."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

from kvref_conformance.bench.benchmark import Benchmark, Prepared, Subject
from kvref_conformance.laws.shadow_blocks import Shadow
from kvref_conformance.running.exploring.driver import LENGTH
from kvref_conformance.running.exploring.explorer import Explorer
from kvref_conformance.running.exploring.stage import Journal, LocalStage, Stage, SwiftStage
from kvref_strategies.catalogue import WORKLOADS
from kvref_strategies.engine import CHOICES, Engine, Setup
from kvref_strategies.specs import class_info, minimal

CLASS = "FullAttentionSpec"
EXAMPLES = 20
"""How many examples Hypothesis draws in a pass."""


def machine(subject: Subject) -> Prepared:
    """Run an engine whose steps Hypothesis draws, as in a check."""
    folder = tempfile.TemporaryDirectory()
    steps: list[int] = []

    def new_stage() -> Stage:
        return LocalStage(subject.target, Journal(Path(folder.name) / "journal"))

    # All targets must get the same examples, whatever capabilities they declare.
    description = {**subject.description, "capabilities": {}}
    request: dict[str, Any] = {
        "description": description,
        "subject": CLASS,
        "seed": 0,
        "examples": EXAMPLES,
    }
    explorer = Explorer(WORKLOADS["cache.machine"], request, new_stage)

    def run() -> None:
        steps.clear()
        explorer.explore(lambda stage: steps.append(stage.steps))

    run()
    return Prepared(run, sum(steps), did=lambda: {"operations": sum(steps)}, close=folder.cleanup)


def driven(subject: Subject) -> Prepared:
    """Run an engine on driven examples, as in a check."""
    stages: list[SwiftStage] = []

    def run() -> None:
        stages[:] = [_drive(subject)]

    run()
    return Prepared(run, stages[0].steps, did=lambda: {"operations": stages[0].steps})


def _drive(subject: Subject) -> SwiftStage:
    fields = {**minimal(class_info(subject.description, CLASS))["fields"], "block_size": 16}
    setup = Setup(
        groups=[{"spec": {"class": CLASS, "fields": fields}, "eagle": False, "kind": CLASS}],
        num_blocks=24,
        scheduler_block_size=16,
        hash_block_size=16,
        max_model_len=128,
        max_num_batched_tokens=64,
        salts=False,
    )
    stage = SwiftStage(subject.target)
    engine = Engine(stage, setup, subject.description["parts"], tables_only=True)
    choose = random.Random(0)
    for _ in range(LENGTH):
        engine.go_on(choose.randrange(CHOICES))
    return stage


def shadow(subject: Subject) -> Prepared:
    """Let the shadow follow the operations of a driven example, and judge every block that is read."""
    stage = _drive(subject)
    events = stage.runs[0]
    readings = 0

    def run() -> None:
        nonlocal readings
        followed = Shadow()
        for event in events:
            followed.follow(event)
        readings = followed.readings

    return Prepared(run, stage.steps, did=lambda: {"operations": stage.steps, "readings": readings})


BENCHMARKS = [
    Benchmark("suite.machine", "an operation of an example that Hypothesis draws", machine, {}),
    Benchmark("suite.driven", "an operation of a driven example", driven, {}),
    Benchmark("suite.shadow", "an operation that the shadow follows", shadow, {}),
]
