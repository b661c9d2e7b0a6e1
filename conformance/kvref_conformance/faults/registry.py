"""Faults of the registry."""

from __future__ import annotations

from dataclasses import replace

from kvref import registry
from kvref.registry import KVCacheSpecMetadata, KVCacheSpecRegistry
from kvref.specs import KVCacheSpec
from kvref_conformance.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_State = registry._State
_register = _State.register
_initialise = KVCacheSpecRegistry.initialise
_BUILT_IN = registry._BUILT_IN


def base_of_the_farthest_ancestor() -> ReferenceTarget:
    """The manager comes from the nearest registered ancestor, the uniform base from the farthest."""

    def find(state: registry._State, spec_class: type[KVCacheSpec]) -> KVCacheSpecMetadata | None:
        entries = [state.registered[cls] for cls in spec_class.__mro__ if cls in state.registered]
        if not entries:
            return None
        # Not the nearest one's own base: it may be no ancestor of what the entry is for.
        return replace(entries[0], uniform_type_base_spec=entries[-1].uniform_type_base_spec)

    break_it(_State, "find", find)
    return ReferenceTarget()


def built_ins_only_into_an_empty_table() -> ReferenceTarget:
    """A look-up registers the built-ins only when nobody has registered anything (as vLLM does)."""

    def current_state() -> registry._State:
        if not KVCacheSpecRegistry._state.registered:
            initialise()
        return KVCacheSpecRegistry._state

    def initialise(vllm_config: object = None) -> None:
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
