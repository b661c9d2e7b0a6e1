"""Start a host, the process that imports the target, in an interpreter that may lack kvref.

This file runs as a script: `python -P bootstrap.py '<json>'`. It must not import kvref before `prepare` has
made kvref importable. The host always uses the kvref of the parent process, so that both have the same
version. The host uses the parent's copy of a library that kvref needs only if its own interpreter lacks it.
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
    """An import finder for some top-level packages only. `folders` maps each package to its parent folder."""

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
    """Make packages of the parent process importable.

    Packages in `own` take precedence over the interpreter's packages. The import system uses packages in
    `lent` only if the interpreter has none of that name.
    """
    sys.meta_path.insert(0, LentPackages(config["own"]))
    sys.meta_path.append(LentPackages(config["lent"]))


def main() -> None:
    config = json.loads(sys.argv[1])
    prepare(config)
    from kvref_conformance.processes.host import serve

    serve(config)


if __name__ == "__main__":
    main()
