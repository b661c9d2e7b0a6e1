"""Managers for contracts about block counts; their pool has no free blocks."""

from __future__ import annotations

from typing import Any, TypeVar

from kvref.managers import SingleTypeKVCacheManager
from kvref.pool import BlockPool
from kvref.specs import KVCacheSpec, MemoryLimits

Manager = TypeVar("Manager", bound=SingleTypeKVCacheManager)


def made(kind: type[Manager], spec: KVCacheSpec, **engine: Any) -> Manager:
    defaults = {
        "block_pool": BlockPool(1, enable_caching=False, hash_block_size=1),
        "enable_caching": False,
        "kv_cache_group_id": 0,
        "scheduler_block_size": spec.block_size,
        "limits": MemoryLimits(max_model_len=1, max_in_flight_tokens=0),
        "use_eagle": False,
    }
    return kind(spec, **{**defaults, **engine})
