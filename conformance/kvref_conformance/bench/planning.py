"""Benchmarks of planning: form groups of layers, divide the memory, let layers share caches."""

from __future__ import annotations

from kvref_conformance.bench.benchmark import Benchmark, Prepared, Subject
from kvref_conformance.bench.calls import prepared
from kvref_conformance.targets.bench_models import MODELS, PAGE, layers_of

BLOCKS = 4096
"""How many blocks of each layer fit into the memory."""
MAX_MODEL_LEN = 8192
SIZES = [10, 100, 1_000]


def plan(subject: Subject, model: str, layers: int) -> Prepared:
    named = layers_of(MODELS[model], layers)
    return prepared(subject.calls.plan(named, layers * PAGE * BLOCKS, MAX_MODEL_LEN), times=10)


def join(subject: Subject, chain: int, layers: int) -> Prepared:
    """Let half of the layers share the caches of others, in chains of `chain` layers."""
    owners = [f"layer.{place}" for place in range(layers - layers // 2)]
    sharing = [
        [f"sharing.{place}", f"sharing.{place - 1}" if place % chain else owners[place]]
        for place in range(layers // 2)
    ]
    return prepared(subject.calls.join([owners], sharing), times=10)


BENCHMARKS = [
    Benchmark(
        "plan.configs",
        "planning a model",
        plan,
        {"model": [*MODELS], "layers": SIZES},
        quick={"layers": SIZES[:2]},
        growth="layers",
    ),
    Benchmark(
        "sharing.join",
        "letting half of the layers join the groups of others",
        join,
        {"chain": [1, 5], "layers": SIZES},
        quick={"layers": SIZES[:2]},
        growth="layers",
    ),
]
