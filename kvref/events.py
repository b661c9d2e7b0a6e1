"""KV cache events: with them a subscriber knows which block hashes the prefix cache can serve.

Apply them in order. After `BlockStored` a look-up of each of its hashes in its group finds a block. After
`BlockRemoved` it finds none. After `AllBlocksCleared` no look-up in any group finds anything. So a hash is
stored once, however many blocks have it, and removed with the last of them. (vLLM also reports each duplicate
and each removal of one: a subscriber that does not count them drops hashes too early.)
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AllBlocksCleared", "BlockRemoved", "BlockStored", "KVCacheEvent"]


@dataclass(frozen=True)
class BlockStored:
    """Consecutive blocks of one request are cached from now on."""

    block_hashes: tuple[bytes, ...]
    """The hash of each block, in the order of the request."""
    parent_block_hash: bytes | None
    """The hash of the block before the first of these; None at the beginning of the request."""
    token_ids: tuple[int, ...]
    """The tokens of exactly these blocks: `block_size` for each hash."""
    block_size: int
    """Tokens in a block of the group."""
    group_idx: int
    kind: str
    """The name of the group's spec class."""


@dataclass(frozen=True)
class BlockRemoved:
    """These hashes are no longer cached."""

    block_hashes: tuple[bytes, ...]
    group_idx: int


@dataclass(frozen=True)
class AllBlocksCleared:
    """No hash is cached in any group."""


KVCacheEvent = BlockStored | BlockRemoved | AllBlocksCleared
