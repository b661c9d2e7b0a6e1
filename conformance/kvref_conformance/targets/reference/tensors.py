"""The part `tensors` of the reference: the memory of caches and the views of it.

Stand-alone programs copy functions from this module, so that they need only kvref.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import kvref.planning
from kvref.layout import KVCacheLayout, PageLayout
from kvref.planning import BlockSizeWarning, KVCacheConfig
from kvref.specs import AttentionSpec, UniformTypeKVCacheSpecs
from kvref.target import Caches, LayerTensors, Pair, SpecDescriptor
from kvref.tensors import init_kv_cache
from kvref_conformance.targets.memory import (
    compare_marks,
    copy_marks,
    is_zero,
    parts_of,
    read_bytes,
    soil,
    view_facts,
    write_bytes,
    write_marks,
)
from kvref_conformance.targets.reference.planner import make_all

CURRENT: SimpleNamespace = SimpleNamespace(caches=None, model={})


def allocate(
    layers: Mapping[str, SpecDescriptor],
    num_blocks: int,
    layout: str,
    buffers: str,
    kernel_block_size: int | None,
    sharing: Sequence[Pair],
    device: str,
) -> Caches:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BlockSizeWarning)
        groups = kvref.planning.get_kv_cache_groups(make_all(layers))
    config = kvref.planning.get_kv_cache_config_from_groups(groups, num_blocks)
    model = {name: SimpleNamespace(kv_sharing_target_layer_name=None) for name in layers}
    for layer, target in sharing:
        model[layer] = SimpleNamespace(kv_sharing_target_layer_name=target)
    sizes = [tensor.size for tensor in config.kv_cache_tensors]
    soil([*sizes, sum(sizes)], device)
    caches = init_kv_cache(
        model,
        config,
        device,
        KVCacheLayout(layout),
        kernel_block_sizes=kernel_block_sizes(config, kernel_block_size),
        **({"contiguous": True} if buffers == "one" else {}),
    )
    zero = is_zero(caches.buffers)
    CURRENT.caches, CURRENT.model = caches, model
    return {
        "num_blocks": num_blocks,
        "groups": [list(group.layer_names) for group in caches.placement.config.kv_cache_groups],
        "buffers": [buffer.numel() for buffer in caches.buffers],
        "planned": sum(sizes),
        "zero": zero,
        "layers": {name: layer_facts(name) for name in model},
    }


def kernel_block_sizes(config: KVCacheConfig, kernel_block_size: int | None) -> list[int]:
    """The kernel block size of each group.

    This is `kernel_block_size` if that divides the group's block size, otherwise the group's block size.
    Groups of recurrent layers always have their block size.
    """
    sizes = []
    for group in config.kv_cache_groups:
        spec = group.kv_cache_spec
        if isinstance(spec, UniformTypeKVCacheSpecs):
            spec = next(iter(spec.kv_cache_specs.values()))
        fits = isinstance(spec, AttentionSpec) and spec.block_size % (kernel_block_size or 1) == 0
        sizes.append(kernel_block_size if fits and kernel_block_size else spec.block_size)
    return sizes


def pages_of(layer: str) -> PageLayout:
    """The page layout of a layer, or of its owner if it shares a cache."""
    placement = CURRENT.caches.placement
    for group in placement.config.kv_cache_groups:
        layer = group.kv_sharing_layers.get(layer, layer)
    pages: PageLayout = placement.layers[layer].pages
    return pages


def views_of(layer: str) -> list[Any]:
    """The tensors through which the layer uses its cache."""
    cache = CURRENT.model[layer].kv_cache
    return cache if isinstance(cache, list) else [cache]


def axes_of(layer: str) -> list[str]:
    return [view.axes for view in pages_of(layer).views]


def layer_facts(layer: str) -> LayerTensors:
    pages = pages_of(layer)
    return {
        "views": [
            view_facts(view, axes, CURRENT.caches.buffers)
            for view, axes in zip(views_of(layer), axes_of(layer), strict=True)
        ],
        "page_size_bytes": pages.page_size_bytes,
        "content_size_bytes": pages.content_size_bytes,
        "block_stride": pages.block_stride,
    }


def block_parts(layer: str, block: int) -> list[Any]:
    num_blocks = CURRENT.caches.placement.config.num_blocks
    return parts_of(views_of(layer), axes_of(layer), block, num_blocks)


def write(layer: str, block: int, seed: int) -> str:
    return write_bytes(block_parts(layer, block), seed)


def read(layer: str, block: int) -> str:
    return read_bytes(block_parts(layer, block))


def write_slots(layer: str, slots: Sequence[int], marks: Sequence[int]) -> None:
    write_marks(views_of(layer), axes_of(layer), slots, marks)


def copy_slots(layer: str, source: Sequence[int], destination: Sequence[int]) -> None:
    copy_marks(views_of(layer), axes_of(layer), source, destination)


def compare_slots(layer: str, slots: Sequence[int], marks: Sequence[int], told: str) -> list[list[int]]:
    return compare_marks(views_of(layer), axes_of(layer), slots, marks)
