"""Page sizes: the bytes of the content, plus the requested padding."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch

from kvref.errors import InvalidSpecError
from kvref.specs import (
    FullAttentionSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    TQFullAttentionSpec,
    UniformTypeKVCacheSpecs,
)


def attention(block_size: int, num_kv_heads: int = 1, head_size: int = 1, **fields: Any) -> FullAttentionSpec:
    return FullAttentionSpec(
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        **{"dtype": torch.float16, **fields},
    )


def latent(block_size: int, **fields: Any) -> MLAAttentionSpec:
    return MLAAttentionSpec(
        block_size=block_size, num_kv_heads=1, **{"head_size": 1, "dtype": torch.uint8, **fields}
    )


def states(block_size: int, **fields: Any) -> MambaSpec:
    return MambaSpec(
        block_size=block_size,
        shapes=((4, 8), (3,)),
        dtypes=(torch.float16, torch.float32),
        **fields,
    )


def one_token_of_one_head_is_its_values(head_size: int, head_size_v: int, wide: bool) -> bool:
    """The page of one token and one head has the bytes of its K and V values.

    pre: head_size >= 1 and head_size_v >= 0
    post: _
    """
    dtype, size = (torch.float32, 4) if wide else (torch.float16, 2)
    page = attention(1, 1, head_size, head_size_v=head_size_v, dtype=dtype).page_size_bytes
    return page == size * head_size + size * head_size_v


def every_token_takes_the_same(block_size: int, num_kv_heads: int, head_size: int, head_size_v: int) -> bool:
    """A page with one more token is larger by the page of one token.

    pre: block_size >= 1 and num_kv_heads >= 1 and head_size >= 1 and head_size_v >= 0
    post: _
    """
    one, some, more = (
        attention(size, num_kv_heads, head_size, head_size_v=head_size_v).page_size_bytes
        for size in (1, block_size, block_size + 1)
    )
    return more == some + one


def every_head_takes_the_same(block_size: int, num_kv_heads: int, head_size: int, head_size_v: int) -> bool:
    """A page with one more head is larger by the page of one head.

    pre: block_size >= 1 and num_kv_heads >= 1 and head_size >= 1 and head_size_v >= 0
    post: _
    """
    one, some, more = (
        attention(block_size, heads, head_size, head_size_v=head_size_v).page_size_bytes
        for heads in (1, num_kv_heads, num_kv_heads + 1)
    )
    return more == some + one


def each_vector_has_a_scale(block_size: int, num_kv_heads: int, head_size: int, head_size_v: int) -> bool:
    """Quantisation per token and head adds four bytes for each K, and for each V if there is one.

    pre: block_size >= 1 and num_kv_heads >= 1 and head_size >= 1 and head_size_v >= 0
    post: _
    """
    plain, scaled = (
        attention(
            block_size, num_kv_heads, head_size, head_size_v=head_size_v, dtype=torch.int8, kv_quant_mode=mode
        ).page_size_bytes
        for mode in (KVQuantMode.NONE, KVQuantMode.INT8_PER_TOKEN_HEAD)
    )
    keys = 4 * block_size * num_kv_heads
    return scaled - plain == (keys + keys if head_size_v > 0 else keys)


def packed_states_take_what_is_told(block_size: int, num_kv_heads: int, slot: int) -> bool:
    """A packed slot has the size that its spec gives in either field, whatever the head size.

    pre: block_size >= 1 and num_kv_heads >= 1 and slot >= 1
    post: _
    """
    named = TQFullAttentionSpec(
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_size=64,
        dtype=torch.float16,
        tq_slot_size=slot,
    ).page_size_bytes
    given = attention(block_size, num_kv_heads, 64, state_content_bytes=slot).page_size_bytes
    plain = attention(block_size, num_kv_heads, slot, head_size_v=0, dtype=torch.uint8).page_size_bytes
    return named == given == plain


def compressed_tokens_share_a_state(number: int, tokens: int, head_size: int) -> bool:
    """Pages with the same number of states have the same size, however many tokens share a state.

    pre: number >= 1 and tokens >= 1 and head_size >= 1
    post: _
    """
    page = latent(number * tokens, head_size=head_size, tokens_per_state=tokens).page_size_bytes
    return page == latent(number, head_size=head_size).page_size_bytes


def several_states_of_a_token(block_size: int, states_per_token: int, head_size: int) -> bool:
    """With n states per token, a page is as large as one with n times the tokens and one state each.

    pre: block_size >= 1 and states_per_token >= 1 and head_size >= 1
    post: _
    """
    page = latent(block_size, head_size=head_size, tokens_per_state=Fraction(1, states_per_token))
    return page.page_size_bytes == latent(block_size * states_per_token, head_size=head_size).page_size_bytes


def parts_of_states_are_refused(block_size: int, tokens: int) -> bool:
    """A block size is refused exactly if a block's last state would cover fewer tokens than the others.

    pre: 1 <= block_size <= 8 and 1 <= tokens <= 5
    post: _
    """
    try:
        latent(block_size, tokens_per_state=tokens)
    except InvalidSpecError:
        return block_size % tokens != 0
    return block_size % tokens == 0


def pages_are_aligned(block_size: int, head_size: int, alignment: int) -> bool:
    """A page with an alignment is the smallest multiple of it that holds the content.

    pre: block_size >= 1 and head_size >= 1 and alignment >= 1
    post: _
    """
    spec = latent(block_size, head_size=head_size, alignment=alignment)
    page, content = spec.page_size_bytes, spec.unpadded_page_size_bytes
    return page % alignment == 0 and content <= page < content + alignment


def padding_is_kept_or_refused(block_size: int, head_size: int, padded: int, alignment: int) -> bool:
    """A padded page has the requested size, or is refused if it is too small or not aligned.

    pre: 1 <= block_size <= 2 and 1 <= head_size <= 3 and 1 <= padded <= 8 and 1 <= alignment <= 3
    post: _
    """
    fits = padded >= latent(block_size, head_size=head_size).page_size_bytes and padded % alignment == 0
    try:
        spec = latent(block_size, head_size=head_size, page_size_padded=padded, alignment=alignment)
    except InvalidSpecError:
        return not fits
    return fits and spec.page_size_bytes == padded


def copies_derive_their_padding(block_size: int, other: int, head_size: int, alignment: int) -> bool:
    """A copy with another block size has the page size of a new spec with that block size.

    pre: block_size >= 1 and other >= 1 and head_size >= 1 and alignment >= 1
    post: _
    """
    spec = latent(block_size, head_size=head_size, alignment=alignment)
    copied = spec.copy_with_new_block_size(other)
    fresh = latent(other, head_size=head_size, alignment=alignment)
    return copied.page_size_bytes == fresh.page_size_bytes and copied.block_size == other


def states_do_not_grow(block_size: int, other: int, alignment: int) -> bool:
    """The page of a recurrent layer holds its states, 4 x 8 of 2 bytes and 3 of 4 bytes, for any block size.

    pre: block_size >= 1 and other >= 1 and alignment >= 1
    post: _
    """
    spec = states(block_size, alignment=alignment)
    content = spec.unpadded_page_size_bytes
    return content == 76 and states(other, alignment=alignment).page_size_bytes == spec.page_size_bytes


def composites_hold_all_layers(block_size: int, head_size: int, other: int) -> bool:
    """The page of a composite of two layers is as large as that of one layer with both head sizes together.

    pre: block_size >= 1 and head_size >= 1 and other >= 1
    post: _
    """
    layers = {"a": attention(block_size, 1, head_size), "b": attention(block_size, 1, other)}
    both = UniformTypeKVCacheSpecs(block_size=block_size, kv_cache_specs=layers).page_size_bytes
    return both == attention(block_size, 1, head_size + other).page_size_bytes
