"""The reference with the mutants that `tests/mutants.py` made. At most one of them is active."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import kvref
from kvref.target import Target

MUTATED = "KVREF_MUTATED"
"""Environment variable: the folder of the mutated package."""

AWAKE = "KVREF_MUTANT"
"""Environment variable: the path of a file that contains mutmut's name of the active mutant.

Each process reads the file when it is forked from the host.
"""

REACHED = "KVREF_REACHED"
"""Environment variable: the path of a file for the names of the functions that are called."""

COUNTING = "stats"
"""The content of the `AWAKE` file while no mutant is active and mutmut records the called functions."""


def target() -> Target:
    """Loads the mutated modules. The protocol of a target is loaded already, and has no mutants."""
    others = [name for name in sys.modules if name.startswith("kvref.") and name.split(".")[1] != "target"]
    if others:
        raise RuntimeError(f"without mutants {others} would be used: they are loaded already")
    kvref.__path__.insert(0, os.environ[MUTATED])
    wake()
    os.register_at_fork(after_in_child=wake)
    if os.environ["MUTANT_UNDER_TEST"] == COUNTING:
        _note(Path(os.environ[REACHED]))
    from kvref_conformance.targets.reference.target import ReferenceTarget

    return ReferenceTarget()


def wake() -> None:
    os.environ["MUTANT_UNDER_TEST"] = Path(os.environ[AWAKE]).read_text()


def _note(file: Path) -> None:
    """Append the name of each called function to the file, once in each process."""
    from mutmut.mutation import trampoline

    seen: set[str] = set()

    def note(name: str, caller: str | None = None) -> None:
        if name not in seen:
            seen.add(name)
            with file.open("a") as notes:
                notes.write(f"{name}\n")

    os.register_at_fork(after_in_child=seen.clear)
    trampoline.record_trampoline_hit = note
