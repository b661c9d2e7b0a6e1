"""The part `connector`: blocks of a pool that are copied to the host and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class ConnectorPart(Protocol):
    """A pool, memory for its blocks, as much on the host as it takes, and a connector between them.

    There is one of each, from a `create` to the next. Blocks are numbers.
    """

    def create(self, num_blocks: int, host_blocks: int, device: str) -> None:
        """Start anew, with so many blocks, the null block included, and so many on the host."""
        ...

    def take(self, num_blocks: int) -> list[int]:
        """Take free blocks out of the pool, for a request."""
        ...

    def free(self, blocks: Sequence[int]) -> None:
        """Give up a request's blocks: it ends, or is preempted."""
        ...

    def write(self, block: int, seed: int) -> str:
        """Fill a block with bytes that depend on the seed, and tell them in hexadecimal."""
        ...

    def read(self, block: int) -> str:
        """The bytes of a block, in hexadecimal."""
        ...

    def store(self, job: str, pairs: Sequence[tuple[int, int]]) -> None:
        """Have blocks copied to the host, given as pairs of a block and one of the host."""
        ...

    def load(self, job: str, pairs: Sequence[tuple[int, int]]) -> None:
        """Have blocks copied back from the host, given as pairs of a block and one of the host."""
        ...

    def start_transfers(self) -> None:
        """Start what was asked for: done once a step, before anything of the step is computed."""
        ...

    def finished(self) -> list[str]:
        """The jobs that were reported done since the last call."""
        ...
