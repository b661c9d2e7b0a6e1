"""The registry that maps spec classes to managers and uniform bases (vLLM PR 37505, RFC 36668).

What is registered, in which order, never changes what a look-up answers: the built-in classes are there from
the start, and a look-up first makes sure that the hook of the current platform has run.

The state is one immutable value that changes replace under a lock. The hook is foreign code and runs without
the lock; what it registers is seen by its own thread alone until it returns, and is then published at once.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar, final

from kvref.errors import ConflictingRegistrationError, PlatformError, RegistrationError, UnregisteredSpecError
from kvref.managers import (
    ChunkedLocalAttentionManager,
    CrossAttentionManager,
    FullAttentionManager,
    MambaManager,
    SingleTypeKVCacheManager,
    SinkFullAttentionManager,
    SlidingWindowManager,
)
from kvref.platform import Platform, current_platform
from kvref.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
)

__all__ = [
    "KVCacheSpecMetadata",
    "KVCacheSpecRegistry",
    "register_all_kvcache_specs",
    "register_kv_cache_spec",
]

SpecClass = type[KVCacheSpec]
ManagerClass = type[SingleTypeKVCacheManager]
SpecClassT = TypeVar("SpecClassT", bound=SpecClass)


def _is_subclass(value: object, parent: type) -> bool:
    return isinstance(value, type) and issubclass(value, parent)


def _require_spec_class(value: SpecClass, what: str) -> SpecClass:
    if not _is_subclass(value, KVCacheSpec):
        raise RegistrationError(f"{what} must be a subclass of KVCacheSpec, not {value!r}")
    return value


@dataclass(frozen=True)
class KVCacheSpecMetadata:
    """What is registered for a spec class.

    Raises:
        RegistrationError: at construction, for a part that is missing or not of its kind, or a base that is
            neither the class nor an ancestor of it.
    """

    kvcache_spec_cls: SpecClass
    manager_class: ManagerClass
    """Manages the blocks of the class, and of subclasses without an entry of their own."""
    uniform_type_base_spec: SpecClass
    """Classes with the same base may share a group whatever their page sizes."""

    def __post_init__(self) -> None:
        name = _require_spec_class(self.kvcache_spec_cls, "kvcache_spec_cls").__name__
        if not _is_subclass(self.manager_class, SingleTypeKVCacheManager):
            raise RegistrationError(
                f"{name} needs a manager_class that is a subclass of SingleTypeKVCacheManager, "
                f"not {self.manager_class!r}"
            )
        base = _require_spec_class(self.uniform_type_base_spec, f"the uniform_type_base_spec of {name}")
        if not issubclass(self.kvcache_spec_cls, base):
            raise RegistrationError(
                f"{name} does not derive from its uniform_type_base_spec {base.__name__}: "
                "name an ancestor, or leave the base out"
            )

    def __str__(self) -> str:
        return (
            f"{self.kvcache_spec_cls.__name__} with manager {self.manager_class.__name__} "
            f"and base {self.uniform_type_base_spec.__name__}"
        )


_Table = Mapping[SpecClass, KVCacheSpecMetadata]

_BUILT_IN: _Table = {
    spec_class: KVCacheSpecMetadata(spec_class, manager_class, base)
    for spec_class, manager_class, base in (
        (FullAttentionSpec, FullAttentionManager, FullAttentionSpec),
        (MLAAttentionSpec, FullAttentionManager, FullAttentionSpec),
        (HiddenStateCacheSpec, FullAttentionManager, FullAttentionSpec),
        (TQFullAttentionSpec, FullAttentionManager, FullAttentionSpec),
        (SinkFullAttentionSpec, SinkFullAttentionManager, FullAttentionSpec),
        (SlidingWindowSpec, SlidingWindowManager, SlidingWindowSpec),
        (SlidingWindowMLASpec, SlidingWindowManager, SlidingWindowMLASpec),
        (ChunkedLocalAttentionSpec, ChunkedLocalAttentionManager, ChunkedLocalAttentionSpec),
        (MambaSpec, MambaManager, MambaSpec),
        (CrossAttentionSpec, CrossAttentionManager, CrossAttentionSpec),
    )
}


@dataclass(frozen=True)
class _State:
    """All that the registry knows. A change makes a new one, or raises."""

    registered: _Table
    overrides: _Table
    """Entries that take precedence; kept apart so that a repeated registration stays a no-op."""
    substitutes: Mapping[SpecClass, SpecClass]
    platforms: frozenset[type[Platform]]
    """Platforms whose hook has run."""

    def find(self, spec_class: SpecClass) -> KVCacheSpecMetadata | None:
        """The entry of the class, or else of the nearest ancestor in its MRO that has one."""
        for ancestor in spec_class.__mro__:
            if ancestor in self.registered:
                return self.overrides.get(ancestor) or self.registered[ancestor]
        return None

    def register(self, entry: KVCacheSpecMetadata) -> _State:
        present = self.registered.get(entry.kvcache_spec_cls)
        if present is None:
            return replace(self, registered={**self.registered, entry.kvcache_spec_cls: entry})
        if present != entry:
            raise ConflictingRegistrationError(
                f"{present} is registered already; it cannot also be {entry}: "
                "to replace it, use KVCacheSpecRegistry.override"
            )
        return self

    def override(
        self,
        spec_class: SpecClass,
        manager_class: ManagerClass | None,
        uniform_type_base_spec: SpecClass | None,
        substitute: SpecClass | None,
    ) -> _State:
        _require_spec_class(spec_class, "kvcache_spec_cls")
        name = spec_class.__name__
        if spec_class not in self.registered:
            raise UnregisteredSpecError(
                f"{name} is not registered, so there is nothing to override: register it"
            )
        if manager_class is None and uniform_type_base_spec is None and substitute is None:
            raise RegistrationError(
                f"nothing to override for {name}: give a manager_class, a uniform_type_base_spec or a "
                "substitute; to undo a substitute, use remove_substitute"
            )
        state = self
        if manager_class is not None or uniform_type_base_spec is not None:
            present = self.overrides.get(spec_class) or self.registered[spec_class]
            entry = KVCacheSpecMetadata(
                spec_class,
                present.manager_class if manager_class is None else manager_class,
                present.uniform_type_base_spec if uniform_type_base_spec is None else uniform_type_base_spec,
            )
            state = replace(state, overrides={**self.overrides, spec_class: entry})
        if substitute is not None:
            self._check_substitute(spec_class, substitute)
            state = replace(state, substitutes={**self.substitutes, spec_class: substitute})
        return state

    def _check_substitute(self, spec_class: SpecClass, substitute: SpecClass) -> None:
        _require_spec_class(substitute, f"the substitute of {spec_class.__name__}")
        # Each derives from the one before it: no longer loops are possible.
        if substitute is spec_class:
            raise RegistrationError(f"{spec_class.__name__} cannot be its own substitute")
        if not issubclass(substitute, spec_class):
            raise RegistrationError(
                f"{substitute.__name__} cannot stand in for {spec_class.__name__}: it must derive from it"
            )
        declared = {parameter.name for parameter in dataclasses.fields(spec_class) if parameter.init}
        accepted = {
            parameter.name: parameter for parameter in dataclasses.fields(substitute) if parameter.init
        }
        lost = sorted(declared - accepted.keys())
        required = [
            name
            for name, parameter in accepted.items()
            if name not in declared
            and parameter.default is dataclasses.MISSING
            and parameter.default_factory is dataclasses.MISSING
        ]
        if lost or required:
            raise RegistrationError(
                f"{substitute.__name__} cannot stand in for {spec_class.__name__}: it must accept all its "
                f"fields (lost: {', '.join(lost) or 'none'}) and have defaults for those it adds "
                f"(without: {', '.join(required) or 'none'})"
            )

    def remove_substitute(self, spec_class: SpecClass) -> _State:
        _require_spec_class(spec_class, "kvcache_spec_cls")
        if spec_class not in self.substitutes:
            raise RegistrationError(f"{spec_class.__name__} has no substitute to remove")
        rest = {old: new for old, new in self.substitutes.items() if old is not spec_class}
        return replace(self, substitutes=rest)


_Change = Callable[[_State], _State]


class _Transaction:
    """What a platform's hook has changed so far, seen by its own thread alone."""

    def __init__(self, state: _State) -> None:
        self.thread = threading.get_ident()
        self.state = state
        self.changes: list[_Change] = []

    def apply(self, change: _Change) -> None:
        self.state = change(self.state)
        self.changes.append(change)


