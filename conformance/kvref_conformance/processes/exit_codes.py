"""Say how a process ended. Stand-alone programs copy this module, so it uses only the standard library."""

from __future__ import annotations

import signal


def how_it_ended(code: int) -> str:
    """How a process with this return code ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
