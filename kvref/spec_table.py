"""The table of the registry. It is immutable: each registration makes a new table.

`kvref.registry` holds the table that the process uses, and makes changes safe for threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvref import managers, specs
from kvref.errors import ConflictingRegistrationError, RegistrationError, UnregisteredSpecError
from kvref.managers import SingleTypeKVCacheManager
from kvref.platform import Platform
from kvref.specs import KVCacheSpec

__all__ = ["BUILT_IN", "KVCacheSpecMetadata", "ManagerClass", "SpecClass", "SpecTable"]

SpecClass = type[KVCacheSpec]
ManagerClass = type[SingleTypeKVCacheManager]


@dataclass(frozen=True)
class KVCacheSpecMetadata:
    """The entry of a spec class in the registry.

    Raises:
        RegistrationError: at construction, if `kvcache_spec_cls` or `uniform_type_base_spec` is no spec
            class, if `manager_class` is no manager class, or if the uniform base is neither the spec class
            nor one of its ancestors.
    """

    kvcache_spec_cls: SpecClass
    manager_class: ManagerClass
    """The manager for specs of this class, and of subclasses without an entry of their own."""
    uniform_type_base_spec: SpecClass
    """The uniform base. Specs are uniform only if their classes have the same base; see `kvref.uniform`."""

    def __post_init__(self) -> None:
        spec_class, base = self.kvcache_spec_cls, self.uniform_type_base_spec
        _require_subclass(spec_class, KVCacheSpec, "kvcache_spec_cls")
        name = spec_class.__name__
        _require_subclass(self.manager_class, SingleTypeKVCacheManager, f"the manager_class of {name}")
        _require_subclass(base, KVCacheSpec, f"the uniform_type_base_spec of {name}")
        if not issubclass(spec_class, base):
            raise RegistrationError(
                f"{name} does not derive from its uniform_type_base_spec {base.__name__}: "
                "give an ancestor, or leave the base out"
            )

    def __str__(self) -> str:
        return (
            f"{self.kvcache_spec_cls.__name__} with manager {self.manager_class.__name__} "
            f"and uniform base {self.uniform_type_base_spec.__name__}"
        )


@dataclass(frozen=True)
class SpecTable:
    """The entries and substitutes of the registry. A method that changes something returns a new table."""

    registered: Mapping[SpecClass, KVCacheSpecMetadata]
    """The entries as they were registered, without overrides. A registration conflicts only if it differs
    from the entry here."""
    entries: Mapping[SpecClass, KVCacheSpecMetadata]
    """The entries that look-ups return: those in `registered`, changed by overrides."""
    substitutes: Mapping[SpecClass, SpecClass]
    """For each substituted class, its substitute: a subclass."""
    platforms: frozenset[type[Platform]]
    """The platforms whose hooks have run. The table includes what they registered."""

    def find(self, spec_class: SpecClass) -> KVCacheSpecMetadata | None:
        """The entry of the class, or of the nearest ancestor in its MRO that has an entry."""
        return next((self.entries[each] for each in spec_class.__mro__ if each in self.entries), None)

    def resolve(self, spec: KVCacheSpec) -> KVCacheSpec:
        """The spec, rebuilt as its class's substitute if there is one; see `KVCacheSpecRegistry.resolve`."""
        spec_class = type(spec)
        while spec_class in self.substitutes:
            spec_class = self.substitutes[spec_class]
        if spec_class is type(spec):
            return spec
        return spec_class(**{name: getattr(spec, name) for name in _parameters(type(spec))})

    def register(self, entry: KVCacheSpecMetadata) -> SpecTable:
        """The table with this entry added. If the table has this entry already, the table itself."""
        spec_class = entry.kvcache_spec_cls
        present = self.registered.get(spec_class)
        if present == entry:
            return self
        if present is not None:
            raise ConflictingRegistrationError(
                f"{present} is registered already; it cannot also be {entry}: "
                "to replace it, use KVCacheSpecRegistry.override"
            )
        return replace(
            self,
            registered={**self.registered, spec_class: entry},
            entries={**self.entries, spec_class: entry},
        )

    def override(
        self,
        spec_class: SpecClass,
        manager_class: ManagerClass | None,
        uniform_type_base_spec: SpecClass | None,
        substitute: SpecClass | None,
    ) -> SpecTable:
        """The table with a new manager, base or substitute for the class. None keeps the present one."""
        _require_subclass(spec_class, KVCacheSpec, "kvcache_spec_cls")
        present = self.entries.get(spec_class)
        if present is None:
            raise UnregisteredSpecError(
                f"{spec_class.__name__} has no entry of its own to override: register the class instead"
            )
        if manager_class is None and uniform_type_base_spec is None and substitute is None:
            raise RegistrationError(
                f"nothing to override for {spec_class.__name__}: give a manager_class, a "
                "uniform_type_base_spec or a substitute; to undo a substitute, use remove_substitute"
            )
        entry = KVCacheSpecMetadata(
            spec_class,
            present.manager_class if manager_class is None else manager_class,
            present.uniform_type_base_spec if uniform_type_base_spec is None else uniform_type_base_spec,
        )
        substitutes = self.substitutes
        if substitute is not None:
            _check_substitute(spec_class, substitute)
            substitutes = {**substitutes, spec_class: substitute}
        return replace(self, entries={**self.entries, spec_class: entry}, substitutes=substitutes)

    def remove_substitute(self, spec_class: SpecClass) -> SpecTable:
        _require_subclass(spec_class, KVCacheSpec, "kvcache_spec_cls")
        if spec_class not in self.substitutes:
            raise RegistrationError(f"{spec_class.__name__} has no substitute to remove")
        rest = {old: new for old, new in self.substitutes.items() if old is not spec_class}
        return replace(self, substitutes=rest)


