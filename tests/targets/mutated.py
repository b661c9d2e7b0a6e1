"""The reference with mutants in it, which `tests/mutants.py` has made, one of them awake or none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import kvref
from kvref.target import Target

MUTATED = "KVREF_MUTATED"
"""Names the folder of the mutated package."""

AWAKE = "KVREF_MUTANT"
"""Names a file with what mutmut calls the mutant. Each process reads it when it is forked from the host."""

REACHED = "KVREF_REACHED"
"""Names a file for the functions that are called, where mutmut counts them."""

COUNTING = "stats"
"""What stands for a mutant if none is awake and mutmut counts."""


def target() -> Target:
    """The mutated modules, under the protocol that everything else has loaded already."""
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
    """Write the name of each function into the file once a process."""
    from mutmut.mutation import trampoline

    seen: set[str] = set()

    def note(name: str, caller: str | None = None) -> None:
        if name not in seen:
            seen.add(name)
            with file.open("a") as notes:
                notes.write(f"{name}\n")

    os.register_at_fork(after_in_child=seen.clear)
    trampoline.record_trampoline_hit = note
