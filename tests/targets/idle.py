"""Targets that load, and then do nothing that a law could judge."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kvref_conformance.targets.reference import cache, specs, tensors
from kvref_conformance.targets.reference.target import ReferenceTarget


def with_part(name: str, module: Any, **replaced: Any) -> ReferenceTarget:
    """The reference with a part in which some functions are replaced."""
    target = ReferenceTarget()
    setattr(target, name, SimpleNamespace(**{**vars(module), **replaced}))
    return target


def refuses_every_request() -> ReferenceTarget:
    return with_part("cache", cache, allocate=lambda **_: {"added": None, "needed": 0, "taken": []})


def refuses_every_layout() -> ReferenceTarget:
    def allocate(**_: Any) -> None:
        raise NotImplementedError("no backend has this layout")

    return with_part("tensors", tensors, allocate=allocate)


def passes_a_keyword_too_many() -> ReferenceTarget:
    """An adapter for another release: it passes a keyword that the implementation does not have."""
    target = with_part("specs", specs, merge=lambda specs: renamed(all_specs=specs))
    target.own_error = own_error  # type: ignore[attr-defined]
    return target


def renamed(layers: Any) -> None:
    """What the implementation calls its argument."""


def own_error(error: Exception) -> str:
    return f"TypeError: {error}" if isinstance(error, TypeError) else ""


def needs_asserts() -> ReferenceTarget:
    if not __debug__:
        raise RuntimeError("does not run without asserts")
    return ReferenceTarget()
