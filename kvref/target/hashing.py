"""The part `hashing`: the content of a request, and the hashes of its blocks."""

from __future__ import annotations

from typing import NotRequired, Protocol, TypedDict


class ContentItem(TypedDict):
    """An image or other multimodal item, whose embeddings replace tokens of the prompt."""

    id: str
    """Identifies the content: equal ids mean equal embeddings."""
    offset: int
    """Position of its first placeholder token."""
    length: int
    """Number of its placeholder tokens."""
    is_embed: list[bool] | None
    """Which placeholders get an embedding, in order; None means all of them."""


class Content(TypedDict):
    """Everything that the KV of a request depends on. A field is absent if the request lacks it."""

    tokens: list[int]
    """All tokens. Where an item or an embedding replaces a token, the token's id has no meaning."""
    generated: NotRequired[int]
    """How many of the last tokens are output, appended one by one after the request was made."""
    adapter: NotRequired[str]
    salt: NotRequired[str]
    items: NotRequired[list[ContentItem]]
    """Sorted by offset. Placeholders of two items may overlap; their embeddings never do."""
    embeddings: NotRequired[dict[str, list[float]]]
    """Embeddings that replace tokens of the prompt, by position. Never together with `items`."""


class HashingPart(Protocol):
    """The block hashes by which a look-up finds the blocks of a request.

    The capability `contents` lists the kinds of content that the target takes besides tokens.
    """

    def block_hashes(self, content: Content, hash_block_size: int) -> list[str]:
        """Return the chain hashes of a request, one for each full hash block, in hexadecimal."""
        ...

    def keys(self, content: Content, hash_block_size: int, block_size: int) -> list[str]:
        """Return the block hashes for blocks of `block_size` tokens, a multiple of `hash_block_size`."""
        ...
