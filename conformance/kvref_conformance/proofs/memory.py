"""The maximum memory of a request has room for the blocks that managers hold at any time, and little more.

Here all pages are padded to the same size. So a contract can count blocks and ignore what is in them.
"""

from __future__ import annotations

from typing import Any

import torch

from kvref.managers import (
    ChunkedLocalAttentionManager,
    CrossAttentionManager,
    FullAttentionManager,
    MambaManager,
    SingleTypeKVCacheManager,
    SlidingWindowManager,
)
from kvref.managers.base import TokenCounts
from kvref.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MemoryLimits,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from kvref_conformance.proofs.managers import made

LARGEST = 2**20
"""The largest block size in these contracts."""

PAGE = 2 * LARGEST


def attention(kind: type[AttentionSpec], block_size: int, **fields: Any) -> Any:
    return kind(
        block_size=block_size,
        num_kv_heads=1,
        head_size=1,
        head_size_v=0,
        dtype=torch.float16,
        page_size_padded=PAGE,
        **fields,
    )


def windowed(block_size: int, window: int, extra: int = 0) -> SlidingWindowSpec:
    spec: SlidingWindowSpec = attention(
        SlidingWindowSpec, block_size, sliding_window=window, extra_retained_tokens=extra
    )
    return spec


def chunked(block_size: int, chunk: int) -> ChunkedLocalAttentionSpec:
    spec: ChunkedLocalAttentionSpec = attention(
        ChunkedLocalAttentionSpec, block_size, attention_chunk_size=chunk
    )
    return spec


def recurrent(block_size: int, mode: str, drafts: int) -> MambaSpec:
    return MambaSpec(
        block_size=block_size,
        shapes=((1,),),
        dtypes=(torch.float16,),
        mamba_cache_mode=mode,
        num_speculative_blocks=drafts,
        page_size_padded=PAGE,
    )


def any_kind(kind: int, block_size: int, size: int) -> KVCacheSpec:
    match kind:
        case 0:
            return windowed(block_size, size)
        case 1:
            return chunked(block_size, size)
        case 2:
            return recurrent(block_size, "none", size)
        case 3:
            return recurrent(block_size, "align", size)
        case 4:
            spec: SinkFullAttentionSpec = attention(SinkFullAttentionSpec, block_size, sink_len=size)
            return spec
    full: FullAttentionSpec = attention(FullAttentionSpec, block_size)
    return full


def blocks(spec: KVCacheSpec, limits: MemoryLimits) -> int:
    """The number of blocks in the maximum memory."""
    return spec.max_memory_usage_bytes(limits) // PAGE


def held(kind: type[SingleTypeKVCacheManager], spec: KVCacheSpec, computed: int, in_flight: int) -> int:
    """How many blocks a request holds.

    The first is the block in which the next token begins to read; the last is the block of the last token in
    flight.
    """
    manager = made(kind, spec)
    tokens = TokenCounts(num_tokens=computed + in_flight, num_tokens_main_model=computed + in_flight)
    return manager.table_length(tokens) - manager.get_num_skipped_tokens(computed) // manager.block_size


def full_attention_keeps_all(block_size: int, length: int) -> bool:
    """The maximum memory of full attention has just enough blocks for all tokens of the longest request.

    pre: 1 <= block_size <= LARGEST and length >= 1
    post: _
    """
    number = blocks(attention(FullAttentionSpec, block_size), MemoryLimits(length, 0))
    return (number - 1) * block_size < length <= number * block_size


def full_attention_holds_no_more(block_size: int, length: int, computed: int, in_flight: int) -> bool:
    """A request never holds more blocks of a full-attention layer than its maximum memory has.

    pre: 1 <= block_size <= LARGEST and computed >= 0 and in_flight >= 0
    pre: 1 <= computed + in_flight <= length
    post: _
    """
    spec = attention(FullAttentionSpec, block_size)
    return held(FullAttentionManager, spec, computed, in_flight) <= blocks(spec, MemoryLimits(length, 0))


def sinks_come_on_top(block_size: int, length: int, sink_len: int) -> bool:
    """With sinks, the maximum memory has just enough further blocks for all sink tokens.

    pre: 1 <= block_size <= LARGEST and length >= 1 and sink_len >= 0
    post: _
    """
    limits = MemoryLimits(length, 0)
    with_sinks = attention(SinkFullAttentionSpec, block_size, sink_len=sink_len)
    without = attention(FullAttentionSpec, block_size)
    sinks = with_sinks.max_memory_usage_bytes(limits) - without.max_memory_usage_bytes(limits)
    return bool((sinks - PAGE) * block_size < sink_len * PAGE <= sinks * block_size)


