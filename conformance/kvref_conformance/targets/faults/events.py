"""Faults in the events of the cache."""

from __future__ import annotations

from dataclasses import replace

from kvref.events import BlockStored, KVCacheEvent
from kvref.pool import BlockPool
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_take_events = BlockPool.take_events


def first_of_several_not_told() -> ReferenceTarget:
    """A BlockStored event leaves out its first block."""

    def take_events(pool: BlockPool) -> list[KVCacheEvent]:
        told = []
        for event in _take_events(pool):
            if isinstance(event, BlockStored):
                first, *hashes = event.block_hashes
                tokens = event.token_ids[event.block_size :]
                event = replace(event, block_hashes=tuple(hashes), parent_block_hash=first, token_ids=tokens)
            told.append(event)
        return told

    break_it(BlockPool, "take_events", take_events)
    return ReferenceTarget()


def parent_of_the_stored_before() -> ReferenceTarget:
    """A BlockStored event names the last stored block as the parent, even if the parent is another block."""

    def take_events(pool: BlockPool) -> list[KVCacheEvent]:
        told: list[KVCacheEvent] = []
        for event in _take_events(pool):
            if isinstance(event, BlockStored) and event.parent_block_hash is not None:
                stored = [each for each in told if isinstance(each, BlockStored)]
                if stored:
                    event = replace(event, parent_block_hash=stored[-1].block_hashes[-1])
            told.append(event)
        return told

    break_it(BlockPool, "take_events", take_events)
    return ReferenceTarget()


def hash_block_size_told() -> ReferenceTarget:
    """BlockStored events report the hash block size as the block size."""

    def take_events(pool: BlockPool) -> list[KVCacheEvent]:
        return [
            replace(event, block_size=pool.hash_block_size) if isinstance(event, BlockStored) else event
            for event in _take_events(pool)
        ]

    break_it(BlockPool, "take_events", take_events)
    return ReferenceTarget()
