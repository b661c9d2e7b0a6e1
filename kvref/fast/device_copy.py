"""Copies rows of tensors on a CUDA device with one kernel launch, if that is possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, Protocol

import torch

__all__ = ["RowTable", "copied_in_one_launch"]


class RowTable(NamedTuple):
    """The addresses of the rows of several tensors on one device."""

    addresses: torch.Tensor
    """int64, of shape (tensors, 3), on that device. For each tensor: the address of row 0, the bytes from one
    row to the next, and the bytes to copy from the start of each row."""
    sizes: tuple[int, ...]
    """For each tensor, the bytes to copy from the start of each row."""
    aligned: bool
    """Whether all numbers in `addresses` are multiples of 16."""

    @classmethod
    def of(cls, rows: Sequence[tuple[torch.Tensor, int]], device: torch.device) -> RowTable:
        """Make the table of tensors on this device.

        Args:
            rows: each is a tensor and the bytes to copy from the start of each of its rows. The tensor has
                two dimensions, and elements of one byte.
        """
        numbers = [(tensor.data_ptr(), tensor.stride(0), size) for tensor, size in rows]
        return cls(
            torch.tensor(numbers, dtype=torch.int64, device=device),
            tuple(size for _, size in rows),
            not any(number % 16 for each in numbers for number in each),
        )


class Rows(Protocol):
    """Tensors on one device, with a row table for each set of tensors that are copied together."""

    @property
    def device(self) -> torch.device: ...

    @property
    def row_tables(self) -> Sequence[RowTable]:
        """The row tables. If they must be made first, the host may have to wait for the device."""
        ...


def copied_in_one_launch(
    source: Rows, destination: Rows, table: int, row_pairs: Sequence[tuple[int, int]]
) -> bool:
    """Copy rows with one launch on the current stream, if one launch can do it.

    Each row pair is copied in all tensors of a row table.

    Args:
        table: index of the row table in `source` and in `destination`.
        row_pairs: each is (row in the source tensors, row in the destination tensors).

    Returns:
        True if the rows were copied. False if nothing was copied: the tensors are not on one CUDA device,
        their rows have different sizes, there is nothing to copy, a row number is written twice or both read
        and written, or Triton is missing (torch for CUDA includes it).
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
