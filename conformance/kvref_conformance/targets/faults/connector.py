"""Faults in a connector."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvref.cache import KVCacheManager
from kvref.offloading import OffloadingConnector
from kvref.pool import BlockPool
from kvref.request import Request
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_cache_blocks = KVCacheManager.cache_blocks
_submit_load = OffloadingConnector.submit_load


def stored_blocks_not_held() -> ReferenceTarget:
    """A transfer adds no references, so its blocks are free as soon as their request is freed."""

    def ignore(pool: BlockPool, blocks: Iterable[int]) -> None:
        """Do nothing. The true methods add and drop references."""

    break_it(BlockPool, "pin", ignore)
    break_it(BlockPool, "unpin", ignore)
    return ReferenceTarget()


def nothing_submitted_meanwhile() -> ReferenceTarget:
    """The connector refuses a load while another transfer waits to start."""

    def submit_load(connector: OffloadingConnector, job: str, *what: Any) -> None:
        if connector._queued:
            raise RuntimeError("a transfer is waiting already")
        _submit_load(connector, job, *what)

    break_it(OffloadingConnector, "submit_load", submit_load)
    return ReferenceTarget()


def keys_for_all_that_was_to_be_loaded() -> ReferenceTarget:
    """When a load ends, all its blocks are cached, even blocks that the load did not fill."""

    def cache_blocks(manager: KVCacheManager, request: Request, num_computed_tokens: int) -> None:
        tables = manager.coordinator.single_type_managers
        places = [len(each.req_to_blocks[request.request_id]) * each.block_size for each in tables]
        _cache_blocks(manager, request, min(request.num_tokens, *places))

    break_it(KVCacheManager, "cache_blocks", cache_blocks)
    return ReferenceTarget()
