"""The reference with a correct plugin (`plugged`), and faults that a plugin can have.

A process with `-X kvref-no-plugin` has the reference without the plugin.
"""

from __future__ import annotations

from typing import Any

import kvref.planning
import kvref.platform
from kvref.planning import KVCacheConfig, KVCacheReport
from kvref.platform import Platform, set_current_platform
from kvref.registry import KVCacheSpecRegistry
from kvref.specs import MambaSpec, MemoryLimits, UniformTypeKVCacheSpecs
from kvref.target import PluginInfo
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.plugins import plugin_is_left_out

_get_kv_cache_report = kvref.planning.get_kv_cache_report
_current_platform = kvref.platform.current_platform
_initialise = KVCacheSpecRegistry.initialise
_state_bytes: Any = MambaSpec.__dict__["unpadded_page_size_bytes"]


def plugged() -> Any:
    """The reference with the plugin in `acme.py`, or without it in a process with `-X kvref-no-plugin`."""
    if plugin_is_left_out():
        from kvref_conformance.targets.reference.target import ReferenceTarget

        return ReferenceTarget()
    # Import the plugin first: the target collects derived classes when it is imported.
    from kvref_conformance.targets.faults.acme import AcmePlatform

    def get_kv_cache_report(kv_cache_config: KVCacheConfig, limits: MemoryLimits) -> KVCacheReport:
        return _get_kv_cache_report(kv_cache_config, limits)

    break_it(kvref.planning, "get_kv_cache_report", get_kv_cache_report)
    set_current_platform(AcmePlatform)
    from kvref_conformance.targets.codec import foreign
    from kvref_conformance.targets.reference.registry import MANAGERS
    from kvref_conformance.targets.reference.target import ReferenceTarget

    class PluggedReference(ReferenceTarget):
        """The reference with the plugin in `acme.py`."""

        @property
        def plugin(self) -> PluginInfo | None:
            return {
                "name": "acme",
                "version": "acme-kvref 1",
                "packages": ["kvref_conformance"],
                "managers": foreign(MANAGERS),
                "notes": [],
            }

    return PluggedReference()


def override_not_reached() -> Any:
    """A group computes its memory with the stock class of each spec, so the plugin's override is not used."""

    def max_memory_usage_bytes(group: Any, limits: MemoryLimits) -> int:
        blocks = []
        for spec in group.kv_cache_specs.values():
            stock = next(cls for cls in type(spec).__mro__ if cls.__module__ == "kvref.specs")
            view: Any = object.__new__(stock)
            view.__dict__.update(spec.__dict__)
            blocks.append(-(-view.max_memory_usage_bytes(limits) // spec.page_size_bytes))
        return int(max(blocks) * group.page_size_bytes)

    break_it(UniformTypeKVCacheSpecs, "max_memory_usage_bytes", max_memory_usage_bytes)
    return plugged()


def parameter_added_by_override() -> Any:
    """An override in the plugin's spec requires an argument that no caller passes."""
    target = plugged()
    if not plugin_is_left_out():
        from kvref_conformance.targets.faults.acme import AcmeSpec

        def max_admission_blocks_per_request(
            spec: AcmeSpec, max_in_flight_tokens: int, max_model_len: int, banks_in_use: int
        ) -> None:
            return None

        break_it(AcmeSpec, "max_admission_blocks_per_request", max_admission_blocks_per_request)
    return target


def patch_of_a_name_imported_before() -> Any:
    """The plugin patches a function, but the registry has already imported the original by name."""

    def current_platform() -> type[Platform]:
        return _current_platform()

    if not plugin_is_left_out():
        break_it(kvref.platform, "current_platform", current_platform)
    return plugged()


def hook_at_every_look_up() -> Any:
    """The platform's hook runs at every look-up instead of once."""

    def initialise(vllm_config: object = None) -> None:
        _initialise(vllm_config)
        _current_platform().register_custom_kv_cache_specs(vllm_config)

    break_it(KVCacheSpecRegistry, "initialise", staticmethod(initialise))
    return plugged()


def stock_pages_changed() -> Any:
    """The plugin changes the page size of a stock class."""

    def unpadded_page_size_bytes(spec: Any) -> Any:
        return 2 * _state_bytes.fget(spec)

    if not plugin_is_left_out():
        break_it(MambaSpec, "unpadded_page_size_bytes", property(unpadded_page_size_bytes))
    return plugged()


def fault_of_the_reference() -> Any:
    """The plugin is correct, but its spec inherits a fault of the reference."""
    target = plugged()
    from kvref_conformance.targets.faults.spec import alignment_lost_in_merge

    alignment_lost_in_merge()
    return target
