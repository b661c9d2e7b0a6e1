"""Prefix-cache events. A subscriber that applies them in order knows what a look-up finds.

After `BlockStored`, a look-up in the event's group finds a block for each hash in the event. After
`BlockRemoved`, a look-up in the event's group finds no block for any hash in the event. After
`AllBlocksCleared`, no look-up finds a block.

Several blocks of a group can have the same hash. The pool then reports `BlockStored` only for the first block
that gets the hash, and `BlockRemoved` only for the last block that loses it. (vLLM reports every block, so a
subscriber has to count.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from kvref.hashing import HashedTokens

__all__ = ["AllBlocksCleared", "BlockRemoved", "BlockStored", "KVCacheEvent", "blocks_stored"]


@dataclass(frozen=True)
class BlockStored:
    """From now on, a look-up finds these blocks, which are consecutive blocks of one request."""

    block_hashes: tuple[bytes, ...]
    """The hash of each block, in the order of the blocks in the request."""
    parent_block_hash: bytes | None
    """The hash of all tokens before these blocks; None if the request begins with these blocks."""
    token_ids: tuple[int, ...]
    """The tokens in these blocks: `block_size` tokens for each block."""
    block_size: int
    """Tokens in a block of the group."""
    group_idx: int
    kind: str
    """Name of the class of the group's spec."""


@dataclass(frozen=True)
class BlockRemoved:
    """No block of the group has these hashes any more."""

    block_hashes: tuple[bytes, ...]
    group_idx: int


@dataclass(frozen=True)
class AllBlocksCleared:
    """No block has a hash any more."""


KVCacheEvent = BlockStored | BlockRemoved | AllBlocksCleared


def blocks_stored(
    request: HashedTokens, places: Sequence[int], step: int, block_size: int, group: int, kind: str
) -> Iterator[BlockStored]:
    """Make a `BlockStored` event for each run of consecutive blocks.

    Args:
        request: the request that the blocks belong to.
        places: the indices of the blocks in the request's block table, in ascending order.
        step: the request's hashes per block: `block_size` divided by the hash block size.
        block_size, group, kind: the event's `block_size`, `group_idx` and `kind`.
    """
    # Within a run, the index in the table minus the position in `places` is constant.
    for _, run in groupby(enumerate(places), key=lambda each: each[1] - each[0]):
        blocks = [place for _, place in run]
        start, stop = blocks[0], blocks[-1] + 1
        yield BlockStored(
            block_hashes=tuple(request.block_hashes[(start + 1) * step - 1 : stop * step : step]),
            parent_block_hash=request.block_hashes[start * step - 1] if start else None,
            token_ids=tuple(request.all_token_ids[start * block_size : stop * block_size]),
            block_size=block_size,
            group_idx=group,
            kind=kind,
        )
