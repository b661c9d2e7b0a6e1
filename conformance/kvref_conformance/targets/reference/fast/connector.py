"""The part `connector` of `reference:fast`. Stand-alone programs copy this: it imports only kvref."""

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
