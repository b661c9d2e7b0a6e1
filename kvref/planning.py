"""Plans a KV cache: which layers form a group, how many blocks there are, and which layers share memory.

The layers of one *group* share a block table. All groups allocate from one pool, so a block must take the
same number of bytes in every group. Planning therefore makes all pages equally large
(`unify_kv_cache_spec_page_size`) and gives all groups the same number of layers, as far as possible. Then the
first layers of all groups share one tensor, the second layers another tensor, and so on. That works because a
block belongs to one group at a time.

If there is only one group, every layer has a tensor of its own.

The order in which layers are given affects only this: which of the layers with equal specs share a group.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import zip_longest
from math import gcd, lcm
from typing import Any

from kvref.errors import InvalidConfigError, InvalidSpecError, SpecMergeError, UnregisteredSpecError
from kvref.managers import SingleTypeKVCacheManager
from kvref.registry import KVCacheSpecRegistry
from kvref.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MemoryLimits,
    MLAAttentionSpec,
    PaddedKVCacheSpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from kvref.uniform import get_uniform_type_specs

__all__ = [
    "BlockSizeWarning",
    "KVCacheConfig",
    "KVCacheGroupSpec",
    "KVCacheReport",
    "KVCacheTensor",
    "get_kv_cache_config_from_groups",
    "get_kv_cache_configs",
    "get_kv_cache_groups",
    "get_kv_cache_report",
    "get_manager_for_kv_cache_spec",
    "resolve_kv_cache_block_sizes",
    "unify_kv_cache_spec_page_size",
]

LayerSpecs = Mapping[str, KVCacheSpec]


class BlockSizeWarning(UserWarning):
    """To make all pages equal, the planner chose block sizes that make prefix hits much coarser."""


@dataclass(frozen=True)
class KVCacheTensor:
    """Memory for one layer, or for several layers of different groups.

    Layers of different groups can share memory because a block belongs to one group at a time.

    Raises:
        InvalidConfigError: at construction, if there are no layers.
    """

    size: int
    """Size in bytes."""
    shared_by: Sequence[str]
    """Names of the layers that use this memory."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shared_by", tuple(self.shared_by))
        if not self.shared_by:
            raise InvalidConfigError(f"a tensor of {self.size} bytes is for no layers: name its layers")


