"""What a return code says of how a process ended. Standard library alone: programs copy it."""

from __future__ import annotations

import signal


def how_it_ended(code: int) -> str:
    """A process's return code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
