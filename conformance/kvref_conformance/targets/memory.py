"""Reading and writing blocks through tensors, whoever made them. Copied into stand-alone programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
