"""The part `canonical`: the cache as KV connectors see it, as rows of bytes."""

from __future__ import annotations

from typing import Protocol, TypedDict


class CanonicalTensor(TypedDict):
    """An int8 tensor with one row for each block. Strides and `offset` are in bytes."""

    buffer: int | None
    """The number of the cache's buffer that it views; None if it has memory of its own."""
    offset: int
    shape: list[int]
    strides: list[int]
    dtype: str
    device: str
    page_size_bytes: int
    """The page size that the connector gets with the tensor: bytes of a row."""


class CanonicalRef(TypedDict):
    """Where a group keeps content in a canonical tensor: the first `page_size_bytes` bytes of each row."""

    tensor: int
    page_size_bytes: int


class Canonical(TypedDict):
    """The canonical tensors, and for each group the references to its content in them."""

    tensors: list[CanonicalTensor]
    groups: list[list[CanonicalRef]]


class CanonicalPart(Protocol):
    """Gives connectors a canonical view of the cache that the part `tensors` allocated last."""

    def register(self) -> Canonical:
        """Make the canonical view of the cache, and describe it."""
        ...

    def write(self, tensor: int, row: int, seed: int) -> str:
        """Fill a row with bytes made from `seed`, and return them in hexadecimal."""
        ...

    def read(self, tensor: int, row: int) -> str:
        """Return the bytes of a row in hexadecimal."""
        ...

    def copy(self, group: int, source: int, destination: int) -> None:
        """Copy a block to another block of the group through the canonical view, as a connector does."""
        ...
