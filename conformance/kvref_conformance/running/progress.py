"""How work that takes long reports its progress."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress", "Silence"]


class Progress(Protocol):
    """What a run tells of itself. A unit is one workload explored for one subject."""

    def phase(self, name: str) -> None:
        """Something that has no units begins (loading the target, confirming what was found)."""
        ...

    def unit_started(self, name: str) -> None: ...

    def unit_progress(self, name: str, examples: int) -> None:
        """So many examples of the unit have run."""
        ...

    def unit_done(self, name: str) -> None: ...


class Silence:
    """Tells nothing: of what is part of something that has progress of its own."""

    def phase(self, name: str) -> None: ...

    def unit_started(self, name: str) -> None: ...

    def unit_progress(self, name: str, examples: int) -> None: ...

    def unit_done(self, name: str) -> None: ...
