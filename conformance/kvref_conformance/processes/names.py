"""Convert a function to a name that can be sent to another process, and back."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function at the top level of a module, in the form `module:function`."""
    return f"{function.__module__}:{function.__qualname__}"


def named(name: str) -> Callable[..., Any]:
    """Import and return the function with this name, which has the form `module:function`."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found
