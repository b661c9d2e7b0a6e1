"""Load a target by its name, and find the modules that have the target's operations.

`reference/` and `vllm/` call the reference and vLLM. `faults/` puts deliberate mistakes into the reference.
The operations of a target are grouped into *parts*, `pool` for example.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence

from kvref.target import Target

BUILT_IN = ("reference", "vllm")
HALVES = ("reference:plain", "reference:fast")
"""The two halves of the reference. `reference` is the plain half in checks, the fast half in benchmarks."""
FAST_PARTS = ("pool", "cache", "canonical", "connector")
"""The parts for which `reference:fast` has a module of its own."""
DEFAULT_TARGET = "reference"
"""The target that kvref uses if neither the command line nor a profile names one."""


class UnknownTarget(ValueError):
    """No target has this name. The message lists the forms that a name may have."""


class TargetRefused(Exception):
    """The target cannot be used. The message says why and what to do."""


def check_name(name: str) -> None:
    """Raise `UnknownTarget` if no target can have this name."""
    module, colon, factory = name.partition(":")
    if name in (*BUILT_IN, *HALVES) or plugin_of(name):
        return
    if module in BUILT_IN or not (colon and module and factory.isidentifier()):
        raise UnknownTarget(
            f"unknown target {name!r}: give 'reference', 'reference:fast', 'vllm', 'vllm==VERSION', "
            "'vllm:PLUGIN', or 'package.module:factory', where factory() returns an object with the "
            "attributes of kvref.target.Target"
        )


def without_release(name: str) -> tuple[str, str]:
    """Split a name such as `vllm==0.32.0:PLUGIN` into `vllm:PLUGIN` and the release ("" if it names none)."""
    family, colon, plugin = name.partition(":")
    family, pinned, release = family.partition("==")
    return (f"{family}{colon}{plugin}", release) if pinned and family == "vllm" else (name, "")


def plugin_of(name: str) -> str:
    """The name of the platform plugin in `vllm:PLUGIN`, or "" for other targets."""
    family, _, plugin = name.partition(":")
    return plugin if family == "vllm" else ""


def is_external(name: str) -> bool:
    """Whether the target is external: its name has the form `module:factory`."""
    return ":" in name and not plugin_of(name) and name not in HALVES


def load_target(name: str, stubs: Sequence[str] = ()) -> Target:
    """Import a target and return it. An exception that the import raises passes through.

    `stubs` names packages for hardware that this machine lacks. A plugin that imports them gets mocks.

    Raises:
        UnknownTarget: no target can have this name.
        TargetRefused: the interpreter has no vLLM, or the plugin cannot be used.
    """
    check_name(name)
    if name == "reference" or name in HALVES:
        from kvref_conformance.targets.reference.target import FastTarget, PlainTarget, ReferenceTarget

        return {"reference:fast": FastTarget, "reference:plain": PlainTarget}.get(name, ReferenceTarget)()
    if not is_external(name) and importlib.util.find_spec("vllm") is None:
        raise TargetRefused(
            f"there is no vLLM for {sys.executable}: name an interpreter that has it with --python, or a "
            "folder that it is in with --path; 'kvref hosts' prepares some"
        )
    if name == "vllm":
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        # Stock vLLM has no plugins. Without this setting, it loads every installed one.
        os.environ.setdefault("VLLM_PLUGINS", "")
        from kvref_conformance.targets.vllm.target import VllmTarget

        return VllmTarget()
    if plugin := plugin_of(name):
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        from kvref_conformance.targets.vllm.plugin import load

        loaded = load(plugin, stubs)
        from kvref_conformance.targets.vllm.target import VllmTarget

        return VllmTarget(loaded)
    module, _, factory = name.partition(":")
    target: Target = getattr(importlib.import_module(module), factory)()
    return target


def operations_module(name: str, part: str) -> str | None:
    """The name of the module that has the operations of a part. None for an external target."""
    if is_external(name):
        return None
    family = name.partition(":")[0]
    if name == "reference:fast" and part in FAST_PARTS:
        family = "reference.fast"
    return f"kvref_conformance.targets.{family}.{part}"
