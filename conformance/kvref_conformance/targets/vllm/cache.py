"""The part `cache` of vLLM: a cache manager with its requests.

Stand-alone programs copy functions from this module, so that they need only vLLM.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, get_args

import vllm.config.cache
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils, single_type_kv_cache_manager
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from kvref.target import Allocation, CacheEvent, CacheGroup, CacheShape, CacheState, Copy, Hit
from kvref_conformance.targets.vllm.hashing import adapter_named
from kvref_conformance.targets.vllm.pool import hash_name, numbers, state_of
from kvref_conformance.targets.vllm.specs import make

CURRENT: SimpleNamespace = SimpleNamespace(manager=None, hasher=None, requests={}, needed=0, taken=[])


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
) -> CacheShape:
    register_built_ins()
    kv_cache_utils.init_none_hash(sha256)
    config = KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[group_of(place, group) for place, group in enumerate(groups)],
    )
    manager = make_manager(
        config,
        max_model_len=max_model_len,
        scheduler_block_size=scheduler_block_size,
        hash_block_size=hash_block_size,
        # The same limit under its names in different releases.
        max_in_flight_tokens=max_in_flight_tokens,
        max_num_batched_tokens=max_in_flight_tokens,
        enable_caching=enable_caching,
        use_eagle=use_eagle,
        enable_kv_cache_events=True,
    )
    CURRENT.manager, CURRENT.requests = manager, {}
    CURRENT.hasher = kv_cache_utils.get_request_block_hasher(hash_block_size, sha256)
    watch(manager)
    managers = manager.coordinator.single_type_managers
    queue = manager.block_pool.free_block_queue
    limits = (max_in_flight_tokens, max_model_len)
    return {
        "null": manager.block_pool.null_block.block_id,
        "reserved": sorted({*range(1, num_blocks)} - {*numbers(queue.get_all_free_blocks())}),
        "alignment": getattr(manager.coordinator, "_cache_hit_alignment_tokens", scheduler_block_size),
        "caps": [cap_of(each.kv_cache_spec, *limits) for each in managers],
        "reports_new": [bool(getattr(each, "records_new_block_ids", False)) for each in managers],
    }


def make_manager(config: Any, **settings: Any) -> Any:
    """Make a KVCacheManager. Settings that its constructor does not have in this release are left out."""
    return KVCacheManager(config, **{name: settings[name] for name in settings if takes_setting(name)})


def takes_setting(setting: str) -> bool:
    return setting in inspect.signature(KVCacheManager).parameters


def register_built_ins() -> None:
    if hasattr(single_type_kv_cache_manager, "register_all_kvcache_specs"):
        single_type_kv_cache_manager.register_all_kvcache_specs(None)


def group_of(place: int, group: CacheGroup) -> Any:
    made = KVCacheGroupSpec([f"layer.{place}"], make(group["spec"]))
    made.is_eagle_group = group["eagle"]
    return made


def cap_of(spec: Any, max_in_flight_tokens: int, max_model_len: int) -> int | None:
    cap = getattr(spec, "max_admission_blocks_per_request", None)
    return None if cap is None else int(cap(max_in_flight_tokens, max_model_len))


def watch(manager: Any) -> None:
    """From now on, record how many blocks the cache manager predicts, and which blocks it then allocates."""
    predict, take = manager.coordinator.get_num_blocks_to_allocate, manager.block_pool.get_new_blocks

    def get_num_blocks_to_allocate(*arguments: Any, **named: Any) -> Any:
        CURRENT.needed = predict(*arguments, **named)
        return CURRENT.needed

    def get_new_blocks(num_blocks: int) -> Any:
        taken = take(num_blocks)
        CURRENT.taken += numbers(taken)
        return taken

    manager.coordinator.get_num_blocks_to_allocate = get_num_blocks_to_allocate
    manager.block_pool.get_new_blocks = get_new_blocks


def objects(blocks: Sequence[int]) -> list[Any]:
    return [CURRENT.manager.block_pool.blocks[block] for block in blocks]


def add(
    request: str, tokens: Sequence[int], max_tokens: int, salt: str | None, adapter: str | None = None
) -> None:
    CURRENT.requests[request] = Request(
        request_id=request,
        prompt_token_ids=list(tokens),
        sampling_params=SamplingParams(max_tokens=max_tokens),
        pooling_params=None,
        lora_request=adapter_named(adapter),
        cache_salt=salt,
        block_hasher=CURRENT.hasher,
    )


def lookup(request: str) -> Hit:
    made = CURRENT.requests[request]
    blocks, tokens, *boundary = CURRENT.manager.get_computed_blocks(made)
    if boundary:
        made.shared_prefix_boundary = boundary[0]
    return {
        "tokens": tokens,
        "blocks": [numbers(group) for group in blocks.blocks],
        "hashes": [hash_name(each) for each in made.block_hashes],
        "junction": boundary[0] if boundary else 0,
    }


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
    manager = CURRENT.manager
    found = manager.create_kv_cache_blocks(tuple(map(objects, hit["blocks"]))) if hit else None
    made = CURRENT.requests[request]
    known = {
        "num_new_computed_tokens": hit["tokens"] if hit else 0,
        "new_computed_blocks": found,
        "num_external_computed_tokens": external,
        "num_encoder_tokens": encoder,
    }
    # Older schedulers ask first whether all of the request fits.
    asked_first = hasattr(manager, "can_fit_full_sequence")
    added = None
    if not (whole and asked_first) or manager.can_fit_full_sequence(made, **known):
        whole_too = {} if asked_first else {"full_sequence_must_fit": whole}
        added = manager.allocate_slots(
            made, new, num_lookahead_tokens=lookahead, delay_cache_blocks=delay, **known, **whole_too
        )
    return {
        "added": None if added is None else [numbers(group) for group in added.blocks],
        "needed": CURRENT.needed,
        "taken": CURRENT.taken,
    }


def progress(request: str, computed: int, in_flight: int, output: Sequence[int]) -> None:
    made = CURRENT.requests[request]
    made.append_output_token_ids(list(output))
    made.num_computed_tokens, made.num_in_flight_tokens = computed, in_flight


def block_ids(request: str) -> list[list[int]]:
    return [list(table) for table in CURRENT.manager.get_block_ids(request)]


def cache_blocks(request: str, computed: int) -> None:
    CURRENT.manager.cache_blocks(CURRENT.requests[request], computed)


def free(request: str) -> None:
    CURRENT.manager.free(CURRENT.requests[request])


def evict(blocks: Sequence[int]) -> None:
    CURRENT.manager.evict_blocks(set(blocks))


def reset() -> bool:
    done: bool = CURRENT.manager.reset_prefix_cache()
    return done


def new_step() -> None:
    CURRENT.manager.new_step_starts()


def take_new_block_ids() -> list[int]:
    taken: list[int] = CURRENT.manager.take_new_block_ids()
    return taken


def mamba_cache_modes() -> list[str]:
    """The modes (`align`, `all`) in which this release caches recurrent states with prefix caching."""
    modes = get_args(getattr(vllm.config.cache, "MambaCacheMode", None))
    return [mode for mode in ("align", "all") if mode in modes]


def has_partial_hits() -> bool:
    return hasattr(KVCacheManager, "take_kv_cache_block_copies")


def take_copies() -> list[Copy]:
    take = getattr(CURRENT.manager, "take_kv_cache_block_copies", None)
    if take is None:
        return []
    copies, retained = take()
    # The scheduler does this when it has submitted the step with the copies.
    CURRENT.manager.block_pool.free_blocks(retained)
    return [{"source": copy.src_block_id, "destination": copy.dst_block_id} for copy in copies]


def take_events() -> list[CacheEvent]:
    return [event_in_words(event) for event in CURRENT.manager.take_events()]


def event_in_words(event: Any) -> CacheEvent:
    kind = type(event).__name__
    if kind == "AllBlocksCleared":
        return {"what": "cleared", "hashes": []}
    described: CacheEvent = {
        "what": "stored" if kind == "BlockStored" else "removed",
        "hashes": [event_hash_name(each) for each in event.block_hashes],
    }
    if getattr(event, "group_idx", None) is not None:
        described["group"] = event.group_idx
    if kind == "BlockStored":
        parent = event.parent_block_hash
        described["parent"] = None if parent is None else event_hash_name(parent)
        described["tokens"] = list(event.token_ids)
        described["block_size"] = event.block_size
    return described


def event_hash_name(block_hash: Any) -> str:
    """A short name for a block hash in an event.

    An event has either the hash itself or the last eight bytes of the hash as a number.
    """
    return hash_name(block_hash.to_bytes(8, "big") if isinstance(block_hash, int) else block_hash)


def common_prefix(request: str) -> list[int]:
    common: list[int] = CURRENT.manager.get_num_common_prefix_blocks(request)
    return common


def state() -> CacheState:
    managers = CURRENT.manager.coordinator.single_type_managers
    holders = dict.fromkeys(name for each in managers for name, table in each.req_to_blocks.items() if table)
    copies = [pair for each in managers for pair in getattr(each, "_pending_cow_copies", ())]
    return {
        **state_of(CURRENT.manager.block_pool),
        "tables": {
            name: [numbers(each.req_to_blocks.get(name, ())) for each in managers] for name in holders
        },
        "pins": numbers([block for pair in copies for block in pair]),
    }
