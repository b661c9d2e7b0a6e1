"""The part `connector`: a KV connector that copies blocks to the host and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class ConnectorPart(Protocol):
    """A pool, memory for its blocks on the device and on the host, and the connector between the two.

    Each `create` replaces all three. Blocks are numbers.
    """

    def create(self, num_blocks: int, host_blocks: int, device: str) -> None:
        """Start anew with `num_blocks` blocks, the null block included, and `host_blocks` on the host."""
        ...

    def take(self, num_blocks: int) -> list[int]:
        """Allocate free blocks to a request, and return their numbers."""
        ...

    def free(self, blocks: Sequence[int]) -> None:
        """Free the blocks of a request that ends or is preempted."""
        ...

    def write(self, block: int, seed: int) -> str:
        """Fill a block with bytes made from `seed`, and return them in hexadecimal."""
        ...

    def read(self, block: int) -> str:
        """Return the bytes of a block in hexadecimal."""
        ...

    def store(self, job: str, pairs: Sequence[tuple[int, int]]) -> None:
        """Ask for blocks to be copied to the host; each pair is (block, host block)."""
        ...

    def load(self, job: str, pairs: Sequence[tuple[int, int]]) -> None:
        """Ask for blocks to be copied back from the host; each pair is (block, host block)."""
        ...

    def start_transfers(self) -> None:
        """Start the copies that were asked for. An engine calls this once a step, before the step runs."""
        ...

    def finished(self) -> list[str]:
        """Return the jobs that finished since the last call."""
        ...
