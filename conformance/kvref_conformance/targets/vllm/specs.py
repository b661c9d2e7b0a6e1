"""Operations on vLLM's specs. Imports vLLM alone, and is copied into stand-alone programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.v1 import kv_cache_interface

from kvref.target import SpecClassInfo, SpecDescriptor, SpecFacts
from kvref_conformance.targets.codec import class_infos, decode, facts, subclasses

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


def classes() -> list[SpecClassInfo]:
    return class_infos(CLASSES, BASES)
