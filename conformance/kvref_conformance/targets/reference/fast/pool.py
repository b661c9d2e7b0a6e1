"""The part `pool` of `reference:fast`: a block pool with its prefix-cache index.

Stand-alone programs copy functions from this module, so that they need only kvref.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvref.target import Json, PoolShape
from kvref_conformance.targets.reference.pool import (
    cache,
    cache_partial,
    create as create_variant,
    evict,
    free,
    get_new_blocks,
    lookup,
    reset,
    state,
    touch,
    usage,
)

__all__ = [
    "cache",
    "cache_partial",
    "create",
    "evict",
    "free",
    "get_new_blocks",
    "lookup",
    "reset",
    "state",
    "touch",
    "usage",
]


def create(
    num_blocks: int,
    enable_caching: bool,
    block_size: int,
    hash_block_size: int,
    declared: Mapping[str, Json] | None = None,
    variant: str = "fast",
) -> PoolShape:
    return create_variant(num_blocks, enable_caching, block_size, hash_block_size, declared, variant)
