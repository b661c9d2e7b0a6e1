"""Make forks faster: move the memory of a process into huge pages, if the system has any.

A fork copies one entry of the operating system's page table for each memory page. In a process that has
loaded torch, this takes longer than the rest of an example. One huge page replaces 512 ordinary ones, so
there is one entry to copy instead of 512.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

SIZE = 2 << 20
"""Bytes of a huge page."""

_COLLAPSE = 25  # MADV_COLLAPSE, since Linux 6.1


def use_huge_pages() -> None:
    """Move the allocated memory of this process into huge pages. If the system has none, do nothing."""
    if sys.platform != "linux":
        return
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:  # without /proc, forks are slower, and nothing else changes
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, length in allocated(maps):
        madvise(start, length, _COLLAPSE)


def allocated(maps: str) -> Iterator[tuple[int, int]]:
    """Find the regions of allocated memory in `maps`, the text of /proc/self/maps.

    Allocated memory is the heap and other private anonymous memory. Yields the address and the length in
    bytes of each region, cut to whole huge pages.
    """
    for line in maps.splitlines():
        addresses, permissions, _, _, inode, *name = line.split()
        if permissions != "rw-p" or inode != "0" or (name and name[0] != "[heap]"):
            continue
        start, end = (int(address, 16) for address in addresses.split("-"))
        first, last = -(-start // SIZE) * SIZE, end // SIZE * SIZE
        if last > first:
            yield first, last - first