@dataclass(frozen=True)
class KVCacheGroupSpec:
    """A group: layers that share a block table.

    Raises:
        InvalidConfigError: at construction, if a composite spec has other layers than `owning_layers`, or if
            a layer shares a cache that is not in the group.
    """

    layer_names: Sequence[str]
    """Names of the group's layers. Empty on a worker that has no layer of the group."""
    kv_cache_spec: KVCacheSpec
    """The spec that all layers have, or the composite of their specs (`UniformTypeKVCacheSpecs`)."""
    is_eagle_group: bool = False
    """Whether the group has draft layers (EAGLE) that read one token ahead."""
    kv_sharing_layers: Mapping[str, str] = field(default_factory=dict, hash=False)
    """For each layer without a cache of its own, the layer whose cache it uses; see `kvref.sharing`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "layer_names", tuple(self.layer_names))
        object.__setattr__(self, "kv_sharing_layers", dict(self.kv_sharing_layers))
        owners = set(self.owning_layers)
        for sharer, owner in self.kv_sharing_layers.items():
            if sharer not in self._members or owner not in owners:
                raise InvalidConfigError(
                    f"layer {sharer!r} cannot share the cache of {owner!r} in a group of "
                    f"{', '.join(self.layer_names) or 'no layers'}: both must be in it, and {owner!r} must "
                    "have a cache of its own"
                )
        if isinstance(self.kv_cache_spec, UniformTypeKVCacheSpecs):
            known = set(self.kv_cache_spec.kv_cache_specs)
            if known != owners:
                raise InvalidConfigError(
                    f"a group of layers {sorted(owners)} has a composite spec of layers "
                    f"{sorted(known)}: give both the same layers"
                )

    @cached_property
    def _members(self) -> frozenset[str]:
        return frozenset(self.layer_names)

    @property
    def owning_layers(self) -> tuple[str, ...]:
        """The layers with a cache of their own."""
        return tuple(name for name in self.layer_names if name not in self.kv_sharing_layers)

    def spec_of(self, layer_name: str) -> KVCacheSpec:
        """The spec of a layer of the group. For a sharing layer, the spec of the layer whose cache it uses.

        Raises:
            InvalidConfigError: the layer is not in the group.
        """
        if layer_name not in self._members:
            raise InvalidConfigError(
                f"layer {layer_name!r} is not in the group of {', '.join(self.layer_names) or 'no layers'}"
            )
        spec = self.kv_cache_spec
        owner = self.kv_sharing_layers.get(layer_name, layer_name)
        return spec.kv_cache_specs[owner] if isinstance(spec, UniformTypeKVCacheSpecs) else spec


@dataclass(frozen=True)
class KVCacheConfig:
    """The plan of a KV cache for one worker or for the scheduler: blocks, tensors and groups.

    Raises:
        InvalidConfigError: at construction, if `num_blocks` is below 1; if a layer is in two groups or two
            tensors; if `runner_only_attn_layers` names a layer that is in no group; if a layer of a group
            lacks memory, or a layer has memory but no group; or if the size of a tensor is not `num_blocks`
            pages of each of its layers.
    """

    num_blocks: int
    """Number of blocks in the pool, the null block included."""
    kv_cache_tensors: Sequence[KVCacheTensor]
    """The memory of the layers. May be empty if only the scheduler uses the configuration."""
    kv_cache_groups: Sequence[KVCacheGroupSpec]
    runner_only_attn_layers: Collection[str] = ()
    """Layers that are in groups but have no memory of their own, because only the model runner uses them. You
    may list sharing layers here, but need not."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_cache_tensors", tuple(self.kv_cache_tensors))
        object.__setattr__(self, "runner_only_attn_layers", frozenset(self.runner_only_attn_layers))
        object.__setattr__(self, "kv_cache_groups", tuple(self.kv_cache_groups))
        if type(self.num_blocks) is not int or self.num_blocks < 1:
            names = ", ".join(name for group in self.kv_cache_groups for name in group.layer_names)
            raise InvalidConfigError(
                f"num_blocks must be at least 1, for the null block, not {self.num_blocks!r} "
                f"(layers: {names or 'none'})"
            )
        groups = {name: group for group in self.kv_cache_groups for name in group.layer_names}
        _check_names("groups", [name for group in self.kv_cache_groups for name in group.layer_names])
        if unknown := sorted(set(self.runner_only_attn_layers).difference(groups)):
            raise InvalidConfigError(
                f"runner_only_attn_layers names layers that are in no group: {', '.join(unknown)}"
            )
        if not self.kv_cache_tensors:
            return
        stored = [name for tensor in self.kv_cache_tensors for name in tensor.shared_by]
        _check_names("tensors", stored)
        owning = {name for group in self.kv_cache_groups for name in group.owning_layers}
        if differing := sorted(set(stored) ^ (owning - set(self.runner_only_attn_layers))):
            raise InvalidConfigError(
                f"layers {', '.join(differing)} have a tensor and no group, or a group and no tensor: give "
                "each layer both, unless it shares a cache or is the runner's alone"
            )
        for tensor in self.kv_cache_tensors:
            for name in tensor.shared_by:
                page = groups[name].spec_of(name).page_size_bytes
                if tensor.size != self.num_blocks * page:
                    raise InvalidConfigError(
                        f"layer {name!r} needs {self.num_blocks} pages of {page} bytes, but its tensor has "
                        f"{tensor.size} bytes: give it {self.num_blocks * page}"
                    )


def get_manager_for_kv_cache_spec(
    kv_cache_spec: KVCacheSpec, limits: MemoryLimits, **engine: Any
) -> SingleTypeKVCacheManager:
    """Construct the manager that is registered for the spec of a group.

    The layers of a composite must all have the same manager class. The manager gets the spec of the layer
    that needs most blocks for a request. If several layers need equally many, it gets the spec of the first
    by name.

    Args:
        kv_cache_spec: the spec of a group.
        limits: the engine's limits.
        engine: the other arguments of `SingleTypeKVCacheManager`.

    Raises:
        UnregisteredSpecError: no manager is registered.
        InvalidConfigError: the layers of a composite have different managers.
    """
    specs = [kv_cache_spec]
    if isinstance(kv_cache_spec, UniformTypeKVCacheSpecs):
        specs = [spec for _, spec in sorted(kv_cache_spec.kv_cache_specs.items())]
    managers = dict.fromkeys(KVCacheSpecRegistry.get_manager_class(spec) for spec in specs)
    if len(managers) > 1:
        names = sorted(str(manager and manager.__name__) for manager in managers)
        raise InvalidConfigError(f"layers of one group have different managers: {', '.join(names)}")
    [manager_class] = managers
    if manager_class is None:
        raise UnregisteredSpecError(
            f"{type(specs[0]).__qualname__} has no manager: register it with @register_kv_cache_spec"
        )
    demanding = max(specs, key=lambda spec: _num_blocks_of_request(spec, limits))
    return manager_class(demanding, limits=limits, **engine)


