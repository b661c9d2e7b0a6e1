"""Lower bounds for the other benchmarks: reading a Python dictionary, and clearing or copying memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kvref_conformance.bench.benchmark import Benchmark, Prepared, Subject
from kvref_conformance.bench.calls import finishing

PASS = 4096
QUEUED = 8
"""How many operations a pass queues on a device before it waits for the device."""
MIB = 1 << 20


def read_dict(subject: Subject, size: int) -> Prepared:
    """Look up a number in a dictionary of `size` numbers."""
    table = {number: number for number in range(size)}
    keys = random.Random(0).choices(range(size), k=PASS)

    def run() -> None:
        for key in keys:
            table[key]

    return Prepared(run, PASS)


def clear_bytes(subject: Subject, size: int, device: str) -> Prepared:
    import torch

    return _until_done(torch.ones(size, dtype=torch.int8, device=device).zero_, device)


def copy_bytes(subject: Subject, size: int, device: str) -> Prepared:
    import torch

    source = torch.ones(size, dtype=torch.int8, device=device)
    destination = torch.zeros_like(source)
    return _until_done(lambda: destination.copy_(source), device)


def _until_done(act: Callable[[], Any], device: str) -> Prepared:
    finish = finishing(device)

    def run() -> None:
        for _ in range(QUEUED):
            act()
        finish()

    return Prepared(run, QUEUED)


BENCHMARKS = [
    Benchmark(
        "limit.dict",
        "reading from a dictionary",
        read_dict,
        {"size": [1_000, 10_000, 100_000, 1_000_000]},
        quick={"size": [1_000, 10_000]},
        growth="size",
    ),
    Benchmark(
        "limit.memset",
        "clearing allocated bytes",
        clear_bytes,
        {"size": [64 * MIB, 1024 * MIB]},
        quick={"size": [16 * MIB]},
        cuda={"size": [1024 * MIB, 16_384 * MIB]},
        growth="size",
    ),
    Benchmark(
        "limit.copy",
        "copying bytes",
        copy_bytes,
        {"size": [4 * MIB, 128 * MIB]},
        quick={"size": [4 * MIB]},
        cuda={},
        growth="size",
    ),
]
