"""Convert specs and their classes to plain data and back. Stand-alone programs copy this module."""

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
    """A field's value as plain data."""
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
    """Turn plain data back into a value. Enums are looked up in `module`, which is the target's."""
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
    """Describe a spec: its class, fields, page sizes and the classes that it derives from."""
    return {
        "class": type(spec).__name__,
        "fields": encode_fields(spec),
        "page_size_bytes": spec.page_size_bytes,
        "unpadded_page_size_bytes": unpadded_page_size(spec),
        "mro": family(type(spec)),
    }


def unpadded_page_size(spec: Any) -> Any:
    """Bytes of a page without padding; None if the spec has no such field. Releases differ in its name."""
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
    """The names of the spec classes in the MRO."""
    return [ancestor.__name__ for ancestor in cls.__mro__ if dataclasses.is_dataclass(ancestor)]


def derived_class(name: str, base: type[Any], fields: Mapping[str, Any]) -> type[Any]:
    """A dataclass derived from `base`, with these additional fields and their defaults."""
    added = [(field, Any, default) for field, default in fields.items()]
    return dataclasses.make_dataclass(name, added, bases=(base,), frozen=True, kw_only=True)


def changeable_fields(make: Callable[[], Any]) -> list[str]:
    """The fields of a spec that an assignment or a deletion changes. `make` returns a new spec."""

    def changes(name: str, change: Callable[[Any, str], None]) -> bool:
        spec = make()
        before = getattr(spec, name)
        with contextlib.suppress(Exception):
            change(spec, name)
        return bool(getattr(spec, name, "deleted") != before)

    names = [field.name for field in dataclasses.fields(make())]
    return [n for n in names if changes(n, lambda spec, name: setattr(spec, name, ())) or changes(n, delattr)]


def field_infos(spec_class: Any) -> list[FieldInfo]:
    """Name and default of each field that the constructor takes."""
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
    """Describe each spec class. `bases` names the classes that are never a layer's own spec.

    The first class is the root of the family. A class outside the root's package belongs to a plugin.
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
    """The classes outside the first class's package, by name, each with its ancestors in that package."""
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
