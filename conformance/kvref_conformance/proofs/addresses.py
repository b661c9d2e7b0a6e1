"""Layouts: each block of each layer has bytes of its own, inside the layer's memory.

Unless stated otherwise, a page has 16 tokens and two heads, with K and V of eight 2-byte values each.
"""

from __future__ import annotations

import torch

from kvref.layout import KVCacheLayout, KVCachePlacement, place_kv_caches
from kvref.planning import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from kvref.specs import FullAttentionSpec

TOGETHER = ("LBNHC", "LBHNC", "LBKNHC", "LKBNHC")
"""Layouts that keep the memory of each layer together."""

ACROSS = ("BLNHC", "BLHNC", "BLKNHC", "KBLNHC")
"""Layouts that put all layers into one buffer."""


def placed(
    order: str, num_blocks: int, block_size: int = 16, layers: tuple[str, ...] = ("a",)
) -> KVCachePlacement:
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=2, head_size=8, dtype=torch.float16)
    tensors = [KVCacheTensor(num_blocks * spec.page_size_bytes, [name]) for name in layers]
    config = KVCacheConfig(num_blocks, tensors, [KVCacheGroupSpec(layers, spec)])
    return place_kv_caches(config, KVCacheLayout(order))


def content_is_in_memory(order: int, size: int, num_blocks: int, block: int) -> bool:
    """A block of a layer has room for its whole content, inside the layer's memory.

    For block sizes 1, 16, 48 and 131071.

    pre: 0 <= order < 4 and 0 <= size < 4 and 0 <= block < num_blocks
    post: _
    """
    block_size = (1, 16, 48, 131_071)[size]
    placement = placed(TOGETHER[order], num_blocks, block_size)
    runs = list(placement.layers["a"].runs_of(block))
    inside = all(start >= 0 and start + size <= placement.buffers[0] for start, size in runs)
    return inside and sum(size for _, size in runs) == block_size * 2 * (8 + 8) * 2


def blocks_lie_apart(order: int, num_blocks: int, block: int, other: int) -> bool:
    """No byte of a layer's memory belongs to two blocks.

    pre: 0 <= order < 4 and 0 <= block < other < num_blocks
    post: _
    """
    layer = placed(TOGETHER[order], num_blocks).layers["a"]
    return all(
        start + size <= further or further + more <= start
        for start, size in layer.runs_of(block)
        for further, more in layer.runs_of(other)
    )


def layers_lie_apart(order: int, num_blocks: int, block: int, other: int) -> bool:
    """If two layers share a buffer, their blocks do not overlap and lie inside the buffer.

    pre: 0 <= order < 4 and 0 <= block < num_blocks and 0 <= other < num_blocks
    post: _
    """
    placement = placed(ACROSS[order], num_blocks, layers=("a", "b"))
    one = list(placement.layers["a"].runs_of(block))
    two = list(placement.layers["b"].runs_of(other))
    inside = all(start >= 0 and start + size <= placement.buffers[0] for start, size in one + two)
    return inside and all(
        start + size <= further or further + more <= start for start, size in one for further, more in two
    )
