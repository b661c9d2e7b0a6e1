"""Give a function a name by which another process can find it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function at the top level of a module, as `module:function`."""
    return f"{function.__module__}:{function.__qualname__}"


def named(name: str) -> Callable[..., Any]:
    """The function with this name."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found
