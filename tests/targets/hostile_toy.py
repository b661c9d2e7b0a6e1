"""A small conformant target without torch: two spec classes and a registry, in plain Python.

Most hostile targets of this folder are made from it. With `--path tests/targets`, a target is found by the
name of its module.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any


class KVCacheSpec: ...


class AttentionSpec(KVCacheSpec): ...


@dataclass(frozen=True)
class FullAttentionSpec(AttentionSpec):
    block_size: int
    num_kv_heads: int
    head_size: int

    @property
    def page_size_bytes(self) -> int:
        return 2 * 2 * self.block_size * self.num_kv_heads * self.head_size


@dataclass(frozen=True)
class SlidingWindowSpec(AttentionSpec):
    block_size: int
    num_kv_heads: int
    head_size: int
    sliding_window: int

    @property
    def page_size_bytes(self) -> int:
        return 2 * 2 * self.block_size * self.num_kv_heads * self.head_size


FAMILY: dict[str, Any] = {
    cls.__name__: cls for cls in (KVCacheSpec, AttentionSpec, FullAttentionSpec, SlidingWindowSpec)
}


def make(spec: dict[str, Any]) -> Any:
    return FAMILY[spec["class"]](**spec["fields"])


def facts(spec: Any) -> dict[str, Any]:
    return {"class": type(spec).__name__, "fields": asdict(spec), "page_size_bytes": spec.page_size_bytes}


def ancestors(cls: type) -> list[str]:
    return [ancestor.__name__ for ancestor in cls.__mro__ if ancestor is not object]


def classes() -> list[dict[str, Any]]:
    return [
        {
            "name": cls.__name__,
            "mro": ancestors(cls),
            "fields": [{"name": name} for name in getattr(cls, "__dataclass_fields__", ())],
            "role": role,
        }
        for cls, role in ((AttentionSpec, "base"), (FullAttentionSpec, "layer"), (SlidingWindowSpec, "layer"))
    ]


def build(spec: dict[str, Any]) -> dict[str, Any]:
    return facts(make(spec))


def copy(spec: dict[str, Any], block_size: int) -> dict[str, Any]:
    return facts(replace(make(spec), block_size=block_size))


def merge(specs: list[dict[str, Any]]) -> dict[str, Any]:
    made = [make(spec) for spec in specs]
    if any(spec != made[0] for spec in made):
        raise ValueError(f"cannot merge different specs: {made}")
    return facts(made[0])


MANAGERS = ["FullManager", "WindowManager"]
STOCK = {
    "FullAttentionSpec": ("FullManager", "FullAttentionSpec"),
    "SlidingWindowSpec": ("WindowManager", "SlidingWindowSpec"),
}
table: dict[str, tuple[str, str]] = dict(STOCK)
known_managers = list(MANAGERS)


def managers() -> list[str]:
    return list(MANAGERS)


def define_spec(name: str, bases: list[str]) -> list[str]:
    FAMILY[name] = type(name, tuple(FAMILY[base] for base in bases), {})
    return ancestors(FAMILY[name])


def define_manager(name: str, base: str) -> None:
    known_managers.append(name)


def initialise() -> None: ...


def install_hook(registrations: list[dict[str, Any]]) -> None:
    for registration in registrations:
        register(**registration)


def register(spec_class: str, manager: str, base: str | None) -> None:
    cls = FAMILY[spec_class]
    if base is not None and not issubclass(cls, FAMILY[base]):
        raise ValueError(f"{base} is no ancestor of {spec_class}")
    new = (manager, base or spec_class)
    if table.setdefault(spec_class, new) != new:
        raise ValueError(f"{spec_class} is registered already, as {table[spec_class]}")


def lookup(spec: dict[str, Any]) -> dict[str, str | None]:
    for name in ancestors(FAMILY[spec["class"]]):
        if name in table:
            return dict(zip(("manager", "base"), table[name], strict=True))
    return {"manager": None, "base": None}


def check(layers: dict[str, dict[str, Any]]) -> None:
    for layer, spec in layers.items():
        if lookup(spec)["manager"] is None:
            raise KeyError(f"{layer}: {spec['class']} is not registered")


SPECS: dict[str, Callable[..., Any]] = {"classes": classes, "build": build, "copy": copy, "merge": merge}
REGISTRY: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        managers,
        define_spec,
        define_manager,
        initialise,
        install_hook,
        register,
        lookup,
        check,
    )
}
REGISTRY["decorate"] = register


def recorded(part: str, functions: dict[str, Callable[..., Any]]) -> SimpleNamespace:
    """A part with these operations. If $RECORD names a folder, each process records its operations there."""
    folder = os.environ.get("RECORD")
    if folder is None:
        return SimpleNamespace(**functions)

    def recording(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def record(**arguments: Any) -> Any:
            with open(f"{folder}/{os.getpid()}", "a") as file:
                print(part, name, json.dumps(arguments), file=file)
            return function(**arguments)

        return record

    return SimpleNamespace(**{name: recording(name, function) for name, function in functions.items()})


def target(**replaced: Any) -> SimpleNamespace:
    """The toy. `replaced` gives operations that replace the toy's own, or attributes, by name."""
    specs, registry = dict(SPECS), dict(REGISTRY)
    attributes: dict[str, Any] = {}
    for name, value in replaced.items():
        home = specs if name in specs else registry if name in registry else attributes
        home[name] = value
    parts = {"specs": recorded("specs", specs), "registry": recorded("registry", registry)}
    return SimpleNamespace(**{"name": "toy", "version": "1", "capabilities": {}, **parts, **attributes})
