"""The part `registry` of vLLM: the registry of spec classes and their managers.

Stand-alone programs copy functions from this module, so that they need only vLLM.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import vllm.platforms
from vllm.v1.core import single_type_kv_cache_manager
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry, register_kv_cache_spec

from kvref.target import Races, Registration, RegistryEntry, SpecDescriptor, Step
from kvref_conformance.targets.codec import subclasses
from kvref_conformance.targets.racing import race_in_children
from kvref_conformance.targets.vllm.specs import CLASSES, make

MANAGERS = {cls.__name__: cls for cls in subclasses(single_type_kv_cache_manager.SingleTypeKVCacheManager)}


def managers() -> list[str]:
    concrete = [name for name, cls in MANAGERS.items() if not inspect.isabstract(cls)]
    return [name for name in concrete if not name.startswith("_")]


def define_spec(name: str, bases: Sequence[str]) -> list[str]:
    CLASSES[name] = type(name, tuple(CLASSES[base] for base in bases), {})
    return [cls.__name__ for cls in CLASSES[name].__mro__]


def define_manager(name: str, base: str) -> None:
    MANAGERS[name] = type(name, (MANAGERS[base],), {})


def initialise() -> None:
    single_type_kv_cache_manager.register_all_kvcache_specs(None)


def install_hook(registrations: Sequence[Registration]) -> None:
    platform: Any = type(vllm.platforms.current_platform)

    def register_custom_kv_cache_specs(cls: type, vllm_config: Any) -> None:
        platform.register_custom_kv_cache_specs(vllm_config)
        for registration in registrations:
            register(**registration)

    hook: dict[str, Any] = {"register_custom_kv_cache_specs": classmethod(register_custom_kv_cache_specs)}
    vllm.platforms.current_platform = type("VendorPlatform", (platform,), hook)()


def register(spec_class: str, manager: str, base: str | None) -> None:
    KVCacheSpecRegistry.register(CLASSES[spec_class], MANAGERS[manager], CLASSES[base] if base else None)


def decorate(spec_class: str, manager: str, base: str | None) -> None:
    register_kv_cache_spec(MANAGERS[manager], CLASSES[base] if base else None)(CLASSES[spec_class])


def lookup(spec: SpecDescriptor) -> RegistryEntry:
    made = make(spec)
    manager = KVCacheSpecRegistry.get_manager_class(made)
    base = KVCacheSpecRegistry.get_uniform_type_base_spec(made)
    return {
        "manager": manager.__name__ if manager else None,
        "base": base.__name__ if base else None,
    }


def check(layers: Mapping[str, SpecDescriptor]) -> None:
    KVCacheSpecRegistry.check_kv_cache_spec_registry({name: make(spec) for name, spec in layers.items()})


def can_override() -> bool:
    return hasattr(KVCacheSpecRegistry, "override")


def override(spec_class: str, manager: str | None, base: str | None) -> None:
    KVCacheSpecRegistry.override(
        CLASSES[spec_class], MANAGERS[manager] if manager else None, CLASSES[base] if base else None
    )


def substitute(spec_class: str, substitute: str | None) -> None:
    if substitute is None:
        KVCacheSpecRegistry.remove_substitute(CLASSES[spec_class])
    else:
        KVCacheSpecRegistry.override(CLASSES[spec_class], substitute=CLASSES[substitute])


def uniform(specs: Sequence[SpecDescriptor]) -> bool:
    made = [make(spec) for spec in specs]
    answer = made[0].is_uniform_with_collection({f"layer.{place}": spec for place, spec in enumerate(made)})
    return bool(answer)


def race(threads: Sequence[Sequence[Step]], after: Sequence[Step], points: int) -> Races:
    functions: dict[str, Callable[..., RegistryEntry | None]] = {
        "registry.initialise": initialise,
        "registry.register": register,
        "registry.decorate": decorate,
        "registry.lookup": lookup,
    }
    return race_in_children(functions, threads, after, points)
