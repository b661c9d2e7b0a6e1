"""How a run reports its progress."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress", "Silence"]


class Progress(Protocol):
    """Receives reports about a run while it goes on, to show its progress.

    A unit is one workload, run for one subject.
    """

    def phase(self, name: str, units: int = 0) -> None:
        """A phase begins: loading the target, for example, or running laws in `units` units."""
        ...

    def unit_started(self, name: str) -> None: ...

    def unit_progress(self, name: str, examples: int) -> None:
        """The unit has run this many examples so far."""
        ...

    def unit_done(self, name: str) -> None: ...


class Silence:
    """Ignores all reports. Use it for a part of some work if the caller reports the progress."""

    def phase(self, name: str, units: int = 0) -> None: ...

    def unit_started(self, name: str) -> None: ...

    def unit_progress(self, name: str, examples: int) -> None: ...

    def unit_done(self, name: str) -> None: ...
