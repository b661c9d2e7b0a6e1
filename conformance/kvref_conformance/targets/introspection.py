"""Inspect how the code of a plugin fits the *core*, the package that it plugs into (`vllm`, for example).

Stand-alone programs copy functions from this module.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from kvref.target import Call, Override, Parameter, Replaced


def package(module: str) -> str:
    return module.partition(".")[0]


def function_of(value: Any) -> FunctionType | None:
    """The Python function in a method or property of a class, or None for any other value."""
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    elif isinstance(value, cached_property):
        value = value.func
    return value if isinstance(value, FunctionType) else None


def kind_of(value: Any) -> str:
    kinds: dict[str, Any] = {
        "class method": classmethod,
        "static method": staticmethod,
        "property": (property, cached_property),
        "method": FunctionType,
    }
    return next((kind for kind, types in kinds.items() if isinstance(value, types)), "attribute")


def parameters_of(value: Any) -> list[Parameter] | None:
    """The parameters of a method, without `self` or `cls`.

    None if the attribute is not a method, or if the method is not written in Python.
    """
    function, kind = function_of(value), kind_of(value)
    if function is None or kind == "property":
        return None
    found = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    if kind != "static method" and found and found[0].kind in (0, 1):
        found = found[1:]
    return [
        {"name": p.name, "kind": p.kind.name, "required": p.default is p.empty and p.kind.value not in (2, 4)}
        for p in found
    ]


def overrides_of(cls: type[Any], core: str) -> list[Override]:
    """Find the methods and properties of core classes that `cls` overrides.

    Those that an ancestor of `cls` outside the core overrides count, too. Special methods such as `__eq__`
    are left out, because Python calls them, not the core.
    """
    found: list[Override] = []
    foreign = [a for a in cls.__mro__ if package(a.__module__) not in (core, *sys.stdlib_module_names)]
    for name in dict.fromkeys(name for ancestor in foreign for name in vars(ancestor)):
        holders = [ancestor for ancestor in cls.__mro__ if name in vars(ancestor)]
        base = next((a for a in holders if package(a.__module__) == core), None)
        if holders[0] not in foreign or base is None or re.fullmatch("__.*__", name):
            continue
        own, other = vars(holders[0])[name], vars(base)[name]
        if kind_of(own) == kind_of(other) == "attribute":
            continue
        found.append(
            {
                "name": name,
                "kind": kind_of(own),
                "parameters": parameters_of(own),
                "core_class": base.__name__,
                "core_kind": kind_of(other),
                "core_parameters": parameters_of(other),
            }
        )
    return found


@cache
def python_files(folder: str) -> tuple[tuple[str, str], ...]:
    """The path and text of each Python file in a folder. Paths begin with the folder's name."""
    root = Path(folder)
    return tuple(
        (str(path.relative_to(root.parent)), path.read_text(encoding="utf-8", errors="replace"))
        for path in sorted(root.rglob("*.py"))
    )


def calls_in(folder: str, names: Sequence[str]) -> list[Call]:
    """Find the calls of methods with these names in the Python files of a folder.

    Of all calls with the same number of positional arguments and the same keywords, only the first is listed.
    Calls on `super()`, or on a class by its name, are left out, because they never reach a plugin's class.
    """
    found: dict[tuple[Any, ...], Call] = {}
    if not names:
        return []
    pattern = re.compile(rf"\.(?:{'|'.join(map(re.escape, names))})\(")
    for path, text in python_files(folder):
        for node in ast.walk(ast.parse(text)) if pattern.search(text) else ():
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            receiver = node.func.value
            on_super = isinstance(receiver, ast.Call) and getattr(receiver.func, "id", "") == "super"
            on_class = isinstance(receiver, ast.Name) and receiver.id[:1].isupper()
            if node.func.attr not in names or on_super or on_class:
                continue
            positional = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
            call: Call = {
                "name": node.func.attr,
                "positional": len(positional),
                "keywords": sorted(k.arg for k in node.keywords if k.arg is not None),
                "open": len(positional) < len(node.args) or any(k.arg is None for k in node.keywords),
                "place": f"{path}:{node.lineno}",
            }
            key = (call["name"], call["positional"], *call["keywords"], call["open"])
            found.setdefault(key, call)
    return list(found.values())