@final
class KVCacheSpecRegistry:
    """The registry of the process. Every method may be called from any thread, and from a platform's hook.

    A look-up first runs the hook of the current platform, unless it has run, and may raise `PlatformError`.
    """

    _condition: ClassVar[threading.Condition] = threading.Condition()
    _state: ClassVar[_State] = _State(_BUILT_IN, overrides={}, substitutes={}, platforms=frozenset())
    _transaction: ClassVar[_Transaction | None] = None

    @classmethod
    def register(
        cls,
        kvcache_spec_cls: SpecClass,
        manager_class: ManagerClass | None = None,
        uniform_type_base_spec: SpecClass | None = None,
    ) -> None:
        """Register a spec class. The same registration again does nothing.

        Args:
            kvcache_spec_cls: the class; its subclasses without an entry of their own follow it.
            manager_class: required, optional only in the signature that vLLM has.
            uniform_type_base_spec: the class itself, which is the default, or an ancestor to be grouped with.

        Raises:
            ConflictingRegistrationError: registered already with another manager or base.
            RegistrationError: no manager, or a base that is no ancestor. Nothing is changed in either case.
        """
        if manager_class is None:
            name = getattr(kvcache_spec_cls, "__name__", repr(kvcache_spec_cls))
            raise RegistrationError(f"{name} cannot be registered without a manager_class")
        base = kvcache_spec_cls if uniform_type_base_spec is None else uniform_type_base_spec
        entry = KVCacheSpecMetadata(kvcache_spec_cls, manager_class, base)
        cls._change(lambda state: state.register(entry))

    @classmethod
    def override(
        cls,
        kvcache_spec_cls: SpecClass,
        manager_class: ManagerClass | None = None,
        uniform_type_base_spec: SpecClass | None = None,
        substitute: SpecClass | None = None,
    ) -> None:
        """Replace what is registered for a class, or the class itself (RFC 36668; no vLLM release has it).

        Args:
            kvcache_spec_cls: a registered class, by itself and not by an ancestor.
            manager_class: the manager from now on; None keeps the present one.
            uniform_type_base_spec: the uniform base from now on; None keeps the present one.
            substitute: a subclass to plan layers as that declare exactly `kvcache_spec_cls`; see `resolve`.

        Raises:
            UnregisteredSpecError: the class has no entry.
            RegistrationError: nothing given, a base that is no ancestor, a substitute that does not derive
                from it, adds required fields or is the class itself. Nothing is changed in either case.
        """
        cls._change(
            lambda state: state.override(kvcache_spec_cls, manager_class, uniform_type_base_spec, substitute)
        )

    @classmethod
    def remove_substitute(cls, kvcache_spec_cls: SpecClass) -> None:
        """Plan layers that declare this class as themselves again.

        Raises:
            RegistrationError: it has no substitute.
        """
        cls._change(lambda state: state.remove_substitute(kvcache_spec_cls))

    @classmethod
    def resolve(cls, kvcache_spec: KVCacheSpec) -> KVCacheSpec:
        """The spec to plan a layer with: of the substitute of its class if there is one, every field kept.

        Only the exact class is substituted, never a subclass; a substitute may have one in turn.
        """
        substitutes = cls._current_state().substitutes
        spec_class = resolved = type(kvcache_spec)
        while resolved in substitutes:
            resolved = substitutes[resolved]
        if resolved is spec_class:
            return kvcache_spec
        parameters = [parameter.name for parameter in dataclasses.fields(kvcache_spec) if parameter.init]
        return resolved(**{name: getattr(kvcache_spec, name) for name in parameters})

    @classmethod
    def get_metadata(cls, kvcache_spec_cls: SpecClass) -> KVCacheSpecMetadata | None:
        """The entry of a class or else of its nearest registered ancestor; None for an unknown class."""
        return cls._current_state().find(kvcache_spec_cls)

    @classmethod
    def get_manager_class(cls, kvcache_spec: KVCacheSpec) -> ManagerClass | None:
        """The manager for a spec; None when neither its class nor an ancestor is registered."""
        entry = cls.get_metadata(type(kvcache_spec))
        return None if entry is None else entry.manager_class

    @classmethod
    def get_uniform_type_base_spec(cls, kvcache_spec: KVCacheSpec) -> SpecClass | None:
        """The uniform base of a spec, from the entry that has its manager; None for an unknown class."""
        entry = cls.get_metadata(type(kvcache_spec))
        return None if entry is None else entry.uniform_type_base_spec

    @classmethod
    def check_kv_cache_spec_registry(cls, kv_cache_spec: Mapping[str, KVCacheSpec]) -> None:
        """Check that the spec of every layer, given by the layer's name, is registered.

        Raises:
            UnregisteredSpecError: one is not. Names layer and class.
        """
        state = cls._current_state()
        for layer_name, spec in kv_cache_spec.items():
            if state.find(type(spec)) is None:
                raise UnregisteredSpecError(
                    f"layer {layer_name!r} has a spec of the unregistered class {type(spec).__qualname__}: "
                    "register it with @register_kv_cache_spec"
                )

    @classmethod
    def initialise(cls, vllm_config: object = None) -> None:
        """Run the hook of the current platform, unless it has run; see `Platform`.

        Another thread that does so already is waited for. From within the hook this does nothing.

        Raises:
            PlatformError: the hook failed, and nothing of what it did is kept; or no platform could be
                chosen.
        """
        platform = current_platform()
        with cls._condition:
            if cls._own_transaction() is not None:
                return
            while cls._transaction is not None and platform not in cls._state.platforms:
                cls._condition.wait()
            if platform in cls._state.platforms:
                return
            transaction = cls._transaction = _Transaction(cls._state)
        try:
            platform.register_custom_kv_cache_specs(vllm_config)
            with cls._condition:
                # Others may have registered meanwhile, so the changes are made anew.
                state = cls._state
                for change in transaction.changes:
                    state = change(state)
                cls._state = replace(state, platforms=state.platforms | {platform})
        except Exception as error:
            raise PlatformError(
                f"platform {platform.__module__}.{platform.__qualname__} failed to register its specs, and "
                f"nothing of what it did is kept: {type(error).__name__}: {error}"
            ) from error
        finally:
            with cls._condition:
                cls._transaction = None
                cls._condition.notify_all()

    @classmethod
    @contextmanager
    def snapshot(cls) -> Iterator[None]:
        """For tests: at exit the registry is as it was at entry, whatever happened. Not for use in a hook."""
        with cls._condition:
            state = cls._state
        try:
            yield
        finally:
            with cls._condition:
                cls._state = state

    @classmethod
    def _own_transaction(cls) -> _Transaction | None:
        transaction = cls._transaction
        return transaction if transaction and transaction.thread == threading.get_ident() else None

    @classmethod
    def _change(cls, change: _Change) -> None:
        with cls._condition:
            transaction = cls._own_transaction()
            if transaction is None:
                cls._state = change(cls._state)
            else:
                transaction.apply(change)

    @classmethod
    def _current_state(cls) -> _State:
        """The state that look-ups see: with the current platform's hook run, or running in this thread."""
        cls.initialise()
        with cls._condition:
            transaction = cls._own_transaction()
            return cls._state if transaction is None else transaction.state


