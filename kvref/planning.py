"""Which layers share blocks, and how many blocks there are: the configuration of a KV cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvref.errors import InvalidConfigError, UnregisteredSpecError
from kvref.managers import SingleTypeKVCacheManager
from kvref.registry import KVCacheSpecRegistry
from kvref.specs import KVCacheSpec, UniformTypeKVCacheSpecs

__all__ = ["KVCacheConfig", "KVCacheGroupSpec", "KVCacheTensor", "get_manager_for_kv_cache_spec"]


@dataclass(frozen=True)
class KVCacheTensor:
    """Memory of layers that take turns to use its blocks, one of each group at most.

    Raises:
        InvalidConfigError: at construction, for no bytes or no layers.
    """

    size: int
    """Bytes."""
    shared_by: Sequence[str]
    """Names of the layers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shared_by", tuple(self.shared_by))
        if self.size < 1 or not self.shared_by:
            raise InvalidConfigError(f"a tensor of {self.size} bytes for layers {self.shared_by} is none")


@dataclass(frozen=True)
class KVCacheGroupSpec:
    """Layers that share block tables.

    Raises:
        InvalidConfigError: at construction, without layers, with one twice, or with others than the spec's.
    """

    layer_names: Sequence[str]
    kv_cache_spec: KVCacheSpec
    """Of each of the layers, or the composite of their specs."""
    is_eagle_group: bool = False
    """Whether draft layers that read one token ahead are among them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "layer_names", tuple(self.layer_names))
        _check_names("group", self.layer_names)
        if isinstance(self.kv_cache_spec, UniformTypeKVCacheSpecs):
            known = set(self.kv_cache_spec.kv_cache_specs)
            if known != set(self.layer_names):
                raise InvalidConfigError(
                    f"a group of layers {sorted(self.layer_names)} has a composite spec of {sorted(known)}"
                )

    def spec_of(self, layer_name: str) -> KVCacheSpec:
        """The spec of one of the layers."""
        spec = self.kv_cache_spec
        return spec.kv_cache_specs[layer_name] if isinstance(spec, UniformTypeKVCacheSpecs) else spec


@dataclass(frozen=True)
class KVCacheConfig:
    """All that the scheduler and the workers must agree on.

    Raises:
        InvalidConfigError: at construction, for fewer than one block (the null block), a layer in two groups
            or tensors, or a tensor that is not `num_blocks` pages of each of its layers.
    """

    num_blocks: int
    """Blocks of the pool, the null block included."""
    kv_cache_tensors: Sequence[KVCacheTensor]
    """Memory of the layers; none where only the scheduler's side is wanted."""
    kv_cache_groups: Sequence[KVCacheGroupSpec]

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_cache_tensors", tuple(self.kv_cache_tensors))
        object.__setattr__(self, "kv_cache_groups", tuple(self.kv_cache_groups))
        if self.num_blocks < 1:
            raise InvalidConfigError(f"num_blocks must be at least 1, the null block, not {self.num_blocks}")
        groups = {name: group for group in self.kv_cache_groups for name in group.layer_names}
        if groups:
            _check_names("groups", [name for group in self.kv_cache_groups for name in group.layer_names])
        if not self.kv_cache_tensors:
            return
        stored = [name for tensor in self.kv_cache_tensors for name in tensor.shared_by]
        _check_names("tensors", stored)
        if set(stored) != set(groups):
            raise InvalidConfigError(
                f"layers of groups and tensors differ: {sorted(set(stored) ^ set(groups))} are only in one"
            )
        for tensor in self.kv_cache_tensors:
            for name in tensor.shared_by:
                page = groups[name].spec_of(name).page_size_bytes
                if tensor.size != self.num_blocks * page:
                    raise InvalidConfigError(
                        f"layer {name!r} needs {self.num_blocks} pages of {page} bytes, but its tensor has "
                        f"{tensor.size} bytes"
                    )


def get_manager_for_kv_cache_spec(kv_cache_spec: KVCacheSpec, **engine: Any) -> SingleTypeKVCacheManager:
    """Construct the manager that is registered for a spec.

    For a composite that is the manager of its layers' specs, given the one of the layer that comes first by
    name: they need the same blocks.

    Args:
        engine: what `SingleTypeKVCacheManager` takes besides the spec.

    Raises:
        UnregisteredSpecError: there is none.
        InvalidConfigError: the layers of a composite have several.
    """
    specs = [kv_cache_spec]
    if isinstance(kv_cache_spec, UniformTypeKVCacheSpecs):
        specs = [spec for _, spec in sorted(kv_cache_spec.kv_cache_specs.items())]
    managers = dict.fromkeys(KVCacheSpecRegistry.get_manager_class(spec) for spec in specs)
    if len(managers) > 1:
        names = sorted(str(manager and manager.__name__) for manager in managers)
        raise InvalidConfigError(f"layers of one group have several managers: {', '.join(names)}")
    [manager_class] = managers
    if manager_class is None:
        raise UnregisteredSpecError(
            f"{type(specs[0]).__qualname__} has no manager: register it with @register_kv_cache_spec"
        )
    return manager_class(specs[0], **engine)


def _check_names(what: str, names: Sequence[str]) -> None:
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated or not names:
        raise InvalidConfigError(f"{what} must have layers, each once; repeated: {repeated or 'none'}")
