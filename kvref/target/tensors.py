"""The part `tensors`: the memory of a cache, and each layer's views of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypedDict

from kvref.target.sharing import Pair
from kvref.target.specs import SpecDescriptor


class View(TypedDict):
    """A tensor through which a layer uses its cache. `offset` and `strides` are in bytes."""

    buffer: int
    """The index of the tensor's buffer in `Caches.buffers`."""
    offset: int
    """Bytes from the start of the buffer to the tensor's first element."""
    axes: str
    """A letter for each axis: B blocks, K for K and V, H heads, N states, C content of a state, S others.

    Along axis B, the tensor has one entry for each block of the pool, or n entries for each block. In the
    latter case the entries are kernel blocks: a block is split into n of them, which follow one another.
    """
    shape: list[int]
    strides: list[int]
    itemsize: int
    device: str


class LayerTensors(TypedDict):
    """The views of one layer, and the sizes that the plan gives the layer."""

    views: list[View]
    page_size_bytes: int
    content_size_bytes: int
    """Bytes of a page without padding."""
    block_stride: int
    """Bytes from the start of one page of the layer to the start of the next block's page, as planned."""


class Caches(TypedDict):
    """All memory of a cache, and each layer's views of it."""

    num_blocks: int
    groups: list[list[str]]
    """For each group, the names of its layers, including layers that share another layer's cache."""
    buffers: list[int]
    """The size of each buffer in bytes. A buffer is one allocation of memory."""
    planned: int
    """The bytes that the plan has for all its tensors together."""
    zero: bool
    """Whether all memory was zero right after the allocation.

    Before it allocates, the target should fill memory of these sizes with other values and free it. Otherwise
    the memory may be zero by chance.
    """
    layers: dict[str, LayerTensors]
    """By the layer's name."""


class TensorsPart(Protocol):
    """Allocates, writes and reads the memory of a cache. Each `allocate` replaces the previous cache."""

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
        """Plan the cache for the layers, allocate its memory, and give every layer its views.

        Args:
            layers: the spec of each layer that owns a cache, by the layer's name.
            num_blocks: the number of blocks of the pool, the null block included.
            layout: a memory layout, one of those that the capability `layouts` lists.
            buffers: `"each"` allocates a buffer for each tensor of the plan, `"one"` a single buffer for all.
                kvref uses only the values that the capability `buffers` lists.
            kernel_block_size: tokens in a kernel block, for attention layers whose block size is a multiple
                of this number. None: kernels use whole blocks.
            sharing: the layers that own no cache, each with the layer whose cache it shares.
            device: the name of a torch device.
        """
        ...

    def write(self, layer: str, block: int, seed: int) -> str:
        """Fill a block of a layer, through the layer's views, with bytes computed from `seed`.

        Returns the written bytes in hexadecimal, in the order in which `read` returns them. Padding is not
        written.
        """
        ...

    def read(self, layer: str, block: int) -> str:
        """Read a block of a layer, through the layer's views, and return its bytes in hexadecimal."""
        ...

    # The next three functions use slots, as a model runner does. The slot of a token is the number of its
    # block times the block size, plus the token's index in the block. The slot of a recurrent state is the
    # number of its block.

    def write_slots(self, layer: str, slots: Sequence[int], marks: Sequence[int]) -> None:
        """Fill each slot of a layer, through the layer's views, with the mark at the same index.

        A mark is a number above 0 that stands for content.
        """
        ...

    def copy_slots(self, layer: str, source: Sequence[int], destination: Sequence[int]) -> None:
        """Copy what a layer keeps in each slot of `source` to the slot at the same index in `destination`."""
        ...

    def compare_slots(
        self, layer: str, slots: Sequence[int], marks: Sequence[int], told: str
    ) -> list[list[int]]:
        """Read the slots through the layer's views, and return those that do not hold the expected mark.

        `marks` has the expected mark of each slot. A wrong slot is returned as [its index in `slots`, the
        mark that it holds]. This mark is -1 if the slot holds no mark, or several marks.

        Args:
            told: a note for people who read the trace. Targets ignore it.
        """
        ...
