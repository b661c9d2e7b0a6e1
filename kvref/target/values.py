"""The type of plain data. Operations take and return nothing else."""

from __future__ import annotations

from typing import Any, TypeAlias

Json: TypeAlias = Any
"""Plain data: None, bool, int, float, str, and lists or dictionaries of plain data."""
