"""The registry: for each spec class, its manager and the specs with which it may share a group.

Each registered spec class has an *entry*: its manager and its uniform base. A look-up walks the MRO of a
class and returns the first entry that it finds. So a subclass without an entry of its own has the entry of
its nearest registered ancestor. An *override* changes an entry. A *substitute* replaces a class: the planner
rebuilds each spec of exactly that class as a spec of the substitute. Sources: vLLM PR 37505, and RFC 36668
for overrides and substitutes.

The order of registrations does not change the answers. The built-in classes have their entries from the
start. Each look-up first runs the hook of the current platform, if the hook has not run yet. A registration
or an override does not run the hook. So to override a class that the hook registers, look the class up first.

The registry is one immutable table (`kvref.spec_table`). Each change replaces the table by another one. The
hook is foreign code, so it runs in a transaction (`kvref.shared_state`). The hook's own thread sees each
registration at once. Other threads see all of them when the hook returns. If the hook fails, none of them is
kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, TypeVar, cast, final

from kvref.errors import PlatformError, UnregisteredSpecError
from kvref.platform import current_platform
from kvref.shared_state import SharedState
from kvref.spec_table import BUILT_IN, KVCacheSpecMetadata, ManagerClass, SpecClass, SpecTable
from kvref.specs import KVCacheSpec

__all__ = [
    "KVCacheSpecMetadata",
    "KVCacheSpecRegistry",
    "register_all_kvcache_specs",
    "register_kv_cache_spec",
]

SpecClassT = TypeVar("SpecClassT", bound=SpecClass)


@final
class KVCacheSpecRegistry:
    """The registry of the process.

    You may call every method in any thread. A platform's hook may call every method except `snapshot`.

    A look-up may have to run the hook of the current platform first. If the hook fails, the look-up raises
    `PlatformError`.
    """

    _shared: ClassVar[SharedState[SpecTable]] = SharedState(
        SpecTable(BUILT_IN, BUILT_IN, substitutes={}, platforms=frozenset())
    )

    # Look-ups

    @classmethod
    def get_metadata(cls, kvcache_spec_cls: SpecClass) -> KVCacheSpecMetadata | None:
        """The entry of a class or of its nearest registered ancestor; None if neither is registered."""
        return cls._table().find(kvcache_spec_cls)

    @classmethod
    def get_manager_class(cls, kvcache_spec: KVCacheSpec) -> ManagerClass | None:
        """The manager class for a spec; None if neither the spec's class nor an ancestor is registered."""
        entry = cls.get_metadata(type(kvcache_spec))
        return None if entry is None else entry.manager_class

    @classmethod
    def get_uniform_type_base_spec(cls, kvcache_spec: KVCacheSpec) -> SpecClass | None:
        """The uniform base for a spec; None if neither the spec's class nor an ancestor is registered."""
        entry = cls.get_metadata(type(kvcache_spec))
        return None if entry is None else entry.uniform_type_base_spec

    @classmethod
    def check_kv_cache_spec_registry(cls, kv_cache_spec: Mapping[str, KVCacheSpec]) -> None:
        """Check that the class of every spec, or an ancestor of that class, is registered.

        Args:
            kv_cache_spec: the spec of each layer, by the layer's name.

        Raises:
            UnregisteredSpecError: for some layer, neither is registered. The message names layer and class.
        """
        table = cls._table()
        for layer_name, spec in kv_cache_spec.items():
            if table.find(type(spec)) is None:
                raise UnregisteredSpecError(
                    f"layer {layer_name!r} has a spec of the unregistered class {type(spec).__qualname__}: "
                    "register it with @register_kv_cache_spec"
                )

    @classmethod
    def resolve(cls, kvcache_spec: KVCacheSpec) -> KVCacheSpec:
        """The spec that the planner uses in place of this one.

        If the spec's class has a substitute, the spec is rebuilt as a spec of the substitute. Otherwise it is
        returned as it is. A substitute may have a substitute in turn. A subclass of a substituted class is
        not affected.
        """
        return cls._table().resolve(kvcache_spec)

    # Changes

    @classmethod
    def register(
        cls,
        kvcache_spec_cls: SpecClass,
        manager_class: ManagerClass | None = None,
        uniform_type_base_spec: SpecClass | None = None,
    ) -> None:
        """Register a spec class. A second, equal registration changes nothing.

        Args:
            kvcache_spec_cls: the class.
            manager_class: the manager of the class. Required: it has a default only because vLLM's signature
                has one.
            uniform_type_base_spec: the uniform base: the class itself, which is the default, or an ancestor.
                Specs with the same uniform base may share a group.

        Raises:
            ConflictingRegistrationError: the class is already registered with another manager or base.
                Nothing changes.
            RegistrationError: no manager is given, or the base is neither the class nor an ancestor. Nothing
                changes.
        """
        base = kvcache_spec_cls if uniform_type_base_spec is None else uniform_type_base_spec
        # KVCacheSpecMetadata refuses None, like anything else that is not a manager class.
        entry = KVCacheSpecMetadata(kvcache_spec_cls, cast(ManagerClass, manager_class), base)
        cls._shared.change(lambda table: table.register(entry))

    @classmethod
    def override(
        cls,
        kvcache_spec_cls: SpecClass,
        manager_class: ManagerClass | None = None,
        uniform_type_base_spec: SpecClass | None = None,
        substitute: SpecClass | None = None,
    ) -> None:
        """Change the entry of a class, or give the class a substitute. No vLLM release has this.

        Args:
            kvcache_spec_cls: a class with an entry of its own.
            manager_class: the new manager; None keeps the present one.
            uniform_type_base_spec: the new uniform base; None keeps the present one.
            substitute: a subclass that accepts the same fields; None keeps the present substitute. See
                `resolve`.

        Raises:
            UnregisteredSpecError: the class has no entry of its own. Nothing changes.
            RegistrationError: no change is given; the base is neither the class nor an ancestor; or the
                substitute is no subclass, lacks a field, or adds one without a default. Nothing changes.
        """
        cls._shared.change(
            lambda table: table.override(kvcache_spec_cls, manager_class, uniform_type_base_spec, substitute)
        )

    @classmethod
    def remove_substitute(cls, kvcache_spec_cls: SpecClass) -> None:
        """Remove the substitute of a class. The planner then uses the class itself again.

        Raises:
            RegistrationError: the class has no substitute.
        """
        cls._shared.change(lambda table: table.remove_substitute(kvcache_spec_cls))

    # The platform's hook

    @classmethod
    def initialise(cls, vllm_config: object = None) -> None:
        """Run the hook of the current platform if it has not run yet. Called in a hook, this does nothing.

        If another thread is running a hook, this call waits until the hook returns.

        Raises:
            PlatformError: no platform could be chosen, or the hook failed. Nothing that the hook did is kept.
        """
        platform, shared = current_platform(), cls._shared
        if shared.in_transaction or platform in shared.state.platforms:
            return
        try:
            with shared.transaction():
                if platform not in shared.state.platforms:  # another thread was faster
                    platform.register_custom_kv_cache_specs(vllm_config)
                    shared.change(lambda table: replace(table, platforms=table.platforms | {platform}))
        except Exception as error:
            raise PlatformError(
                f"platform {platform.__module__}.{platform.__qualname__} failed to register its specs, and "
                f"nothing of what it did is kept: {type(error).__name__}: {error}"
            ) from error

    @classmethod
    def _table(cls) -> SpecTable:
        """The table for look-ups. It includes what the current platform's hook registers."""
        cls.initialise()
        return cls._shared.state

    @classmethod
    @contextmanager
    def snapshot(cls) -> Iterator[None]:
        """For tests: at exit, restore the registry to its state at entry. Do not use this in a hook."""
        table = cls._shared.state
        try:
            yield
        finally:
            cls._shared.change(lambda _: table)


