"""The causes of known findings. Findings with the same cause appear together in reports."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import Any, Protocol, TypeVar


class Severity(StrEnum):
    """The worst consequence that a cause can have. The members are sorted, the worst first."""

    WRONG_OUTPUT = "wrong output"
    CRASH = "crash"
    LEAK = "leak"
    LOST_REUSE = "lost reuse"
    ROBUSTNESS = "robustness"


@dataclass(frozen=True)
class Cause:
    """A mistake in the target. One fix removes all findings of a cause.

    `title` is one sentence: what the target does wrong, and what that leads to. `detail` says more. `link` is
    the URL of the issue or pull request in the target's project.
    """

    id: str
    title: str
    severity: Severity
    detail: str = ""
    link: str = ""


class Caused(Protocol):
    """Anything that may have a cause: an entry of a baseline, or a row of a result."""

    @property
    def cause(self) -> Cause | None: ...


T = TypeVar("T", bound=Caused)


def by_cause(items: Iterable[T]) -> dict[Cause, list[T]]:
    """Group items by cause. Items without a cause are left out.

    Causes with the worst severity come first. Among equals, the cause with the most items comes first.
    """
    found: dict[Cause, list[T]] = {}
    for item in items:
        if item.cause is not None:
            found.setdefault(item.cause, []).append(item)
    severities = list(Severity)
    return dict(sorted(found.items(), key=lambda each: (severities.index(each[0].severity), -len(each[1]))))


@functools.cache
def shipped_causes() -> Mapping[str, Cause]:
    """The causes that shipped baselines name, by id."""
    file = resources.files("kvref_conformance.documents") / "baselines" / "causes.toml"
    causes: dict[str, dict[str, Any]] = tomllib.loads(file.read_text(encoding="utf-8"))
    return {
        name: Cause(name, severity=Severity(fields.pop("severity")), **fields)
        for name, fields in causes.items()
    }
