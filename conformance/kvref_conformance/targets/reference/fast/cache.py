"""The part `cache` of `reference:fast`: a cache manager with its requests.

Stand-alone programs copy functions from this module, so that they need only kvref.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvref.target import CacheGroup, CacheShape
from kvref_conformance.targets.reference.cache import (
    add,
    allocate,
    block_ids,
    cache_blocks,
    common_prefix,
    create as create_variant,
    evict,
    free,
    lookup,
    new_step,
    progress,
    reset,
    state,
    take_copies,
    take_events,
    take_new_block_ids,
)

__all__ = [
    "add",
    "allocate",
    "block_ids",
    "cache_blocks",
    "common_prefix",
    "create",
    "evict",
    "free",
    "lookup",
    "new_step",
    "progress",
    "reset",
    "state",
    "take_copies",
    "take_events",
    "take_new_block_ids",
]


def create(
    groups: Sequence[CacheGroup],
    num_blocks: int,
    scheduler_block_size: int,
    hash_block_size: int,
    max_model_len: int,
    max_in_flight_tokens: int,
    enable_caching: bool,
    use_eagle: bool,
    max_encoder_tokens: int,
    variant: str = "fast",
) -> CacheShape:
    return create_variant(
        groups,
        num_blocks,
        scheduler_block_size,
        hash_block_size,
        max_model_len,
        max_in_flight_tokens,
        enable_caching,
        use_eagle,
        max_encoder_tokens,
        variant,
    )
