"""Read and write blocks and slots through the tensors of any target.

A *mark* is a number that stands for the content of a slot (see docs/architecture.md, "The shadow").
Stand-alone programs copy functions from this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from kvref.target import Canonical, CanonicalTensor, View

PATTERN = 2654435761
"""`pattern` multiplies numbers by this factor, so that the bytes look random."""


def view_facts(view: torch.Tensor, axes: str, buffers: Sequence[torch.Tensor]) -> View:
    """Describe a view (a tensor by which a layer uses its cache) and its place in one of the buffers.

    The offset, the strides and the size of an item are in bytes.
    """
    storage = view.untyped_storage().data_ptr()
    [buffer] = [n for n, each in enumerate(buffers) if each.untyped_storage().data_ptr() == storage]
    size = view.element_size()
    return {
        "buffer": buffer,
        "offset": int(view.storage_offset()) * size,
        "axes": axes,
        "shape": list(view.shape),
        "strides": [stride * size for stride in view.stride()],
        "itemsize": size,
        "device": view.device.type,
    }


def pattern(size: int, seed: int) -> torch.Tensor:
    """Make `size` bytes that depend on their position and on the seed."""
    return ((torch.arange(1, size + 1) + 7919 * seed) * PATTERN // 128 % 256).to(torch.uint8)


def parts_of(views: Sequence[torch.Tensor], axes: Sequence[str], block: int, num_blocks: int) -> list[Any]:
    """The part of each view that belongs to the block with the number `block`.

    If kernels use smaller blocks than the pool, the part has several of these kernel blocks.
    """
    parts = []
    for view, letters in zip(views, axes, strict=True):
        axis = letters.index("B")
        several = view.shape[axis] // num_blocks
        parts.append(view.narrow(axis, block * several, several))
    return parts


def write_bytes(parts: Sequence[torch.Tensor], seed: int) -> str:
    """Fill tensors of any dtype with `pattern`, and return the written bytes in hexadecimal."""
    written = ""
    for place, part in enumerate(parts):
        data = pattern(part.numel() * part.element_size(), seed + 31 * place)
        part.copy_(data.to(part.device).view(part.dtype).view(part.shape))
        written += bytes(data.tolist()).hex()
    return written


def read_bytes(parts: Sequence[torch.Tensor]) -> str:
    """Return the bytes of tensors in hexadecimal."""
    return "".join(bytes(part.flatten().view(torch.uint8).tolist()).hex() for part in parts)


MIX = -7046029254386353131
"""kvref multiplies each mark by this factor, so that the bytes look random.

The factor is odd, so that different marks give different products (modulo 2**64).
"""

Numbers: TypeAlias = Sequence[int] | torch.Tensor
"""Slots or marks: a list, or a tensor if there are millions."""

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""For each element size in bytes, an integer dtype. Elements of any dtype can be copied as these integers."""


def write_marks(views: Sequence[torch.Tensor], axes: Sequence[str], slots: Numbers, marks: Numbers) -> None:
    """Fill each slot with the mark at the same index. The mark's bytes repeat up to the size of the slot."""
    for view, letters in zip(views, axes, strict=True):
        values, index = by_slot(view, letters, slots)
        size = values[index].shape[1:]
        bytes_each = size.numel() * values.element_size()
        filled = mark_bytes(marks, bytes_each, view.device).view(values.dtype)
        values[index] = filled.view(len(slots), *size)


def copy_marks(
    views: Sequence[torch.Tensor], axes: Sequence[str], source: Numbers, destination: Numbers
) -> None:
    """Copy the content of each slot in `source` to the slot at the same index in `destination`."""
    for view, letters in zip(views, axes, strict=True):
        values, index = by_slot(view, letters, source)
        values[by_slot(view, letters, destination)[1]] = values[index]


