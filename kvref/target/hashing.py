"""The part `hashing`: the content of a request, and the hashes of its blocks."""

from __future__ import annotations

from typing import NotRequired, Protocol, TypedDict


class ContentItem(TypedDict):
    """An image or another multimodal item. Its embeddings replace placeholder tokens of the prompt."""

    id: str
    """Identifies the item: items with equal ids have equal embeddings."""
    offset: int
    """The position of the item's first placeholder token."""
    length: int
    """The number of the item's placeholder tokens."""
    is_embed: list[bool] | None
    """For each placeholder, in order, whether an embedding replaces it. None: all of them are replaced."""


class Content(TypedDict):
    """Everything that the KV of a request depends on. Fields that a request does not need are absent."""

    tokens: list[int]
    """All tokens, prompt and output. If an embedding replaces a token, the id of that token means nothing."""
    generated: NotRequired[int]
    """How many tokens at the end are output. The target makes the request without them, then appends each."""
    adapter: NotRequired[str]
    salt: NotRequired[str]
    items: NotRequired[list[ContentItem]]
    """Multimodal items, sorted by offset. Two items may share placeholders, but no embedding position."""
    embeddings: NotRequired[dict[str, list[float]]]
    """Embeddings that replace tokens of the prompt, by position. A request never has these and `items`."""


class HashingPart(Protocol):
    """Computes the block hashes by which a look-up finds cached blocks.

    The capability `contents` lists what a target accepts besides tokens, such as "salt" or "items".
    """

    def block_hashes(self, content: Content, hash_block_size: int) -> list[str]:
        """Return the hash of each full hash block of a request, in hexadecimal.

        A hash block has `hash_block_size` tokens. Its hash covers all tokens from the beginning of the
        request to the end of the hash block.
        """
        ...

    def keys(self, content: Content, hash_block_size: int, block_size: int) -> list[str]:
        """Return the hashes by which a group with blocks of `block_size` tokens looks up its full blocks.

        `block_size` is a multiple of `hash_block_size`.
        """
        ...
