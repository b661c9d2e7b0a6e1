"""Rules of the managers: skipped tokens, block tables, which blocks need keys, hashes of larger blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kvref.hashing import MultiModalItem, hashes_at
from kvref.managers import (
    ChunkedLocalAttentionManager,
    MambaManager,
    SingleTypeKVCacheManager,
    SlidingWindowManager,
)
from kvref.managers.base import TokenCounts
from kvref.specs import ChunkedLocalAttentionSpec, MambaSpec, SlidingWindowSpec
from kvref_conformance.proofs.managers import made


def windowed(
    block_size: int, window: int, extra: int = 0, hits_of: int | None = None, eagle: bool = False
) -> SlidingWindowManager:
    spec = SlidingWindowSpec(
        block_size=block_size,
        num_kv_heads=1,
        head_size=1,
        dtype=torch.float16,
        sliding_window=window,
        extra_retained_tokens=extra,
    )
    return made(SlidingWindowManager, spec, scheduler_block_size=hits_of, use_eagle=eagle)


def chunked(block_size: int, chunk: int) -> ChunkedLocalAttentionManager:
    spec = ChunkedLocalAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float16, attention_chunk_size=chunk
    )
    return made(ChunkedLocalAttentionManager, spec)


def recurrent(block_size: int, mode: str, drafts: int) -> MambaManager:
    spec = MambaSpec(
        block_size=block_size,
        shapes=((4, 8),),
        dtypes=(torch.float16,),
        mamba_cache_mode=mode,
        num_speculative_blocks=drafts,
    )
    return made(MambaManager, spec)


def windows_skip_what_is_out_of_sight(window: int, computed: int, token: int) -> bool:
    """A token is skipped exactly if the next token is at least a window ahead of it.

    pre: window >= 1 and 0 <= token < computed
    post: _
    """
    skipped = token < windowed(1, window).get_num_skipped_tokens(computed)
    return skipped == (computed - token >= window)


def windows_retain_some_more(window: int, extra: int, computed: int, token: int) -> bool:
    """The extra tokens that a windowed layer retains before its window are not skipped.

    pre: window >= 1 and extra >= 0 and 0 <= token < computed
    post: _
    """
    skipped = token < windowed(1, window, extra).get_num_skipped_tokens(computed)
    return skipped == (computed - extra - token >= window)


def chunks_skip_earlier_chunks(chunk: int, computed: int, token: int) -> bool:
    """A token is skipped exactly if it is in an earlier chunk than the next token.

    pre: chunk >= 1 and 0 <= token < computed
    post: _
    """
    skipped = token < chunked(1, chunk).get_num_skipped_tokens(computed)
    return skipped == (token // chunk < computed // chunk)


def states_skip_all_but_the_last(computed: int, token: int) -> bool:
    """A token of a recurrent layer is skipped exactly if a later token is computed.

    pre: 0 <= token < computed
    post: _
    """
    skipped = token < recurrent(1, "none", 0).get_num_skipped_tokens(computed)
    return skipped == (token + 1 < computed)


def nothing_is_skipped_before_it_is_computed(kind: int, size: int, computed: int, later: int) -> bool:
    """Only computed tokens are skipped, and they stay skipped.

    pre: 0 <= kind < 3 and size >= 1 and 0 <= computed <= later
    post: _
    """
    managers: Sequence[Callable[[], SingleTypeKVCacheManager]] = (
        lambda: windowed(1, size),
        lambda: chunked(1, size),
        lambda: recurrent(1, "none", 0),
    )
    manager = managers[kind]()
    skipped = manager.get_num_skipped_tokens(computed)
    return 0 <= skipped <= computed and skipped <= manager.get_num_skipped_tokens(later)


def counted(tokens: int, lookahead: int = 0) -> TokenCounts:
    return TokenCounts(num_tokens=tokens + lookahead, num_tokens_main_model=tokens)


def tables_have_a_place_for_each_token(block_size: int, tokens: int) -> bool:
    """A block table has just enough blocks for all tokens.

    pre: block_size >= 1 and tokens >= 0
    post: _
    """
    length = windowed(block_size, 1).table_length(counted(tokens))
    return (length - 1) * block_size < tokens <= length * block_size


def tables_of_states_have_room_for_drafts(block_size: int, tokens: int, drafts: int, align: bool) -> bool:
    """After the block of the last token, a block table has one block for each draft and no others.

    pre: block_size >= 1 and tokens >= 0 and drafts >= 0
    post: _
    """
    manager = recurrent(block_size, "align" if align else "all", drafts)
    length = manager.table_length(counted(tokens)) - drafts
    return (length - 1) * block_size < tokens <= length * block_size


def states_do_not_look_ahead(block_size: int, tokens: int, ahead: int, align: bool) -> bool:
    """Lookahead needs no blocks of a recurrent layer.

    pre: block_size >= 1 and tokens >= 0 and ahead >= 0
    post: _
    """
    manager = recurrent(block_size, "align" if align else "all", 0)
    return manager.table_length(counted(tokens, ahead)) == manager.table_length(counted(tokens))


def blocks_that_a_hit_needs_get_keys(
    size: int, several: int, window: int, hit: int, place: int, eagle: bool
) -> bool:
    """Each block that some hit needs gets a key. With draft layers, so does the block after the hit.

    A hit ends at a multiple of 1, 2, 3 or 8 blocks, and needs the blocks that its next token reads. This is
    for block sizes 1, 16 and 48.

    pre: 0 <= size < 3 and 0 <= several < 4 and window >= 1 and hit >= 1 and place >= 0
    post: _
    """
    block_size, blocks = (1, 16, 48)[size], (1, 2, 3, 8)[several]
    manager = windowed(block_size, window, hits_of=blocks * block_size, eagle=eagle)
    end = hit * blocks
    # The last token of the block is less than a window before the next token.
    read = end * block_size - ((place + 1) * block_size - 1) < window
    needed = (place < end and read) or (eagle and place == end)
    return manager._is_useful(place) or not needed


def hashes_are_those_at_the_ends_of_blocks(size: int, step: int, number: int, block: int) -> bool:
    """The hash of a block is that of all tokens up to its end. A block that is not full has none.

    pre: 1 <= size <= 3 and 1 <= step <= 3 and 0 <= number <= 5 and 0 <= block <= 5
    post: _
    """
    # Hash i stands for the first (i + 1) * size tokens; here it is that number itself.
    hashes = [bytes([(place + 1) * size]) for place in range(number)]
    found = hashes_at(hashes, size, size * step)
    end = (block + 1) * size * step
    return list(found[block : block + 1]) == ([bytes([end])] if end <= number * size else [])


def embeddings_are_where_the_item_is(offset: int, start: int, position: int) -> bool:
    """Each placeholder of an item gets its own embedding of the item, in whichever block it is.

    pre: offset >= 0 and start >= 0 and 0 <= position - start < 4
    post: _
    """
    item = MultiModalItem("image", offset, 3)
    numbers = [number for place, number in item.embeddings_at(start, start + 4) if place == position]
    return numbers == ([position - offset] if 0 <= position - offset < 3 else [])
