"""Where every byte of a KV cache lies: the addresses of (layer, block), before there is any memory.

A page of attention has up to four axes: K and V, heads, states, and the content of a state of a head. With
blocks and layers that makes six, and a backend wants them in one order or another. `KVCacheLayout` is such
an order, `place_kv_caches` works out what it means for each layer of a configuration.

Some orders take the bytes of a page apart: into halves for K and V, say, or one piece for each head. That
goes only where all who use the memory have pages of one kind, without padding. Elsewhere the bytes of a
page lie together after all, and the views, whose axes stay in the backend's order, have other strides (vLLM
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
"""Bytes that lie together: where they start, and how many they are."""


@dataclass(frozen=True)
class KVCacheLayout:
    """An order of axes: L layers, B blocks, K for K and V, H heads, N states, C content of a state of a head.

    Raises:
        InvalidConfigError: at construction, unless each of L, B, H, N, C is there once, and K at most once.
    """

    order: str
    """The axes in memory, the outermost first: "LBNHC", or "LKBNHC" where all K comes before all V."""
    axes: str = ""
    """The axes of a layer's view as the backend has them; by default ("K",) "B", "H", "N", "C", as in vLLM
    RFC 42082."""

    def __post_init__(self) -> None:
        wanted = "KBHNC" if "K" in self.order else "BHNC"
        object.__setattr__(self, "axes", self.axes or wanted)
        for what, axes, needed in (("order", self.order, f"L{wanted}"), ("axes", self.axes, wanted)):
            if sorted(axes) != sorted(needed):
                raise InvalidConfigError(
                    f"KVCacheLayout.{what} must have each of {', '.join(needed)} once, not {axes!r}"
                )

    @property
    def is_layer_outermost(self) -> bool:
        """Whether each layer's memory lies together; if not, all layers have to be in one buffer."""
        return self.order[0] == "L"


DEFAULT_LAYOUT = KVCacheLayout("LBNHC")


@dataclass(frozen=True)
class CacheView:
    """A tensor over a layer's memory. Strides and sizes count elements."""

    dtype: torch.dtype
    axes: str
    """A letter for each axis, S for those of what is no attention. Several kernel blocks may make a block."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    """Bytes from the start of the layer's memory."""


@dataclass(frozen=True)
class PageLayout:
    """How the pages of a layer look, wherever its memory is."""

    block_stride: int
    """Bytes from a block to the next."""
    page_size_bytes: int
    content_size_bytes: int
    views: tuple[CacheView, ...]
    is_recurrent: bool
    """Whether there is a view for each state; else there is one."""
    runs: tuple[Run, ...]
    """The pieces of the content of block 0, from the start of the layer's memory."""


class LayerPlacement(NamedTuple):
    """The memory of one layer: from a byte of a buffer on."""

    buffer: int
    offset: int
    pages: PageLayout

    def runs_of(self, block: int) -> Iterator[Run]:
        """The pieces of a block's content, from the start of the buffer."""
        start = self.offset + block * self.pages.block_stride
        return ((start + offset, size) for offset, size in self.pages.runs)


@dataclass(frozen=True)
class KVCachePlacement:
    """The memory of all layers of a configuration that have any."""

    config: KVCacheConfig
    buffers: tuple[int, ...]
    """The bytes of each."""
    layers: Mapping[str, LayerPlacement]


def place_kv_caches(
    config: KVCacheConfig,
    layout: KVCacheLayout = DEFAULT_LAYOUT,
    *,
    kernel_block_sizes: Sequence[int] | None = None,
    contiguous: bool = False,
) -> KVCachePlacement:
    """Work out where the pages of all layers are.

    Args:
        kernel_block_sizes: for each group the tokens of a kernel's block, a whole number of which make up a
            block. The blocks of a view are then those of the kernel.
        contiguous: have one buffer for all tensors, also where the layout does not ask for it.

    Raises:
        InvalidConfigError: the layout is none, or a layer's pages cannot be laid out so. Names it.
    """
    buffers = buffer_sizes(config, layout, contiguous)
    groups, slots = config.kv_cache_groups, config.kv_cache_tensors
    if kernel_block_sizes is not None and len(kernel_block_sizes) != len(groups):
        raise InvalidConfigError(f"{len(kernel_block_sizes)} kernel block sizes for {len(groups)} groups")
    owners: dict[str, _Owner] = {}
    kernels: Sequence[int | None] = kernel_block_sizes or [None] * len(groups)
    for group, kernel in zip(groups, kernels, strict=True):
        owners.update(_owners(group, kernel))
    regions = [[slot] for slot in slots] if layout.is_layer_outermost else [list(slots)] * bool(slots)
    # Most regions are like the one before.
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
                with _naming(name, layout):
                    _check_alignment(layers[name])
        if contiguous:
            start += sum(slot.size for slot in region)
    return KVCachePlacement(config, buffers, layers)


