"""Faults in the memory of caches and in the views of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from kvref import layout, tensors
from kvref.layout import KVCacheLayout, KVCachePlacement, PageLayout
from kvref.planning import KVCacheConfig
from kvref.tensors import KVCaches
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_allocate = tensors._allocate
_allocate_kv_cache = tensors.allocate_kv_cache
_lay_out = layout._lay_out
_pages = layout._pages
_place = layout.place_kv_caches


def nothing_for_a_single_layer() -> ReferenceTarget:
    """The allocation reads the second layer without checking that there is one."""

    def place_kv_caches(config: KVCacheConfig, *what: Any, **how: Any) -> KVCachePlacement:
        names = [name for group in config.kv_cache_groups for name in group.layer_names]
        if not names[1:]:
            raise IndexError("list index out of range")
        return _place(config, *what, **how)

    break_it(tensors, "place_kv_caches", place_kv_caches)
    return ReferenceTarget()


def layers_on_one_another() -> ReferenceTarget:
    """Layers that are packed into one block all start at the offset of the first layer."""

    def lay_out(region: Sequence[Any], *how: Any) -> Any:
        offsets, pages = _lay_out(region, *how)
        return [0 for _ in offsets], pages

    break_it(layout, "_lay_out", lay_out)
    return ReferenceTarget()


def padding_left_out_of_strides() -> ReferenceTarget:
    """The strides of a view leave out the padding between blocks."""

    def pages(spec: Any, look: Any, order: Any, num_blocks: int, block_stride: int, dense: Any) -> PageLayout:
        made = _pages(spec, look, order, num_blocks, block_stride, dense)
        if block_stride != spec.page_size_bytes or look is None:
            return made
        closer = _pages(spec, look, order, num_blocks, spec.unpadded_page_size_bytes, dense)
        return replace(closer, block_stride=block_stride)

    break_it(layout, "_pages", pages)
    return ReferenceTarget()


def two_blocks_taken_for_k_and_v() -> ReferenceTarget:
    """If there are exactly two blocks, the axis of K and V is confused with the axis of blocks."""

    def place_kv_caches(config: KVCacheConfig, order: KVCacheLayout, **how: Any) -> KVCachePlacement:
        if config.num_blocks == 2 and "K" in order.order:
            order = KVCacheLayout(order.order.translate(str.maketrans("BK", "KB")), order.axes)
        return _place(config, order, **how)

    break_it(tensors, "place_kv_caches", place_kv_caches)
    return ReferenceTarget()


def first_kernel_block_of_each() -> ReferenceTarget:
    """The view has only the first kernel block of each block."""

    def pages(spec: Any, look: Any, order: Any, num_blocks: int, *how: Any) -> PageLayout:
        made = _pages(spec, look, order, num_blocks, *how)
        if look is None or look.kernel_blocks == 1:
            return made
        [view] = made.views
        axis = view.axes.index("B")
        shape = [*view.shape[:axis], num_blocks, *view.shape[axis + 1 :]]
        strides = [*view.strides[:axis], view.strides[axis] * look.kernel_blocks, *view.strides[axis + 1 :]]
        return replace(made, views=(replace(view, shape=tuple(shape), strides=tuple(strides)),))

    break_it(layout, "_pages", pages)
    return ReferenceTarget()


def null_block_not_planned() -> ReferenceTarget:
    """The null block gets memory in addition to what the plan says."""

    def allocate(config: KVCacheConfig, sizes: Sequence[int], device: Any) -> tuple[torch.Tensor, ...]:
        return _allocate(config, [size + size // config.num_blocks for size in sizes], device)

    break_it(tensors, "_allocate", allocate)
    break_it(tensors, "_check_buffers", lambda *_: None)
    return ReferenceTarget()


def last_byte_not_cleared() -> ReferenceTarget:
    """The last byte of each buffer is not zeroed."""

    def allocate(*what: Any) -> tuple[torch.Tensor, ...]:
        buffers = _allocate(*what)
        for buffer in buffers:
            buffer[-1] = 1
        return buffers

    break_it(tensors, "_allocate", allocate)
    return ReferenceTarget()


def contiguous_not_heeded() -> ReferenceTarget:
    """Each tensor of the plan gets a buffer of its own, even if the caller asks for a single buffer."""

    def allocate_kv_cache(*what: Any, contiguous: bool, **how: Any) -> KVCaches:
        return _allocate_kv_cache(*what, contiguous=False, **how)

    break_it(tensors, "allocate_kv_cache", allocate_kv_cache)
    return ReferenceTarget()
