"""How work that takes long reports its progress."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress", "Silence"]


class Progress(Protocol):
    """What a run reports while it runs. A unit is one workload explored for one subject."""

    def phase(self, name: str, units: int = 0) -> None:
        """Something begins: loading the target, or running laws, which takes so many units."""
        ...

    def unit_started(self, name: str) -> None: ...

    def unit_progress(self, name: str, examples: int) -> None:
        """That many examples of the unit have run."""
        ...

    def unit_done(self, name: str) -> None: ...


class Silence:
    """Shows nothing, for what is part of something that has progress of its own."""

    def phase(self, name: str, units: int = 0) -> None: ...

    def unit_started(self, name: str) -> None: ...

    def unit_progress(self, name: str, examples: int) -> None: ...

    def unit_done(self, name: str) -> None: ...
