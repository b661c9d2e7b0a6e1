"""KV caches as connectors see them: rows of bytes, one for each block (vLLM PR 37853).

Whatever the layout, a connector moves blocks by copying rows. A *canonical tensor* is an int8 view of
memory, of shape (number of blocks, bytes of a row); nothing is copied to make it. Where a layout keeps the
bytes of a page together there is one for each layer, else one for each piece: half a page for K and V each,
or a head of it. Layers that take turns to use the same memory have one canonical tensor. What they keep in
a row may be shorter than the row, which is padded then: a *reference* says how many of its bytes count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import torch

from kvref.device_copy import RowTable, copied_in_one_launch
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
    """Rows of bytes."""

    tensor: torch.Tensor
    """int8, of shape (num_blocks, page_size_bytes); rows may be further apart than they are long."""
    page_size_bytes: int
    """Of a row, padding included."""


class CanonicalKVCacheRef(NamedTuple):
    """What of a canonical tensor a layer keeps its content in: the first bytes of each row."""

    tensor_idx: int
    page_size_bytes: int
    """Those that count."""


@dataclass(frozen=True)
class CanonicalKVCaches:
    """All tensors, each once and on one device, and for each group the references of its layers, in order."""

    tensors: tuple[CanonicalKVCacheTensor, ...]
    group_data_refs: tuple[tuple[CanonicalKVCacheRef, ...], ...]

    @property
    def device(self) -> torch.device:
        """Where the tensors are; the CPU, if there are none."""
        return self.tensors[0].tensor.device if self.tensors else torch.device("cpu")

    @property
    def row_tables(self) -> tuple[RowTable, ...]:
        """For each group where the rows of its references are."""
        return self._row_tables

    @cached_property
    def _row_tables(self) -> tuple[RowTable, ...]:
        return tuple(
            RowTable.of(
                [(self.tensors[ref.tensor_idx].tensor, ref.page_size_bytes) for ref in refs], self.device
            )
            for refs in self.group_data_refs
        )

    def __getstate__(self) -> dict[str, object]:
        """What a copy is made of: it has memory of its own, and so other addresses."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def register_kv_caches(kv_caches: KVCaches) -> CanonicalKVCaches:
    """The canonical view of all caches, hybrid or not. Layers that share a cache add nothing to it."""
    placement = kv_caches.placement
    num_blocks = placement.config.num_blocks
    indices: dict[tuple[int, int, int, int], int] = {}
    tensors: list[CanonicalKVCacheTensor] = []
    refs: list[tuple[CanonicalKVCacheRef, ...]] = []
    for group in placement.config.kv_cache_groups:
        own: list[CanonicalKVCacheRef] = []
        # Layers that are the runner's alone have no memory here.
        for name in filter(placement.layers.__contains__, group.owning_layers):
            buffer, start, pages = placement.layers[name]
            stride = pages.block_stride
            # Pages in several pieces have none.
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
    """Host memory of the same form for so many blocks, pinned where the caches are on a CUDA device.

    Raises:
        InvalidConfigError: not even one block.
        OutOfCacheMemoryError: there is too little memory. Nothing stays allocated.
    """
    if num_blocks < 1:
        raise InvalidConfigError(f"host memory for {num_blocks} blocks is none: give at least 1")
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
    """Copy blocks of a group, each given as its number in the source and in the destination.

    The two have the same form; they may be one. Where one of them is a CUDA device's, the copy is queued on
    the current stream; on the device itself it is one launch, if it does not matter which block comes first.

    Raises:
        InvalidConfigError: the group, or a block, is not there. Nothing is copied.
    """
    check_blocks(source, group, [block for block, _ in block_pairs])
    check_blocks(destination, group, [block for _, block in block_pairs])
    if copied_in_one_launch(source, destination, group, block_pairs):
        return
    for ref in source.group_data_refs[group]:
        theirs, ours = source.tensors[ref.tensor_idx].tensor, destination.tensors[ref.tensor_idx].tensor
        size = ref.page_size_bytes
        # Row by row: indexing with a list of rows would copy them once more on the way.
        for from_block, to_block in block_pairs:
            ours[to_block, :size].copy_(theirs[from_block, :size], non_blocking=True)


def check_blocks(caches: CanonicalKVCaches, group: int, blocks: Sequence[int]) -> None:
    """Make sure that a group has these blocks.

    Raises:
        InvalidConfigError: there is no such group, or one of the blocks is none. Names them.
    """
    if not 0 <= group < len(caches.group_data_refs):
        raise InvalidConfigError(f"there is no group {group}, only {len(caches.group_data_refs)} of them")
    lengths = [caches.tensors[ref.tensor_idx].tensor.shape[0] for ref in caches.group_data_refs[group]]
    for there in dict.fromkeys(lengths):
        if foreign := [block for block in blocks if not 0 <= block < there]:
            raise InvalidConfigError(f"group {group} has blocks 0 to {there - 1}, not {foreign}")
