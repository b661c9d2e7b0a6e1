"""The part `bench` of vLLM: calls of vLLM's own functions, for `kvref bench` to time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from operator import attrgetter
from typing import Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request
from vllm.v1.worker.gpu import attn_utils
from vllm.v1.worker.utils import add_kv_sharing_layers_to_kv_cache_groups

from kvref.target import BenchCall, CacheCalls, Pair, PoolCalls, SpecDescriptor
from kvref_conformance.targets.bench_models import FULL
from kvref_conformance.targets.vllm import canonical, tensors
from kvref_conformance.targets.vllm.cache import make_manager, register_built_ins
from kvref_conformance.targets.vllm.planner import engine_config, make_all
from kvref_conformance.targets.vllm.specs import make


def requests(block_size: int) -> Any:
    """Return a function that takes a name and tokens, and makes a request with block hashes."""
    kv_cache_utils.init_none_hash(sha256)
    hasher = kv_cache_utils.get_request_block_hasher(block_size, sha256)

    def request(name: str, tokens: Sequence[int]) -> Any:
        return Request(
            request_id=name,
            prompt_token_ids=list(tokens),
            sampling_params=SamplingParams(max_tokens=1024),
            pooling_params=None,
            block_hasher=hasher,
        )

    return request


def pool(num_blocks: int, block_size: int, events: bool) -> PoolCalls:
    made = BlockPool(num_blocks, True, block_size, enable_kv_cache_events=events)
    request = requests(block_size)

    def cache(request: Any, blocks: Sequence[Any]) -> None:
        made.cache_full_blocks(
            request=request,
            blocks=blocks,
            num_cached_blocks=0,
            num_full_blocks=len(blocks),
            block_size=block_size,
            kv_cache_group_id=0,
        )

    return PoolCalls(
        take=made.get_new_blocks,
        free=made.free_blocks,
        touch=made.touch,
        find=made.get_cached_block,
        num_free=made.get_num_free_blocks,
        take_events=made.take_events,
        request=lambda tokens: request("request", tokens),
        hashes=attrgetter("block_hashes"),
        cache=cache,
    )


def cache(
    groups: Sequence[SpecDescriptor], num_blocks: int, block_size: int, max_model_len: int
) -> CacheCalls:
    register_built_ins()
    manager = make_manager(
        KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec([f"layer.{place}"], make(spec)) for place, spec in enumerate(groups)
            ],
        ),
        max_model_len=max_model_len,
        scheduler_block_size=block_size,
        hash_block_size=block_size,
        # The same limit under its names in different releases.
        max_in_flight_tokens=max_model_len,
        max_num_batched_tokens=max_model_len,
        enable_caching=True,
    )
    return CacheCalls(
        request=requests(block_size),
        new_step=manager.new_step_starts,
        find=manager.get_computed_blocks,
        allocate=manager.allocate_slots,
        advance=advance,
        tables=lambda request: manager.get_block_ids(request.request_id),
        free=manager.free,
    )


def advance(request: Any, computed: int, token: int) -> None:
    request.num_computed_tokens = computed
    request.append_output_token_ids(token)


def plan(layers: Mapping[str, SpecDescriptor], memory: int, max_model_len: int) -> BenchCall:
    register_built_ins()
    specs = make_all(layers)
    engine = engine_config(specs, max_model_len, max_model_len)
    return BenchCall(
        fresh=lambda: dict(specs),
        run=lambda given: kv_cache_utils.get_kv_cache_configs(engine, [given], [memory]),
        size=lambda plans: plans[0].num_blocks,
    )


def join(groups: Sequence[Sequence[str]], sharing: Sequence[Pair]) -> BenchCall:
    spec = make(FULL)
    targets = dict(sharing)

    def run(given: list[Any]) -> list[Any]:
        """Add the sharing layers to the groups in place, as vLLM does, and return the groups."""
        add_kv_sharing_layers_to_kv_cache_groups(targets, given)
        return given

    return BenchCall(
        fresh=lambda: [KVCacheGroupSpec(list(names), spec) for names in groups],
        run=run,
        size=lambda joined: sum(len(group.layer_names) for group in joined),
    )


def allocate(
    layers: Mapping[str, SpecDescriptor], num_blocks: int, layout: str, buffers: str, device: str
) -> BenchCall:
    if buffers != (way := tensors.way_of_buffers()):
        raise NotImplementedError(f"buffers are {way!r} in this release, not {buffers!r}")
    engine, config = planned(layers, num_blocks, layout)
    arguments = tensors.runner_arguments(engine, deepcopy(config), torch.device(device))
    model = engine.compilation_config.static_forward_context

    def fresh() -> dict[str, Any]:
        """Remove the caches of the last run from all layers, and return the arguments of the next run."""
        for layer in model.values():
            vars(layer).pop("kv_cache", None)
        return {**arguments, **({"runner_kv_caches": []} if "runner_kv_caches" in arguments else {})}

    return BenchCall(
        fresh=fresh,
        run=lambda given: attn_utils.init_kv_cache(**given),
        size=lambda caches: sum(buffer.numel() for buffer in tensors.memory_of(caches)),
    )


def planned(layers: Mapping[str, SpecDescriptor], num_blocks: int, layout: str) -> tuple[Any, Any]:
    if layout not in tensors.layouts():
        raise NotImplementedError(f"this release has no layout {layout!r}")
    return tensors.plan_of_model(layers, num_blocks, layout, None, [])


def register(layers: Mapping[str, SpecDescriptor], num_blocks: int, layout: str, device: str) -> BenchCall:
    engine, config = planned(layers, num_blocks, layout)
    caches = tensors.init_kv_cache(engine, deepcopy(config), torch.device(device))
    canonical.without_mappings().start()
    return BenchCall(
        fresh=lambda: canonical.connector_of(engine, config),
        run=lambda connector: connector.register_kv_caches(caches),
        size=lambda nothing: bytes_of_a_block(canonical.REGISTERED.caches),
    )


def bytes_of_a_block(made: Any) -> int:
    return sum(ref.page_size_bytes for refs in made.group_data_refs for ref in refs)


def copy(
    layers: Mapping[str, SpecDescriptor],
    num_blocks: int,
    layout: str,
    device: str,
    pairs: Sequence[tuple[int, int]],
) -> BenchCall:
    raise NotImplementedError("vLLM copies with GPU kernels in the steps of a worker: no call to time")
