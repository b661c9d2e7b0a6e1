"""Computes where every byte of a KV cache will be, before any memory is allocated.

A page of an attention layer has up to four axes: K and V, heads, states, and the content of one state of one
head. (`kvref.specs` says what a state is.) With an axis for blocks and one for layers there are six. Each
attention backend wants its own order of these axes. A `KVCacheLayout` is one such order. `place_kv_caches`
computes the resulting offsets and strides for each layer of a configuration.

Some orders split a page into pieces: one half for K and one for V, or one piece for each head. That works
only if all layers that use the memory have the same kind of page, without padding. Otherwise the bytes of a
page stay together. The views then still have their axes in the backend's order, but with other strides (vLLM
PR 31635).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import prod
from typing import NamedTuple, TypeAlias

import torch

from kvref.errors import InvalidConfigError
from kvref.planning import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from kvref.specs import AttentionSpec, KVCacheSpec, MambaSpec, UniformTypeKVCacheSpecs

__all__ = [
    "DEFAULT_LAYOUT",
    "CacheView",
    "KVCacheLayout",
    "KVCachePlacement",
    "LayerPlacement",
    "PageLayout",
    "Run",
    "buffer_sizes",
    "place_kv_caches",
]

Run: TypeAlias = tuple[int, int]
"""A contiguous piece of memory: (first byte, number of bytes)."""


@dataclass(frozen=True)
class KVCacheLayout:
    """The order of the cache's axes: in memory, and in the views that layers get.

    Each axis has a letter: L layers, B blocks, K for K and V, H heads, N states of a block, C content of one
    state of one head.

    Raises:
        InvalidConfigError: at construction, if `order` does not have L, B, H, N and C once each and K at most
            once, or if `axes` does not have the letters of `order` without L.
    """

    order: str
    """The axes in memory, the outermost first: "LBNHC", for example, or "LKBNHC" with all K before all V."""
    axes: str = ""
    """The axes of a layer's view, in the order that the backend wants. The default is "KBHNC", or "BHNC" if
    `order` has no K (vLLM RFC 42082)."""

    def __post_init__(self) -> None:
        wanted = "KBHNC" if "K" in self.order else "BHNC"
        object.__setattr__(self, "axes", self.axes or wanted)
        for what, axes, needed in (("order", self.order, f"L{wanted}"), ("axes", self.axes, wanted)):
            if sorted(axes) != sorted(needed):
                raise InvalidConfigError(
                    f"KVCacheLayout.{what} must have each of {', '.join(needed)} exactly once, not {axes!r}"
                )

    @property
    def is_layer_outermost(self) -> bool:
        """Whether each layer's memory is contiguous. If not, all layers share one buffer."""
        return self.order[0] == "L"


DEFAULT_LAYOUT = KVCacheLayout("LBNHC")


@dataclass(frozen=True)
class CacheView:
    """Describes a tensor over a layer's memory. `shape` and `strides` are in elements, `offset` in bytes."""

    dtype: torch.dtype
    axes: str
    """A letter for each axis, as in `KVCacheLayout`. In a layer that is not attention, every axis but B has
    the letter S. In an attention layer, axis B counts kernel blocks; a block may consist of several."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    """Bytes from the start of the layer's memory."""


@dataclass(frozen=True)
class PageLayout:
    """The form of a layer's pages, wherever the layer's memory is."""

    block_stride: int
    """Bytes from one block to the next."""
    page_size_bytes: int
    content_size_bytes: int
    """Bytes of a page without padding."""
    views: tuple[CacheView, ...]
    """One view, or for a recurrent layer one view for each of its states."""
    is_recurrent: bool
    runs: tuple[Run, ...]
    """The contiguous pieces of block 0's content. Positions count from the start of the layer's memory."""


class LayerPlacement(NamedTuple):
    """Where a layer's memory is: the index of its buffer, and the byte in that buffer where it starts."""

    buffer: int
    offset: int
    pages: PageLayout

    def runs_of(self, block: int) -> Iterator[Run]:
        """The contiguous pieces of a block's content. Positions count from the start of the buffer."""
        start = self.offset + block * self.pages.block_stride
        return ((start + offset, size) for offset, size in self.pages.runs)


