"""The part `canonical`: a cache as connectors see it, rows of bytes."""

from __future__ import annotations

from typing import Protocol, TypedDict


class CanonicalTensor(TypedDict):
    """An int8 tensor with a row for each block. Strides are in bytes."""

    buffer: int | None
    """The allocation of the cache that it lies in; None for memory of its own."""
    offset: int
    shape: list[int]
    strides: list[int]
    dtype: str
    device: str
    page_size_bytes: int
    """What is told of its rows."""


class CanonicalRef(TypedDict):
    """What of a canonical tensor a group keeps content in: the first bytes of each row."""

    tensor: int
    page_size_bytes: int


class Canonical(TypedDict):
    """The tensors, and the references of each group."""

    tensors: list[CanonicalTensor]
    groups: list[list[CanonicalRef]]


class CanonicalPart(Protocol):
    """What shows the cache that the part `tensors` allocated last to connectors."""

    def register(self) -> Canonical:
        """Make the canonical view of the cache."""
        ...

    def write(self, tensor: int, row: int, seed: int) -> str:
        """Fill a row with bytes that depend on the seed, and tell them in hexadecimal."""
        ...

    def read(self, tensor: int, row: int) -> str:
        """The bytes of a row, in hexadecimal."""
        ...

    def copy(self, group: int, source: int, destination: int) -> None:
        """Copy a block of a group to another, through the canonical view, as a connector does."""
        ...
