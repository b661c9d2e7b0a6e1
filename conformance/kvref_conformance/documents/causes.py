"""The causes of known findings: one for each mistake, so that many findings can be shown as one."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import Any, Protocol, TypeVar


class Severity(StrEnum):
    """The worst consequence of a cause; the worst first."""

    WRONG_OUTPUT = "wrong output"
    CRASH = "crash"
    LEAK = "leak"
    LOST_REUSE = "lost reuse"
    ROBUSTNESS = "robustness"


@dataclass(frozen=True)
class Cause:
    """A mistake in the target. One fix removes all findings of a cause.

    `title` is one sentence: what the target does wrong, and what follows. `detail` has the rest, `link` the
    issue or pull request upstream.
    """

    id: str
    title: str
    severity: Severity
    detail: str = ""
    link: str = ""


class Caused(Protocol):
    """A known finding or its row."""

    @property
    def cause(self) -> Cause | None: ...


T = TypeVar("T", bound=Caused)


def by_cause(items: Iterable[T]) -> dict[Cause, list[T]]:
    """The items of each cause, the worst severity first. Items without a cause are left out."""
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
