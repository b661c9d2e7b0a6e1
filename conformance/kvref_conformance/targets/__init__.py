"""Targets by name, and where their operations' source is."""

from __future__ import annotations

import importlib
import os

from kvref.target import Target

BUILT_IN = ("reference", "vllm")


class UnknownTarget(ValueError):
    """The name is none of `reference`, `vllm`, `module:factory`."""


def check_name(name: str) -> None:
    """Raises `UnknownTarget` for a name that cannot be a target's."""
    module, colon, factory = name.partition(":")
    if name not in BUILT_IN and not (colon and module and factory.isidentifier()):
        raise UnknownTarget(
            f"unknown target {name!r}: give 'reference', 'vllm', or 'package.module:factory', where "
            "factory() returns an object with the attributes of kvref.target.Target"
        )


def load_target(name: str) -> Target:
    """Import a target; whatever the import raises comes through."""
    check_name(name)
    if name == "reference":
        from kvref_conformance.targets.reference.target import ReferenceTarget

        return ReferenceTarget()
    if name == "vllm":
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        from kvref_conformance.targets.vllm.target import VllmTarget

        return VllmTarget()
    module, _, factory = name.partition(":")
    target: Target = getattr(importlib.import_module(module), factory)()
    return target


def operations_module(name: str, part: str) -> str | None:
    """Dotted module whose functions are the operations of a part; None for an external target."""
    return f"kvref_conformance.targets.{name}.{part}" if name in BUILT_IN else None
