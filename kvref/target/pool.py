"""The part `pool`: blocks, references to them, and their keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypedDict

from kvref.target.values import Json


class PoolShape(TypedDict):
    """What a new pool says of blocks that nobody is ever given."""

    null: int | None
    """The block that stands for one that is not needed; None where there is no such block."""
    reserved: list[int]
    """Blocks that the pool keeps for good."""


class PoolState(TypedDict):
    """What is in a pool, read without the functions that are under test."""

    free: list[int]
    """The free blocks, in the order of their reuse."""
    free_count: int
    """How many the pool believes to be free."""
    refs: list[int]
    """How often each block is held, by block."""
    keys: dict[str, list[str]]
    """The keys that each block carries, for blocks that carry any: a word for each hash and group."""
    found: dict[str, list[int]]
    """The blocks that the index has for each key."""


class PoolPart(Protocol):
    """A pool of blocks and the index of their content. There is one, from a `create` to the next.

    A block is a number from 0 on. Tokens are what a request consists of up to some block; equal tokens are
    equal content.
    """

    def create(
        self,
        num_blocks: int,
        enable_caching: bool,
        block_size: int,
        hash_block_size: int,
        declared: Mapping[str, Json] | None = None,
    ) -> PoolShape:
        """Start anew, with blocks of `block_size` tokens, hashed every `hash_block_size` tokens.

        `declared` is what capabilities say of the pool. It is there for the laws.
        """
        ...

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Take so many free blocks."""
        ...

    def touch(self, blocks: Sequence[int]) -> None:
        """Hold blocks that were found, or are held already, once more; null blocks mean nothing."""
        ...

    def free(self, blocks: Sequence[int]) -> None:
        """Give up one reference to each, in this order; null blocks mean nothing."""
        ...

    def cache(self, tokens: Sequence[int], blocks: Sequence[int], start: int, group: int) -> None:
        """Give keys to the blocks from place `start` on of a table, all of them full of these tokens.

        Null blocks get none.
        """
        ...

    def cache_partial(self, tokens: Sequence[int], block: int, group: int) -> None:
        """Give a key to the block in which these tokens end, before its own end.

        Only asked of a target that declares the capability `partial_keys`.
        """
        ...

    def lookup(self, tokens: Sequence[int], groups: Sequence[int]) -> list[int] | None:
        """A block of each group in which these tokens end, or None unless all have one."""
        ...

    def evict(self, blocks: Sequence[int]) -> None:
        """Take all keys from blocks, whether they are held or not."""
        ...

    def reset(self) -> bool:
        """Take all keys from all blocks, and say so; do nothing, and say so, while a block is held."""
        ...

    def usage(self) -> float:
        """The part of the blocks that is held, from 0 to 1, of those that can be."""
        ...

    def state(self) -> PoolState:
        """The probe."""
        ...
