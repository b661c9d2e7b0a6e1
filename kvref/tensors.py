"""KV-cache tensors on a torch device: allocate the memory, and give each layer its views (vLLM PR 36359).

    caches = allocate_kv_cache(config, "cuda")
    share_kv_caches(caches, shared_kv_cache_layers)
    bind_kv_cache(caches, forward_context)

`init_kv_cache` adds the sharing layers to their groups, and then makes these three calls.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeAlias

import torch

from kvref.errors import InvalidConfigError, OutOfCacheMemoryError
from kvref.layout import DEFAULT_LAYOUT, KVCacheLayout, KVCachePlacement, buffer_sizes, place_kv_caches
from kvref.planning import KVCacheConfig
from kvref.sharing import (
    add_kv_sharing_layers_to_kv_cache_groups,
    get_shared_kv_cache_layers,
    resolve_kv_sharing,
)

__all__ = [
    "KVCache",
    "KVCaches",
    "allocate_buffers",
    "allocate_kv_cache",
    "bind_kv_cache",
    "init_kv_cache",
    "reshape_kv_cache",
    "share_kv_caches",
]

KVCache: TypeAlias = torch.Tensor | list[torch.Tensor]
"""The cache of a layer: one tensor with the axes of the layout, or for a recurrent layer a list with one
tensor for each state."""


_MAX_TENSOR_BYTES = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class KVCaches:
    """The memory of a KV cache, and each layer's views of it."""

    placement: KVCachePlacement
    buffers: tuple[torch.Tensor, ...]
    """All memory of the cache, as one-dimensional int8 tensors."""
    layers: dict[str, KVCache]
    """The cache of each layer, by the layer's name. Sharing layers are included."""

    @property
    def num_bytes(self) -> int:
        return sum(self.placement.buffers)


def allocate_kv_cache(
    kv_cache_config: KVCacheConfig,
    device: torch.device | str,
    layout: KVCacheLayout = DEFAULT_LAYOUT,
    *,
    kernel_block_sizes: Sequence[int] | None = None,
    contiguous: bool = False,
) -> KVCaches:
    """Allocate the memory of a configuration, all zero, and make each layer's views of it.

    There is one buffer for each tensor of the configuration, or one buffer for all of them. See
    `place_kv_caches` for the arguments.

    Raises:
        InvalidConfigError: as in `place_kv_caches`.
        OutOfCacheMemoryError: the device has too little memory. Nothing stays allocated.
    """
    # Allocate first: a GPU zeroes the memory while the host computes the placement.
    buffers = _allocate(
        kv_cache_config, buffer_sizes(kv_cache_config, layout, contiguous), torch.device(device)
    )
    try:
        placement = place_kv_caches(
            kv_cache_config, layout, kernel_block_sizes=kernel_block_sizes, contiguous=contiguous
        )
    except InvalidConfigError:
        del buffers  # otherwise the traceback keeps the memory alive
        raise
    return reshape_kv_cache(placement, buffers)


def reshape_kv_cache(placement: KVCachePlacement, buffers: Sequence[torch.Tensor]) -> KVCaches:
    """Make each layer's views of existing buffers.

    Args:
        buffers: one-dimensional int8 tensors on one device, of the sizes in `placement.buffers`. Each begins
            at the start of its storage.

    Raises:
        InvalidConfigError: the buffers do not meet these conditions.
    """
    _check_buffers(buffers, placement.buffers)
    # Make the view of a buffer with a dtype once, for all layers that need it.
    typed: dict[tuple[int, torch.dtype], torch.Tensor] = {}
    layers: dict[str, KVCache] = {}
    for name, (buffer, start, pages) in placement.layers.items():
        views = []
        for view in pages.views:
            key = (buffer, view.dtype)
            if key not in typed:
                typed[key] = _as_elements(buffers[buffer], view.dtype)
            offset = (start + view.offset) // view.dtype.itemsize
            views.append(typed[key].as_strided(view.shape, view.strides, offset))
        layers[name] = views if pages.is_recurrent else views[0]
    return KVCaches(placement, tuple(buffers), layers)


