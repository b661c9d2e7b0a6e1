"""Block hashes. Each covers a request from its first token to the end of a block.

A block hash covers everything that the KV of these tokens depends on: the tokens, the adapter, the salt, and
the multimodal items and embeddings that replace tokens, with their positions. A request has one hash for
every `hash_block_size` tokens. Each hash is computed from the one before it. So a group with larger blocks
needs no hashes of its own: it uses the request's hashes at the ends of its blocks (`hashes_at`).

The input of the hash function is a sequence of fields. A field is a tag, the length of its content, and the
content. So different content never gives the same input. Processes with the same seed compute the same
hashes.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvref.errors import InvalidRequestError

__all__ = [
    "DEFAULT_SEED",
    "HASH_FUNCTIONS",
    "BlockHasher",
    "Content",
    "HashedTokens",
    "MultiModalItem",
    "hashes_at",
]

DEFAULT_SEED = b"kvref"

HashFunction = Callable[[bytes], bytes]

HASH_FUNCTIONS: Mapping[str, HashFunction] = {
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "sha3_256": lambda data: hashlib.sha3_256(data).digest(),
    "blake2b": lambda data: hashlib.blake2b(data, digest_size=32).digest(),
}


class HashedTokens(Protocol):
    """What the pool needs to know of a request: its tokens and its block hashes."""

    @property
    def all_token_ids(self) -> Sequence[int]: ...

    @property
    def block_hashes(self) -> Sequence[bytes]: ...


@dataclass(frozen=True)
class MultiModalItem:
    """An image or other multimodal item, whose embeddings replace tokens of the prompt.

    Raises:
        InvalidRequestError: at construction, if `offset` is below 0, `length` is below 1, or `is_embed` does
            not have `length` values.
    """

    identifier: str
    """Identifies the content: equal identifiers mean equal embeddings."""
    offset: int
    """Position of the item's first placeholder token in the prompt."""
    length: int
    """Number of the item's placeholder tokens."""
    is_embed: tuple[bool, ...] | None = None
    """For each placeholder, whether an embedding replaces it; None means that all are replaced."""

    def __post_init__(self) -> None:
        if self.offset < 0 or self.length < 1:
            raise InvalidRequestError(
                f"item {self.identifier!r} has offset {self.offset} and length {self.length}: "
                "the offset must be at least 0, the length at least 1"
            )
        if self.is_embed is not None and len(self.is_embed) != self.length:
            raise InvalidRequestError(
                f"item {self.identifier!r} has {self.length} placeholders, but is_embed has "
                f"{len(self.is_embed)} values: give one for each placeholder"
            )

    def embeddings_at(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The item's embeddings at positions `start` to `stop` - 1: each as (position, index).

        The index counts the item's embeddings from 0.
        """
        if self.is_embed is None:
            first, last = max(start, self.offset), min(stop, self.offset + self.length)
            return [(position, position - self.offset) for position in range(first, last)]
        positions = [self.offset + place for place, embedded in enumerate(self.is_embed) if embedded]
        return [(position, number) for number, position in enumerate(positions) if start <= position < stop]


class Content(Protocol):
    """What the hasher needs to know of a request: everything that the request's KV depends on."""

    @property
    def all_token_ids(self) -> Sequence[int]: ...

    @property
    def adapter(self) -> str | None: ...

    @property
    def cache_salt(self) -> str | None: ...

    @property
    def multimodal_items(self) -> Sequence[MultiModalItem]: ...

    @property
    def embeddings(self) -> Mapping[int, bytes]: ...


@dataclass(frozen=True)
class BlockHasher:
    """Computes the block hashes of requests.

    Raises:
        InvalidRequestError: at construction, if `hash_block_size` is below 1 or the hash function is unknown.
    """

    hash_block_size: int
    """A request has one hash for each `hash_block_size` tokens."""
    hash_function: str | HashFunction = "sha256"
    """A name in `HASH_FUNCTIONS`, or a function that always returns the same number of bytes."""
    seed: bytes = DEFAULT_SEED
    """Goes into every hash. Hashers with different seeds never compute the same hash."""
    _function: HashFunction = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.hash_block_size < 1:
            raise InvalidRequestError(f"hash_block_size must be at least 1 token, not {self.hash_block_size}")
        function = self.hash_function
        if isinstance(function, str):
            if function not in HASH_FUNCTIONS:
                raise InvalidRequestError(
                    f"unknown hash function {function!r}: choose one of {', '.join(HASH_FUNCTIONS)}"
                )
            function = HASH_FUNCTIONS[function]
        object.__setattr__(self, "_function", function)

    def extend(self, block_hashes: list[bytes], content: Content) -> None:
        """Append the hashes that a request lacks: one for each `hash_block_size` tokens since the last hash.

        Args:
            block_hashes: the request's hashes so far. The new ones are appended here.
            content: the request.

        Raises:
            InvalidRequestError: a token id is negative or does not fit in 63 bits.
        """
        size = self.hash_block_size
        done, full = len(block_hashes), len(content.all_token_ids) // size
        if done >= full:
            return
        tokens = list(content.all_token_ids[done * size : full * size])
        if min(tokens) < 0:
            raise InvalidRequestError(f"{min(tokens)} is no token id: it must be at least 0")
        starts = range(0, len(tokens), size)
        extra: dict[int, bytes] = {}
        if content.multimodal_items or content.embeddings:
            for start in starts:
                block = tokens[start : start + size]
                extra[start] = _replaced(block, done * size + start, content)
                tokens[start : start + size] = block
        encoded = _tokens(tokens)
        parent = block_hashes[-1] if block_hashes else self._root(content)
        tokens_field = _head(b"t", size * _TOKEN_BYTES)
        for start in starts:
            own = encoded[start * _TOKEN_BYTES : (start + size) * _TOKEN_BYTES]
            fields = _field(b"p", parent) + tokens_field + own
            parent = self._function(fields + extra[start] if extra else fields)
            block_hashes.append(parent)

    def _root(self, content: Content) -> bytes:
        """The hash of seed, adapter and salt. The first block hash is computed from it."""
        fields = [_field(b"s", self.seed)]
        if content.adapter is not None:
            fields.append(_field(b"a", content.adapter.encode()))
        if content.cache_salt is not None:
            fields.append(_field(b"c", content.cache_salt.encode()))
        return self._function(b"".join(fields))


def hashes_at(block_hashes: Sequence[bytes], hash_block_size: int, block_size: int) -> Sequence[bytes]:
    """The hash of each full block of `block_size` tokens, selected from a request's `block_hashes`.

    Raises:
        InvalidRequestError: `block_size` is not a multiple of `hash_block_size`.
    """
    step, rest = divmod(block_size, hash_block_size)
    if rest or not step:
        raise InvalidRequestError(
            f"block_size {block_size} is not a multiple of hash_block_size {hash_block_size}, so its blocks "
            "have no hashes: choose a hash_block_size that divides it"
        )
    return block_hashes if step == 1 else block_hashes[step - 1 :: step]


_TOKEN_BYTES = array("q").itemsize
_REPLACED = -1
"""The hasher uses this number in place of the id of a replaced token. No token has this id."""


def _field(tag: bytes, content: bytes) -> bytes:
    return _head(tag, len(content)) + content


def _head(tag: bytes, length: int) -> bytes:
    return tag + length.to_bytes(8, "little")


def _tokens(token_ids: Sequence[int]) -> bytes:
    try:
        return array("q", token_ids).tobytes()
    except (OverflowError, TypeError) as error:
        raise InvalidRequestError(f"{token_ids} are not all token ids: {error}") from error


def _replaced(token_ids: list[int], start: int, content: Content) -> bytes:
    """Encode the items and embeddings that replace tokens of a block, as fields.

    Also sets the ids of the replaced tokens in `token_ids` to `_REPLACED`.

    Args:
        token_ids: the tokens of the block.
        start: position of the first of these tokens in the request.
        content: the request.
    """
    fields = []
    stop = start + len(token_ids)
    for item in content.multimodal_items:
        placed = item.embeddings_at(start, stop)
        if placed:
            numbers = [number for position, number in placed for number in (position - start, number)]
            fields.append(_field(b"m", item.identifier.encode()) + _field(b"n", _tokens(numbers)))
            for position, _ in placed:
                token_ids[position - start] = _REPLACED
    for position in range(start, stop):
        if position in content.embeddings:
            place = (position - start).to_bytes(8, "little")
            fields.append(_field(b"e", place + content.embeddings[position]))
            token_ids[position - start] = _REPLACED
    return b"".join(sorted(fields))
