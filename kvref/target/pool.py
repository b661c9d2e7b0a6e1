"""The part `pool`: blocks, references to them, and their keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypedDict

from kvref.target.values import Json


class PoolShape(TypedDict):
    """The blocks of a new pool that the pool never allocates to requests."""

    null: int | None
    """The null block; None if the pool has none."""
    reserved: list[int]
    """Other blocks that the pool never allocates."""


class PoolState(TypedDict):
    """The state of a pool, read from the pool's internal data and not through the functions under test."""

    free: list[int]
    """The free list: free blocks in the order of reuse."""
    free_count: int
    """The number of free blocks according to the pool's own counter."""
    refs: list[int]
    """The reference count of each block, by block number."""
    keys: dict[str, list[str]]
    """The keys of each cached block, by its number as text. A key is a string made from hash and group."""
    found: dict[str, list[int]]
    """For each key in the prefix-cache index: the blocks that the index lists under the key."""


class PoolPart(Protocol):
    """A pool of blocks with its prefix-cache index. Each `create` replaces the previous pool.

    A block is given by its number, from 0 on. The argument `tokens` has all tokens of a request up to the end
    of some block, or up to a token within one. Blocks with equal `tokens` have equal content.
    """

    def create(
        self,
        num_blocks: int,
        enable_caching: bool,
        block_size: int,
        hash_block_size: int,
        declared: Mapping[str, Json] | None = None,
    ) -> PoolShape:
        """Start anew with an empty pool.

        Args:
            num_blocks: the number of blocks, the null block included.
            block_size: the tokens in a block.
            hash_block_size: the tokens from one block hash to the next.
            declared: capabilities of the pool, for the laws to read. Targets ignore it.
        """
        ...

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Allocate free blocks. Each gets one reference. If a block was cached, it loses its keys."""
        ...

    def touch(self, blocks: Sequence[int]) -> None:
        """Add one reference to each block, and take free ones off the free list. Skip null blocks."""
        ...

    def free(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each block, in this order. Skip null blocks."""
        ...

    def cache(self, tokens: Sequence[int], blocks: Sequence[int], start: int, group: int) -> None:
        """Cache full blocks of a request. Skip null blocks.

        Args:
            tokens: the tokens in all of `blocks`.
            blocks: the beginning of the request's block table. All blocks before `start` are cached already.
            start: the index of the first block to cache.
            group: the group of the block table.
        """
        ...

    def cache_partial(self, tokens: Sequence[int], block: int, group: int) -> None:
        """Give a block a key for `tokens`, which end within the block and do not fill it.

        kvref calls this only if the target declares the capability `partial_keys`.
        """
        ...

    def lookup(self, tokens: Sequence[int], groups: Sequence[int]) -> list[int] | None:
        """Return for each group a cached block in which `tokens` end, or None if a group has none."""
        ...

    def evict(self, blocks: Sequence[int]) -> None:
        """Remove all keys of these blocks, whether the blocks are free or referenced."""
        ...

    def reset(self) -> bool:
        """Remove all keys of all blocks, and return True. If a block is referenced, only return False."""
        ...

    def usage(self) -> float:
        """Return the share of the usable blocks that are referenced, from 0 to 1."""
        ...

    def state(self) -> PoolState:
        """Return the state of the pool, read from its internal data."""
        ...
