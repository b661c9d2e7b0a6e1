"""What nothing here can be faster than: a dictionary of Python, and memory that is cleared or copied."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kvref_conformance.bench.benchmark import Benchmark, Prepared, Subject
from kvref_conformance.bench.calls import finishing

PASS = 4096
QUEUED = 8
"""How much a device is asked for before it is waited for."""
MIB = 1 << 20


def read_dict(subject: Subject, size: int) -> Prepared:
    """Read what a dictionary of so many numbers has for one of them."""
    table = {number: number for number in range(size)}
    keys = random.Random(0).choices(range(size), k=PASS)

    def run() -> None:
        for key in keys:
            table[key]

    return Prepared(run, PASS)


def clear_bytes(subject: Subject, size: int, device: str) -> Prepared:
    """Clear memory that is there."""
    import torch

    return _until_done(torch.ones(size, dtype=torch.int8, device=device).zero_, device)


def copy_bytes(subject: Subject, size: int, device: str) -> Prepared:
    """Copy memory to memory."""
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
        "clearing bytes that are there",
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
