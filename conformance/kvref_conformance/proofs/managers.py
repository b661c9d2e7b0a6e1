"""Managers that are asked what they count; their pool has no blocks to give."""

from __future__ import annotations

from typing import Any, TypeVar

from kvref.managers import SingleTypeKVCacheManager
from kvref.pool import BlockPool
from kvref.specs import KVCacheSpec

Manager = TypeVar("Manager", bound=SingleTypeKVCacheManager)


def made(kind: type[Manager], spec: KVCacheSpec, **engine: Any) -> Manager:
    pool = BlockPool(1, enable_caching=False, hash_block_size=1)
    return kind(spec, block_pool=pool, enable_caching=False, **engine)
