"""The part `connector` of `reference:fast`: an offloading connector with its pool and memory.

Stand-alone programs copy functions from this module, so that they need only kvref.
"""

from __future__ import annotations

from kvref.fast.pool import BlockPool
from kvref_conformance.targets.reference.connector import (
    create_with,
    finished,
    free,
    load,
    read,
    start_transfers,
    store,
    take,
    write,
)

__all__ = [
    "create",
    "finished",
    "free",
    "load",
    "read",
    "start_transfers",
    "store",
    "take",
    "write",
]


def create(num_blocks: int, host_blocks: int, device: str) -> None:
    create_with(BlockPool, num_blocks, host_blocks, device)
