"""Say how a process ended.

Stand-alone programs copy functions from this module, so it uses only the standard library.
"""

from __future__ import annotations

import signal


def how_it_ended(code: int) -> str:
    """Put a return code into words. The code -N means that signal N killed the process."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