def cross_attention_keeps_the_encoder(block_size: int, length: int, encoder: int, tokens: int) -> bool:
    """The maximum memory has just enough blocks for all encoder tokens, and block tables are never longer.

    pre: 1 <= block_size <= LARGEST and length >= 1 and 0 <= tokens <= encoder
    post: _
    """
    spec = attention(CrossAttentionSpec, block_size)
    number = blocks(spec, MemoryLimits(length, 0, encoder))
    counts = TokenCounts(num_tokens=length, num_tokens_main_model=length, num_encoder_tokens=tokens)
    enough = made(CrossAttentionManager, spec).table_length(counts) <= number
    return enough and (number - 1) * block_size < encoder <= number * block_size


def encoders_keep_nothing(block_size: int, length: int, in_flight: int) -> bool:
    """Encoder-only attention needs no cache memory.

    pre: 1 <= block_size <= LARGEST and length >= 1 and in_flight >= 0
    post: _
    """
    spec = attention(EncoderOnlyAttentionSpec, block_size)
    return bool(spec.max_memory_usage_bytes(MemoryLimits(length, in_flight)) == 0)


def windows_hold_no_more(
    block_size: int, window: int, extra: int, limit: int, length: int, computed: int, in_flight: int
) -> bool:
    """A request never holds more blocks of a windowed layer than its maximum memory has.

    pre: 1 <= block_size <= LARGEST and window >= 1 and extra >= 0 and computed >= 0
    pre: 0 <= in_flight <= limit and 1 <= computed + in_flight <= length
    post: _
    """
    spec = windowed(block_size, window, extra)
    return held(SlidingWindowManager, spec, computed, in_flight) <= blocks(spec, MemoryLimits(length, limit))


def windows_take_little_more(block_size: int, window: int, extra: int, limit: int, length: int) -> bool:
    """The maximum memory of a windowed layer is at most one block more than its tokens fill.

    Its tokens are those in the window before the next token, the extra tokens that it retains, and those in
    flight.

    pre: 1 <= block_size <= LARGEST and window >= 1 and extra >= 0 and limit >= 0 and length >= 1
    post: _
    """
    number = blocks(windowed(block_size, window, extra), MemoryLimits(length, limit))
    return (number - 2) * block_size < min(window - 1 + extra + limit, length)


def windows_stop_growing(
    block_size: int, window: int, extra: int, limit: int, length: int, longer: int
) -> bool:
    """Beyond the window and the tokens in flight, a longer request needs no more blocks.

    pre: 1 <= block_size <= LARGEST and window >= 1 and extra >= 0 and limit >= 0
    pre: window + extra + limit <= length <= longer
    post: _
    """
    spec = windowed(block_size, window, extra)
    return blocks(spec, MemoryLimits(longer, limit)) == blocks(spec, MemoryLimits(length, limit))


def chunks_of_whole_blocks_hold_no_more(
    block_size: int, number: int, limit: int, length: int, before: int, into: int, in_flight: int
) -> bool:
    """A request never holds more blocks of a chunked layer than its maximum memory has.

    This is for chunks of whole blocks. The request has computed some whole chunks and a part of the next one.

    pre: 1 <= block_size <= LARGEST and number >= 1 and before >= 0 and 0 <= into < number * block_size
    pre: 0 <= in_flight <= limit and 1 <= before * number * block_size + into + in_flight <= length
    post: _
    """
    chunk = number * block_size
    spec = chunked(block_size, chunk)
    most = held(ChunkedLocalAttentionManager, spec, before * chunk + into, in_flight)
    return most * PAGE <= spec.max_memory_usage_bytes(MemoryLimits(length, limit))


def chunks_across_blocks_hold_no_more(
    block_size: int, chunk: int, limit: int, length: int, computed: int, in_flight: int
) -> bool:
    """A request never holds more blocks of a chunked layer than its maximum memory has.

    This is for chunks that may begin within a block.

    pre: 1 <= block_size <= LARGEST and chunk >= 1 and chunk % block_size != 0 and computed >= 0
    pre: 0 <= in_flight <= limit and 1 <= computed + in_flight <= length
    post: _
    """
    spec = chunked(block_size, chunk)
    most = held(ChunkedLocalAttentionManager, spec, computed, in_flight)
    return most <= blocks(spec, MemoryLimits(length, limit))


