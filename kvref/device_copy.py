"""Rows copied on a CUDA device in one launch, if that is possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch

__all__ = ["RowTable", "copied_in_one_launch"]


class RowTable(NamedTuple):
    """Where the rows of several tensors of one device are in memory."""

    addresses: torch.Tensor
    """int64, of shape (tensors, 3), on that device: the address of row 0, the bytes from one row to the next,
    and how many bytes of a row count."""
    longest_row: int
    """The most bytes that count."""
    aligned: bool
    """Whether all these numbers are multiples of 16."""


def copied_in_one_launch(
    source: RowTable, destination: RowTable, row_pairs: Sequence[tuple[int, int]]
) -> bool:
    """Copy rows of all tensors of one table to those of another, in the order of the current stream.

    Args:
        row_pairs: which row of each tensor goes to which.

    Returns:
        Whether it was done. It is not if they are not on one CUDA device, if Triton is not there, which comes
        with torch for such devices, or if it matters which row comes first.
    """
    device = source.addresses.device
    if device.type != "cuda" or destination.addresses.device != device or not row_pairs:
        return False
    written = {row for _, row in row_pairs}
    if len(written) < len(row_pairs) or not written.isdisjoint(row for row, _ in row_pairs):
        return False
    copy_rows = _kernel()
    if copy_rows is None or not source.longest_row:
        return False
    aligned = source.aligned and destination.aligned
    copy_rows(source.addresses, destination.addresses, source.longest_row, aligned, row_pairs)
    return True


@cache
def _kernel() -> Callable[[torch.Tensor, torch.Tensor, int, bool, Sequence[tuple[int, int]]], None] | None:
    try:
        from kvref.device_kernel import copy_rows
    except ImportError:
        return None
    return copy_rows
