"""The part `registry` of the reference: the registry of spec classes and their managers.

Stand-alone programs copy functions from this module, so that they need only kvref.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import kvref.uniform
from kvref.managers import SingleTypeKVCacheManager
from kvref.platform import Platform, current_platform, set_current_platform
from kvref.registry import KVCacheSpecRegistry, register_all_kvcache_specs, register_kv_cache_spec
from kvref.target import Races, Registration, RegistryEntry, SpecDescriptor, Step
from kvref_conformance.targets.codec import subclasses
from kvref_conformance.targets.racing import race_in_children
from kvref_conformance.targets.reference.specs import CLASSES, make

MANAGERS = {cls.__name__: cls for cls in subclasses(SingleTypeKVCacheManager)[1:]}


def managers() -> list[str]:
    return list(MANAGERS)


def define_spec(name: str, bases: Sequence[str]) -> list[str]:
    CLASSES[name] = type(name, tuple(CLASSES[base] for base in bases), {})
    return [cls.__name__ for cls in CLASSES[name].__mro__]


def define_manager(name: str, base: str) -> None:
    MANAGERS[name] = type(name, (MANAGERS[base],), {})


def initialise() -> None:
    register_all_kvcache_specs()


def install_hook(registrations: Sequence[Registration]) -> None:
    present = current_platform()

    class VendorPlatform(Platform):
        @classmethod
        def register_custom_kv_cache_specs(cls, vllm_config: object = None) -> None:
            present.register_custom_kv_cache_specs(vllm_config)
            for registration in registrations:
                register(**registration)

    set_current_platform(VendorPlatform)


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
    layers = {f"layer.{place}": spec for place, spec in enumerate(made)}
    return kvref.uniform.is_uniform_with_collection(made[0], layers)


def race(threads: Sequence[Sequence[Step]], after: Sequence[Step], points: int) -> Races:
    functions: dict[str, Callable[..., RegistryEntry | None]] = {
        "registry.initialise": initialise,
        "registry.register": register,
        "registry.decorate": decorate,
        "registry.lookup": lookup,
    }
    return race_in_children(functions, threads, after, points)
