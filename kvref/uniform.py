"""Which layers are *uniform*: they always need the same number of token slots, so they may share a group.

Two specs are uniform if the registry has the same uniform base for both, and if their `uniform_key`s are
equal. So the order of the layers does not matter. (vLLM asks only the first spec, which may lack fields that
other specs have.)
"""

from __future__ import annotations

from collections.abc import Mapping

from kvref.errors import UnregisteredSpecError
from kvref.registry import KVCacheSpecRegistry
from kvref.specs import KVCacheSpec, UniformTypeKVCacheSpecs

__all__ = ["get_uniform_type_specs", "is_uniform_type", "is_uniform_with_collection"]


def is_uniform_with_collection(kv_cache_spec: KVCacheSpec, kv_cache_specs: Mapping[str, KVCacheSpec]) -> bool:
    """Whether a spec is uniform with the specs of all these layers. Block sizes may differ.

    Raises:
        UnregisteredSpecError: one of the specs is not registered.
    """
    KVCacheSpecRegistry.check_kv_cache_spec_registry(kv_cache_specs)
    base = KVCacheSpecRegistry.get_uniform_type_base_spec(kv_cache_spec)
    if base is None:
        raise UnregisteredSpecError(
            f"{type(kv_cache_spec).__qualname__} is not registered: use @register_kv_cache_spec"
        )
    return all(
        KVCacheSpecRegistry.get_uniform_type_base_spec(spec) is base
        and spec.uniform_key == kv_cache_spec.uniform_key
        for spec in kv_cache_specs.values()
    )


def is_uniform_type(kv_cache_specs: Mapping[str, KVCacheSpec]) -> bool:
    """Whether all layers are uniform and have the same block size. False if there are no layers.

    Raises:
        UnregisteredSpecError: the spec of a layer is not registered.
    """
    if not kv_cache_specs:
        return False
    first = next(iter(kv_cache_specs.values()))
    # Before the block sizes are compared: an unregistered spec must raise in any case.
    uniform = is_uniform_with_collection(first, kv_cache_specs)
    return uniform and len({spec.block_size for spec in kv_cache_specs.values()}) == 1


def get_uniform_type_specs(kv_cache_specs: Mapping[str, KVCacheSpec]) -> UniformTypeKVCacheSpecs | None:
    """The composite of the layers; None if they are not uniform or have different block sizes.

    Raises:
        UnregisteredSpecError: the spec of a layer is not registered.
    """
    if not is_uniform_type(kv_cache_specs):
        return None
    block_size = next(iter(kv_cache_specs.values())).block_size
    return UniformTypeKVCacheSpecs(block_size=block_size, kv_cache_specs=kv_cache_specs)
