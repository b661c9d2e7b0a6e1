"""The reference with a mistake, and with few spec classes, so that a check ends soon."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kvref_conformance.targets.reference.cache import CURRENT
from kvref_conformance.targets.reference.target import ReferenceTarget


def merge_loses_window() -> Any:
    reference = ReferenceTarget()

    def classes() -> list[Any]:
        return [info for info in reference.specs.classes() if info["name"] == "SlidingWindowSpec"]

    def merge(specs: list[Any]) -> Any:
        answer = reference.specs.merge(specs)
        answer["fields"]["sliding_window"] = 7
        return answer

    specs = SimpleNamespace(
        classes=classes, build=reference.specs.build, copy=reference.specs.copy, merge=merge
    )
    return SimpleNamespace(name="losing", version="1", capabilities={}, specs=specs, registry=None)


class WithoutRegistry(ReferenceTarget):
    """Like releases of vLLM from before the registry."""

    name = "older"
    registry = None  # type: ignore[assignment]
    drift = None  # type: ignore[assignment]


class _Watched:
    """The reference's cache. It calls `act` when request number `number` is added."""

    def __init__(self, part: Any, number: int, act: Callable[[], None]) -> None:
        self._part, self._number, self._act, self._requests = part, number, act, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def create(self, **arguments: Any) -> Any:
        self._requests = 0
        return self._part.create(**arguments)

    def add(self, **arguments: Any) -> None:
        self._requests += 1
        if self._requests == self._number:
            self._act()
        self._part.add(**arguments)


class ManyRequests(ReferenceTarget):
    """The reference with one spec class. It goes wrong at the fifteenth request of a cache."""

    def __init__(self, act: Callable[[], None]) -> None:
        reference = ReferenceTarget()
        kept = [info for info in reference.specs.classes() if info["name"] == "FullAttentionSpec"]
        own = {name: getattr(reference.specs, name) for name in dir(reference.specs) if name[0] != "_"}
        self.specs = SimpleNamespace(**{**own, "classes": lambda: kept})  # type: ignore[assignment]
        self.cache = _Watched(reference.cache, 15, act)  # type: ignore[assignment]


def dies_of_many_requests() -> ManyRequests:
    return ManyRequests(lambda: os._exit(5))


def loses_references_of_many_requests() -> ManyRequests:
    """Every referenced block gets one more reference."""

    def act() -> None:
        pool = CURRENT.manager.block_pool
        pool.touch([block for block in range(pool.num_gpu_blocks) if pool.get_ref_cnt(block)])

    return ManyRequests(act)
