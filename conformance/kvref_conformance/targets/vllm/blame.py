"""Tell the errors of this adapter from those of vLLM.

vLLM's functions change from release to release. If the adapter passes a keyword or reads an attribute that a
release lacks, Python raises an error that looks like one of vLLM's.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import NonCallableMock

_ADAPTER = Path(__file__).parents[1]

_STAND_INS = (SimpleNamespace, NonCallableMock)
"""The classes of the objects that the adapter passes to vLLM in place of an engine's configuration."""


def own_error(error: Exception) -> str:
    """Why the adapter caused the error; "" if vLLM, or a plugin, raised it.

    The adapter caused it if it was raised in a line of the adapter, or if vLLM read an attribute that a
    stand-in object of the adapter does not have.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    code = trace.tb_frame.f_code.co_filename
    inside = Path(code).is_relative_to(_ADAPTER)
    lacking = isinstance(error, AttributeError) and isinstance(error.obj, _STAND_INS)
    if not (inside or lacking):
        return ""
    return f"{type(error).__name__}: {error} ({Path(code).name}:{trace.tb_lineno})"
