"""Compares the inputs that a check did not draw with docs/undrawn.toml, which lists them."""

import tomllib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from kvref_conformance.running.undrawn import is_pair

LIST = Path(__file__).parents[1] / "docs" / "undrawn.toml"
MOST = 20
"""The most entries that the list may have."""


def differences(undrawn: Sequence[str], target: str) -> tuple[list[str], list[str]]:
    """The undrawn inputs that the list lacks, and the globs of the list that match no undrawn input."""
    entries = tomllib.loads(LIST.read_text(encoding="utf-8"))["undrawn"]
    assert len(entries) <= MOST
    assert all(entry["reason"] for entry in entries)
    globs = [glob for entry in entries if entry.get("target", target) == target for glob in entry["keys"]]
    keys = [key for key in undrawn if is_pair(key)]
    unlisted = [key for key in keys if not any(fnmatchcase(key, glob) for glob in globs)]
    return unlisted, [glob for glob in globs if not any(fnmatchcase(key, glob) for key in keys)]
