"""The part `tensors` of vLLM: the memory of caches and the views of it.

Stand-alone programs copy functions from this module, so that they need only vLLM.

The functions here call the same functions of vLLM as an engine and its model runner, in the same order: those
that make specs, groups, the plan, kernel blocks, memory and views.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.attention.backends import utils as backend_utils
from vllm.v1.core import kv_cache_utils
from vllm.v1.worker.gpu import attn_utils

from kvref.target import Caches, LayerTensors, Pair, SpecDescriptor
from kvref_conformance.targets.codec import unpadded_page_size
from kvref_conformance.targets.memory import (
    compare_marks,
    copy_marks,
    is_zero,
    parts_of,
    read_bytes,
    soil,
    view_facts,
    write_bytes,
    write_marks,
)
from kvref_conformance.targets.vllm.layers import (
    StateLayer,
    axes_in,
    layers_of_model,
    owner_of,
    sharing_targets,
)
from kvref_conformance.targets.vllm.planner import engine_config, in_one_allocation, make_all, specs_of

CURRENT: SimpleNamespace = SimpleNamespace(
    engine=None, config=None, layout="", targets={}, caches={}, buffers=[]
)


def allocate(
    layers: Mapping[str, SpecDescriptor],
    num_blocks: int,
    layout: str,
    buffers: str,
    kernel_block_size: int | None,
    sharing: Sequence[Pair],
    device: str,
) -> Caches:
    """Allocate as a model runner does. `buffers` is ignored, because each release has only one way."""
    engine, config = plan_of_model(layers, num_blocks, layout, kernel_block_size, sharing)
    sizes = buffer_sizes(config)
    soil(sizes, device)
    # Sharing layers join the runner's copy of the configuration. Connectors get it as it was planned.
    of_runner = deepcopy(config)
    caches = init_kv_cache(engine, of_runner, torch.device(device))
    made = memory_of(caches)
    zero = is_zero(made)
    model = engine.compilation_config.static_forward_context
    CURRENT.engine, CURRENT.config, CURRENT.layout = engine, config, layout
    CURRENT.targets, CURRENT.caches, CURRENT.buffers = sharing_targets(sharing), caches, made
    return {
        "num_blocks": config.num_blocks,
        "groups": [list(group.layer_names) for group in of_runner.kv_cache_groups],
        "buffers": [buffer.numel() for buffer in made],
        "planned": sum(sizes),
        "zero": zero,
        "layers": {name: layer_facts(name) for name in model},
    }


def plan_of_model(
    layers: Mapping[str, SpecDescriptor],
    num_blocks: int,
    layout: str,
    kernel_block_size: int | None,
    sharing: Sequence[Pair],
) -> tuple[Any, Any]:
    """Make the configuration of an engine whose model has these layers, and the plan of their memory."""
    given = make_all(layers)
    engine = engine_of(given, num_blocks, layout)
    model = layers_of_model(given, sharing, layout, kernel_block_size)
    engine.compilation_config = SimpleNamespace(static_forward_context=model)
    specs = attn_utils.get_kv_cache_spec(engine)
    if has_layouts():
        # Raises if these layers cannot have the layout.
        backend_utils.resolve_kv_cache_layout(engine, [[layout]], list(specs.values()))
    groups = kv_cache_utils.get_kv_cache_groups(engine, specs)
    return engine, kv_cache_utils.get_kv_cache_config_from_groups(engine, groups, 0)


def engine_of(specs: Mapping[str, Any], num_blocks: int, layout: str) -> Any:
    """Make the configuration of an engine with one GPU, and `num_blocks` blocks in this layout.

    The configuration has all settings that any release reads when it allocates.
    """
    engine = engine_config(specs, max_model_len=1, max_in_flight_tokens=1)
    engine.cache_config.num_gpu_blocks_override = num_blocks
    engine.cache_config.kv_sharing_fast_prefill = False
    engine.cache_config.kv_cache_layout = None
    engine.cache_config.get_resolved_kv_cache_layout = lambda: known_layouts()[layout]
    engine.model_config.hf_config = SimpleNamespace(model_type="")
    engine.parallel_config.use_ubatching = False
    engine.scheduler_config.max_num_seqs = 1
    return engine


def is_supported() -> bool:
    """Whether the release has the model runner whose functions this part calls: from 0.22.1 on."""
    return hasattr(attn_utils, "prepare_kernel_block_sizes")


def has_layouts() -> bool:
    """Whether this release has one layout for all layers. If not, each attention backend has its own."""
    return find_spec("vllm.v1.kv_cache_layout") is not None


def known_layouts() -> Any:
    return import_module("vllm.v1.kv_cache_layout").KVCacheLayout


def way_of_buffers() -> str:
    """`each` if this release allocates a buffer for each tensor of a plan, `one` if all tensors share one."""
    return "one" if has_layouts() else "each"


def layouts() -> list[str]:
    """The layouts that the kernels of this release use.

    In releases where each backend has its own layout, these are the layouts of FlashAttention and of similar
    backends. In some layouts, the K of all blocks comes before the V of all blocks. If only ROCm's backend
    has them, they are left out, because connectors cannot use them.
    """
    if has_layouts():
        return [layout.name for layout in known_layouts()]
    flash_attention = import_module("vllm.v1.attention.backends.flash_attn").FlashAttentionBackend
    shape = flash_attention.get_kv_cache_shape(num_blocks=7, block_size=16, num_kv_heads=3, head_size=8)
    if len(shape) == 4:
        return ["LBNHC", "LBHNC", "LBKNHC"]
    return ["LBKNHC", "LBKHNC", *["LKBNHC", "LKBHNC"] * (shape[0] == 2)]


def init_kv_cache(engine: Any, config: Any, device: Any) -> dict[str, Any]:
    """Add sharing layers, choose kernel blocks, allocate, and bind the layers, as a model runner does."""
    caches: dict[str, Any] = attn_utils.init_kv_cache(**runner_arguments(engine, config, device))
    return caches


def runner_arguments(engine: Any, config: Any, device: Any) -> dict[str, Any]:
    """Add sharing layers and choose kernel blocks. Returns the arguments for a runner's allocation."""
    *backends, groups, _, kernel_block_sizes = attn_utils.init_attn_backend(config, engine, device)
    takes = inspect.signature(attn_utils.init_kv_cache).parameters
    flat = [group for each in groups for group in each]
    arguments = {
        "runner_kv_caches": [],
        "forward_context": engine.compilation_config.static_forward_context,
        "kv_cache_config": config,
        "attn_backends": backends and backends[0],
        "attn_groups": groups if "runner_kv_caches" in takes else flat,
        "device": device,
        "cache_dtype": "auto",
        "kernel_block_sizes": kernel_block_sizes,
        "vllm_config": engine,
    }
    return {name: argument for name, argument in arguments.items() if name in takes}


