"""Plain data: all that operations take and return."""

from __future__ import annotations

from typing import Any, TypeAlias

Json: TypeAlias = Any
"""Plain data: None, bool, int, float, str, list or dict of plain data."""
