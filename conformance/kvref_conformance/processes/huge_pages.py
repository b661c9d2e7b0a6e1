"""Memory that is quick to fork: what is allocated goes into huge pages, where the system lends any.

A fork copies an entry for each page, which for a process with torch in it takes longer than all the rest that
an example in a pristine process needs. A huge page has one entry in the place of 512.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

SIZE = 2 << 20
"""Of a huge page, in bytes."""

_COLLAPSE = 25  # MADV_COLLAPSE, since Linux 6.1


def use_huge_pages() -> None:
    """Move what is allocated into huge pages, where the system can do that; if not, all is as it was."""
    if sys.platform != "linux":
        return
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:  # no /proc: it is only slower then
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, length in allocated(maps):
        madvise(start, length, _COLLAPSE)


def allocated(maps: str) -> Iterator[tuple[int, int]]:
    """Addresses and lengths of the heap and of what else is private memory without a file, in whole pages."""
    for line in maps.splitlines():
        addresses, permissions, _, _, inode, *name = line.split()
        if permissions != "rw-p" or inode != "0" or (name and name[0] != "[heap]"):
            continue
        start, end = (int(address, 16) for address in addresses.split("-"))
        first, last = -(-start // SIZE) * SIZE, end // SIZE * SIZE
        if last > first:
            yield first, last - first