def buffer_sizes(config: Any) -> list[int]:
    """The sizes in bytes of the buffers that the plan needs."""
    sizes = [tensor.size for tensor in config.kv_cache_tensors]
    return [max(sizes)] if in_one_allocation(config.kv_cache_tensors) else sizes


def memory_of(caches: Mapping[str, Any]) -> list[Any]:
    """The buffers of the caches, as int8 tensors."""
    found: dict[int, Any] = {}
    for view in [view for cache in caches.values() for view in as_views(cache)]:
        storage = view.untyped_storage()
        if storage.data_ptr() not in found:
            found[storage.data_ptr()] = torch.empty(0, dtype=torch.int8, device=view.device).set_(storage)
    return list(found.values())


def as_views(cache: Any) -> list[Any]:
    return list(cache) if isinstance(cache, list | tuple) else [cache]


def bound(layer: str) -> Any:
    """The layer object of the model. vLLM has bound it to its cache."""
    return CURRENT.engine.compilation_config.static_forward_context[layer]


def owner(layer: str) -> str:
    return owner_of(layer, CURRENT.targets, planned_specs())


def planned_specs() -> dict[str, Any]:
    return {name: spec for group in CURRENT.config.kv_cache_groups for name, spec in specs_of(group).items()}


def views_of(layer: str) -> list[Any]:
    """The tensors through which the layer uses its cache."""
    return as_views(bound(layer).kv_cache)


def axes_of(layer: str) -> list[str]:
    if isinstance(bound(owner(layer)), StateLayer):
        return ["B" + "S" * (view.dim() - 1) for view in views_of(layer)]
    return ["BNC" if view.dim() == 3 else axes_in(CURRENT.layout) for view in views_of(layer)]


def layer_facts(layer: str) -> LayerTensors:
    spec = planned_specs()[owner(layer)]
    [stride] = [
        getattr(tensor, "block_stride", 0) or spec.page_size_bytes
        for tensor in CURRENT.config.kv_cache_tensors
        if owner(layer) in (getattr(tensor, "layers", None) or tensor.shared_by)
    ]
    return {
        "views": [
            view_facts(view, axes, CURRENT.buffers)
            for view, axes in zip(views_of(layer), axes_of(layer), strict=True)
        ],
        "page_size_bytes": spec.page_size_bytes,
        "content_size_bytes": content_size(spec),
        "block_stride": stride,
    }


def content_size(spec: Any) -> int:
    """Bytes of a page without padding. Specs of recurrent layers lack this field, so kvref computes it."""
    size = unpadded_page_size(spec)
    return int(replace(spec, page_size_padded=None).page_size_bytes if size is None else size)


def block_parts(layer: str, block: int) -> list[Any]:
    return parts_of(views_of(layer), axes_of(layer), block, CURRENT.config.num_blocks)


def write(layer: str, block: int, seed: int) -> str:
    return write_bytes(block_parts(layer, block), seed)


def read(layer: str, block: int) -> str:
    return read_bytes(block_parts(layer, block))


def write_slots(layer: str, slots: Sequence[int], marks: Sequence[int]) -> None:
    write_marks(views_of(layer), axes_of(layer), slots, marks)


def copy_slots(layer: str, source: Sequence[int], destination: Sequence[int]) -> None:
    copy_marks(views_of(layer), axes_of(layer), source, destination)


def compare_slots(layer: str, slots: Sequence[int], marks: Sequence[int], told: str) -> list[list[int]]:
    return compare_marks(views_of(layer), axes_of(layer), slots, marks)
