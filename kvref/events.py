"""What the prefix cache tells others: events from which they can follow what it is able to serve.

Their meaning, in the order in which they are taken: after `BlockStored` a look-up of each of its hashes in
its group finds a block, after `BlockRemoved` none does, and after `AllBlocksCleared` nothing is found in any
group. So a hash is stored once, however many blocks hold its content, and removed with the last of them
(vLLM also announces each duplicate and each removal of one, so that a follower who does not count loses
hashes).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AllBlocksCleared", "BlockRemoved", "BlockStored", "KVCacheEvent"]


@dataclass(frozen=True)
class BlockStored:
    """Consecutive blocks of one sequence can be served from now on."""

    block_hashes: tuple[bytes, ...]
    """Hash of each block, in the order of the sequence."""
    parent_block_hash: bytes | None
    """Hash of the sequence up to the first of these blocks; None at its beginning."""
    token_ids: tuple[int, ...]
    """Tokens of these blocks and of no others: `block_size` for each hash."""
    block_size: int
    """Tokens in a block of the group."""
    group_idx: int
    kind: str
    """What the group's layers are: the name of the class of its spec."""


@dataclass(frozen=True)
class BlockRemoved:
    """These hashes can no longer be served."""

    block_hashes: tuple[bytes, ...]
    group_idx: int


@dataclass(frozen=True)
class AllBlocksCleared:
    """Nothing can be served."""


KVCacheEvent = BlockStored | BlockRemoved | AllBlocksCleared
