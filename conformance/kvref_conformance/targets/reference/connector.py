"""The part `connector` of the reference: an offloading connector with its pool and memory.

Stand-alone programs copy functions from this module, so that they need only kvref.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch

from kvref.canonical import CanonicalKVCaches, like_on_host, register_kv_caches
from kvref.offloading import OffloadingConnector
from kvref.planning import get_kv_cache_config_from_groups, get_kv_cache_groups
from kvref.pool import BlockPool
from kvref.specs import FullAttentionSpec
from kvref.tensors import allocate_kv_cache
from kvref_conformance.targets.memory import read_bytes, write_bytes

CURRENT: SimpleNamespace = SimpleNamespace(pool=None, device=None, connector=None)


def create(num_blocks: int, host_blocks: int, device: str) -> None:
    create_with(BlockPool, num_blocks, host_blocks, device)


def create_with(pool_class: type[BlockPool], num_blocks: int, host_blocks: int, device: str) -> None:
    spec = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=2, dtype=torch.float16)
    config = get_kv_cache_config_from_groups(get_kv_cache_groups({"layer.0": spec}), num_blocks)
    CURRENT.pool = pool_class(num_blocks, True, 4)
    CURRENT.device = register_kv_caches(allocate_kv_cache(config, device))
    host = like_on_host(CURRENT.device, host_blocks)
    CURRENT.connector = OffloadingConnector(CURRENT.pool, CURRENT.device, host)


def current_connector() -> OffloadingConnector:
    connector: OffloadingConnector = CURRENT.connector
    return connector


def rows(block: int) -> list[torch.Tensor]:
    caches: CanonicalKVCaches = CURRENT.device
    return [each.tensor[block] for each in caches.tensors]


def take(num_blocks: int) -> list[int]:
    taken: list[int] = CURRENT.pool.get_new_blocks(num_blocks)
    return taken


def free(blocks: Sequence[int]) -> None:
    CURRENT.pool.free_blocks(blocks)


def write(block: int, seed: int) -> str:
    return write_bytes(rows(block), seed)


def read(block: int) -> str:
    return read_bytes(rows(block))


def store(job: str, pairs: Sequence[tuple[int, int]]) -> None:
    current_connector().submit_store(job, 0, [(block, host) for block, host in pairs])


def load(job: str, pairs: Sequence[tuple[int, int]]) -> None:
    current_connector().submit_load(job, 0, [(block, host) for block, host in pairs])


def start_transfers() -> None:
    current_connector().start_transfers()


def finished() -> list[str]:
    return current_connector().get_finished()