@dataclass(frozen=True)
class KVCachePlacement:
    """Where the memory of each layer of a configuration is."""

    config: KVCacheConfig
    buffers: tuple[int, ...]
    """The size of each buffer in bytes."""
    layers: Mapping[str, LayerPlacement]
    """For each layer with a cache of its own, by name, its placement. Sharing layers are not here."""


def place_kv_caches(
    config: KVCacheConfig,
    layout: KVCacheLayout = DEFAULT_LAYOUT,
    *,
    kernel_block_sizes: Sequence[int] | None = None,
    contiguous: bool = False,
) -> KVCachePlacement:
    """Compute where the pages of all layers of a configuration are.

    Args:
        kernel_block_sizes: for each group, the tokens in a block of the attention kernel. This number must
            divide the group's block size. Axis B of the views of attention layers counts kernel blocks.
        contiguous: place all tensors in one buffer, even if the layout does not need that.

    Raises:
        InvalidConfigError: `layout` is not a `KVCacheLayout`; `kernel_block_sizes` does not have one number
            for each group; or a layer does not fit the layout or the kernel block size. In the last case the
            message names the layer.
    """
    buffers = buffer_sizes(config, layout, contiguous)
    groups, slots = config.kv_cache_groups, config.kv_cache_tensors
    if kernel_block_sizes is not None and len(kernel_block_sizes) != len(groups):
        raise InvalidConfigError(
            f"{len(kernel_block_sizes)} kernel block sizes for {len(groups)} groups: give one for each group"
        )
    owners: dict[str, _Owner] = {}
    kernels: Sequence[int | None] = kernel_block_sizes or [None] * len(groups)
    for group, kernel in zip(groups, kernels, strict=True):
        owners.update(_owners(group, kernel))
    regions = [[slot] for slot in slots] if layout.is_layer_outermost else [list(slots)] * bool(slots)
    # A region is one tensor, or all tensors of a shared buffer. Lay out equal regions once: there are many.
    known: dict[object, _Region] = {}
    layers: dict[str, LayerPlacement] = {}
    start = 0
    for number, region in enumerate(regions):
        key = tuple(tuple(id(owners[name]) for name in slot.shared_by) for slot in region)
        if key not in known:
            known[key] = _lay_out(region, owners, config.num_blocks, layout)
        offsets, pages = known[key]
        for slot, offset in zip(region, offsets, strict=True):
            for name in slot.shared_by:
                page = pages[id(owners[name])]
                layers[name] = LayerPlacement(0 if contiguous else number, start + offset, page)
                with _errors_of_layer(name, layout):
                    _check_alignment(layers[name])
        if contiguous:
            start += sum(slot.size for slot in region)
    return KVCachePlacement(config, buffers, layers)


def buffer_sizes(config: KVCacheConfig, layout: KVCacheLayout, contiguous: bool) -> tuple[int, ...]:
    """The size of each buffer in bytes. There is one buffer for each tensor, or one for all of them.

    Raises:
        InvalidConfigError: `layout` is not a `KVCacheLayout`.
    """
    if not isinstance(layout, KVCacheLayout):
        order = layout if isinstance(layout, str) else DEFAULT_LAYOUT.order
        raise InvalidConfigError(
            f"the layout must be a KVCacheLayout, not {layout!r}: for example KVCacheLayout({order!r})"
        )
    sizes = [tensor.size for tensor in config.kv_cache_tensors]
    together = contiguous or not layout.is_layer_outermost
    return (sum(sizes),) if together and sizes else tuple(sizes)


class _Owner(NamedTuple):
    """The spec and kernel block size of a layer that owns memory. Several layers can share an `_Owner`."""

    spec: KVCacheSpec
    kernel_block_size: int | None

    @property
    def kernel_blocks(self) -> int:
        """Kernel blocks per block."""
        kernel = self.spec.block_size if self.kernel_block_size is None else self.kernel_block_size
        if type(kernel) is not int or kernel < 1 or self.spec.block_size % kernel:
            raise InvalidConfigError(
                f"the block size, {self.spec.block_size} tokens, is not a multiple of the kernel block size, "
                f"{kernel!r}"
            )
        return self.spec.block_size // kernel


