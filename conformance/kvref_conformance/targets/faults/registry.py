"""Faults in the registry."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from typing import Any

from kvref import registry, uniform
from kvref.errors import ConflictingRegistrationError, RegistrationError
from kvref.managers import CrossAttentionManager
from kvref.platform import Platform
from kvref.registry import KVCacheSpecMetadata, KVCacheSpecRegistry
from kvref.shared_state import SharedState
from kvref.spec_table import BUILT_IN, ManagerClass, SpecTable
from kvref.specs import CrossAttentionSpec, KVCacheSpec
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_find = SpecTable.find
_register = SpecTable.register
_override = SpecTable.override
_initialise = KVCacheSpecRegistry.initialise
_resolve = KVCacheSpecRegistry.resolve
_init = CrossAttentionManager.__init__


def base_of_the_farthest_ancestor() -> ReferenceTarget:
    """An unregistered class gets the uniform base of its farthest registered ancestor, not of its nearest.

    The class still gets the manager of its nearest registered ancestor. If the entry of any ancestor was
    overridden, the whole look-up is correct.
    """

    def find(table: SpecTable, spec_class: type[KVCacheSpec]) -> KVCacheSpecMetadata | None:
        entries = [table.registered[cls] for cls in spec_class.__mro__ if cls in table.registered]
        overridden = any(table.entries[entry.kvcache_spec_cls] != entry for entry in entries)
        if spec_class in table.registered or overridden or not entries:
            return _find(table, spec_class)
        # The nearest entry comes first, and the farthest last.
        return replace(entries[0], uniform_type_base_spec=entries[-1].uniform_type_base_spec)

    break_it(SpecTable, "find", find)
    return ReferenceTarget()


def second_base_refused() -> ReferenceTarget:
    """The registry refuses a class that derives from more than one class."""

    def register(table: SpecTable, entry: KVCacheSpecMetadata) -> SpecTable:
        if len(entry.kvcache_spec_cls.__bases__) > 1:
            raise RegistrationError(f"{entry.kvcache_spec_cls.__name__} has several bases")
        return _register(table, entry)

    break_it(SpecTable, "register", register)
    return ReferenceTarget()


def hook_never_run() -> ReferenceTarget:
    """The registry always runs the default platform's hook, which registers nothing."""
    break_it(registry, "current_platform", lambda: Platform)
    return ReferenceTarget()


def built_ins_only_into_an_empty_table() -> ReferenceTarget:
    """A look-up registers the built-ins only while the table is empty (as vLLM does)."""
    shared = KVCacheSpecRegistry._shared
    # One thread at a time, because a race between threads would be a second fault.
    turn = threading.RLock()

    def table() -> SpecTable:
        with turn:
            if not shared.state.registered:
                initialise()
            return shared.state

    def initialise(vllm_config: object = None) -> None:
        with turn:
            for entry in BUILT_IN.values():
                KVCacheSpecRegistry.register(
                    entry.kvcache_spec_cls, entry.manager_class, entry.uniform_type_base_spec
                )
            _initialise(vllm_config)

    shared.change(lambda table: replace(table, registered={}, entries={}))
    break_it(KVCacheSpecRegistry, "_table", staticmethod(table))
    break_it(KVCacheSpecRegistry, "initialise", staticmethod(initialise))
    return ReferenceTarget()


def _with_the_last(table: SpecTable, entry: KVCacheSpecMetadata) -> SpecTable:
    """Return the table with this entry in place of the class's earlier registration. An override stays."""
    spec_class = entry.kvcache_spec_cls
    registered = {**table.registered, spec_class: entry}
    if table.entries.get(spec_class) != table.registered.get(spec_class):
        return replace(table, registered=registered)
    return replace(table, registered=registered, entries={**table.entries, spec_class: entry})


def second_registration_wins() -> ReferenceTarget:
    """A second registration of a class replaces the first."""
    break_it(SpecTable, "register", _with_the_last)
    return ReferenceTarget()


def conflict_refused_by_assert() -> ReferenceTarget:
    """The registry checks for conflicts with an assert, which is gone under python -O."""

    def register(table: SpecTable, entry: KVCacheSpecMetadata) -> SpecTable:
        if __debug__:
            return _register(table, entry)
        return _with_the_last(table, entry)

    break_it(SpecTable, "register", register)
    return ReferenceTarget()


