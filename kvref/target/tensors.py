"""The part `tensors`: the memory of a cache, and each layer's views of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypedDict

from kvref.target.sharing import Pair
from kvref.target.specs import SpecDescriptor


class View(TypedDict):
    """A tensor that a layer works with, as torch describes it. Strides and `offset` are in bytes."""

    buffer: int
    """The number of the buffer that it views."""
    offset: int
    """Bytes from the start of the buffer to the first element."""
    axes: str
    """A letter for each axis: B blocks, K for K and V, H heads, N states, C content of a state, S others.

    Axis B has one entry for each block of the pool, or the same number of entries for each. Then it counts
    kernel blocks, and the kernel blocks of one block follow one another.
    """
    shape: list[int]
    strides: list[int]
    itemsize: int
    device: str


class LayerTensors(TypedDict):
    """The views of one layer, and the sizes that the plan has for it."""

    views: list[View]
    page_size_bytes: int
    content_size_bytes: int
    """Bytes of a page without padding."""
    block_stride: int
    """Bytes from one block of the layer to the next, as planned."""


class Caches(TypedDict):
    """All memory of a cache, and what each layer sees of it."""

    num_blocks: int
    groups: list[list[str]]
    """The names of the layers of each group, sharing layers included."""
    buffers: list[int]
    """Size of each buffer in bytes."""
    planned: int
    """Bytes that the plan has for all layers together."""
    zero: bool
    """Whether all memory was zero after allocation, although it had been written to before."""
    layers: dict[str, LayerTensors]


class TensorsPart(Protocol):
    """Allocates a cache, writes to it and reads it. Each `allocate` replaces the previous cache."""

    def allocate(
        self,
        layers: Mapping[str, SpecDescriptor],
        num_blocks: int,
        layout: str,
        buffers: str,
        kernel_block_size: int | None,
        sharing: Sequence[Pair],
        device: str,
    ) -> Caches:
        """Plan for the layers, allocate the memory, and give every layer its views.

        Args:
            layers: the spec of each layer that owns a cache.
            num_blocks: blocks of the pool, the null block included.
            layout: one of the capability `layouts`.
            buffers: one of the capability `buffers`: `each` for a buffer per tensor, `one` for a single one.
            kernel_block_size: tokens in a kernel block. It applies to attention layers whose block size is a
                multiple of it. None: a kernel block is a block.
            sharing: the layers without a cache of their own, with their targets.
            device: a device of torch.
        """
        ...

    def write(self, layer: str, block: int, seed: int) -> str:
        """Fill the content of a layer in a block through its views, with bytes made from `seed`.

        Returns the bytes in hexadecimal, in the order in which `read` returns them.
        """
        ...

    def read(self, layer: str, block: int) -> str:
        """Read the content of a layer in a block through its views, and return it in hexadecimal."""
        ...

    # Content by slots, as a model runner addresses it. A token's slot is the number of its block times the
    # block size, plus its place in the block. A recurrent state's slot is the number of its block.

    def write_slots(self, layer: str, slots: Sequence[int], marks: Sequence[int]) -> None:
        """Fill each slot of a layer with its mark, a number above 0, through the layer's views."""
        ...

    def copy_slots(self, layer: str, source: Sequence[int], destination: Sequence[int]) -> None:
        """Copy the content of each slot in `source` to the slot at the same index in `destination`."""
        ...

    def compare_slots(
        self, layer: str, slots: Sequence[int], marks: Sequence[int], told: str
    ) -> list[list[int]]:
        """Return the slots in which the layer's views show another mark than expected.

        Each difference is [index in `slots`, the mark found]. The mark is -1 if the slot holds no mark, or
        more than one.

        Args:
            told: a note for the reader of a trace; an implementation ignores it.
        """
        ...