def _check_substitute(spec_class: SpecClass, substitute: SpecClass) -> None:
    """Raise `RegistrationError` unless every spec of `spec_class` can be rebuilt as a `substitute`."""
    name = spec_class.__name__
    _require_subclass(substitute, spec_class, f"the substitute of {name}")
    # Each substitute derives from the class that it replaces, so a chain of substitutes is never a loop.
    if substitute is spec_class:
        raise RegistrationError(f"{name} cannot be its own substitute: give a class derived from it")
    given, accepted = _parameters(spec_class), _parameters(substitute)
    lost = sorted(given.keys() - accepted.keys())
    required = [
        name
        for name, field in accepted.items()
        if name not in given and field.default is field.default_factory is dataclasses.MISSING
    ]
    if lost or required:
        raise RegistrationError(
            f"{substitute.__name__} cannot be the substitute of {name}: it must accept all fields of {name} "
            f"(it lacks: {', '.join(lost) or 'none'}) and have a default for each field that it adds "
            f"(without one: {', '.join(required) or 'none'})"
        )


def _parameters(spec_class: SpecClass) -> dict[str, dataclasses.Field[object]]:
    """The fields that the constructor of the class takes, by name."""
    return {field.name: field for field in dataclasses.fields(spec_class) if field.init}


def _require_subclass(value: object, parent: type, argument: str) -> None:
    if not (isinstance(value, type) and issubclass(value, parent)):
        raise RegistrationError(f"{argument} must be a subclass of {parent.__name__}, not {value!r}")


BUILT_IN: Mapping[SpecClass, KVCacheSpecMetadata] = {
    spec_class: KVCacheSpecMetadata(spec_class, manager_class, base)
    for spec_class, manager_class, base in (
        (specs.FullAttentionSpec, managers.FullAttentionManager, specs.FullAttentionSpec),
        (specs.MLAAttentionSpec, managers.FullAttentionManager, specs.FullAttentionSpec),
        (specs.HiddenStateCacheSpec, managers.FullAttentionManager, specs.FullAttentionSpec),
        (specs.TQFullAttentionSpec, managers.FullAttentionManager, specs.FullAttentionSpec),
        (specs.SinkFullAttentionSpec, managers.SinkFullAttentionManager, specs.FullAttentionSpec),
        (specs.SlidingWindowSpec, managers.SlidingWindowManager, specs.SlidingWindowSpec),
        (specs.SlidingWindowMLASpec, managers.SlidingWindowManager, specs.SlidingWindowMLASpec),
        (
            specs.ChunkedLocalAttentionSpec,
            managers.ChunkedLocalAttentionManager,
            specs.ChunkedLocalAttentionSpec,
        ),
        (specs.MambaSpec, managers.MambaManager, specs.MambaSpec),
        (specs.CrossAttentionSpec, managers.CrossAttentionManager, specs.CrossAttentionSpec),
    )
}
