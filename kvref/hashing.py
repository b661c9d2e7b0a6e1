"""Chain hashes: names for the content of the KV cache up to a position.

The hash of the first n tokens of a request tells all that their KV depends on: the tokens, the adapter, the
salt, and what takes the place of tokens (multimodal items, embeddings), with the positions where it does.
There is one for every `hash_block_size` tokens, and each is made from the one before. So the hash of any
longer block is the one at its end, whatever the size of the block (`hashes_at`).

What goes into a hash is a sequence of fields, each a tag, the length of its content, and the content:
different content can never be the same bytes. Nothing depends on the process: same seed, same hashes.
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
    """A request as the pool sees it: tokens, and the hashes of as many of them as fill hash blocks."""

    @property
    def all_token_ids(self) -> Sequence[int]: ...

    @property
    def block_hashes(self) -> Sequence[bytes]: ...


@dataclass(frozen=True)
class MultiModalItem:
    """An image or the like, whose embeddings take the place of tokens.

    Raises:
        InvalidRequestError: at construction, for positions that cannot be, or a mask of another length.
    """

    identifier: str
    """Names its content: equal identifiers mean equal embeddings."""
    offset: int
    """Position of its first placeholder."""
    length: int
    """Number of its placeholders."""
    is_embed: tuple[bool, ...] | None = None
    """Which of the placeholders embeddings are put at, one after the other; None means all."""

    def __post_init__(self) -> None:
        if self.offset < 0 or self.length < 1:
            raise InvalidRequestError(
                f"item {self.identifier!r} has offset {self.offset} and length {self.length}: "
                "they must be at least 0 and 1"
            )
        if self.is_embed is not None and len(self.is_embed) != self.length:
            raise InvalidRequestError(
                f"item {self.identifier!r} has {self.length} placeholders and a mask of {len(self.is_embed)}"
            )

    def embeddings_at(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The (position, number of the embedding) of each embedding that lies in these positions."""
        if self.is_embed is None:
            first, last = max(start, self.offset), min(stop, self.offset + self.length)
            return [(position, position - self.offset) for position in range(first, last)]
        positions = [self.offset + place for place, embedded in enumerate(self.is_embed) if embedded]
        return [(position, number) for number, position in enumerate(positions) if start <= position < stop]


class Content(Protocol):
    """A request as the hasher sees it: all that its KV depends on."""

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
    """Makes the chain hashes of requests.

    Raises:
        InvalidRequestError: at construction, for a block below one token or an unknown hash function.
    """

    hash_block_size: int
    """Tokens from one hash to the next."""
    hash_function: str | HashFunction = "sha256"
    """One of `HASH_FUNCTIONS`, or a function whose results all have one length."""
    seed: bytes = DEFAULT_SEED
    """Hashes of different seeds have nothing in common."""
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
        """Append the hashes of all hash blocks that have been filled since the last call.

        Args:
            block_hashes: the hashes so far, of the same content.

        Raises:
            InvalidRequestError: a token is negative, or above 63 bits.
        """
        size = self.hash_block_size
        done, full = len(block_hashes), len(content.all_token_ids) // size
        if done >= full:
            return
        tokens = list(content.all_token_ids[done * size : full * size])
        if min(tokens) < 0:
            raise InvalidRequestError(f"{min(tokens)} is no token id")
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
        """The hash of no tokens: what all of the request depends on."""
        fields = [_field(b"s", self.seed)]
        if content.adapter is not None:
            fields.append(_field(b"a", content.adapter.encode()))
        if content.cache_salt is not None:
            fields.append(_field(b"c", content.cache_salt.encode()))
        return self._function(b"".join(fields))


def hashes_at(block_hashes: Sequence[bytes], hash_block_size: int, block_size: int) -> Sequence[bytes]:
    """The hashes of the blocks of a size, as many as are full.

    Raises:
        InvalidRequestError: the size is no multiple of `hash_block_size`.
    """
    step, rest = divmod(block_size, hash_block_size)
    if rest or not step:
        raise InvalidRequestError(
            f"block_size {block_size} is no multiple of hash_block_size {hash_block_size}: "
            "its blocks have no hashes"
        )
    return block_hashes if step == 1 else block_hashes[step - 1 :: step]


_TOKEN_BYTES = array("q").itemsize
_REPLACED = -1
"""Where a token's own id means nothing: no token has it."""


def _field(tag: bytes, content: bytes) -> bytes:
    return _head(tag, len(content)) + content


def _head(tag: bytes, length: int) -> bytes:
    return tag + length.to_bytes(8, "little")


def _tokens(token_ids: Sequence[int]) -> bytes:
    try:
        return array("q", token_ids).tobytes()
    except (OverflowError, TypeError) as error:
        raise InvalidRequestError(f"{token_ids} are no token ids: {error}") from error


def _replaced(token_ids: list[int], start: int, content: Content) -> bytes:
    """What takes the place of tokens in this block; their ids mean nothing there, and become `_REPLACED`."""
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
