"""A minimal KV connector: it copies blocks to host memory and back.

The engine goes on while a transfer runs. A request may end meanwhile and free its blocks. So the connector
pins each block in the pool until the transfer is done: the pool does not allocate a pinned block. (vLLM
instead delays the step that would reuse the block.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from kvref.canonical import CanonicalKVCaches, check_blocks, copy_blocks
from kvref.errors import InvalidConfigError, InvalidRequestError
from kvref.pool import BlockPool

__all__ = ["OffloadingConnector"]


@dataclass
class _Job:
    is_store: bool
    group: int
    block_pairs: list[tuple[int, int]]
    """Each is (block on the device, block on the host)."""
    done: torch.Event | None = None


class OffloadingConnector:
    """Copies blocks of a pool to host memory and back.

    Args:
        block_pool: the engine's pool. The connector pins blocks there during their transfer.
        device: the canonical view of the engine's caches.
        host: a canonical view of host memory; see `kvref.canonical.like_on_host`.

    Raises:
        InvalidConfigError: at construction, if `host` and `device` differ in row sizes or references.
    """

    def __init__(self, block_pool: BlockPool, device: CanonicalKVCaches, host: CanonicalKVCaches) -> None:
        forms = [
            ([each.page_size_bytes for each in caches.tensors], caches.group_data_refs)
            for caches in (device, host)
        ]
        if forms[0] != forms[1]:
            raise InvalidConfigError(
                f"memory on the host has rows of {forms[1][0]} bytes, that on the device of {forms[0][0]}, "
                "or their groups have other references: make it with like_on_host"
            )
        self._block_pool, self._device, self._host = block_pool, device, host
        self._queued: dict[str, _Job] = {}
        self._running: dict[str, _Job] = {}
        on_cuda = [each.tensor.device for each in device.tensors if each.tensor.is_cuda]
        self._stream = torch.cuda.Stream(on_cuda[0]) if on_cuda else None  # type: ignore[no-untyped-call]

    def submit_store(self, job: str, group: int, block_pairs: Sequence[tuple[int, int]]) -> None:
        """Submit a job that copies blocks to the host. `start_transfers` starts it.

        The job pins its blocks until it is done. One block may be stored to several blocks on the host.

        Args:
            job: name of the job.
            group: index of the group of the blocks.
            block_pairs: each is (block, block on the host). The block must be referenced or cached. Otherwise
                its content is unknown.

        Raises:
            InvalidRequestError: an earlier job of this name is not done; a block on the host is given twice;
                or a block is the null block, or free without keys. Nothing has changed.
            InvalidConfigError: the group or one of the blocks does not exist. Nothing has changed.
        """
        self._submit(job, _Job(True, group, list(block_pairs)))

    def submit_load(self, job: str, group: int, block_pairs: Sequence[tuple[int, int]]) -> None:
        """Submit a job that copies blocks from the host. `start_transfers` starts it.

        The job pins its blocks until it is done. One block on the host may be loaded into several blocks.

        Args:
            job: name of the job.
            group: index of the group of the blocks.
            block_pairs: each is (block, block on the host). The block must be referenced. Nobody could use
                content that is loaded into a free block without keys. In a free cached block, the content
                would not match the keys.

        Raises:
            InvalidRequestError: an earlier job of this name is not done; a block is given twice; or a block
                is the null block, or free. Nothing has changed.
            InvalidConfigError: the group or one of the blocks does not exist. Nothing has changed.
        """
        self._submit(job, _Job(False, group, list(block_pairs)))

    def _submit(self, name: str, job: _Job) -> None:
        if name in {**self._queued, **self._running}:
            raise InvalidRequestError(f"job {name!r} is not done yet: give this one another name")
        blocks, places = [block for block, _ in job.block_pairs], [place for _, place in job.block_pairs]
        check_blocks(self._device, job.group, blocks)
        check_blocks(self._host, job.group, places)
        pool = self._block_pool
        filled = [pair[job.is_store] for pair in job.block_pairs]
        if len({*filled}) < len(filled):
            twice = [block for block, times in Counter(filled).items() if times > 1]
            where = " on the host" if job.is_store else ""
            raise InvalidRequestError(f"job {name!r} would fill blocks {twice}{where} more than once")
        if pool.null_block in blocks:
            raise InvalidRequestError(f"job {name!r} has the null block, which has no content: leave it out")
        free = [block for block in blocks if not pool.get_ref_cnt(block)]
        if wrong := [block for block in free if not (job.is_store and pool.get_keys(block))]:
            raise InvalidRequestError(f"job {name!r} has blocks {wrong}, which are free: allocate them first")
        pool.pin(blocks)
        self._queued[name] = job

    def start_transfers(self) -> None:
        """Start all submitted jobs.

        Call this once per step, when all writes of earlier steps are queued on the current stream.
        """
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        # Not `stream(None)`: it initialises CUDA even if the caches are on the CPU.
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            for name, job in self._queued.items():
                if job.is_store:
                    copy_blocks(self._device, self._host, job.group, job.block_pairs)
                else:
                    back = [(host, block) for block, host in job.block_pairs]
                    copy_blocks(self._host, self._device, job.group, back)
                if self._stream is not None:
                    job.done = self._stream.record_event()
                self._running[name] = job
        self._queued.clear()

    def get_finished(self) -> list[str]:
        """Return the names of the jobs that have finished since the last call, and unpin their blocks."""
        finished = [name for name, job in self._running.items() if _is_done(job)]
        for name in finished:
            job = self._running.pop(name)
            self._block_pool.unpin(block for block, _ in reversed(job.block_pairs))
        return finished


def _is_done(job: _Job) -> bool:
    return job.done is None or bool(job.done.query())
