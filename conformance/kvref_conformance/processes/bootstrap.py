"""Start a host in the target's interpreter, which need not have kvref installed.

It runs as a script: `python -P bootstrap.py '<json>'`. It must not import kvref before `prepare` has made the
suite importable. The suite always comes from the parent's installation, so that both ends have the same
version. The suite's libraries come from there only if the interpreter lacks them.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


class LentPackages:
    """Finds the named top-level packages, and nothing else, in the given folders."""

    def __init__(self, folders: dict[str, str]) -> None:
        self._folders = folders

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        folder = self._folders.get(name)
        if folder is None:
            return None
        return importlib.machinery.PathFinder.find_spec(name, [folder], target)


def prepare(config: dict[str, Any]) -> None:
    """Make packages importable: the `own` ones before the interpreter's, the `lent` ones after them."""
    sys.meta_path.insert(0, LentPackages(config["own"]))
    sys.meta_path.append(LentPackages(config["lent"]))


def main() -> None:
    config = json.loads(sys.argv[1])
    prepare(config)
    from kvref_conformance.processes.host import serve

    serve(config)


if __name__ == "__main__":
    main()