def _check_buffers(buffers: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
    if len(buffers) != len(sizes):
        raise InvalidConfigError(f"{len(buffers)} buffers are given, but the placement has {len(sizes)}")
    for number, (buffer, size) in enumerate(zip(buffers, sizes, strict=True)):
        start = buffer.storage_offset()
        if buffer.dtype != torch.int8 or buffer.shape != (size,) or not buffer.is_contiguous() or start:
            raise InvalidConfigError(
                f"buffer {number} must be torch.int8 of shape ({size},), contiguous, from the start of its "
                f"storage, not {buffer.dtype} of shape {tuple(buffer.shape)} with strides "
                f"{buffer.stride()}, from element {start}"
            )
    if any(buffer.device != buffers[0].device for buffer in buffers):
        devices = dict.fromkeys(str(buffer.device) for buffer in buffers)
        raise InvalidConfigError(
            f"the buffers are on {len(devices)} devices, not on one: {', '.join(devices)}"
        )


def _as_elements(buffer: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if rest := buffer.numel() % dtype.itemsize:
        buffer = buffer[:-rest]
    return buffer.view(dtype)


def _allocate(config: KVCacheConfig, sizes: Sequence[int], device: torch.device) -> tuple[torch.Tensor, ...]:
    def describe(number: int) -> str:
        tensors = config.kv_cache_tensors if len(sizes) == 1 else config.kv_cache_tensors[number : number + 1]
        layers = [name for tensor in tensors for name in tensor.shared_by]
        return f"layer {', '.join(map(repr, layers[:3]))}{', ...' if layers[3:] else ''} on {device}"

    return allocate_buffers(sizes, device, describe)


def allocate_buffers(
    sizes: Sequence[int], device: torch.device, describe: Callable[[int], str], *, pin_memory: bool = False
) -> tuple[torch.Tensor, ...]:
    """Allocate one-dimensional int8 tensors of these sizes in bytes, all zero.

    Args:
        describe: takes the index of a buffer and returns text for an error: what the buffer is for, and where
            it is.

    Raises:
        OutOfCacheMemoryError: the device has too little memory. Nothing stays allocated.
    """
    torch.empty((), device=device)  # let torch report a device that does not exist

    def too_little(number: int, free: float) -> OutOfCacheMemoryError:
        return OutOfCacheMemoryError(
            f"no memory for {describe(number)}: it needs {sizes[number]} bytes, and {free} are free after "
            f"the first {sum(sizes[:number])} of the {sum(sizes)} bytes of the cache. Nothing stays "
            "allocated; plan with less memory"
        )

    # A CPU overcommits: allocation succeeds, and the process is killed when it writes to the memory.
    room = _free_bytes(device) if device.type == "cpu" else math.inf
    for number, end in enumerate(accumulate(sizes)):
        if end > room:
            raise too_little(number, room - end + sizes[number])
    buffers: list[torch.Tensor] = []
    for number, size in enumerate(sizes):
        try:
            if size > _MAX_TENSOR_BYTES:
                raise MemoryError("no tensor can be that large")
            buffers.append(torch.zeros(size, dtype=torch.int8, device=device, pin_memory=pin_memory))
        except (RuntimeError, MemoryError) as error:
            # On a CPU, PyTorch raises a plain RuntimeError when memory is short.
            if device.type == "cuda" and not isinstance(error, torch.OutOfMemoryError | MemoryError):
                raise
            free = _free_bytes(device)
            # The traceback keeps this frame alive, and with it the tensors in `buffers`.
            buffers.clear()
            if device.type == "cuda":
                torch.cuda.empty_cache()
            raise too_little(number, free) from error
    return tuple(buffers)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            [available] = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
        return int(available) * 1024
    except (OSError, ValueError):  # no such file: assume that all memory is free
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def share_kv_caches(kv_caches: KVCaches, shared_kv_cache_layers: Mapping[str, str]) -> None:
    """Give each sharing layer the cache of its owner: the same tensor objects, not copies.

    Args:
        shared_kv_cache_layers: the target of each sharing layer.

    Raises:
        KVSharingError: as in `resolve_kv_sharing`. Nothing has changed.
    """
    placement = kv_caches.placement
    owners = resolve_kv_sharing(
        shared_kv_cache_layers, placement.layers.keys(), placement.config.kv_cache_groups
    )
    kv_caches.layers.update({sharer: kv_caches.layers[owner] for sharer, owner in owners.items()})


def bind_kv_cache(kv_caches: KVCaches, forward_context: Mapping[str, object]) -> None:
    """Set the attribute `kv_cache` of each layer to its cache.

    Every layer of every group must have a cache. Only layers in the configuration's `runner_only_attn_layers`
    that share no cache need none.

    Args:
        forward_context: the layers of the model by name. Layers without a cache are left alone.

    Raises:
        InvalidConfigError: a layer of a group has no cache, or a layer with a cache is in no group or not in
            the model; then nothing has changed. Or a layer does not accept the attribute; then the layers
            before it keep their new `kv_cache`.
    """
    config, bound = kv_caches.placement.config, kv_caches.layers.keys()
    grouped = {name for group in config.kv_cache_groups for name in group.layer_names}
    sharing = {name for group in config.kv_cache_groups for name in group.kv_sharing_layers}
    needed = grouped - (set(config.runner_only_attn_layers) - sharing)
    for what, names in (
        ("of groups have no cache", needed - bound),
        ("with a cache are in no group", bound - grouped),
        ("with a cache are not in the model", bound - forward_context.keys()),
    ):
        if names:
            raise InvalidConfigError(f"layers {what}: {', '.join(sorted(names))}")
    for name, cache in kv_caches.layers.items():
        layer = forward_context[name]
        try:
            setattr(layer, "kv_cache", cache)  # noqa: B010  # a layer may be of any class
        except Exception as error:
            raise InvalidConfigError(
                f"layer {name!r} of class {type(layer).__name__} does not accept kv_cache: {error}"
            ) from error


def init_kv_cache(
    forward_context: Mapping[str, object],
    kv_cache_config: KVCacheConfig,
    device: torch.device | str,
    layout: KVCacheLayout = DEFAULT_LAYOUT,
    *,
    kernel_block_sizes: Sequence[int] | None = None,
    contiguous: bool = False,
) -> KVCaches:
    """Allocate the KV cache of a model, and set each layer's `kv_cache`, sharing layers included.

    Args:
        forward_context: the layers of the model by name. A layer shares if its attribute
            `kv_sharing_target_layer_name` names a target.
        layout, kernel_block_sizes, contiguous: as in `place_kv_caches`.

    Raises:
        KVSharingError: as in `resolve_kv_sharing`.
        InvalidConfigError: as in `place_kv_caches` and `bind_kv_cache`.
        OutOfCacheMemoryError: the device has too little memory. Nothing stays allocated.
    """
    shared = get_shared_kv_cache_layers(forward_context)
    groups = add_kv_sharing_layers_to_kv_cache_groups(shared, kv_cache_config.kv_cache_groups)
    config = replace(kv_cache_config, kv_cache_groups=groups)
    kv_caches = allocate_kv_cache(
        config, device, layout, kernel_block_sizes=kernel_block_sizes, contiguous=contiguous
    )
    share_kv_caches(kv_caches, shared)
    bind_kv_cache(kv_caches, forward_context)
    return kv_caches
