"""Copies rows on a CUDA device in one launch, if that is possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, Protocol

import torch

__all__ = ["RowTable", "copied_in_one_launch"]


class RowTable(NamedTuple):
    """Where the rows of several tensors of one device are in memory."""

    addresses: torch.Tensor
    """int64, of shape (tensors, 3), on that device. For each tensor: the address of row 0, the bytes from one
    row to the next, and how many bytes of a row count."""
    sizes: tuple[int, ...]
    """How many bytes of a row count, for each tensor."""
    aligned: bool
    """Whether all these numbers are multiples of 16."""

    @classmethod
    def of(cls, rows: Sequence[tuple[torch.Tensor, int]], device: torch.device) -> RowTable:
        """The table of tensors on that device, each given with the bytes of a row that count.

        The tensors have two dimensions, and elements of one byte.
        """
        numbers = [(tensor.data_ptr(), tensor.stride(0), size) for tensor, size in rows]
        return cls(
            torch.tensor(numbers, dtype=torch.int64, device=device),
            tuple(size for _, size in rows),
            not any(number % 16 for each in numbers for number in each),
        )


class Rows(Protocol):
    """Tensors of one device, and tables of those that belong together."""

    @property
    def device(self) -> torch.device: ...

    @property
    def row_tables(self) -> Sequence[RowTable]:
        """The host may have to wait for the device to make them."""
        ...


def copied_in_one_launch(
    source: Rows, destination: Rows, table: int, row_pairs: Sequence[tuple[int, int]]
) -> bool:
    """Copy rows of all tensors of a table to those of the other table, on the current stream.

    Args:
        table: number of the table, the same on both sides.
        row_pairs: which row of each tensor is copied to which.

    Returns:
        Whether it was done. It is not if the tensors are not on one CUDA device or have different rows, if
        the order of the copies matters, or if Triton is missing (it comes with torch for CUDA devices).
    """
    if source.device.type != "cuda" or destination.device != source.device or not row_pairs:
        return False
    written = {row for _, row in row_pairs}
    if len(written) < len(row_pairs) or not written.isdisjoint(row for row, _ in row_pairs):
        return False
    copy_rows, theirs, ours = _kernel(), source.row_tables[table], destination.row_tables[table]
    if copy_rows is None or not any(theirs.sizes) or theirs.sizes != ours.sizes:
        return False
    aligned = theirs.aligned and ours.aligned
    copy_rows(theirs.addresses, ours.addresses, max(theirs.sizes), aligned, row_pairs)
    return True


@cache
def _kernel() -> Callable[[torch.Tensor, torch.Tensor, int, bool, Sequence[tuple[int, int]]], None] | None:
    try:
        from kvref.fast.device_kernel import copy_rows
    except ImportError:
        return None
    return copy_rows