def compare_marks(
    views: Sequence[torch.Tensor], axes: Sequence[str], slots: Numbers, marks: Numbers
) -> list[list[int]]:
    """Find the slots that do not hold the mark at the same index.

    Returns a pair for each: [index in `slots`, mark in the slot]. The second number is -1 if the bytes of the
    slot are not the repetition of one mark.
    """
    wrong: dict[int, int] = {}
    for view, letters in zip(views, axes, strict=True):
        values, index = by_slot(view, letters, slots)
        there = values[index].reshape(len(slots), -1).contiguous().view(torch.uint8)
        differs = (there != mark_bytes(marks, there.shape[1], view.device)).any(dim=1)
        for place in differs.nonzero().flatten().tolist():
            wrong.setdefault(place, mark_in(there[place]))
    return [[place, wrong[place]] for place in sorted(wrong)]


def by_slot(view: torch.Tensor, axes: str, slots: Numbers) -> tuple[torch.Tensor, Any]:
    """Prepare a view for access by slot.

    Returns the view as a tensor of integers, with the axes B (blocks) and N (tokens in a block) in front, and
    the index that selects the slots in that tensor. Without an axis N, a block has only one slot.
    """
    letters = [letter for letter in "BN" if letter in axes]
    values = view.view(INTEGERS[view.element_size()]).movedim(
        [axes.index(each) for each in letters], [0, 1][: len(letters)]
    )
    places = torch.as_tensor(slots, device=view.device)
    if len(letters) == 1:
        return values, (places,)
    return values, (places // values.shape[1], places % values.shape[1])


def mark_bytes(marks: Numbers, size: int, device: torch.device) -> torch.Tensor:
    """Make `size` bytes for each mark: the product of the mark and `MIX`, repeated."""
    mixed = (torch.as_tensor(marks, dtype=torch.int64, device=device) * MIX).view(-1, 1).view(torch.uint8)
    return mixed.repeat(1, -(-size // 8))[:, :size].contiguous()


def mark_in(there: torch.Tensor) -> int:
    """The mark that these bytes repeat, or -1. Fewer than eight bytes hold only the low bytes of a mark."""
    size = min(8, there.numel())
    first = int.from_bytes(bytes(there[:size].tolist()), "little")
    mark = first * pow(MIX, -1, 1 << 64) % (1 << 8 * size)
    same = torch.equal(there, mark_bytes([mark], there.numel(), there.device)[0])
    return mark if same and mark else -1


def soil(sizes: Sequence[int], device: str) -> None:
    """Allocate buffers of these sizes in bytes, fill them with 90 and free them.

    The next allocation may get this memory. If that allocation does not zero it, the law about zeroing
    breaks.
    """
    dirty = [torch.full((size,), 90, dtype=torch.int8, device=device) for size in sizes]
    del dirty


def is_zero(buffers: Sequence[torch.Tensor]) -> bool:
    return not any(bool(buffer.view(torch.uint8).any()) for buffer in buffers)


def canonical_facts(made: Any, buffers: Sequence[torch.Tensor]) -> Canonical:
    """Describe a canonical view. The attributes of `made` must have the same names as in vLLM."""
    storages = [buffer.untyped_storage().data_ptr() for buffer in buffers]
    tensors: list[CanonicalTensor] = []
    for each in made.tensors:
        tensor, size = each.tensor, each.tensor.element_size()
        storage = tensor.untyped_storage().data_ptr()
        tensors.append(
            {
                "buffer": storages.index(storage) if storage in storages else None,
                "offset": int(tensor.storage_offset()) * size,
                "shape": list(tensor.shape),
                "strides": [stride * size for stride in tensor.stride()],
                "dtype": str(tensor.dtype),
                "device": tensor.device.type,
                "page_size_bytes": each.page_size_bytes,
            }
        )
    return {
        "tensors": tensors,
        "groups": [
            [{"tensor": ref.tensor_idx, "page_size_bytes": ref.page_size_bytes} for ref in refs]
            for refs in made.group_data_refs
        ],
    }
