"""Plans: how many blocks fit, block sizes that suit all groups, and pages of one size."""

from __future__ import annotations

import warnings

import torch

from kvref.errors import InvalidConfigError
from kvref.planning import (
    BlockSizeWarning,
    KVCacheGroupSpec,
    get_kv_cache_configs,
    resolve_kv_cache_block_sizes,
    unify_kv_cache_spec_page_size,
)
from kvref.specs import FullAttentionSpec, KVCacheSpec, MambaSpec, MemoryLimits, SlidingWindowSpec


def full(block_size: int, num_kv_heads: int = 1) -> FullAttentionSpec:
    return FullAttentionSpec(
        block_size=block_size, num_kv_heads=num_kv_heads, head_size=8, dtype=torch.float16
    )


def windowed(block_size: int, sliding_window: int) -> SlidingWindowSpec:
    return SlidingWindowSpec(
        block_size=block_size,
        num_kv_heads=1,
        head_size=8,
        dtype=torch.float16,
        sliding_window=sliding_window,
    )


def memory_is_used_up(memory: int) -> bool:
    """A plan has as many blocks as fit into the memory, or is refused if one request does not fit.

    This is for two layers with pages of 512 bytes, and requests of 64 tokens in blocks of 16.

    pre: memory >= 5110
    post: _
    """
    layers = {"a": full(16), "b": full(16)}
    try:
        [config] = get_kv_cache_configs([layers], [memory], MemoryLimits(64, 64))
    except InvalidConfigError:
        return memory < (64 // 16 + 1) * 1024
    return config.num_blocks * 1024 <= memory < (config.num_blocks + 1) * 1024


def the_worker_with_least_room_decides(memory: int, other: int) -> bool:
    """All workers have the same number of blocks, and at least one has no memory for another block.

    This is for a worker with one layer of 512-byte pages, and a worker with two.

    pre: memory >= 2560 and other >= 5120
    post: _
    """
    workers = [{"a": full(16)}, {"b": full(16), "c": full(16)}]
    one, two = get_kv_cache_configs(workers, [memory, other], MemoryLimits(64, 64))
    blocks = one.num_blocks
    fits = blocks * 512 <= memory and blocks * 1024 <= other
    return blocks == two.num_blocks and fits and ((blocks + 1) * 512 > memory or (blocks + 1) * 1024 > other)


def tensors_are_whole_pages(num_blocks: int) -> bool:
    """Each layer's tensor has a page for each block: 16 tokens with K and V of eight 2-byte values.

    pre: 5 <= num_blocks <= 2**40
    post: _
    """
    limits = MemoryLimits(64, 64)
    [config] = get_kv_cache_configs([{"a": full(16)}], [0], limits, num_gpu_blocks_override=num_blocks)
    return [tensor.size for tensor in config.kv_cache_tensors] == [num_blocks * 16 * 2 * 8 * 2]


def scheduler_blocks_are_whole_blocks(size: int, other: int) -> bool:
    """The scheduler block size is the smallest multiple of the block sizes of all groups.

    pre: 1 <= size <= 4 and 1 <= other <= 4
    post: _
    """
    groups = [KVCacheGroupSpec(["a"], full(size)), KVCacheGroupSpec(["b"], full(other))]
    scheduler, _ = resolve_kv_cache_block_sizes(groups)
    common = [tokens for tokens in range(1, 17) if tokens % size == 0 and tokens % other == 0]
    return scheduler == common[0]


def blocks_are_whole_hash_blocks(size: int, other: int) -> bool:
    """The hash block size is the largest size that divides the block sizes of all groups.

    pre: 1 <= size <= 4 and 1 <= other <= 4
    post: _
    """
    groups = [KVCacheGroupSpec(["a"], full(size)), KVCacheGroupSpec(["b"], full(other))]
    _, hashes = resolve_kv_cache_block_sizes(groups)
    common = [tokens for tokens in range(1, 5) if size % tokens == 0 and other % tokens == 0]
    return hashes == common[-1]


def pages_are_made_equal(block_size: int, heads: int, other: int, more: int) -> bool:
    """The pages of two layers become as large as the larger of the two.

    Each new page holds as many of the layer's former blocks as fit.

    pre: 1 <= block_size <= 3 and 1 <= heads <= 2 and 1 <= other <= 3 and 1 <= more <= 2
    post: _
    """
    layers = {"a": full(block_size, heads), "b": full(other, more)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BlockSizeWarning)
        made = unify_kv_cache_spec_page_size(layers)
    largest = max(spec.page_size_bytes for spec in layers.values())
    return all(
        spec.page_size_bytes == largest
        and spec.unpadded_page_size_bytes <= largest
        and spec.block_size % layers[name].block_size == 0
        and spec.unpadded_page_size_bytes + layers[name].unpadded_page_size_bytes > largest
        for name, spec in made.items()
    )


def states_are_padded(state: int, block_size: int) -> bool:
    """A recurrent layer and an attention layer get the same page size, which holds the state.

    pre: 1 <= state <= 20 and 1 <= block_size <= 2
    post: _
    """
    mamba = MambaSpec(block_size=12, shapes=((state,),), dtypes=(torch.float16,))
    layers: dict[str, KVCacheSpec] = {"a": full(block_size), "m": mamba}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BlockSizeWarning)
        made = unify_kv_cache_spec_page_size(layers)
    page = made["m"].page_size_bytes
    return page == made["a"].page_size_bytes and 2 * state <= page and made["m"].block_size == 12