def _check_names(what: str, names: Sequence[str]) -> None:
    if len({*names}) < len(names):
        repeated = [name for name, times in Counter(names).items() if times > 1]
        raise InvalidConfigError(f"{what} have layers more than once: {', '.join(repeated)}; name each once")


def unify_kv_cache_spec_page_size(kv_cache_spec: LayerSpecs) -> dict[str, KVCacheSpec]:
    """Make the pages of all layers as large as the largest page.

    For a layer with smaller pages, the function multiplies the block size as far as the pages allow, and pads
    the rest. Some layers keep their block size and get only padding: layers whose page does not depend on the
    block size (recurrent layers), and layers whose sinks would not fill whole blocks of the larger size. If
    prefix hits become more than twice as coarse, the function issues a `BlockSizeWarning`.

    Raises:
        InvalidConfigError: the page of a layer cannot be made that large.
    """
    largest = max((spec.page_size_bytes for spec in kv_cache_spec.values()), default=0)
    unified: dict[str, KVCacheSpec] = {}
    for name, spec in kv_cache_spec.items():
        try:
            unified[name] = _with_page(spec, largest)
        except InvalidSpecError as error:
            raise InvalidConfigError(
                f"layer {name!r} of class {type(spec).__name__} cannot have pages of {largest} bytes, the "
                f"largest of all layers: {error}"
            ) from error
    before = lcm(*(spec.block_size for spec in kv_cache_spec.values()))
    after = lcm(*(spec.block_size for spec in unified.values()))
    if after > 2 * before:
        warnings.warn(
            f"with pages of {largest} bytes for all layers, prefix hits are multiples of {after} tokens; the "
            f"layers' own block sizes would make them multiples of {before}",
            BlockSizeWarning,
            stacklevel=2,
        )
    return unified


def _with_page(spec: KVCacheSpec, page: int) -> KVCacheSpec:
    if spec.page_size_bytes == page:
        return spec
    made = spec
    block_size = page // spec.page_size_bytes * spec.block_size
    sinks = spec.sink_len if isinstance(spec, SinkFullAttentionSpec) else 0
    if isinstance(spec, AttentionSpec) and sinks % block_size == 0:
        # Padding fits only one block size, so drop it. A page that is still too small is padded again below.
        made = replace(spec, page_size_padded=None).copy_with_new_block_size(block_size)
    if made.page_size_bytes != page and isinstance(made, PaddedKVCacheSpec):
        made = replace(made, page_size_padded=page)
    if made.page_size_bytes != page:
        raise InvalidSpecError(
            f"its pages of {spec.page_size_bytes} bytes can be neither stretched nor padded"
        )
    return made