def second_registration_refused() -> ReferenceTarget:
    """The registry refuses a second registration of a class, even if it equals the first."""

    def register(table: SpecTable, entry: KVCacheSpecMetadata) -> SpecTable:
        if entry.kvcache_spec_cls in table.registered:
            raise ConflictingRegistrationError(f"{entry.kvcache_spec_cls.__name__} is registered already")
        return _register(table, entry)

    break_it(SpecTable, "register", register)
    return ReferenceTarget()


def any_base_accepted() -> ReferenceTarget:
    """The registry accepts any spec class as a uniform base, whether or not it is an ancestor."""
    break_it(KVCacheSpecMetadata, "__post_init__", lambda entry: None)
    return ReferenceTarget()


def override_forgets_the_base() -> ReferenceTarget:
    """An override that names no uniform base makes the class its own base, as a registration does."""

    def override(
        table: SpecTable,
        spec_class: type[KVCacheSpec],
        manager_class: ManagerClass | None,
        uniform_type_base_spec: type[KVCacheSpec] | None,
        substitute: type[KVCacheSpec] | None,
    ) -> SpecTable:
        base = spec_class if uniform_type_base_spec is None else uniform_type_base_spec
        return _override(table, spec_class, manager_class, base, substitute)

    break_it(SpecTable, "override", override)
    return ReferenceTarget()


def uniform_whatever_the_base() -> ReferenceTarget:
    """Specs with the same manager and the same `uniform_key` are uniform, even if their bases differ."""

    def is_uniform_with_collection(spec: KVCacheSpec, kv_cache_specs: Mapping[str, KVCacheSpec]) -> bool:
        KVCacheSpecRegistry.check_kv_cache_spec_registry({"itself": spec, **kv_cache_specs})
        manager = KVCacheSpecRegistry.get_manager_class(spec)
        return all(
            KVCacheSpecRegistry.get_manager_class(other) is manager and other.uniform_key == spec.uniform_key
            for other in kv_cache_specs.values()
        )

    break_it(uniform, "is_uniform_with_collection", is_uniform_with_collection)
    return ReferenceTarget()


def early_look_ups_remembered() -> ReferenceTarget:
    """The registry repeats answers from before the engine initialised it, even if they are outdated."""
    remembered: dict[type[KVCacheSpec], KVCacheSpecMetadata | None] = {}
    initialised = False

    def initialise(vllm_config: object = None) -> None:
        nonlocal initialised
        initialised = True
        _initialise(vllm_config)

    def current_table() -> SpecTable:
        _initialise()
        return KVCacheSpecRegistry._shared.state

    def find(table: SpecTable, spec_class: type[KVCacheSpec]) -> KVCacheSpecMetadata | None:
        if spec_class in remembered:
            return remembered[spec_class]
        found = _find(table, spec_class)
        if not initialised:
            remembered[spec_class] = found
        return found

    break_it(KVCacheSpecRegistry, "initialise", staticmethod(initialise))
    break_it(KVCacheSpecRegistry, "_table", staticmethod(current_table))
    break_it(SpecTable, "find", find)
    return ReferenceTarget()


def hook_seen_half_way() -> ReferenceTarget:
    """While the platform's hook runs, other threads see the part that the hook has registered so far."""

    def own_transaction(shared: SharedState[SpecTable]) -> Any:
        return shared._transaction

    break_it(SharedState, "_own_transaction", own_transaction)
    return ReferenceTarget()


def defaults_in_a_substitute() -> ReferenceTarget:
    """A substitute copies only the required fields of the spec. Its optional fields have their defaults."""

    def resolve(spec: KVCacheSpec) -> KVCacheSpec:
        resolved = _resolve(spec)
        if resolved is spec:
            return spec
        optional = {field.name: field.default for field in fields(spec) if field.default is not MISSING}
        return replace(resolved, **optional)

    break_it(KVCacheSpecRegistry, "resolve", staticmethod(resolve))
    return ReferenceTarget()


def manager_without_look_ahead() -> ReferenceTarget:
    """The constructor of CrossAttentionManager does not accept use_eagle."""

    def init(manager: CrossAttentionManager, kv_cache_spec: CrossAttentionSpec, **engine: Any) -> None:
        if "use_eagle" in engine:
            raise TypeError("unexpected keyword argument 'use_eagle'")
        _init(manager, kv_cache_spec, **engine)

    break_it(CrossAttentionManager, "__init__", init)
    return ReferenceTarget()
