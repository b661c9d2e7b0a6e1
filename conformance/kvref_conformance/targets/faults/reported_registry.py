"""Faults of the registry, as others have reported them of their own."""

from __future__ import annotations

from dataclasses import replace

from kvref import registry
from kvref.platform import current_platform
from kvref.registry import KVCacheSpecRegistry
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_initialise = KVCacheSpecRegistry.initialise


def start_forgets_what_was_registered() -> ReferenceTarget:
    """What a process has registered before its engine starts is unknown to the engine (vLLM issue 18740)."""

    def initialise(vllm_config: object = None) -> None:
        with KVCacheSpecRegistry._condition:
            state = KVCacheSpecRegistry._state
            if KVCacheSpecRegistry._transaction is None and current_platform() not in state.platforms:
                KVCacheSpecRegistry._state = replace(state, registered=registry._BUILT_IN)
        _initialise(vllm_config)

    break_it(KVCacheSpecRegistry, "initialise", staticmethod(initialise))
    return ReferenceTarget()
