"""Reading and writing blocks through tensors, whoever made them. Copied into stand-alone programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from kvref.target import Canonical, CanonicalTensor, View

PATTERN = 2654435761
"""Whose multiples look like chance."""


def view_facts(view: torch.Tensor, axes: str, buffers: Sequence[torch.Tensor]) -> View:
    """Where a view lies in one of the allocations."""
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
    """Bytes in which no place, and no seed, looks like another."""
    return ((torch.arange(1, size + 1) + 7919 * seed) * PATTERN // 128 % 256).to(torch.uint8)


def parts_of(views: Sequence[torch.Tensor], axes: Sequence[str], block: int, num_blocks: int) -> list[Any]:
    """What of each view is the block's: several of its blocks, where those of the kernel are smaller."""
    parts = []
    for view, letters in zip(views, axes, strict=True):
        axis = letters.index("B")
        several = view.shape[axis] // num_blocks
        parts.append(view.narrow(axis, block * several, several))
    return parts


def write_bytes(parts: Sequence[torch.Tensor], seed: int) -> str:
    """Fill tensors, whatever they consist of, with a pattern: that one, in hexadecimal."""
    written = ""
    for place, part in enumerate(parts):
        data = pattern(part.numel() * part.element_size(), seed + 31 * place)
        part.copy_(data.to(part.device).view(part.dtype).view(part.shape))
        written += bytes(data.tolist()).hex()
    return written


def read_bytes(parts: Sequence[torch.Tensor]) -> str:
    """The bytes of tensors, in hexadecimal."""
    return "".join(bytes(part.flatten().view(torch.uint8).tolist()).hex() for part in parts)


MIX = -7046029254386353131
"""Times a mark, so that its bytes look like chance: odd, so that no two marks look alike."""

Numbers: TypeAlias = Sequence[int] | torch.Tensor
"""Slots or marks: a list, or a tensor of them where there are millions."""

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By size: what any value can be copied as."""


def write_marks(views: Sequence[torch.Tensor], axes: Sequence[str], slots: Numbers, marks: Numbers) -> None:
    """Fill slots with marks, again and again as far as there is room."""
    for view, letters in zip(views, axes, strict=True):
        values, index = by_slot(view, letters, slots)
        size = values[index].shape[1:]
        bytes_each = size.numel() * values.element_size()
        filled = mark_bytes(marks, bytes_each, view.device).view(values.dtype)
        values[index] = filled.view(len(slots), *size)


def copy_marks(
    views: Sequence[torch.Tensor], axes: Sequence[str], source: Numbers, destination: Numbers
) -> None:
    """Copy slots to others."""
    for view, letters in zip(views, axes, strict=True):
        values, index = by_slot(view, letters, source)
        values[by_slot(view, letters, destination)[1]] = values[index]


def compare_marks(
    views: Sequence[torch.Tensor], axes: Sequence[str], slots: Numbers, marks: Numbers
) -> list[list[int]]:
    """Places in `slots` that do not hold these marks, each with the mark that is there, or -1."""
    wrong: dict[int, int] = {}
    for view, letters in zip(views, axes, strict=True):
        values, index = by_slot(view, letters, slots)
        there = values[index].reshape(len(slots), -1).contiguous().view(torch.uint8)
        differs = (there != mark_bytes(marks, there.shape[1], view.device)).any(dim=1)
        for place in differs.nonzero().flatten().tolist():
            wrong.setdefault(place, mark_in(there[place]))
    return [[place, wrong[place]] for place in sorted(wrong)]


def by_slot(view: torch.Tensor, axes: str, slots: Numbers) -> tuple[torch.Tensor, Any]:
    """A view as integers, with what tells slots apart in front, and where in it the slots are."""
    letters = [letter for letter in "BN" if letter in axes]
    values = view.view(INTEGERS[view.element_size()]).movedim(
        [axes.index(each) for each in letters], [0, 1][: len(letters)]
    )
    places = torch.as_tensor(slots, device=view.device)
    if len(letters) == 1:
        return values, (places,)
    return values, (places // values.shape[1], places % values.shape[1])


def mark_bytes(marks: Numbers, size: int, device: torch.device) -> torch.Tensor:
    """So many bytes for each mark: itself, mixed, again and again."""
    mixed = (torch.as_tensor(marks, dtype=torch.int64, device=device) * MIX).view(-1, 1).view(torch.uint8)
    return mixed.repeat(1, -(-size // 8))[:, :size].contiguous()


def mark_in(there: torch.Tensor) -> int:
    """The mark that bytes consist of, or -1. Fewer than eight of them tell the last bytes of it alone."""
    size = min(8, there.numel())
    first = int.from_bytes(bytes(there[:size].tolist()), "little")
    mark = first * pow(MIX, -1, 1 << 64) % (1 << 8 * size)
    same = torch.equal(there, mark_bytes([mark], there.numel(), there.device)[0])
    return mark if same and mark else -1


def soil(sizes: Sequence[int], device: str) -> None:
    """Leave memory of these sizes to whoever allocates next, and something in it."""
    dirty = [torch.full((size,), 90, dtype=torch.int8, device=device) for size in sizes]
    del dirty


def is_zero(buffers: Sequence[torch.Tensor]) -> bool:
    return not any(bool(buffer.view(torch.uint8).any()) for buffer in buffers)


def canonical_facts(made: Any, buffers: Sequence[torch.Tensor]) -> Canonical:
    """What a canonical view, by the names that vLLM has for its parts, consists of."""
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
