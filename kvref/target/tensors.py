"""The part `tensors`: the memory of a cache, and what each layer sees of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypedDict

from kvref.target.sharing import Pair
from kvref.target.specs import SpecDescriptor


class View(TypedDict):
    """A tensor that a layer works with, as torch describes it. Strides are in bytes."""

    buffer: int
    """The allocation that it lies in."""
    offset: int
    """From the start of that to the first element."""
    axes: str
    """A letter for each axis: B blocks, K for K and V, H heads, N states, C content of a state, S others.

    There are as many blocks as the pool has, or a multiple: blocks of the kernel, each block's one after
    another.
    """
    shape: list[int]
    strides: list[int]
    itemsize: int
    device: str


class LayerTensors(TypedDict):
    """What one layer has, and what the plan says of it."""

    views: list[View]
    page_size_bytes: int
    content_size_bytes: int
    """Of a page, without padding."""
    block_stride: int
    """Bytes from a block of the layer to the next, as the plan has it."""


class Caches(TypedDict):
    """All memory of a cache."""

    num_blocks: int
    groups: list[list[str]]
    """The layers of each group, those that share a cache included."""
    buffers: list[int]
    """Bytes of each allocation."""
    planned: int
    """Bytes that the plan has for all layers."""
    zero: bool
    """Whether all of it read zero at first, in memory that others had written to before."""
    layers: dict[str, LayerTensors]


class TensorsPart(Protocol):
    """What allocates a cache. There is one, from an `allocate` to the next."""

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
        """Plan for the layers with so many blocks, allocate, and let every layer have its views.

        `layout` and `buffers` are of those that the target declares (capabilities `layouts` and `buffers`).
        Attention layers whose blocks are a multiple of `kernel_block_size` tokens get blocks of that size.
        `sharing` lists the layers without a cache of their own, with their targets. `device` is one of
        torch's.
        """
        ...

    def write(self, layer: str, block: int, seed: int) -> str:
        """Fill what the layer keeps in a block, through its views, with bytes that depend on the seed.

        Tells them in hexadecimal, in the order in which `read` does.
        """
        ...

    def read(self, layer: str, block: int) -> str:
        """The bytes of what the layer keeps in a block, read through its views, in hexadecimal."""
        ...

    # Content by slots, as a model runner has them: the slot of a token is the number of its block times the
    # block's tokens, plus its place within; that of a recurrent state is the number of its block.

    def write_slots(self, layer: str, slots: Sequence[int], marks: Sequence[int]) -> None:
        """Fill all that the layer keeps in each slot, through its views, with a mark: a number above 0."""
        ...

    def copy_slots(self, layer: str, source: Sequence[int], destination: Sequence[int]) -> None:
        """Copy what the layer keeps in each slot of `source` to the one of `destination`."""
        ...

    def compare_slots(
        self, layer: str, slots: Sequence[int], marks: Sequence[int], told: str
    ) -> list[list[int]]:
        """Where the layer's views show other marks than these: each place in `slots`, and the mark there.

        It is -1 where there is none, or not everywhere the same. What `told` says is for who reads a trace.
        """
        ...
