"""Faults in the specs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kvref import uniform
from kvref.errors import InvalidSpecError
from kvref.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MemoryLimits,
    MLAAttentionSpec,
    PaddedKVCacheSpec,
    SlidingWindowSpec,
    one_if_any,
)
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_merge = KVCacheSpec.__dict__["merge"].__func__
_is_uniform = uniform.is_uniform_with_collection
_check_window = SlidingWindowSpec.check_fields
_page_size: property = PaddedKVCacheSpec.__dict__["page_size_bytes"]
_unpadded_page_size: property = AttentionSpec.__dict__["unpadded_page_size_bytes"]


def hashed_by_identity() -> ReferenceTarget:
    """Equal specs of recurrent layers have different hashes."""
    break_it(MambaSpec, "__hash__", object.__hash__)
    return ReferenceTarget()


def alignment_not_pickled() -> ReferenceTarget:
    """Pickling leaves out the field `alignment`, so the restored spec has the default."""

    def state(spec: PaddedKVCacheSpec) -> dict[str, Any]:
        return {name: value for name, value in vars(spec).items() if name != "alignment"}

    break_it(PaddedKVCacheSpec, "__getstate__", state)
    return ReferenceTarget()


def window_of_one_token_refused() -> ReferenceTarget:
    """The spec of a windowed layer refuses a window of one token."""

    def check_fields(spec: SlidingWindowSpec) -> None:
        if spec.sliding_window == 1:
            raise InvalidSpecError("a window of 1 token is none")
        _check_window(spec)

    break_it(SlidingWindowSpec, "check_fields", check_fields)
    return ReferenceTarget()


def window_not_checked() -> ReferenceTarget:
    """The spec of a windowed layer accepts every window, even an impossible one."""
    break_it(SlidingWindowSpec, "check_fields", AttentionSpec.check_fields)
    return ReferenceTarget()


def page_size_is_a_float() -> ReferenceTarget:
    """The page size is computed with / instead of //."""
    page = property(lambda spec: _page_size.__get__(spec) / 1)
    break_it(ChunkedLocalAttentionSpec, "page_size_bytes", page)
    return ReferenceTarget()


def scales_not_counted() -> ReferenceTarget:
    """The page has no room for the scales of values quantised per token and head (as in vLLM 0.32)."""

    def size(spec: AttentionSpec) -> int:
        return spec.packed_state_bytes or (spec.head_size + spec.head_size_v) * spec.dtype.itemsize

    break_it(AttentionSpec, "state_content_size_bytes", property(size))
    return ReferenceTarget()


def state_for_each_token() -> ReferenceTarget:
    """A page of latent attention has a state for each token, even if the spec compresses several into one."""
    break_it(MLAAttentionSpec, "num_states", property(lambda spec: spec.block_size))
    return ReferenceTarget()


def page_with_a_header() -> ReferenceTarget:
    """Each page has a header of fixed size, whatever the block size."""
    page = property(lambda spec: _unpadded_page_size.__get__(spec) + 64)
    break_it(ChunkedLocalAttentionSpec, "unpadded_page_size_bytes", page)
    return ReferenceTarget()


def memory_of_part_of_a_page() -> ReferenceTarget:
    """The memory of the longest request counts its last block only as far as tokens fill that block."""

    def max_memory_usage_bytes(spec: FullAttentionSpec, limits: MemoryLimits) -> int:
        return limits.max_model_len * spec.page_size_bytes // spec.block_size

    break_it(FullAttentionSpec, "max_memory_usage_bytes", max_memory_usage_bytes)
    return ReferenceTarget()