def chunks_take_little_more(block_size: int, chunk: int, limit: int, length: int) -> bool:
    """The maximum memory of a chunked layer is at most one block more than its tokens fill.

    Its tokens are those of a chunk and those in flight. It never needs more blocks than the longest request.

    pre: 1 <= block_size <= LARGEST and chunk >= 1 and limit >= 0 and length >= 1
    post: _
    """
    number = blocks(chunked(block_size, chunk), MemoryLimits(length, limit))
    return (number - 2) * block_size < chunk + limit and (number - 1) * block_size < length


def chunks_stop_growing(block_size: int, chunk: int, limit: int, length: int, longer: int) -> bool:
    """Beyond a chunk, the tokens in flight and a block, a longer request needs no more blocks.

    pre: 1 <= block_size <= LARGEST and chunk >= 1 and limit >= 0
    pre: chunk + limit + block_size <= length <= longer
    post: _
    """
    spec = chunked(block_size, chunk)
    return blocks(spec, MemoryLimits(longer, limit)) == blocks(spec, MemoryLimits(length, limit))


def states_hold_no_more(block_size: int, limit: int, length: int, computed: int, in_flight: int) -> bool:
    """A request never holds more blocks of a recurrent layer than its maximum memory has.

    This is for mode `all`, in which all positions have blocks.

    pre: 1 <= block_size <= LARGEST and computed >= 0
    pre: 0 <= in_flight <= limit and 1 <= computed + in_flight <= length
    post: _
    """
    spec = recurrent(block_size, "all", 0)
    return held(MambaManager, spec, computed, in_flight) <= blocks(spec, MemoryLimits(length, limit))


def drafts_come_on_top(block_size: int, drafts: int, limit: int, length: int, align: bool) -> bool:
    """Drafts add one block each to the maximum memory of a recurrent layer.

    pre: 1 <= block_size <= LARGEST and drafts >= 0 and limit >= 0 and length >= 1
    post: _
    """
    mode, limits = "align" if align else "all", MemoryLimits(length, limit)
    without = recurrent(block_size, mode, 0)
    return blocks(recurrent(block_size, mode, drafts), limits) == blocks(without, limits) + drafts


def aligned_states_are_those_of_steps(block_size: int, limit: int, length: int) -> bool:
    """In mode `align`, a request needs three blocks: two for steps in flight, one for the state before them.

    pre: 1 <= block_size <= LARGEST and limit >= 0 and length >= 1
    post: _
    """
    return blocks(recurrent(block_size, "align", 0), MemoryLimits(length, limit)) == 3


def longer_requests_take_no_less(
    kind: int, block_size: int, size: int, limit: int, length: int, longer: int
) -> bool:
    """For each kind, a longer maximum length never needs less memory.

    pre: 0 <= kind < 6 and 1 <= block_size <= LARGEST and size >= 1 and limit >= 0 and 1 <= length <= longer
    post: _
    """
    spec = any_kind(kind, block_size, size)
    less, more = (spec.max_memory_usage_bytes(MemoryLimits(tokens, limit)) for tokens in (length, longer))
    return 0 <= less <= more


def memory_is_whole_pages(kind: int, block_size: int, size: int, limit: int, length: int) -> bool:
    """For each kind, the maximum memory is a whole number of pages.

    pre: 0 <= kind < 6 and 1 <= block_size <= LARGEST and size >= 1 and limit >= 0 and length >= 1
    post: _
    """
    return any_kind(kind, block_size, size).max_memory_usage_bytes(MemoryLimits(length, limit)) % PAGE == 0


def more_in_flight_takes_no_less(
    kind: int, block_size: int, size: int, limit: int, more: int, length: int
) -> bool:
    """For each kind that frees blocks early, more tokens in flight never need less memory.

    pre: 0 <= kind < 3 and 1 <= block_size <= LARGEST and size >= 1 and 0 <= limit <= more and length >= 1
    post: _
    """
    spec = any_kind(kind, block_size, size)
    return blocks(spec, MemoryLimits(length, limit)) <= blocks(spec, MemoryLimits(length, more))


def groups_have_blocks_for_all_layers(
    block_size: int, window: int, other: int, limit: int, length: int
) -> bool:
    """A group needs as many blocks as the layer that needs most, each with a page in every layer.

    pre: 1 <= block_size <= LARGEST and window >= 1 and other >= 1 and limit >= 0 and length >= 1
    post: _
    """
    layers = {"a": windowed(block_size, window), "b": windowed(block_size, other)}
    both = UniformTypeKVCacheSpecs(block_size=block_size, kv_cache_specs=layers)
    limits = MemoryLimits(length, limit)
    of_each = [blocks(spec, limits) for spec in layers.values()]
    number, rest = divmod(both.max_memory_usage_bytes(limits), 2 * PAGE)
    return rest == 0 and number in of_each and all(number >= each for each in of_each)
