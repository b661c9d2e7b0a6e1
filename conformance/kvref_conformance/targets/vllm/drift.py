"""The part `drift` of vLLM: how a plugin fits the code that it plugs into.

Stand-alone programs copy functions from this module, so that they need only vLLM.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import vllm.platforms
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_manager, kv_cache_utils, single_type_kv_cache_manager
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry
from vllm.v1.request import Request

from kvref.target import Call, Override, Replaced, SpecDescriptor
from kvref_conformance.targets.introspection import (
    are_read,
    calls_in,
    is_present,
    overrides_of,
    recording,
    replaced_in,
)
from kvref_conformance.targets.vllm.planner import engine_config
from kvref_conformance.targets.vllm.registry import MANAGERS
from kvref_conformance.targets.vllm.specs import CLASSES, make

HOOK = "register_custom_kv_cache_specs"
CORE_FOLDER = str(Path(str(vllm.__file__)).parent)
HOOK_CALLS: list[object] = []


def watch_hook() -> None:
    platform: Any = type(vllm.platforms.current_platform)
    run_hook = getattr(platform, HOOK)

    def counted(cls: type[Any], vllm_config: object) -> None:
        HOOK_CALLS.append(vllm_config)
        run_hook(vllm_config)

    setattr(platform, HOOK, classmethod(counted))


def hook_calls() -> int:
    return len(HOOK_CALLS)


def overrides(name: str) -> list[Override]:
    return overrides_of({**MANAGERS, **CLASSES}[name], "vllm")


def calls(names: Sequence[str]) -> list[Call]:
    return calls_in(CORE_FOLDER, names)


def start() -> None:
    vllm.platforms.current_platform.pre_register_and_update()


def replaced(packages: Sequence[str]) -> list[Replaced]:
    return replaced_in("vllm", packages)


def present(names: Sequence[str]) -> list[bool]:
    return [is_present(name, import_module) for name in names]


def read(names: Sequence[str], packages: Sequence[str]) -> list[bool]:
    specs = [find_spec(package) for package in ("vllm", *packages)]
    folders = [folder for spec in specs if spec for folder in spec.submodule_search_locations or ()]
    return are_read(folders, names)


def reached(
    spec: SpecDescriptor, of_spec: Sequence[str], of_manager: Sequence[str], derived: bool
) -> list[str]:
    single_type_kv_cache_manager.register_all_kvcache_specs(None)
    kv_cache_utils.init_none_hash(sha256)
    plain = make(spec)
    spec_class = type(plain)
    manager_class = KVCacheSpecRegistry.get_manager_class(plain)
    base = KVCacheSpecRegistry.get_uniform_type_base_spec(plain)
    found: list[str] = []
    used_class = recording(spec_class, of_spec, lambda name: found.append(f"spec.{name}"), derived)
    used_manager = recording(manager_class, of_manager, lambda name: found.append(f"manager.{name}"), derived)
    if derived:
        KVCacheSpecRegistry.register(used_class, used_manager, base)
    CLASSES[spec["class"]] = used_class
    used = make(spec)
    for stage in (plan, serve):
        # If a stage raises for one class, it raises for the other, too. What it reached until then counts.
        with suppress(Exception):
            stage(used)
    return sorted(set(found))


def plan(spec: Any) -> None:
    """Group two layers with this spec and size their cache, as an engine with one GPU does when it starts."""
    layers = {"layer.0": spec, "layer.1": spec}
    config = engine_config(layers, 256, 128)
    kv_cache_utils.get_kv_cache_configs(config, [layers], [spec.page_size_bytes * 1024])


def serve(spec: Any) -> None:
    """Serve the same prompt twice with a cache manager that has one group with this spec."""
    size = spec.block_size
    config = KVCacheConfig(64, [], [KVCacheGroupSpec(["layer.0"], spec)])
    known = {
        "kv_cache_config": config,
        "max_model_len": size * 16,
        "scheduler_block_size": size,
        "hash_block_size": size,
        "max_in_flight_tokens": size * 8,
        "max_num_batched_tokens": size * 8,
        "enable_caching": True,
    }
    manager = accepting(kv_cache_manager.KVCacheManager, known)
    for number in range(2):
        request = Request(
            request_id=f"request-{number}",
            prompt_token_ids=list(range(size * 5 + 1)),
            sampling_params=SamplingParams(max_tokens=size * 4),
            pooling_params=None,
            block_hasher=kv_cache_utils.get_request_block_hasher(size, sha256),
        )
        blocks, hit, *_ = manager.get_computed_blocks(request)
        manager.allocate_slots(request, request.num_tokens - hit, hit, blocks)
        for _ in range(size * 2):
            request.num_computed_tokens = request.num_tokens
            request.append_output_token_ids(7)
            manager.allocate_slots(request, 1)
        with suppress(Exception):
            manager.get_num_common_prefix_blocks(request.request_id)
        manager.free(request)
        with suppress(AttributeError):
            manager.new_step_starts()


def accepting(factory: Callable[..., Any], known: dict[str, Any]) -> Any:
    """Call the factory. Arguments in `known` that it does not take in this release are left out."""
    taken = inspect.signature(factory).parameters
    return factory(**{name: value for name, value in known.items() if name in taken})