def memory_of_all_behind_the_window() -> ReferenceTarget:
    """A windowed layer counts the memory of the longest request, not of its window."""

    def max_memory_usage_bytes(spec: SlidingWindowSpec, limits: MemoryLimits) -> int:
        return -(-limits.max_model_len // spec.block_size) * spec.page_size_bytes

    break_it(SlidingWindowSpec, "max_memory_usage_bytes", max_memory_usage_bytes)
    return ReferenceTarget()


def window_of_the_first() -> ReferenceTarget:
    """A merged spec takes the window of the first spec, even if that has none and another spec has one."""

    def rule(values: Sequence[Any]) -> Any:
        one_if_any(values)
        return values[0]

    break_it(FullAttentionSpec, "merge_rules", {**FullAttentionSpec.merge_rules, "sliding_window": rule})
    return ReferenceTarget()


def merged_as_what_they_have_in_common() -> ReferenceTarget:
    """Specs of a class and of a class derived from it merge into a spec of the base class, in any order."""

    def merge(cls: type[Any], specs: Sequence[Any]) -> Any:
        common = [type(one) for one in specs if all(isinstance(spec, type(one)) for spec in specs)]
        if not common:
            return _merge(cls, specs)
        fields = [field.name for field in dataclasses.fields(common[0])]
        return _merge(
            common[0], [common[0](**{name: getattr(one, name) for name in fields}) for one in specs]
        )

    break_it(KVCacheSpec, "merge", classmethod(merge))
    return ReferenceTarget()


def uniform_if_the_first_window_is_enough() -> ReferenceTarget:
    """Windowed layers are uniform if no window is larger than the first one's."""

    def is_uniform(spec: KVCacheSpec, layers: Mapping[str, KVCacheSpec]) -> bool:
        if not isinstance(spec, SlidingWindowSpec):
            return _is_uniform(spec, layers)
        own = spec.sliding_window
        covered = {
            name: dataclasses.replace(other, sliding_window=own)
            if isinstance(other, SlidingWindowSpec) and other.sliding_window < own
            else other
            for name, other in layers.items()
        }
        return _is_uniform(spec, covered)

    break_it(uniform, "is_uniform_with_collection", is_uniform)
    return ReferenceTarget()


def chunks_not_compared() -> ReferenceTarget:
    """Chunked layers are uniform even if their chunk sizes differ."""
    break_it(ChunkedLocalAttentionSpec, "uniform_key", ("attention_chunk_size",))
    return ReferenceTarget()


def windows_compared_before_kinds() -> ReferenceTarget:
    """Comparing a windowed spec with others reads the window of each, even of a spec without one."""

    def is_uniform(spec: KVCacheSpec, layers: Mapping[str, Any]) -> bool:
        if not isinstance(spec, SlidingWindowSpec):
            return _is_uniform(spec, layers)
        same = all(other.sliding_window == spec.sliding_window for other in layers.values())
        return same and _is_uniform(spec, layers)

    break_it(uniform, "is_uniform_with_collection", is_uniform)
    return ReferenceTarget()


def alignment_ignored() -> ReferenceTarget:
    """The spec of latent attention ignores its `alignment`."""
    page = property(lambda spec: spec.page_size_padded or spec.unpadded_page_size_bytes)
    break_it(MLAAttentionSpec, "page_size_bytes", page)
    return ReferenceTarget()


def state_padding_ignored() -> ReferenceTarget:
    """The spec of a recurrent layer ignores its `page_size_padded`."""
    break_it(MambaSpec, "page_size_bytes", MambaSpec.unpadded_page_size_bytes)
    return ReferenceTarget()


def padding_stored_at_copy() -> ReferenceTarget:
    """A copy with a new block size stores the padding from `alignment` in the field `page_size_padded`."""

    def copy_with_new_block_size(spec: AttentionSpec, block_size: int) -> AttentionSpec:
        if spec.alignment is None:
            return dataclasses.replace(spec, block_size=block_size)
        fresh = dataclasses.replace(spec, block_size=block_size)
        return dataclasses.replace(fresh, page_size_padded=max(spec.page_size_bytes, fresh.page_size_bytes))

    break_it(AttentionSpec, "copy_with_new_block_size", copy_with_new_block_size)
    return ReferenceTarget()


def alignment_lost_in_merge() -> ReferenceTarget:
    """The merged spec loses its alignment."""

    def merge(cls: type[Any], specs: Sequence[Any]) -> Any:
        merged = _merge(cls, specs)
        return dataclasses.replace(merged, alignment=None)

    break_it(PaddedKVCacheSpec, "merge", classmethod(merge))
    return ReferenceTarget()


def block_size_not_compared_in_merge() -> ReferenceTarget:
    """Specs merge even if their block sizes differ."""

    def merge(cls: type[Any], specs: Sequence[Any]) -> Any:
        return _merge(cls, [dataclasses.replace(spec, block_size=specs[0].block_size) for spec in specs])

    break_it(KVCacheSpec, "merge", classmethod(merge))
    return ReferenceTarget()


def one_state_counted() -> ReferenceTarget:
    """A recurrent layer's memory has the running state and drafts' states, but none of steps in flight."""

    def max_memory_usage_bytes(spec: MambaSpec, limits: MemoryLimits) -> int:
        return spec.page_size_bytes * (1 + spec.num_speculative_blocks)

    break_it(MambaSpec, "max_memory_usage_bytes", max_memory_usage_bytes)
    return ReferenceTarget()
