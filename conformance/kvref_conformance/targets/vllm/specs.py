"""The part `specs` of vLLM: specs and spec classes.

Stand-alone programs copy functions from this module, so that they need only vLLM.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from vllm.v1 import kv_cache_interface

from kvref.target import Json, SpecClassInfo, SpecDescriptor, SpecFacts, Twins, Unpickled
from kvref_conformance.targets.codec import (
    changeable_fields,
    class_infos,
    decode,
    derived_class,
    facts,
    family,
    subclasses,
)

CLASSES = {cls.__name__: cls for cls in subclasses(kv_cache_interface.KVCacheSpec)}
BASES = ("KVCacheSpec", "AttentionSpec")


def make(spec: SpecDescriptor) -> Any:
    fields = {name: decode(value, kv_cache_interface) for name, value in spec["fields"].items()}
    return CLASSES[spec["class"]](**fields)


def build(spec: SpecDescriptor) -> SpecFacts:
    return facts(make(spec))


def copy(spec: SpecDescriptor, block_size: int) -> SpecFacts:
    return facts(make(spec).copy_with_new_block_size(block_size))


def merge(specs: Sequence[SpecDescriptor]) -> SpecFacts:
    made = [make(spec) for spec in specs]
    return facts(type(made[0]).merge(made))


def derive(name: str, base: str, fields: Mapping[str, Json]) -> list[str]:
    CLASSES[name] = derived_class(name, CLASSES[base], fields)
    return family(CLASSES[name])


def twins(spec: SpecDescriptor) -> Twins:
    one, other = make(spec), make(spec)
    return {"equal": bool(one == other), "hashes_equal": hash(one) == hash(other)}


def mutable_fields(spec: SpecDescriptor) -> list[str]:
    return changeable_fields(lambda: make(spec))


def pickled(spec: SpecDescriptor) -> str:
    return base64.b64encode(pickle.dumps(make(spec))).decode("ascii")


def unpickled(data: str, spec: SpecDescriptor) -> Unpickled:
    restored = pickle.loads(base64.b64decode(data))
    return {"facts": facts(restored), "equal": bool(restored == make(spec))}


def uniform(specs: Sequence[SpecDescriptor]) -> bool:
    layers = {f"layer_{index}": make(spec) for index, spec in enumerate(specs)}
    answer: bool = kv_cache_interface.UniformTypeKVCacheSpecs.is_uniform_type(layers)
    return answer


def max_memory(
    spec: SpecDescriptor, max_model_len: int, max_in_flight_tokens: int, max_encoder_tokens: int
) -> int:
    made = make(spec)
    # The configuration of an engine with one GPU: every setting that any release reads.
    config = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=max_model_len),
        max_in_flight_tokens=max_in_flight_tokens,
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=max_in_flight_tokens, max_num_encoder_input_tokens=max_encoder_tokens
        ),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1),
        cache_config=SimpleNamespace(mamba_cache_mode=getattr(made, "mamba_cache_mode", "none")),
    )
    memory: int = made.max_memory_usage_bytes(config)
    return memory


def classes() -> list[SpecClassInfo]:
    return class_infos(CLASSES, BASES)
