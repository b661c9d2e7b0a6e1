"""The canonical view of KV caches, for connectors: one row of bytes for each block (vLLM PR 37853).

A connector moves a block by copying rows, in the same way for every layout. A *canonical tensor* is an int8
view of the cache's memory, of shape (number of blocks, bytes of a row). If the layout keeps the bytes of a
page together, each layer has one canonical tensor. Otherwise each layer has one canonical tensor for each
piece of a page: one for K and one for V, or one for each head. Layers of different groups that use the same
memory share a canonical tensor.

A row may end with padding. So each layer has *references* to its canonical tensors. A reference says how many
bytes of a row are the layer's content. It has nothing to do with the reference count of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kvref.errors import InvalidConfigError
from kvref.tensors import KVCaches, allocate_buffers

__all__ = [
    "CanonicalKVCacheRef",
    "CanonicalKVCacheTensor",
    "CanonicalKVCaches",
    "check_blocks",
    "copy_blocks",
    "like_on_host",
    "register_kv_caches",
]


class CanonicalKVCacheTensor(NamedTuple):
    """A canonical tensor: memory as rows of bytes, one row for each block."""

    tensor: torch.Tensor
    """int8, of shape (num_blocks, page_size_bytes). There may be gaps between rows."""
    page_size_bytes: int
    """Bytes of a row, padding included."""


class CanonicalKVCacheRef(NamedTuple):
    """A reference: the canonical tensor that holds a layer's content at the start of each row."""

    tensor_idx: int
    page_size_bytes: int
    """Bytes of the layer's content at the start of each row."""


@dataclass(frozen=True)
class CanonicalKVCaches:
    """The canonical view: all canonical tensors, and for each group the references of its layers.

    All tensors are on one device. The references of a group follow the order of its layers.
    """

    tensors: tuple[CanonicalKVCacheTensor, ...]
    group_data_refs: tuple[tuple[CanonicalKVCacheRef, ...], ...]

    @property
    def device(self) -> torch.device:
        """The device of the tensors; the CPU if there are no tensors."""
        return self.tensors[0].tensor.device if self.tensors else torch.device("cpu")


def register_kv_caches(kv_caches: KVCaches) -> CanonicalKVCaches:
    """Make the canonical view of caches, without copying memory. Sharing layers get no references."""
    placement = kv_caches.placement
    num_blocks = placement.config.num_blocks
    indices: dict[tuple[int, int, int, int], int] = {}
    tensors: list[CanonicalKVCacheTensor] = []
    refs: list[tuple[CanonicalKVCacheRef, ...]] = []
    for group in placement.config.kv_cache_groups:
        own: list[CanonicalKVCacheRef] = []
        # Layers that only the model runner uses have no memory here.
        for name in filter(placement.layers.__contains__, group.owning_layers):
            buffer, start, pages = placement.layers[name]
            stride = pages.block_stride
            # A page in several pieces has no padding.
            padding = pages.page_size_bytes - pages.content_size_bytes
            for offset, size in pages.runs:
                row = size + padding
                key = (buffer, start + offset, row, stride)
                if key not in indices:
                    indices[key] = len(tensors)
                    rows = kv_caches.buffers[buffer].as_strided(
                        (num_blocks, row), (stride, 1), start + offset
                    )
                    tensors.append(CanonicalKVCacheTensor(rows, row))
                own.append(CanonicalKVCacheRef(indices[key], size))
        refs.append(tuple(own))
    return CanonicalKVCaches(tuple(tensors), tuple(refs))


def like_on_host(caches: CanonicalKVCaches, num_blocks: int) -> CanonicalKVCaches:
    """Allocate host memory for `num_blocks` blocks, with the row sizes and references of `caches`.

    If `caches` is on a CUDA device, the host memory is page-locked.

    Raises:
        InvalidConfigError: `num_blocks` is below 1.
        OutOfCacheMemoryError: the host has too little memory. Nothing stays allocated.
    """
    if num_blocks < 1:
        raise InvalidConfigError(f"host memory is wanted for {num_blocks} blocks: give at least 1")
    buffers = allocate_buffers(
        [num_blocks * each.page_size_bytes for each in caches.tensors],
        torch.device("cpu"),
        lambda number: f"{num_blocks} blocks on the host, in canonical tensor {number}",
        pin_memory=any(each.tensor.is_cuda for each in caches.tensors),
    )
    tensors = [
        CanonicalKVCacheTensor(buffer.view(num_blocks, each.page_size_bytes), each.page_size_bytes)
        for buffer, each in zip(buffers, caches.tensors, strict=True)
    ]
    return CanonicalKVCaches(tuple(tensors), caches.group_data_refs)


def copy_blocks(
    source: CanonicalKVCaches,
    destination: CanonicalKVCaches,
    group: int,
    block_pairs: Sequence[tuple[int, int]],
) -> None:
    """Copy blocks of one group, in the order of `block_pairs`.

    `source` and `destination` must have the same row sizes and references. They may be the same object. If
    one of them is on a CUDA device, the copies are queued on the current stream.

    Args:
        group: index of the group.
        block_pairs: each is (block in the source, block in the destination).

    Raises:
        InvalidConfigError: the group or one of the blocks does not exist. Nothing is copied.
    """
    check_blocks(source, group, [block for block, _ in block_pairs])
    check_blocks(destination, group, [block for _, block in block_pairs])
    for ref in source.group_data_refs[group]:
        theirs, ours = source.tensors[ref.tensor_idx].tensor, destination.tensors[ref.tensor_idx].tensor
        size = ref.page_size_bytes
        # Row by row: indexing with a list of rows would first copy them to a temporary tensor.
        for from_block, to_block in block_pairs:
            ours[to_block, :size].copy_(theirs[from_block, :size], non_blocking=True)


def check_blocks(caches: CanonicalKVCaches, group: int, blocks: Sequence[int]) -> None:
    """Raise an error unless the group exists and has all these blocks.

    Raises:
        InvalidConfigError: the group or one of the blocks does not exist. The message names it.
    """
    if not 0 <= group < len(caches.group_data_refs):
        raise InvalidConfigError(f"there is no group {group}, only {len(caches.group_data_refs)} of them")
    lengths = [caches.tensors[ref.tensor_idx].tensor.shape[0] for ref in caches.group_data_refs[group]]
    for there in dict.fromkeys(lengths):
        if foreign := [block for block in blocks if not 0 <= block < there]:
            raise InvalidConfigError(f"group {group} has blocks 0 to {there - 1}, not {foreign}")
