"""The kernel that copies rows on a CUDA device in one launch, however many blocks and layers there are.

With one launch for each block and layer, the host would be busy far longer than the device. So the kernel
gets two tables: the addresses of the rows of each layer, and the pairs of rows to copy. Each program of the
kernel copies a piece of one row.

This module needs Triton, which comes with torch for CUDA devices. Without Triton, importing the module fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
import triton
import triton.language as tl

__all__ = ["copy_rows"]

_WORD = 8
"""Bytes per integer to copy, if all rows are aligned to 16 bytes. A thread then copies two at a time."""
_LANES = 512
"""How many integers a program copies at a time, `_TURNS` times in all. A larger number was slower."""
_TURNS = 2


def copy_rows(
    source: torch.Tensor,
    destination: torch.Tensor,
    longest_row: int,
    aligned: bool,
    row_pairs: Sequence[tuple[int, int]],
) -> None:
    """Copy rows of several tensors in one launch, on the current stream.

    Args:
        source, destination: int64, of shape (tensors, 3), on the device: for each tensor the address of row
            0, the bytes from one row to the next, and the bytes to copy from each row. The bytes to copy are
            the same in both tables.
        longest_row: the largest number of bytes to copy from a row.
        aligned: whether all numbers in both tables are multiples of 16.
        row_pairs: each is (row in the source tensors, row in the destination tensors). No row may be written
            twice, or both read and written.
    """
    word = _WORD if aligned else 1
    pieces = -(-longest_row // (word * _LANES * _TURNS))
    with torch.cuda.device(source.device):
        # From page-locked memory: otherwise the host waits for everything queued on the stream.
        listed = torch.tensor([*chain.from_iterable(row_pairs)], dtype=torch.int64, pin_memory=True)
        pairs = listed.to(source.device, non_blocking=True)
        launch: Any = _copy_pieces[len(row_pairs) * pieces, len(source)]  # pyright: ignore[reportIndexIssue]
        launch(source, destination, pairs, pieces, word=word, lanes=_LANES, turns=_TURNS)


@triton.jit(do_not_specialize=["pieces"])  # type: ignore[untyped-decorator]
def _copy_pieces(
    source: tl.tensor,
    destination: tl.tensor,
    pairs: tl.tensor,
    pieces: tl.tensor,
    word: tl.constexpr,
    lanes: tl.constexpr,
    turns: tl.constexpr,
) -> None:
    pair, piece = tl.program_id(0) // pieces, tl.program_id(0) % pieces
    source += 3 * tl.program_id(1)
    destination += 3 * tl.program_id(1)
    read = tl.load(source) + tl.load(source + 1) * tl.load(pairs + 2 * pair)
    written = tl.load(destination) + tl.load(destination + 1) * tl.load(pairs + 2 * pair + 1)
    words = tl.load(source + 2) // word
    if word == 8:
        read = tl.multiple_of(read, 16).to(tl.pointer_type(tl.int64))
        written = tl.multiple_of(written, 16).to(tl.pointer_type(tl.int64))
    else:
        read = read.to(tl.pointer_type(tl.int8))
        written = written.to(tl.pointer_type(tl.int8))
    for turn in tl.static_range(turns):
        places = (piece.to(tl.int64) * turns + turn) * lanes + tl.arange(0, lanes)
        there = places < words
        # Nothing reads these bytes again soon, so they need not evict others from the device's cache.
        moved = tl.load(read + places, mask=there, eviction_policy="evict_first")
        tl.store(written + places, moved, mask=there, eviction_policy="evict_first")