def replaced_in(core: str, packages: Sequence[str]) -> list[Replaced]:
    """Find the attributes of the core's modules and classes that a plugin has replaced.

    An attribute counts as replaced if its code comes from one of `packages`, the packages of the plugin.
    """
    modules = {
        name: module
        for name, module in sorted(sys.modules.items())
        if package(name) == core and isinstance(module, ModuleType)
    }
    found: list[Replaced] = []
    for name, module in modules.items():
        for attribute, value in list(vars(module).items()):
            if home(value) is not None and package(str(home(value))) in packages:
                stale = held_elsewhere(modules, name, attribute)
                found.append({"name": f"{name}:{attribute}", "by": shown(value), "stale": stale})
            elif isinstance(value, type) and value.__module__ == name:
                for inner, thing in list(vars(value).items()):
                    if home(thing) is not None and package(str(home(thing))) in packages:
                        place = f"{name}:{value.__qualname__}.{inner}"
                        found.append({"name": place, "by": shown(thing), "stale": []})
    return found


def home(value: Any) -> str | None:
    """The module in which a function or class was defined, or None for any other value.

    This is right even if a decorator has changed the function's `__module__`.
    """
    if isinstance(value, type):
        return value.__module__
    function = function_of(value)
    return None if function is None else str(function.__globals__.get("__name__", ""))


def shown(value: Any) -> str:
    thing = value if isinstance(value, type) else function_of(value)
    return f"{home(value)}.{getattr(thing, '__qualname__', '?')}"


def held_elsewhere(modules: dict[str, ModuleType], name: str, attribute: str) -> list[str]:
    """Find modules that imported the original of a replaced attribute, and so still use the original.

    The original is the function or class that module `name` defined as `attribute`. Returns the names under
    which other modules have it, in the form `module:attribute`.
    """
    found = []
    for other, module in modules.items():
        for held_as, value in list(vars(module).items()):
            thing = value if isinstance(value, type) else function_of(value)
            if other != name and home(value) == name and getattr(thing, "__qualname__", "") == attribute:
                found.append(f"{other}:{held_as}")
    return found


def is_present(name: str, load: Callable[[str], ModuleType]) -> bool:
    """Whether an object with this name exists. The name has the form `module:path`, as in `replaced_in`."""
    module, _, path = name.partition(":")
    try:
        thing: Any = load(module)
    except ImportError:
        return False
    for part in path.split("."):
        if not hasattr(thing, part):
            return False
        thing = getattr(thing, part)
    return True


def are_read(folders: Sequence[str], names: Sequence[str]) -> list[bool]:
    """For each name, say whether the Python files in the folders read an attribute with that name.

    Only the last part of a dotted name counts. If a file has that part as a whole string, or imports it, this
    counts as a read.
    """
    attributes = [re.split("[:.]", name)[-1] for name in names]
    word = "|".join(map(re.escape, attributes))
    read = rf"\.({word})\b(?!\s*(?::[^=\n]+)?=[^=])"
    pattern = re.compile(rf"{read}|[\"']({word})[\"']|import[^\n]*\b({word})\b")
    texts = (text for folder in folders for _, text in python_files(folder))
    found = {part for text in texts for match in pattern.findall(text) for part in match}
    return [attribute in found for attribute in attributes]


def recording(cls: type[Any], names: Sequence[str], note: Callable[[str], None], derive: bool) -> type[Any]:
    """Make a class that calls `note(name)` when one of these methods or properties is used on it.

    If `derive` is true, the result is a new class that derives from `cls`. Otherwise, it is `cls` itself,
    changed. Uses on an instance of the result count. Uses on other classes that derive from it do not.
    """
    owner: type[Any] = type(f"Derived{cls.__name__}", (cls,), {}) if derive else cls
    for name in names:
        holder = next((ancestor for ancestor in cls.__mro__ if name in vars(ancestor)), None)
        if holder is not None and function_of(vars(holder)[name]) is not None:
            type.__setattr__(owner, name, noting(owner, name, vars(holder)[name], note))
    return owner


def noting(owner: type[Any], name: str, original: Any, note: Callable[[str], None]) -> Any:
    """Make a method or property that does what `original` does, and also calls `note(name)`.

    It calls `note` only when it is used on `owner` or on a direct instance of `owner`. A static method calls
    `note` always.
    """

    def reach(receiver: Any) -> None:
        if receiver is owner or type(receiver) is owner:
            note(name)

    if kind_of(original) == "property":

        def read(self: Any) -> Any:
            reach(self)
            return original.__get__(self, owner)

        return property(read)

    def call(receiver: Any, *arguments: Any, **keywords: Any) -> Any:
        reach(receiver)
        return original.__get__(None if isinstance(receiver, type) else receiver, type_of(receiver))(
            *arguments, **keywords
        )

    if kind_of(original) == "static method":

        def plain(*arguments: Any, **keywords: Any) -> Any:
            note(name)
            return original.__func__(*arguments, **keywords)

        return staticmethod(plain)
    return classmethod(call) if kind_of(original) == "class method" else call


def type_of(receiver: Any) -> type[Any]:
    return receiver if isinstance(receiver, type) else type(receiver)
