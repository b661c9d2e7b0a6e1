"""Passes of what is done once, with something that is made for it anew each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvref.target import BenchCall
from kvref_conformance.bench.benchmark import Prepared


def prepared(call: BenchCall, times: int = 1, device: str = "cpu") -> Prepared:
    """A pass that does it so often, until the device has done it, too."""
    finish = finishing(device)
    given: list[Any] = []
    made: list[Any] = []

    def reset() -> None:
        made.clear()  # before anything is made anew: it may be much memory
        given[:] = [call.fresh() for _ in range(times)]

    def run() -> None:
        made.extend(map(call.run, given))
        finish()

    return Prepared(run, times, reset, did=lambda: {"size": call.size(made[0])})


def finishing(device: str) -> Callable[[], object]:
    """What waits until a device has done all that it was asked for."""
    if device == "cpu":
        return lambda: None
    import torch

    return torch.cuda.synchronize