def register_all_kvcache_specs(vllm_config: object = None) -> None:
    """What an engine calls at start, with its configuration. Calling it again is harmless.

    The built-in classes need no registration here, so that is `KVCacheSpecRegistry.initialise`.

    Raises:
        PlatformError: the platform's hook failed, or no platform could be chosen.
    """
    KVCacheSpecRegistry.initialise(vllm_config)


def register_kv_cache_spec(
    manager_class: ManagerClass | None = None,
    uniform_type_base_spec: SpecClass | None = None,
    override: bool = False,
) -> Callable[[SpecClassT], SpecClassT]:
    """Class decorator that registers a spec class; put it above `@dataclass`.

    Args:
        manager_class: as in `KVCacheSpecRegistry.register`.
        uniform_type_base_spec: as there.
        override: replace what is registered for the class already, if anything, instead of refusing to.

    Raises:
        ConflictingRegistrationError, RegistrationError: as there, when the class is decorated.
    """

    def decorate(kvcache_spec_cls: SpecClassT) -> SpecClassT:
        if override:
            try:
                KVCacheSpecRegistry.override(kvcache_spec_cls, manager_class, uniform_type_base_spec)
                return kvcache_spec_cls
            except UnregisteredSpecError:
                pass  # nothing to replace yet
        KVCacheSpecRegistry.register(kvcache_spec_cls, manager_class, uniform_type_base_spec)
        return kvcache_spec_cls

    return decorate
