"""Faults in the registry that were reported for other implementations."""

from __future__ import annotations

from dataclasses import replace

from kvref.platform import current_platform
from kvref.registry import KVCacheSpecRegistry
from kvref.spec_table import BUILT_IN, SpecTable
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_initialise = KVCacheSpecRegistry.initialise


def start_forgets_what_was_registered() -> ReferenceTarget:
    """When the engine starts, the registry forgets all earlier registrations (vLLM issue 18740)."""

    def forget(table: SpecTable) -> SpecTable:
        if current_platform() in table.platforms:
            return table
        kept = {spec_class: table.entries[spec_class] for spec_class in BUILT_IN}
        return replace(table, registered=BUILT_IN, entries=kept)

    def initialise(vllm_config: object = None) -> None:
        if KVCacheSpecRegistry._shared._transaction is None:
            KVCacheSpecRegistry._shared.change(forget)
        _initialise(vllm_config)

    break_it(KVCacheSpecRegistry, "initialise", staticmethod(initialise))
    return ReferenceTarget()
