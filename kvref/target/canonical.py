"""The part `canonical`: the canonical view, in which KV connectors see the cache as rows of bytes."""

from __future__ import annotations

from typing import Protocol, TypedDict


class CanonicalTensor(TypedDict):
    """A tensor of the canonical view: int8, one row for each block. `strides` and `offset` are in bytes."""

    buffer: int | None
    """The index of the tensor's buffer in `Caches.buffers`. None if the tensor lies in none of these."""
    offset: int
    shape: list[int]
    strides: list[int]
    dtype: str
    device: str
    page_size_bytes: int
    """The bytes of a row, as the implementation reports them to the connector."""


class CanonicalRef(TypedDict):
    """Where a group's content is: in the first `page_size_bytes` bytes of each row of a canonical tensor."""

    tensor: int
    page_size_bytes: int


class Canonical(TypedDict):
    """The canonical tensors and, for each group, references to the group's content in these tensors."""

    tensors: list[CanonicalTensor]
    groups: list[list[CanonicalRef]]


class CanonicalPart(Protocol):
    """Makes the canonical view of the cache that the part `tensors` allocated last."""

    def register(self) -> Canonical:
        """Make the canonical view of the cache, and return its description."""
        ...

    def write(self, tensor: int, row: int, seed: int) -> str:
        """Fill a row with bytes computed from `seed`, and return these bytes in hexadecimal."""
        ...

    def read(self, tensor: int, row: int) -> str:
        """Return the bytes of a row in hexadecimal."""
        ...

    def copy(self, group: int, source: int, destination: int) -> None:
        """Copy a block to another block of the group through the canonical view, as a connector does."""
        ...
