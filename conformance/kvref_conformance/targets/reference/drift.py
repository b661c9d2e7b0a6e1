"""The part `drift` of the reference: how a plugin fits the code that it plugs into.

Stand-alone programs copy functions from this module, so that they need only kvref.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kvref
from kvref.planning import unify_kv_cache_spec_page_size
from kvref.platform import current_platform
from kvref.registry import KVCacheSpecRegistry, register_all_kvcache_specs
from kvref.specs import MemoryLimits
from kvref.target import Call, Override, Replaced, SpecDescriptor
from kvref.uniform import get_uniform_type_specs
from kvref_conformance.targets.introspection import (
    are_read,
    calls_in,
    is_present,
    overrides_of,
    recording,
    replaced_in,
)
from kvref_conformance.targets.reference.registry import MANAGERS
from kvref_conformance.targets.reference.specs import CLASSES, make

HOOK = "register_custom_kv_cache_specs"
CORE_FOLDER = str(Path(kvref.__file__).parent)
HOOK_CALLS: list[object] = []


def watch_hook() -> None:
    platform: Any = current_platform()
    run_hook = getattr(platform, HOOK)

    def counted(cls: type[Any], vllm_config: object = None) -> None:
        HOOK_CALLS.append(vllm_config)
        run_hook(vllm_config)

    setattr(platform, HOOK, classmethod(counted))


def hook_calls() -> int:
    return len(HOOK_CALLS)


def overrides(name: str) -> list[Override]:
    return overrides_of({**MANAGERS, **CLASSES}[name], "kvref")


def calls(names: Sequence[str]) -> list[Call]:
    return calls_in(CORE_FOLDER, names)


def start() -> None:
    """Do nothing. The reference has no engine to start."""


def replaced(packages: Sequence[str]) -> list[Replaced]:
    return replaced_in("kvref", packages)


def present(names: Sequence[str]) -> list[bool]:
    return [is_present(name, import_module) for name in names]


def read(names: Sequence[str], packages: Sequence[str]) -> list[bool]:
    specs = [find_spec(package) for package in ("kvref", *packages)]
    folders = [folder for spec in specs if spec for folder in spec.submodule_search_locations or ()]
    return are_read(folders, names)


def reached(
    spec: SpecDescriptor, of_spec: Sequence[str], of_manager: Sequence[str], derived: bool
) -> list[str]:
    register_all_kvcache_specs()
    plain = make(spec)
    manager_class: Any = KVCacheSpecRegistry.get_manager_class(plain)
    base = KVCacheSpecRegistry.get_uniform_type_base_spec(plain)
    found: list[str] = []
    used_class = recording(type(plain), of_spec, lambda name: found.append(f"spec.{name}"), derived)
    used_manager = recording(manager_class, of_manager, lambda name: found.append(f"manager.{name}"), derived)
    if derived:
        KVCacheSpecRegistry.register(used_class, used_manager, base)
    CLASSES[spec["class"]] = used_class
    # If `use` raises for one class, it raises for the other, too. What it reached until then counts.
    with suppress(Exception):
        use(make(spec))
    return sorted(set(found))


def use(spec: Any) -> None:
    """Merge the spec, plan two layers with it, and make a manager for it."""
    limits = MemoryLimits(256, 128)
    KVCacheSpecRegistry.check_kv_cache_spec_registry({"layer.0": spec})
    type(spec).merge([spec, spec])
    group: Any = get_uniform_type_specs({"layer.0": spec, "layer.1": spec})
    group.max_memory_usage_bytes(limits)
    manager_class: Any = KVCacheSpecRegistry.get_manager_class(spec)
    manager_class(spec, limits=limits)
    longer = replace(spec, block_size=spec.block_size * 2)
    unify_kv_cache_spec_page_size({"layer.0": spec, "layer.1": longer})
