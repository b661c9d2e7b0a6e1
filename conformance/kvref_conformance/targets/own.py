"""Find a target's own files, whose lines `kvref check --coverage` reports."""

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
    """The modules and packages of a target, without those in `without`. Submodules are included.

    The last part of a name may be a pattern.
    """

    modules: tuple[str, ...]
    without: tuple[str, ...] = ()


NOTHING = Own(())
REFERENCE = Own(("kvref",), without=("kvref.target",))
"""The reference, without the protocol of a target."""
VLLM = Own(
    ("vllm.v1.core", "vllm.v1.kv_cache_*"),
    without=("vllm.v1.core.sched", "vllm.v1.core.encoder_cache_manager"),
)
"""vLLM's KV-cache core, without the scheduler and the cache of encoder outputs."""


def own_of(target: str, plugin: PluginInfo | None, chosen: Sequence[str] = ()) -> Own:
    """The modules that count as the target's own: `chosen` if given, else by the target's name.

    kvref's own adapters never count, only what they drive.
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
    """A Python file: its path relative to the import path, and whether the target has loaded it."""

    name: str
    loaded: bool


@dataclass(frozen=True)
class OwnFiles:
    """The files of the target's own code, where this interpreter finds them.

    `measured` and `left_out` are patterns of paths. `files` has every Python file by its real path.
    """

    own: Own
    measured: list[str]
    left_out: list[str]
    files: dict[str, OwnFile]


def find(own: Own) -> OwnFiles:
    """Find the files of the modules. Only the packages above them are imported.

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
    """The folder or file of each module with this name, and the folder that has its top-level package."""
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
