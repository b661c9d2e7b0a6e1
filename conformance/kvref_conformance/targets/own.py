"""Find a target's own files. `kvref check --coverage` reports which of their lines ran."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from kvref.target import PluginInfo
from kvref_conformance.targets import TargetRefused, plugin_of


@dataclass(frozen=True)
class Own:
    """The modules that count as a target's own: `modules` with all submodules, except those in `without`.

    The last part of a dotted name may be a shell pattern.
    """

    modules: tuple[str, ...]
    without: tuple[str, ...] = ()


NOTHING = Own(())
REFERENCE = Own(("kvref",), without=("kvref.target",))
"""The package kvref, except the protocol that every target implements."""
VLLM = Own(
    ("vllm.v1.core", "vllm.v1.kv_cache_*"),
    without=("vllm.v1.core.sched", "vllm.v1.core.encoder_cache_manager"),
)
"""vLLM's KV-cache core, without the scheduler and the cache of encoder outputs."""


def own_of(target: str, plugin: PluginInfo | None, chosen: Sequence[str] = ()) -> Own:
    """The modules that count as the target's own: those in `chosen` or, without any, those of this target.

    Unless you choose them, kvref's modules that call the target do not count.
    """
    top = target.partition(":")[0].partition(".")[0]
    if chosen:
        return Own(tuple(chosen))
    if plugin_of(target):
        return Own(tuple(plugin["packages"])) if plugin else NOTHING
    if target == "vllm":
        return VLLM
    return REFERENCE if top in ("reference", "kvref_conformance") else Own((top,))


@dataclass(frozen=True)
class OwnFile:
    """A Python file: its path from the folder of its top-level package, and whether the target loaded it."""

    name: str
    loaded: bool


@dataclass(frozen=True)
class OwnFiles:
    """The target's own files, as this interpreter finds them.

    `measured` and `left_out` are path patterns for coverage.py: what to record, and what to leave out of it.
    `files` has every Python file, by its path without symbolic links.
    """

    own: Own
    measured: list[str]
    left_out: list[str]
    files: dict[str, OwnFile]


def find(own: Own) -> OwnFiles:
    """Find the files of the modules. This imports only the packages that contain the modules.

    Raises:
        TargetRefused: a module does not exist.
    """
    places = {place: root for name in own.modules for place, root in _places(name)}
    without = [place for name in own.without for place, _ in _places(name)]
    loaded = {
        str(Path(file).resolve())
        for module in [*sys.modules.values()]
        if isinstance(module, ModuleType) and isinstance(file := vars(module).get("__file__"), str)
    }
    files = {}
    for place, root in places.items():
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            if not any(path.is_relative_to(each) for each in without):
                real = str(path.resolve())
                files[real] = OwnFile(str(path.relative_to(root)), real in loaded)
    return OwnFiles(own, [*map(_pattern, places)], [*map(_pattern, without)], files)


def _pattern(place: Path) -> str:
    return escape(str(place.resolve())) + ("/*" if place.is_dir() else "")


def _places(name: str) -> Iterator[tuple[Path, Path]]:
    """Find each module whose name fits: its folder or file, and the folder that has its top-level package."""
    parent, _, last = name.rpartition(".")
    depth = name.count(".")
    if "*" in last:
        for folder in _folders(parent):
            for path in sorted(folder.iterdir()):
                if fnmatchcase(path.stem, last) and (path.suffix == ".py" or (path / "__init__.py").exists()):
                    yield path, path.parents[depth]
        return
    if folders := _folders(name):
        yield from ((folder, folder.parents[depth]) for folder in folders)
        return
    origin = Path(str(_spec(name).origin))
    if origin.suffix == ".py":  # modules that are not written in Python have no lines to report
        yield origin, origin.parents[depth]


def _folders(name: str) -> list[Path]:
    return [Path(folder) for folder in _spec(name).submodule_search_locations or ()]


def _spec(name: str) -> Any:
    try:
        spec = find_spec(name)
    except Exception as error:
        raise TargetRefused(f"the module {name!r}, to be measured, cannot be found: {error}") from error
    if spec is None:
        raise TargetRefused(f"the module {name!r}, to be measured, is not found by {sys.executable}")
    return spec
