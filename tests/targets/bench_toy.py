"""Targets that implement only sharing, to be timed through their part `bench` or through operations."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvref.target import BenchCall

LOG = "KVREF_TEST_BENCH_LOG"
"""Environment variable: the path of a file in which each run leaves the name of its target."""


def _lacking(what: str) -> Any:
    def refuse(*arguments: Any) -> Any:
        raise NotImplementedError(f"there is no {what} here")

    return refuse


def _target(name: str, run: Any, size: int = 0) -> Any:
    def join(groups: Any, sharing: Any) -> BenchCall:
        layers = sum(map(len, groups)) + len(sharing)
        return BenchCall(fresh=lambda: None, run=run, size=lambda nothing: layers + size)

    others = ("pool", "cache", "plan", "allocate", "register", "copy")
    bench = SimpleNamespace(join=join, **{each: _lacking(each) for each in others})
    return SimpleNamespace(name=name, version="1", capabilities={}, bench=bench)


def _sleeping(name: str, seconds: float, size: int = 0) -> Any:
    def run(given: object) -> None:
        if LOG in os.environ:
            with Path(os.environ[LOG]).open("a") as log:
                log.write(f"{name}\n")
        time.sleep(seconds)

    return _target(name, run, size)


def quick() -> Any:
    return _sleeping("quick", 0.002)


def slow() -> Any:
    return _sleeping("slow", 0.006)


def loses_a_layer() -> Any:
    return _sleeping("losing", 0.002, size=-1)


def ends() -> Any:
    return _target("ending", lambda given: os._exit(3))


def by_operations() -> Any:
    """Has the part `sharing`, which answers in plain data, but no part `bench`."""

    def join(groups: Any, sharing: Any, times: int) -> Any:
        time.sleep(0.002)
        return {"groups": [[*groups[0], *(layer for layer, _ in sharing)]]}

    return SimpleNamespace(name="plain", version="1", capabilities={}, sharing=SimpleNamespace(join=join))
