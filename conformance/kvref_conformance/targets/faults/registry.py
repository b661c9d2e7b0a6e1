"""Faults of the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from typing import Any

from kvref import registry
from kvref.errors import ConflictingRegistrationError, RegistrationError
from kvref.managers import CrossAttentionManager
from kvref.platform import Platform
from kvref.registry import KVCacheSpecMetadata, KVCacheSpecRegistry
from kvref.specs import CrossAttentionSpec, KVCacheSpec
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_State = registry._State
_find = _State.find
_register = _State.register
_override = _State.override
_initialise = KVCacheSpecRegistry.initialise
_resolve = KVCacheSpecRegistry.resolve
_BUILT_IN = registry._BUILT_IN
_init = CrossAttentionManager.__init__


def base_of_the_farthest_ancestor() -> ReferenceTarget:
    """A class without an entry gets the manager of its nearest registered ancestor, the base of its farthest.

    Not so where something was overridden: what an override does is right.
    """

    def find(state: registry._State, spec_class: type[KVCacheSpec]) -> KVCacheSpecMetadata | None:
        entries = [state.registered[cls] for cls in spec_class.__mro__ if cls in state.registered]
        overridden = any(cls in state.overrides for cls in spec_class.__mro__)
        if spec_class in state.registered or overridden or not entries:
            return _find(state, spec_class)
        # Not the nearest one's own base: it may be no ancestor of what the entry is for.
        return replace(entries[0], uniform_type_base_spec=entries[-1].uniform_type_base_spec)

    break_it(_State, "find", find)
    return ReferenceTarget()


def second_base_refused() -> ReferenceTarget:
    """A class that derives from two others cannot be registered."""

    def register(state: registry._State, entry: KVCacheSpecMetadata) -> registry._State:
        if len(entry.kvcache_spec_cls.__bases__) > 1:
            raise RegistrationError(f"{entry.kvcache_spec_cls.__name__} has several bases")
        return _register(state, entry)

    break_it(_State, "register", register)
    return ReferenceTarget()


def hook_never_run() -> ReferenceTarget:
    """Whatever platform there is, the hook of the one that adds nothing is run."""
    break_it(registry, "current_platform", lambda: Platform)
    return ReferenceTarget()


def built_ins_only_into_an_empty_table() -> ReferenceTarget:
    """A look-up registers the built-ins only when nobody has registered anything (as vLLM does)."""

    # One thread at a time: what others see meanwhile is another fault.
    def current_state() -> registry._State:
        with KVCacheSpecRegistry._condition:
            if not KVCacheSpecRegistry._state.registered:
                initialise()
            return KVCacheSpecRegistry._state

    def initialise(vllm_config: object = None) -> None:
        with KVCacheSpecRegistry._condition:
            for entry in _BUILT_IN.values():
                KVCacheSpecRegistry.register(
                    entry.kvcache_spec_cls, entry.manager_class, entry.uniform_type_base_spec
                )
            _initialise(vllm_config)

    break_it(KVCacheSpecRegistry, "_state", replace(KVCacheSpecRegistry._state, registered={}))
    break_it(KVCacheSpecRegistry, "_current_state", staticmethod(current_state))
    break_it(KVCacheSpecRegistry, "initialise", staticmethod(initialise))
    return ReferenceTarget()


def second_registration_wins() -> ReferenceTarget:
    """A registration replaces what another one said of the class."""

    def register(state: registry._State, entry: KVCacheSpecMetadata) -> registry._State:
        return replace(state, registered={**state.registered, entry.kvcache_spec_cls: entry})

    break_it(_State, "register", register)
    return ReferenceTarget()


def conflict_refused_by_assert() -> ReferenceTarget:
    """The check for conflicts is an assert, so that it vanishes under python -O."""

    def register(state: registry._State, entry: KVCacheSpecMetadata) -> registry._State:
        if __debug__:
            return _register(state, entry)
        return replace(state, registered={**state.registered, entry.kvcache_spec_cls: entry})

    break_it(_State, "register", register)
    return ReferenceTarget()


def second_registration_refused() -> ReferenceTarget:
    """A class is registered once; to say the same again is an error, too."""

    def register(state: registry._State, entry: KVCacheSpecMetadata) -> registry._State:
        if entry.kvcache_spec_cls in state.registered:
            raise ConflictingRegistrationError(f"{entry.kvcache_spec_cls.__name__} is registered already")
        return _register(state, entry)

    break_it(_State, "register", register)
    return ReferenceTarget()


def any_base_accepted() -> ReferenceTarget:
    """A uniform base need only be a spec class."""
    break_it(KVCacheSpecMetadata, "__post_init__", lambda entry: None)
    return ReferenceTarget()


def override_forgets_the_base() -> ReferenceTarget:
    """An override without a base makes the class its own base, as a registration without one does."""

    def override(
        state: registry._State,
        spec_class: type[KVCacheSpec],
        manager_class: registry.ManagerClass | None,
        uniform_type_base_spec: type[KVCacheSpec] | None,
        substitute: type[KVCacheSpec] | None,
    ) -> registry._State:
        base = spec_class if uniform_type_base_spec is None else uniform_type_base_spec
        return _override(state, spec_class, manager_class, base, substitute)

    break_it(_State, "override", override)
    return ReferenceTarget()


def uniform_whatever_the_base() -> ReferenceTarget:
    """Specs are uniform when one manager manages them, with equal windows and the like."""

    def is_uniform_with_collection(spec: KVCacheSpec, kv_cache_specs: Mapping[str, KVCacheSpec]) -> bool:
        KVCacheSpecRegistry.check_kv_cache_spec_registry({"itself": spec, **kv_cache_specs})
        manager = KVCacheSpecRegistry.get_manager_class(spec)
        return all(
            KVCacheSpecRegistry.get_manager_class(other) is manager and other.uniform_key == spec.uniform_key
            for other in kv_cache_specs.values()
        )

    break_it(KVCacheSpec, "is_uniform_with_collection", is_uniform_with_collection)
    return ReferenceTarget()


def early_look_ups_remembered() -> ReferenceTarget:
    """What was looked up before the engine initialised the registry is answered for good."""
    remembered: dict[type[KVCacheSpec], KVCacheSpecMetadata | None] = {}
    initialised = False

    def initialise(vllm_config: object = None) -> None:
        nonlocal initialised
        initialised = True
        _initialise(vllm_config)

    def current_state() -> registry._State:
        _initialise()
        return KVCacheSpecRegistry._state

    def find(state: registry._State, spec_class: type[KVCacheSpec]) -> KVCacheSpecMetadata | None:
        if spec_class in remembered:
            return remembered[spec_class]
        found = _find(state, spec_class)
        if not initialised:
            remembered[spec_class] = found
        return found

    break_it(KVCacheSpecRegistry, "initialise", staticmethod(initialise))
    break_it(KVCacheSpecRegistry, "_current_state", staticmethod(current_state))
    break_it(_State, "find", find)
    return ReferenceTarget()


def hook_seen_half_way() -> ReferenceTarget:
    """While the platform's hook runs, what it has registered so far is seen by every thread."""

    def own_transaction(cls: type[Any]) -> Any:
        return cls._transaction

    break_it(KVCacheSpecRegistry, "_own_transaction", classmethod(own_transaction))
    return ReferenceTarget()


def defaults_in_a_substitute() -> ReferenceTarget:
    """What stands for a spec gets its required fields; the others are at their defaults."""

    def resolve(spec: KVCacheSpec) -> KVCacheSpec:
        resolved = _resolve(spec)
        if resolved is spec:
            return spec
        optional = {field.name: field.default for field in fields(spec) if field.default is not MISSING}
        return replace(resolved, **optional)

    break_it(KVCacheSpecRegistry, "resolve", staticmethod(resolve))
    return ReferenceTarget()


def manager_without_look_ahead() -> ReferenceTarget:
    """The manager of cross attention does not know all that managers are made with."""

    def init(manager: CrossAttentionManager, kv_cache_spec: CrossAttentionSpec, **engine: Any) -> None:
        if "use_eagle" in engine:
            raise TypeError("unexpected keyword argument 'use_eagle'")
        _init(manager, kv_cache_spec, **engine)

    break_it(CrossAttentionManager, "__init__", init)
    return ReferenceTarget()
