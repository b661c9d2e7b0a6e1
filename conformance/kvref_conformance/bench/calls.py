"""Passes of a call that needs fresh arguments each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvref.target import BenchCall
from kvref_conformance.bench.benchmark import Prepared


def prepared(call: BenchCall, times: int = 1, device: str = "cpu") -> Prepared:
    """A pass of `times` calls. It ends when the device has done all of their work."""
    finish = finishing(device)
    given: list[Any] = []
    made: list[Any] = []

    def reset() -> None:
        made.clear()  # first, because it may hold much memory
        given[:] = [call.fresh() for _ in range(times)]

    def run() -> None:
        made.extend(map(call.run, given))
        finish()

    return Prepared(run, times, reset, did=lambda: {"size": call.size(made[0])})


def finishing(device: str) -> Callable[[], object]:
    """A function that waits until the device has done all its work."""
    if device == "cpu":
        return lambda: None
    import torch

    return torch.cuda.synchronize