def register_all_kvcache_specs(vllm_config: object = None) -> None:
    """Prepare the registry. An engine calls this at start, with its configuration.

    The built-in classes have their entries already, so this only runs the hook of the current platform.
    Further calls are harmless.

    Raises:
        PlatformError: the hook failed, or no platform could be chosen.
    """
    KVCacheSpecRegistry.initialise(vllm_config)


def register_kv_cache_spec(
    manager_class: ManagerClass | None = None,
    uniform_type_base_spec: SpecClass | None = None,
    override: bool = False,
) -> Callable[[SpecClassT], SpecClassT]:
    """Class decorator that registers a spec class. Put it above `@dataclass`.

    Args:
        manager_class: as in `KVCacheSpecRegistry.register`.
        uniform_type_base_spec: as in `KVCacheSpecRegistry.register`.
        override: if the class has an entry of its own already, change it with `KVCacheSpecRegistry.override`.

    Raises:
        ConflictingRegistrationError, RegistrationError: when the class is decorated, for the reasons given in
            `KVCacheSpecRegistry.register` and `KVCacheSpecRegistry.override`.
    """

    def decorate(kvcache_spec_cls: SpecClassT) -> SpecClassT:
        if override:
            try:
                KVCacheSpecRegistry.override(kvcache_spec_cls, manager_class, uniform_type_base_spec)
                return kvcache_spec_cls
            except UnregisteredSpecError:
                pass  # no entry to change yet
        KVCacheSpecRegistry.register(kvcache_spec_cls, manager_class, uniform_type_base_spec)
        return kvcache_spec_cls

    return decorate