def get_kv_cache_groups(
    kv_cache_spec: LayerSpecs, disable_hybrid_kv_cache_manager: bool = False
) -> list[KVCacheGroupSpec]:
    """Put layers into groups.

    If all specs merge, or if all layers are uniform (`kvref.uniform`) and have one manager class, the layers
    form one group. Otherwise all pages are made equal, and the layers of each *kind* are distributed over
    groups. A kind is all layers with equal specs.

    A group has at most as many layers as the smallest kind. But if the largest kind has less than 1.5 times
    as many layers as the smallest, a group has at most as many layers as the largest kind. So few groups have
    fewer layers than the others.

    Args:
        kv_cache_spec: the spec of each layer, by the layer's name. If the registry has a substitute for the
            class of a spec, the planner uses the substitute.
        disable_hybrid_kv_cache_manager: plan layers with a window or a chunk as full attention.

    Raises:
        UnregisteredSpecError: the spec of a layer is not registered. This is checked first.
        InvalidConfigError: pages cannot be made equal; or the layers need several groups, although
            `disable_hybrid_kv_cache_manager` is set.
    """
    KVCacheSpecRegistry.check_kv_cache_spec_registry(kv_cache_spec)
    specs = {name: KVCacheSpecRegistry.resolve(spec) for name, spec in kv_cache_spec.items()}
    if disable_hybrid_kv_cache_manager:
        specs = {name: _as_full_attention(spec) for name, spec in specs.items()}
    if not specs:
        return []
    with suppress(SpecMergeError):
        return [KVCacheGroupSpec(tuple(specs), _merged(specs.values()))]
    composite = get_uniform_type_specs(specs)
    if composite is not None and len({KVCacheSpecRegistry.get_manager_class(s) for s in specs.values()}) == 1:
        return [KVCacheGroupSpec(tuple(specs), composite)]
    if disable_hybrid_kv_cache_manager:
        first = {type(spec).__name__: name for name, spec in reversed(specs.items())}
        named = ", ".join(f"{kind} (layer {name!r})" for kind, name in sorted(first.items()))
        raise InvalidConfigError(
            f"layers with {named} need several groups: do not set disable_hybrid_kv_cache_manager"
        )
    kinds: dict[KVCacheSpec, list[str]] = {}
    for name, spec in unify_kv_cache_spec_page_size(specs).items():
        kinds.setdefault(spec, []).append(name)
    smallest, largest = min(map(len, kinds.values())), max(map(len, kinds.values()))
    size = largest if 2 * largest < 3 * smallest else smallest
    groups = []
    for spec, names in kinds.items():
        count = -(-len(names) // size)
        groups += [KVCacheGroupSpec(names[place::count], spec) for place in range(count)]
    return groups


def _merged(specs: Iterable[KVCacheSpec]) -> KVCacheSpec:
    specs = list(specs)
    return type(specs[0]).merge(specs)


def _as_full_attention(spec: KVCacheSpec) -> KVCacheSpec:
    """The full-attention spec in place of a built-in spec with a window or a chunk.

    Other specs are returned as they are: a vendor's class may have rules of its own.
    """
    if type(spec) not in (SlidingWindowSpec, SlidingWindowMLASpec, ChunkedLocalAttentionSpec):
        return spec
    full = MLAAttentionSpec if isinstance(spec, SlidingWindowMLASpec) else FullAttentionSpec
    known = {each.name for each in fields(full)}
    return full(**{each.name: getattr(spec, each.name) for each in fields(spec) if each.name in known})


def get_kv_cache_configs(
    kv_cache_specs: Sequence[LayerSpecs],
    available_memory: Sequence[int],
    limits: MemoryLimits,
    disable_hybrid_kv_cache_manager: bool = False,
    num_gpu_blocks_override: int | None = None,
) -> list[KVCacheConfig]:
    """Plan for several workers. All get the same groups in the same order, and the same number of blocks.

    Args:
        kv_cache_specs: for each worker, the specs of its layers. The same name on several workers means the
            same layer.
        available_memory: for each worker, the bytes that its tensors may take.
        limits: the engine's limits.
        disable_hybrid_kv_cache_manager: as in `get_kv_cache_groups`.
        num_gpu_blocks_override: the number of blocks, whatever the memory. None computes it from the memory.

    Returns:
        For each worker, the configuration with only its own layers.

    Raises:
        UnregisteredSpecError: as in `get_kv_cache_groups`.
        InvalidConfigError: as in `get_kv_cache_groups`; or workers have different specs for a layer; or
            `available_memory` does not have one number for each worker; or there are too few blocks for the
            null block and one request of `limits.max_model_len` tokens.
    """
    layers: dict[str, KVCacheSpec] = {}
    for specs in kv_cache_specs:
        for name, spec in specs.items():
            if layers.setdefault(name, spec) != spec:
                raise InvalidConfigError(
                    f"workers do not agree on layer {name!r}: give {layers[name]} or {spec} to all"
                )
    groups = get_kv_cache_groups(layers, disable_hybrid_kv_cache_manager)
    if len(available_memory) != len(kv_cache_specs):
        raise InvalidConfigError(
            f"{len(kv_cache_specs)} workers, but available_memory for {len(available_memory)}: "
            "give one number for each worker"
        )
    plans = [_of_worker(groups, set(specs)) for specs in kv_cache_specs]
    num_blocks = 1
    if groups:
        block_bytes = [sum(page for page, _ in _tensor_pages(plan)) for plan in plans]
        num_blocks, worker = min(
            (available_memory[place] // of, place) for place, of in enumerate(block_bytes) if of
        )
        if num_gpu_blocks_override is not None:
            num_blocks = num_gpu_blocks_override
        needed = 1 + sum(_num_blocks_of_request(group.kv_cache_spec, limits) for group in groups)
        if num_blocks < needed:
            why = (
                f"has {available_memory[worker]} bytes, room for"
                if num_gpu_blocks_override is None
                else "gets by num_gpu_blocks_override"
            )
            raise InvalidConfigError(
                f"worker {worker} with the layers {', '.join(kv_cache_specs[worker])} {why} {num_blocks} "
                f"blocks, too few for a request of max_model_len {limits.max_model_len}: it needs {needed} "
                f"with the null block, {needed * block_bytes[worker]} bytes on this worker; give more "
                "memory, or lower max_model_len"
            )
    return [get_kv_cache_config_from_groups(plan, num_blocks) for plan in plans]


def get_kv_cache_config_from_groups(
    kv_cache_groups: Sequence[KVCacheGroupSpec], num_blocks: int
) -> KVCacheConfig:
    """Make the configuration for these groups, with `num_blocks` blocks, the null block included."""
    tensors = [KVCacheTensor(num_blocks * page, names) for page, names in _tensor_pages(kv_cache_groups)]
    return KVCacheConfig(num_blocks, tensors, kv_cache_groups)


def _of_worker(groups: Sequence[KVCacheGroupSpec], own: set[str]) -> list[KVCacheGroupSpec]:
    plan = []
    for group in groups:
        names = [name for name in group.layer_names if name in own]
        spec = group.kv_cache_spec
        if isinstance(spec, UniformTypeKVCacheSpecs) and len(names) < len(group.layer_names):
            kept = {name: spec.kv_cache_specs[name] for name in names}
            # A worker without layers of the group must still know the group's kind: keep one spec.
            spec = replace(spec, kv_cache_specs=kept) if kept else min(spec.kv_cache_specs.items())[1]
        plan.append(replace(group, layer_names=names, kv_cache_spec=spec))
    return plan


def _tensor_pages(groups: Sequence[KVCacheGroupSpec]) -> list[tuple[int, list[str]]]:
    """For each tensor, the size of a page and the names of the layers that use the tensor."""
    if len(groups) == 1:
        return [(groups[0].spec_of(name).page_size_bytes, [name]) for name in groups[0].owning_layers]
    rows = zip_longest(*(group.owning_layers for group in groups))
    return [
        (groups[0].kv_cache_spec.page_size_bytes, [name for name in row if name is not None]) for row in rows
    ]


def _num_blocks_of_request(spec: KVCacheSpec, limits: MemoryLimits) -> int:
    return -(-spec.max_memory_usage_bytes(limits) // spec.page_size_bytes)


def _num_sink_blocks(spec: KVCacheSpec) -> int:
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return max(map(_num_sink_blocks, spec.kv_cache_specs.values()))
    return spec.sink_len // spec.block_size if isinstance(spec, SinkFullAttentionSpec) else 0


def resolve_kv_cache_block_sizes(
    kv_cache_groups: Sequence[KVCacheGroupSpec], enable_caching: bool = True
) -> tuple[int, int]:
    """The scheduler block size and the hash block size, in tokens.

    The scheduler block size is the least common multiple of the groups' block sizes. The hash block size is
    their greatest common divisor. Without caching, both are the least common multiple.

    Raises:
        InvalidConfigError: there are no groups.
    """
    sizes = [group.kv_cache_spec.block_size for group in kv_cache_groups]
    if not sizes:
        raise InvalidConfigError("without groups there are no block sizes: give at least one group")
    return lcm(*sizes), gcd(*sizes) if enable_caching else lcm(*sizes)


@dataclass(frozen=True)
class KVCacheReport:
    """How many requests a configuration can serve at a time."""

    max_concurrency: float
    """How many requests of `max_model_len` tokens fit into the cache at a time."""
    num_tokens: int
    """The tokens of `max_concurrency` requests, each of `max_model_len` tokens."""


def get_kv_cache_report(kv_cache_config: KVCacheConfig, limits: MemoryLimits) -> KVCacheReport:
    """Compute how many requests a configuration can serve at a time.

    The null block and the sink blocks do not count, because no request gets them. The order of groups and
    layers does not matter.
    """
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    sinks = sum(map(_num_sink_blocks, specs))
    usable = kv_cache_config.num_blocks - 1 - sinks
    needed = sum(_num_blocks_of_request(spec, limits) for spec in specs) - sinks
    concurrency = usable / needed if needed else float("inf")
    return KVCacheReport(
        max_concurrency=concurrency,
        num_tokens=usable * limits.max_model_len // needed if needed else 0,
    )
