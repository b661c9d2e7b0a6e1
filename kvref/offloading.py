"""Blocks kept on the host as well: the smallest connector there can be, and what it owes the pool.

A store reads blocks while the engine goes on. The request that they belong to may end meanwhile, and its
blocks be given back; so whoever still reads them holds them too, until it is done (vLLM defers what would
reuse them).
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
    """Blocks of the device and of the host."""
    done: torch.Event | None = None


class OffloadingConnector:
    """Copies blocks of a pool to host memory and back.

    Args:
        block_pool: of the engine; blocks under way are held in it.
        device: the caches whose blocks they are.
        host: memory of the same form; see `kvref.canonical.like_on_host`.

    Raises:
        InvalidConfigError: at construction, for memory of another form.
    """

    def __init__(self, block_pool: BlockPool, device: CanonicalKVCaches, host: CanonicalKVCaches) -> None:
        forms = [
            ([each.page_size_bytes for each in caches.tensors], caches.group_data_refs)
            for caches in (device, host)
        ]
        if forms[0] != forms[1]:
            raise InvalidConfigError(
                f"memory on the host has rows of {forms[1][0]} bytes, that on the device of {forms[0][0]}, "
                "or groups refer to others: make it with like_on_host"
            )
        self._block_pool, self._device, self._host = block_pool, device, host
        self._queued: dict[str, _Job] = {}
        self._running: dict[str, _Job] = {}
        on_cuda = [each.tensor.device for each in device.tensors if each.tensor.is_cuda]
        self._stream = torch.cuda.Stream(on_cuda[0]) if on_cuda else None  # type: ignore[no-untyped-call]

    def submit_store(self, job: str, group: int, block_pairs: Sequence[tuple[int, int]]) -> None:
        """Have blocks copied to the host, given as pairs (block, block on the host).

        Somebody holds the blocks, or they are free and have keys: these are the pool's promise of their
        content, and from now on the job holds them. A block may be stored twice, not into the same place.

        Raises:
            InvalidRequestError: there is such a job, a block on the host is given twice, or a block is null,
                or free and without keys. Nothing has changed.
            InvalidConfigError: there is no such group, or no such block. Nothing has changed.
        """
        self._submit(job, _Job(True, group, list(block_pairs)))

    def submit_load(self, job: str, group: int, block_pairs: Sequence[tuple[int, int]]) -> None:
        """Have blocks copied back from the host, given as `submit_store` takes them.

        Somebody holds the blocks: what is loaded into free ones is lost, or replaces what their keys promise.
        One on the host may be loaded into several.

        Raises:
            InvalidRequestError: there is such a job, or a block is given twice, or null, or free. Nothing has
                changed.
            InvalidConfigError: as `submit_store`.
        """
        self._submit(job, _Job(False, group, list(block_pairs)))

    def _submit(self, name: str, job: _Job) -> None:
        if name in {**self._queued, **self._running}:
            raise InvalidRequestError(f"there is a job {name!r} already, which is not done")
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
            raise InvalidRequestError(f"job {name!r} has blocks {wrong}, which are free: take them before")
        pool.pin(blocks)
        self._queued[name] = job

    def start_transfers(self) -> None:
        """Start what was submitted. Called once a step, when what the step before has written is there."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        # Not `stream(None)`: it starts CUDA where there is one, whatever the caches are on.
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
        """The jobs that are done since the last call; their blocks are held no longer."""
        finished = [name for name, job in self._running.items() if _is_done(job)]
        for name in finished:
            job = self._running.pop(name)
            self._block_pool.unpin(block for block, _ in reversed(job.block_pairs))
        return finished


def _is_done(job: _Job) -> bool:
    return job.done is None or bool(job.done.query())
