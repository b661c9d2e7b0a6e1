"""Events of the prefix cache. Whoever applies them in order knows what a look-up finds.

After `BlockStored` a look-up of each of its hashes in its group finds a block. After `BlockRemoved` it finds
none. After `AllBlocksCleared` no look-up finds anything. So a hash is stored once, however many blocks have
it, and removed with the last of them. (vLLM sends an event for each block of a hash: a subscriber that does
not count them loses hashes.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from kvref.hashing import HashedTokens

__all__ = ["AllBlocksCleared", "BlockRemoved", "BlockStored", "KVCacheEvent", "blocks_stored"]


@dataclass(frozen=True)
class BlockStored:
    """Consecutive blocks of one request are prefix hits from now on."""

    block_hashes: tuple[bytes, ...]
    """The hash of each block, in the order of the request."""
    parent_block_hash: bytes | None
    """The hash of all tokens before the first of these blocks; None if there are none."""
    token_ids: tuple[int, ...]
    """The tokens of these blocks: `block_size` for each hash."""
    block_size: int
    """Tokens in a block of the group."""
    group_idx: int
    kind: str
    """The class of the group's spec."""


@dataclass(frozen=True)
class BlockRemoved:
    """No block has these hashes any more."""

    block_hashes: tuple[bytes, ...]
    group_idx: int


@dataclass(frozen=True)
class AllBlocksCleared:
    """No block has any hash any more."""


KVCacheEvent = BlockStored | BlockRemoved | AllBlocksCleared


def blocks_stored(
    request: HashedTokens, places: Sequence[int], step: int, block_size: int, group: int, kind: str
) -> Iterator[BlockStored]:
    """An event for each run of consecutive blocks.

    Args:
        request: whose tokens the blocks have.
        places: where in the request's block table they are, in ascending order.
        step: how many hashes of the request belong to a block.
    """
    # In a run, place and position in the list grow alike.
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