def _owners(group: KVCacheGroupSpec, kernel_block_size: int | None) -> dict[str, _Owner]:
    """The `_Owner` of each layer of a group that owns its memory.

    Layers with the same spec object get the same `_Owner`, because there may be thousands of layers.
    """
    spec = group.kv_cache_spec
    if not isinstance(spec, UniformTypeKVCacheSpecs):
        return dict.fromkeys(group.owning_layers, _Owner(spec, kernel_block_size))
    made: dict[int, _Owner] = {}
    for each in spec.kv_cache_specs.values():
        made.setdefault(id(each), _Owner(each, kernel_block_size))
    return {name: made[id(each)] for name, each in spec.kv_cache_specs.items()}


def _check_alignment(placed: LayerPlacement) -> None:
    for view in placed.pages.views:
        if (placed.offset + view.offset) % view.dtype.itemsize:
            raise InvalidConfigError(
                f"a state would begin at byte {view.offset} of its page, where no {view.dtype} can: list the "
                "states with the largest dtype first"
                if view.offset % view.dtype.itemsize
                else f"it would begin at byte {placed.offset + view.offset}, where no {view.dtype} can: pad "
                f"its page, or those before it, to a multiple of {view.dtype.itemsize} bytes"
            )


@dataclass(frozen=True)
class _AttentionPages:
    """The sizes of the axes of an attention layer's pages, in one kernel block.

    If these are equal for several layers, the layers can share memory in any order of axes.
    """

    sizes: Mapping[str, int]
    itemsize: int
    kernel_blocks: int
    padding: int


def _attention_pages(owner: _Owner, layout: KVCacheLayout) -> _AttentionPages | None:
    """The `_AttentionPages` of an attention layer; None for any other layer."""
    spec, kernel_blocks = owner.spec, owner.kernel_blocks
    if not isinstance(spec, AttentionSpec):
        return None
    states = Fraction(spec.num_states, kernel_blocks)
    if states.denominator != 1:
        raise InvalidConfigError(
            f"{spec.num_states} states of a block cannot be divided among {kernel_blocks} kernel blocks"
        )
    sizes = {"H": spec.num_kv_heads, "N": int(states)}
    content = Fraction(spec.state_content_size_bytes, spec.dtype.itemsize)
    if "K" in layout.order:
        packed = spec.packed_state_bytes is not None or spec.head_size_v == 0
        if not packed and spec.head_size != spec.head_size_v:
            raise InvalidConfigError(
                f"K has head size {spec.head_size} and V {spec.head_size_v}, so they cannot be the two "
                "halves of axis K: choose a layout without K"
            )
        sizes["K"] = 1 if packed else 2
        content /= sizes["K"]
    if content.denominator != 1:
        raise InvalidConfigError(
            f"a state of {spec.state_content_size_bytes} bytes is no whole number of {spec.dtype}"
        )
    padding = spec.page_size_bytes - spec.unpadded_page_size_bytes
    return _AttentionPages({**sizes, "C": int(content)}, spec.dtype.itemsize, kernel_blocks, padding)


_Region: TypeAlias = tuple[Sequence[int], Mapping[int, PageLayout]]
"""The byte where the memory of each tensor begins, and the pages of each `_Owner`, by `id(owner)`."""


