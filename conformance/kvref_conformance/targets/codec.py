"""Convert specs and spec classes to plain data, and back. Stand-alone programs copy functions from here."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import fractions
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from kvref.target import FieldInfo, SpecClassInfo, SpecFacts


def encode(value: Any) -> Any:
    """Convert the value of a spec's field to plain data."""
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, enum.Enum):
        return {"enum": type(value).__name__, "name": value.name}
    if isinstance(value, int | float):
        return value
    if isinstance(value, fractions.Fraction):
        return {"fraction": [value.numerator, value.denominator]}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"class": type(value).__name__, "fields": encode_fields(value)}
    return {"opaque": repr(value)}


def encode_fields(spec: Any) -> dict[str, Any]:
    return {field.name: encode(getattr(spec, field.name)) for field in dataclasses.fields(spec)}


def decode(value: Any, module: ModuleType) -> Any:
    """Convert plain data back to the value of a field. `module` is the target's module that has the enums."""
    if isinstance(value, str) and value.startswith("torch."):
        return getattr(torch, value.removeprefix("torch."))
    if isinstance(value, list):
        return tuple(decode(item, module) for item in value)
    if isinstance(value, dict) and "enum" in value:
        return getattr(module, value["enum"])[value["name"]]
    if isinstance(value, dict) and "fraction" in value:
        return fractions.Fraction(*value["fraction"])
    return value


def facts(spec: Any) -> SpecFacts:
    """Describe a spec as plain data: its class, that class's ancestors, its fields and its page sizes."""
    return {
        "class": type(spec).__name__,
        "fields": encode_fields(spec),
        "page_size_bytes": spec.page_size_bytes,
        "unpadded_page_size_bytes": unpadded_page_size(spec),
        "mro": family(type(spec)),
    }


def unpadded_page_size(spec: Any) -> Any:
    """Bytes of a page without padding. vLLM releases use two names for this. None if the spec has neither."""
    # No `getattr`: CrossHair does not follow numbers within it.
    try:
        return spec.unpadded_page_size_bytes
    except AttributeError:
        pass
    try:
        return spec.real_page_size_bytes
    except AttributeError:
        return None


def family(cls: type[Any]) -> list[str]:
    """The names of a spec class and of the spec classes that it derives from, in method resolution order."""
    return [ancestor.__name__ for ancestor in cls.__mro__ if dataclasses.is_dataclass(ancestor)]


def derived_class(name: str, base: type[Any], fields: Mapping[str, Any]) -> type[Any]:
    """Make a dataclass that derives from `base`. `fields` maps the names of additional fields to defaults."""
    added = [(field, Any, default) for field, default in fields.items()]
    return dataclasses.make_dataclass(name, added, bases=(base,), frozen=True, kw_only=True)


def changeable_fields(make: Callable[[], Any]) -> list[str]:
    """The names of the fields that code can assign or delete, although it should not. `make` makes a spec."""

    def changes(name: str, change: Callable[[Any, str], None]) -> bool:
        spec = make()
        before = getattr(spec, name)
        with contextlib.suppress(Exception):
            change(spec, name)
        return bool(getattr(spec, name, "deleted") != before)

    names = [field.name for field in dataclasses.fields(make())]
    return [n for n in names if changes(n, lambda spec, name: setattr(spec, name, ())) or changes(n, delattr)]


def field_infos(spec_class: Any) -> list[FieldInfo]:
    """The name and the default, if any, of each field that the constructor takes."""
    infos = []
    for field in dataclasses.fields(spec_class):
        if not field.init:
            continue
        info: FieldInfo = {"name": field.name}
        if field.default is not dataclasses.MISSING:
            info["default"] = encode(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            info["default"] = encode(field.default_factory())
        infos.append(info)
    return infos


def class_infos(classes: dict[str, type[Any]], bases: Sequence[str]) -> list[SpecClassInfo]:
    """Describe each spec class. `bases` names the abstract classes, of which no layer has an instance.

    The first class must be the one that all others derive from. A class outside the package of the first
    class counts as a plugin's.
    """
    core = package_of(next(iter(classes.values())))
    return [
        {
            "name": name,
            "mro": [ancestor.__name__ for ancestor in cls.__mro__ if ancestor in classes.values()],
            "fields": field_infos(cls),
            "role": "base" if name in bases else "composite" if holds_specs(cls) else "layer",
            "module": cls.__module__,
            "origin": "stock" if package_of(cls) == core else "plugin",
        }
        for name, cls in classes.items()
    ]


def foreign(classes: dict[str, type[Any]]) -> dict[str, list[str]]:
    """The classes of plugins, each with the names of its ancestors in the core.

    The core is the package of the first class. All classes outside it count as a plugin's.
    """
    core = [
        name for name, cls in classes.items() if package_of(cls) == package_of(next(iter(classes.values())))
    ]
    return {
        name: [ancestor.__name__ for ancestor in cls.__mro__ if ancestor.__name__ in core]
        for name, cls in classes.items()
        if name not in core
    }


def package_of(cls: type[Any]) -> str:
    return cls.__module__.partition(".")[0]


def holds_specs(cls: type[Any]) -> bool:
    return any(field.name == "kv_cache_specs" for field in dataclasses.fields(cls))


def subclasses(base: type[Any]) -> list[type[Any]]:
    """`base` and all classes that derive from it, depth first."""
    found = [base]
    for child in base.__subclasses__():
        found += [cls for cls in subclasses(child) if cls not in found]
    return found
