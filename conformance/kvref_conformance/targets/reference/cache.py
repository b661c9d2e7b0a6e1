"""The part `cache` of the reference: a cache manager with its requests.

Stand-alone programs copy functions from this module, so that they need only kvref.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from kvref.cache import KVCacheBlocks, KVCacheManager
from kvref.events import AllBlocksCleared, BlockStored, KVCacheEvent
from kvref.fast.cache import KVCacheManager as FastKVCacheManager
from kvref.hashing import BlockHasher
from kvref.planning import KVCacheConfig, KVCacheGroupSpec
from kvref.pool import NULL_BLOCK
from kvref.registry import KVCacheSpecRegistry
from kvref.request import Request
from kvref.target import Allocation, CacheEvent, CacheGroup, CacheShape, CacheState, Copy, Hit
from kvref_conformance.targets.reference.pool import state_of
from kvref_conformance.targets.reference.specs import make

CURRENT: SimpleNamespace = SimpleNamespace(manager=None, hasher=None, requests={}, needed=0, taken=[])

MANAGERS: dict[str, type[KVCacheManager]] = {"plain": KVCacheManager, "fast": FastKVCacheManager}


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
    variant: str = "plain",
) -> CacheShape:
    KVCacheSpecRegistry.initialise()
    config = KVCacheConfig(
        num_blocks,
        (),
        tuple(
            KVCacheGroupSpec((f"layer.{place}",), make(group["spec"]), group["eagle"])
            for place, group in enumerate(groups)
        ),
    )
    manager = MANAGERS[variant](
        config,
        max_model_len,
        scheduler_block_size=scheduler_block_size,
        hash_block_size=hash_block_size,
        enable_caching=enable_caching,
        enable_kv_cache_events=True,
        max_in_flight_tokens=max_in_flight_tokens,
        **only_set_arguments(use_eagle=use_eagle, max_encoder_tokens=max_encoder_tokens),
    )
    CURRENT.manager, CURRENT.hasher, CURRENT.requests = manager, BlockHasher(hash_block_size), {}
    watch(manager)
    managers = manager.coordinator.single_type_managers
    return {
        "null": NULL_BLOCK,
        "reserved": [block for each in managers for block in getattr(each, "sink_blocks", ())],
        "alignment": scheduler_block_size,
        "caps": [each.max_admission_blocks_per_request for each in managers],
        "reports_new": [True for _ in managers],
    }


def watch(manager: KVCacheManager) -> None:
    """From now on, record how many blocks the cache manager predicts, and which blocks it then allocates."""
    coordinator = manager.coordinator
    predict, wait, take = (
        coordinator.get_num_blocks_to_allocate,
        coordinator.must_wait,
        manager.block_pool.get_new_blocks,
    )

    def get_num_blocks_to_allocate(*arguments: object, **named: object) -> int:
        CURRENT.needed = predict(*arguments, **named)  # type: ignore[arg-type]
        return int(CURRENT.needed)

    def must_wait(hits: Sequence[Sequence[int]]) -> bool:
        # If the request must wait, record a need of as many blocks as there are, which is never granted.
        CURRENT.needed = manager.block_pool.num_gpu_blocks if wait(hits) else 0
        return bool(CURRENT.needed)

    def get_new_blocks(num_blocks: int) -> list[int]:
        taken = take(num_blocks)
        CURRENT.taken += taken
        return taken

    coordinator.get_num_blocks_to_allocate = get_num_blocks_to_allocate  # type: ignore[method-assign]
    coordinator.must_wait = must_wait  # type: ignore[assignment, method-assign]
    manager.block_pool.get_new_blocks = get_new_blocks  # type: ignore[method-assign]


def current() -> KVCacheManager:
    manager: KVCacheManager = CURRENT.manager
    return manager


def request_of(name: str) -> Request:
    request: Request = CURRENT.requests[name]
    return request


def hash_name(block_hash: bytes) -> str:
    return block_hash[:6].hex()


def add(
    request: str, tokens: Sequence[int], max_tokens: int, salt: str | None, adapter: str | None = None
) -> None:
    CURRENT.requests[request] = Request(request, tokens, CURRENT.hasher, adapter=adapter, cache_salt=salt)


def lookup(request: str) -> Hit:
    made = request_of(request)
    blocks, tokens = current().get_computed_blocks(made)
    return {
        "tokens": tokens,
        "blocks": list(blocks.get_block_ids()),
        "hashes": [hash_name(each) for each in made.block_hashes],
    }


def only_set_arguments(**arguments: Any) -> dict[str, Any]:
    """Leave out arguments that are None, false or zero, as an engine does."""
    return {name: value for name, value in arguments.items() if value}


def allocate(
    request: str,
    new: int,
    hit: Hit | None = None,
    lookahead: int = 0,
    external: int = 0,
    delay: bool = False,
    encoder: int = 0,
    whole: bool = False,
) -> Allocation:
    CURRENT.needed, CURRENT.taken = 0, []
    added = current().allocate_slots(
        request_of(request),
        new,
        **only_set_arguments(
            num_new_computed_tokens=hit["tokens"] if hit else 0,
            new_computed_blocks=KVCacheBlocks(tuple(hit["blocks"])) if hit else None,
            num_lookahead_tokens=lookahead,
            num_external_computed_tokens=external,
            delay_cache_blocks=delay,
            num_encoder_tokens=encoder,
            full_sequence_must_fit=whole,
        ),
    )
    return {
        "added": None if added is None else list(added.get_block_ids()),
        "needed": CURRENT.needed,
        "taken": CURRENT.taken,
    }


def progress(request: str, computed: int, in_flight: int, output: Sequence[int]) -> None:
    made = request_of(request)
    made.append_output_token_ids(output)
    made.num_computed_tokens, made.num_in_flight_tokens = computed, in_flight


def block_ids(request: str) -> list[list[int]]:
    return list(current().get_block_ids(request))


def cache_blocks(request: str, computed: int) -> None:
    current().cache_blocks(request_of(request), computed)


def free(request: str) -> None:
    current().free(request_of(request))


def evict(blocks: Sequence[int]) -> None:
    current().evict_blocks(blocks)


def reset() -> bool:
    return current().reset_prefix_cache()


def new_step() -> None:
    current().new_step_starts()


def take_new_block_ids() -> list[int]:
    return current().take_new_block_ids()


def take_copies() -> list[Copy]:
    return []


def take_events() -> list[CacheEvent]:
    return [event_in_words(event) for event in current().take_events()]


def event_in_words(event: KVCacheEvent) -> CacheEvent:
    if isinstance(event, AllBlocksCleared):
        return {"what": "cleared", "hashes": []}
    hashes = [hash_name(each) for each in event.block_hashes]
    if not isinstance(event, BlockStored):
        return {"what": "removed", "hashes": hashes, "group": event.group_idx}
    parent = event.parent_block_hash
    return {
        "what": "stored",
        "hashes": hashes,
        "group": event.group_idx,
        "parent": None if parent is None else hash_name(parent),
        "tokens": list(event.token_ids),
        "block_size": event.block_size,
    }


def common_prefix(request: str) -> list[int]:
    return current().get_num_common_prefix_blocks(request)


def state() -> CacheState:
    coordinator = current().coordinator
    holders = dict.fromkeys(name for each in coordinator.single_type_managers for name in each.req_to_blocks)
    tables = {name: coordinator.get_blocks(name) for name in holders}
    return {
        **state_of(current().block_pool),
        "tables": {name: list(table) for name, table in tables.items() if any(table)},
        "pins": [],
    }
