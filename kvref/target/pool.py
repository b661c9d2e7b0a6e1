"""The part `pool`: blocks, references to them, and their keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypedDict

from kvref.target.values import Json


class PoolShape(TypedDict):
    """The blocks of a new pool that requests never get."""

    null: int | None
    """The null block; None if there is none."""
    reserved: list[int]
    """Other blocks that the pool keeps for itself."""


class PoolState(TypedDict):
    """The state of a pool, read from its internals and not through the functions under test."""

    free: list[int]
    """The free list: free blocks in the order of reuse."""
    free_count: int
    """The number of free blocks by the pool's own count."""
    refs: list[int]
    """The reference count of each block, by block number."""
    keys: dict[str, list[str]]
    """The keys of each cached block, by block number. A key is a string made from block hash and group."""
    found: dict[str, list[int]]
    """The blocks that the prefix-cache index has for each key."""


class PoolPart(Protocol):
    """A pool of blocks with its prefix-cache index. Each `create` replaces the previous pool.

    Blocks are numbers from 0 on. `tokens` are the tokens of a request from its beginning to the end of some
    block; equal tokens mean equal content.
    """

    def create(
        self,
        num_blocks: int,
        enable_caching: bool,
        block_size: int,
        hash_block_size: int,
        declared: Mapping[str, Json] | None = None,
    ) -> PoolShape:
        """Start anew with blocks of `block_size` tokens, hashed every `hash_block_size` tokens.

        Args:
            num_blocks: the null block included.
            declared: capabilities of the pool, for the laws to read; an implementation ignores it.
        """
        ...

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Allocate free blocks, each with one reference, and evict those that were cached."""
        ...

    def touch(self, blocks: Sequence[int]) -> None:
        """Add one reference to each block, which also takes it off the free list; skip null blocks."""
        ...

    def free(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each block, in this order; skip null blocks."""
        ...

    def cache(self, tokens: Sequence[int], blocks: Sequence[int], start: int, group: int) -> None:
        """Cache the blocks of a block table from index `start` on, which `tokens` fill; skip null blocks."""
        ...

    def cache_partial(self, tokens: Sequence[int], block: int, group: int) -> None:
        """Give a key to the block in which `tokens` end, although they do not fill it.

        kvref calls it only if the target declares the capability `partial_keys`.
        """
        ...

    def lookup(self, tokens: Sequence[int], groups: Sequence[int]) -> list[int] | None:
        """Return for each group a cached block at the end of `tokens`, or None if a group has none."""
        ...

    def evict(self, blocks: Sequence[int]) -> None:
        """Take all keys from these blocks, whether they are free or referenced."""
        ...

    def reset(self) -> bool:
        """Take all keys from all blocks and return True. While a block is referenced, only return False."""
        ...

    def usage(self) -> float:
        """Return the fraction of the usable blocks that is referenced, from 0 to 1."""
        ...

    def state(self) -> PoolState:
        """Return the state of the pool, read from its internals."""
        ...