def _lay_out(
    region: Sequence[KVCacheTensor], owners: Mapping[str, _Owner], num_blocks: int, layout: KVCacheLayout
) -> _Region:
    """Lay out the blocks of one region: one tensor, or all tensors that share a buffer."""
    named: dict[int, str] = {}
    for name in [name for slot in region for name in slot.shared_by]:
        named.setdefault(id(owners[name]), name)
    attention: dict[int, _AttentionPages | None] = {}
    for owner, name in named.items():
        with _errors_of_layer(name, layout):
            own = attention[owner] = _attention_pages(owners[name], layout)
            if own and own.kernel_blocks > 1 and (len(region) > 1 or own.padding):
                raise InvalidConfigError(
                    f"blocks with {'padding' if own.padding else 'other layers'} between them cannot be "
                    f"{own.kernel_blocks} kernel blocks each: choose blocks of "
                    f"{owners[name].kernel_block_size} tokens, or a layout that begins with L and no padding"
                )
    first, *others = attention.values()
    dense: Mapping[str, int] | None = None
    page_sizes = [slot.size // num_blocks for slot in region]
    if first is not None and not first.padding and all(other == first for other in others):
        sizes = {**first.sizes, "L": len(region), "B": num_blocks * first.kernel_blocks}
        dense = _strides(layout.order, sizes)
        block_stride = dense["B"] * first.kernel_blocks * first.itemsize
        offsets = [place * dense["L"] * first.itemsize for place in range(len(region))]
    else:
        block_stride = sum(page_sizes)
        offsets = [0, *accumulate(page_sizes)][:-1]
    pages = {}
    for owner, name in named.items():
        with _errors_of_layer(name, layout):
            spec, own = owners[name].spec, attention[owner]
            pages[owner] = _pages(spec, own, layout, num_blocks, block_stride, dense)
    return offsets, pages


@contextmanager
def _errors_of_layer(name: str, layout: KVCacheLayout) -> Iterator[None]:
    """Put the names of the layer and the layout in front of the message of an `InvalidConfigError`."""
    try:
        yield
    except InvalidConfigError as error:
        raise InvalidConfigError(f"layer {name!r} in layout {layout.order}: {error}") from error


def _strides(order: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """The stride of each axis, in elements, in an array without gaps."""
    strides, stride = {}, 1
    for axis in reversed(order):
        strides[axis] = stride
        stride *= sizes[axis]
    return strides


def _pages(
    spec: KVCacheSpec,
    attention: _AttentionPages | None,
    layout: KVCacheLayout,
    num_blocks: int,
    block_stride: int,
    dense: Mapping[str, int] | None,
) -> PageLayout:
    is_recurrent = isinstance(spec, MambaSpec)
    if isinstance(spec, AttentionSpec) and attention is not None:
        size = spec.dtype.itemsize
        if dense is None:
            within = "".join(axis for axis in layout.order if axis not in "LB")
            dense = _strides(within, attention.sizes) | {
                "B": _in_elements(block_stride, spec.dtype) // attention.kernel_blocks
            }
        sizes = {**attention.sizes, "B": num_blocks * attention.kernel_blocks}
        views = [
            CacheView(
                spec.dtype,
                layout.axes,
                tuple(sizes[axis] for axis in layout.axes),
                tuple(dense[axis] for axis in layout.axes),
            )
        ]
        extents = [(dense[axis] * size, attention.sizes[axis]) for axis in attention.sizes]
        runs = _runs([*extents, (dense["B"] * size, attention.kernel_blocks)], size)
    else:
        content = spec.unpadded_page_size_bytes
        parts: Sequence[tuple[tuple[int, ...], torch.dtype]] = [((content,), torch.int8)]
        if isinstance(spec, MambaSpec):
            parts = list(zip(spec.shapes, spec.dtypes, strict=True))
        views, runs, offset = [], [(0, content)], 0
        for shape, dtype in parts:
            inner = [prod(shape[place + 1 :]) for place in range(len(shape))]
            strides = (_in_elements(block_stride, dtype), *inner)
            views.append(CacheView(dtype, "B" + "S" * len(shape), (num_blocks, *shape), strides, offset))
            offset += prod(shape) * dtype.itemsize
    return PageLayout(
        block_stride,
        spec.page_size_bytes,
        spec.unpadded_page_size_bytes,
        tuple(views),
        is_recurrent,
        tuple(runs),
    )


def _in_elements(size: int, dtype: torch.dtype) -> int:
    if size % dtype.itemsize:
        raise InvalidConfigError(f"{size} bytes from one block to the next are no whole number of {dtype}")
    return size // dtype.itemsize


def _runs(extents: Sequence[tuple[int, int]], itemsize: int) -> list[Run]:
    """The contiguous pieces of an array, as few as possible.

    Args:
        extents: for each axis of the array, its stride in bytes and its size.
    """
    together, starts = itemsize, [0]
    for stride, size in sorted(extents):
        if size == 1:
            continue
        if stride == together:
            together *= size
        else:
            starts = [start + place * stride for place in range(size) for start in starts]
    return [(start, together) for start in starts]
