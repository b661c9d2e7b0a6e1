"""The part `connector`: a KV connector that copies blocks to the host and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class ConnectorPart(Protocol):
    """A pool, memory for its blocks and for blocks on the host, and a connector that copies between the two.

    Each `create` replaces all of these. Blocks and host blocks are numbers.
    """

    def create(self, num_blocks: int, host_blocks: int, device: str) -> None:
        """Start anew with `num_blocks` blocks, the null block included, and `host_blocks` host blocks."""
        ...

    def take(self, num_blocks: int) -> list[int]:
        """Allocate free blocks to a request, and return their numbers."""
        ...

    def free(self, blocks: Sequence[int]) -> None:
        """Free the blocks of a request that ends or is preempted. A store may still be reading the blocks."""
        ...

    def write(self, block: int, seed: int) -> str:
        """Fill a block with bytes computed from `seed`, and return these bytes in hexadecimal."""
        ...

    def read(self, block: int) -> str:
        """Return the bytes of a block in hexadecimal."""
        ...

    def store(self, job: str, pairs: Sequence[tuple[int, int]]) -> None:
        """Request a job that copies blocks to the host. Each pair is (block, host block)."""
        ...

    def load(self, job: str, pairs: Sequence[tuple[int, int]]) -> None:
        """Request a job that copies host blocks back into blocks. Each pair is (block, host block)."""
        ...

    def start_transfers(self) -> None:
        """Start the requested jobs. An engine calls this once in each step, before the step runs."""
        ...

    def finished(self) -> list[str]:
        """Return the names of the jobs that have finished since the last call."""
        ...