def buffer_sizes(config: KVCacheConfig, layout: KVCacheLayout, contiguous: bool) -> tuple[int, ...]:
    """The bytes of each buffer: one for each tensor, or one for all.

    Raises:
        InvalidConfigError: the layout is none.
    """
    if not isinstance(layout, KVCacheLayout):
        order = layout if isinstance(layout, str) else DEFAULT_LAYOUT.order
        raise InvalidConfigError(
            f"a layout is a KVCacheLayout, not {layout!r}: KVCacheLayout({order!r}), say"
        )
    sizes = [tensor.size for tensor in config.kv_cache_tensors]
    together = contiguous or not layout.is_layer_outermost
    return (sum(sizes),) if together and sizes else tuple(sizes)


class _Owner(NamedTuple):
    """Layers with memory that have one spec, and how many of their tokens make a block of their kernel."""

    spec: KVCacheSpec
    kernel_block_size: int | None

    @property
    def kernel_blocks(self) -> int:
        """Blocks of the kernel in a block."""
        kernel = self.spec.block_size if self.kernel_block_size is None else self.kernel_block_size
        if type(kernel) is not int or kernel < 1 or self.spec.block_size % kernel:
            raise InvalidConfigError(
                f"blocks of {self.spec.block_size} tokens are no whole number of kernel blocks of {kernel!r}"
            )
        return self.spec.block_size // kernel


def _owners(group: KVCacheGroupSpec, kernel_block_size: int | None) -> dict[str, _Owner]:
    """One object for all layers that are alike, since there may be thousands."""
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
                "states with the largest values first"
                if view.offset % view.dtype.itemsize
                else f"it would begin at byte {placed.offset + view.offset}, where no {view.dtype} can: pad "
                "its page, or those before it, to a multiple of its size"
            )


@dataclass(frozen=True)
class _Look:
    """What the pages of an attention layer consist of: the size of each axis, in a block of the kernel."""

    sizes: Mapping[str, int]
    itemsize: int
    kernel_blocks: int
    padding: int


def _look_of(owner: _Owner, layout: KVCacheLayout) -> _Look | None:
    """None for a layer whose pages have other axes."""
    spec, kernel_blocks = owner.spec, owner.kernel_blocks
    if not isinstance(spec, AttentionSpec):
        return None
    states = Fraction(spec.num_states, kernel_blocks)
    if states.denominator != 1:
        raise InvalidConfigError(
            f"{spec.num_states} states of a block cannot be shared out to {kernel_blocks} kernel blocks"
        )
    sizes = {"H": spec.num_kv_heads, "N": int(states)}
    content = Fraction(spec.state_content_size_bytes, spec.dtype.itemsize)
    if "K" in layout.order:
        packed = spec.packed_state_bytes is not None or spec.head_size_v == 0
        if not packed and spec.head_size != spec.head_size_v:
            raise InvalidConfigError(
                f"K has {spec.head_size} values and V {spec.head_size_v}, so that they cannot be two places "
                "of one axis"
            )
        sizes["K"] = 1 if packed else 2
        content /= sizes["K"]
    if content.denominator != 1:
        raise InvalidConfigError(
            f"a state of {spec.state_content_size_bytes} bytes is no whole number of {spec.dtype}"
        )
    padding = spec.page_size_bytes - spec.unpadded_page_size_bytes
    return _Look({**sizes, "C": int(content)}, spec.dtype.itemsize, kernel_blocks, padding)


