"""The reference with a bug in merging, and with few spec classes, so that a check is done soon."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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
    """As releases are from before there was one."""

    name = "older"
    registry = None  # type: ignore[assignment]
    drift = None  # type: ignore[assignment]
