"""Values of spec fields as plain data, and back. Copied into stand-alone programs."""

from __future__ import annotations

import dataclasses
import enum
import fractions
from collections.abc import Sequence
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
    """The value again; enums are looked up in the target's module."""
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
    """What a spec says of itself."""
    return {
        "class": type(spec).__name__,
        "fields": encode_fields(spec),
        "page_size_bytes": spec.page_size_bytes,
    }


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
    """What there is to know of each class; `bases` names those that describe no layer by themselves."""
    return [
        {
            "name": name,
            "mro": [ancestor.__name__ for ancestor in cls.__mro__ if ancestor in classes.values()],
            "fields": field_infos(cls),
            "role": "base" if name in bases else "composite" if holds_specs(cls) else "layer",
        }
        for name, cls in classes.items()
    ]


def holds_specs(cls: type[Any]) -> bool:
    return any(field.name == "kv_cache_specs" for field in dataclasses.fields(cls))


def subclasses(base: type[Any]) -> list[type[Any]]:
    """`base` and everything derived from it, each class before what derives from it."""
    found = [base]
    for child in base.__subclasses__():
        found += [cls for cls in subclasses(child) if cls not in found]
    return found
