"""The part `hashing`: what a request contains, and the hashes of its blocks."""

from __future__ import annotations

from typing import NotRequired, Protocol, TypedDict


class ContentItem(TypedDict):
    """An image or the like, whose embeddings take the place of tokens of the prompt."""

    id: str
    """Names its content: equal ids mean equal embeddings."""
    offset: int
    """Position of its first placeholder."""
    length: int
    """Number of its placeholders."""
    is_embed: list[bool] | None
    """Which of the placeholders embeddings are put at, one after the other; None means all."""


class Content(TypedDict):
    """What the KV of a request depends on. What it does not say is not there."""

    tokens: list[int]
    """The tokens; what they are where something else takes their place means nothing."""
    generated: NotRequired[int]
    """How many of them, the last ones, the request gets one by one after it was made."""
    adapter: NotRequired[str]
    salt: NotRequired[str]
    items: NotRequired[list[ContentItem]]
    """Sorted by offset. No embeddings of two items are at one position, but placeholders may be."""
    embeddings: NotRequired[dict[str, list[float]]]
    """What takes the place of tokens of the prompt, by position. Not together with items."""


class HashingPart(Protocol):
    """The hashes under which blocks of a request are found again.

    Which kinds of content it takes besides tokens the capability `contents` tells.
    """

    def block_hashes(self, content: Content, hash_block_size: int) -> list[str]:
        """The chain hashes of a request of this content, one for each full hash block, in hexadecimal."""
        ...

    def keys(self, content: Content, hash_block_size: int, block_size: int) -> list[str]:
        """The hashes that name the blocks of a size, a multiple of `hash_block_size`."""
        ...
