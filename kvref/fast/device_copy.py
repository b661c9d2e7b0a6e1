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
        """Make the table of tensors on this device. Each comes with the number of bytes of a row that count.

        The tensors have two dimensions, and elements of one byte.
        """
        numbers = [(tensor.data_ptr(), tensor.stride(0), size) for tensor, size in rows]
        return cls(
            torch.tensor(numbers, dtype=torch.int64, device=device),
            tuple(size for _, size in rows),
            not any(number % 16 for each in numbers for number in each),
        )


class Rows(Protocol):
    """Tensors on one device, with a table for each set of tensors that are copied together."""

    @property
    def device(self) -> torch.device: ...

    @property
    def row_tables(self) -> Sequence[RowTable]:
        """The tables. To make them, the host may have to wait for the device."""
        ...


def copied_in_one_launch(
    source: Rows, destination: Rows, table: int, row_pairs: Sequence[tuple[int, int]]
) -> bool:
    """Copy rows between all tensors of two tables on the current stream, if one launch can do it.

    Args:
        table: number of the table, the same in `source` and `destination`.
        row_pairs: each is (row in the source tensors, row in the destination tensors).

    Returns:
        Whether the rows were copied. False if the tensors are not on one CUDA device or have rows of
        different sizes, if the order of the copies matters, or if Triton is missing (it comes with torch for
        CUDA devices).
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