_Region: TypeAlias = tuple[Sequence[int], Mapping[int, PageLayout]]
"""Where the memory of each tensor begins, and the pages of the layers, by the `id` of their `_Owner`."""


def _lay_out(
    region: Sequence[KVCacheTensor], owners: Mapping[str, _Owner], num_blocks: int, layout: KVCacheLayout
) -> _Region:
    """Lay out what lies together: the blocks of one tensor, or of all."""
    named: dict[int, str] = {}
    for name in [name for slot in region for name in slot.shared_by]:
        named.setdefault(id(owners[name]), name)
    looks: dict[int, _Look | None] = {}
    for owner, name in named.items():
        with _naming(name, layout):
            look = looks[owner] = _look_of(owners[name], layout)
            if look and look.kernel_blocks > 1 and (len(region) > 1 or look.padding):
                raise InvalidConfigError(
                    f"blocks with {'padding' if look.padding else 'other layers'} between them cannot be "
                    f"{look.kernel_blocks} blocks of the kernel each: choose blocks of "
                    f"{owners[name].kernel_block_size} tokens, or a layout that begins with L and no padding"
                )
    first, *others = looks.values()
    dense: Mapping[str, int] | None = None
    page_sizes = [slot.size // num_blocks for slot in region]
    if first is not None and not first.padding and all(look == first for look in others):
        sizes = {**first.sizes, "L": len(region), "B": num_blocks * first.kernel_blocks}
        dense = _strides(layout.order, sizes)
        block_stride = dense["B"] * first.kernel_blocks * first.itemsize
        offsets = [place * dense["L"] * first.itemsize for place in range(len(region))]
    else:
        block_stride = sum(page_sizes)
        offsets = [0, *accumulate(page_sizes)][:-1]
    pages = {}
    for owner, name in named.items():
        with _naming(name, layout):
            pages[owner] = _pages(owners[name].spec, looks[owner], layout, num_blocks, block_stride, dense)
    return offsets, pages


@contextmanager
def _naming(name: str, layout: KVCacheLayout) -> Iterator[None]:
    try:
        yield
    except InvalidConfigError as error:
        raise InvalidConfigError(f"layer {name!r} in layout {layout.order}: {error}") from error


def _strides(order: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """How far apart two neighbours on each axis are where nothing lies between them."""
    strides, stride = {}, 1
    for axis in reversed(order):
        strides[axis] = stride
        stride *= sizes[axis]
    return strides


def _pages(
    spec: KVCacheSpec,
    look: _Look | None,
    layout: KVCacheLayout,
    num_blocks: int,
    block_stride: int,
    dense: Mapping[str, int] | None,
) -> PageLayout:
    is_recurrent = isinstance(spec, MambaSpec)
    if isinstance(spec, AttentionSpec) and look is not None:
        size = spec.dtype.itemsize
        if dense is None:
            within = "".join(axis for axis in layout.order if axis not in "LB")
            dense = _strides(within, look.sizes) | {
                "B": _in_elements(block_stride, spec.dtype) // look.kernel_blocks
            }
        sizes = {**look.sizes, "B": num_blocks * look.kernel_blocks}
        views = [
            CacheView(
                spec.dtype,
                layout.axes,
                tuple(sizes[axis] for axis in layout.axes),
                tuple(dense[axis] for axis in layout.axes),
            )
        ]
        extents = [(dense[axis] * size, look.sizes[axis]) for axis in look.sizes]
        runs = _runs([*extents, (dense["B"] * size, look.kernel_blocks)], size)
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
        raise InvalidConfigError(f"{size} bytes from block to block are no whole number of {dtype}")
    return size // dtype.itemsize


def _runs(extents: Sequence[tuple[int, int]], itemsize: int) -> list[Run]:
    """The bytes of an array with these strides and sizes, in as few pieces as there are."""
    together, starts = itemsize, [0]
    for stride, size in sorted(extents):
        if size == 1:
            continue
        if stride == together:
            together *= size
        else:
            starts = [start + place * stride for place in range(size) for start in starts]
    return [(start, together) for start in starts]
