"""Faults of the specs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from kvref.specs import AttentionSpec, KVCacheSpec, MambaSpec, PaddedKVCacheSpec
from kvref_conformance.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_merge = KVCacheSpec.__dict__["merge"].__func__


def state_padding_ignored() -> ReferenceTarget:
    """A recurrent layer's page is its states, whatever padding was asked for."""
    break_it(MambaSpec, "page_size_bytes", MambaSpec.unpadded_page_size_bytes)
    return ReferenceTarget()


def padding_stored_at_copy() -> ReferenceTarget:
    """A copy keeps the page that alignment gave the original, as if it had been asked for."""

    def copy_with_new_block_size(spec: AttentionSpec, block_size: int) -> AttentionSpec:
        if spec.alignment is None:
            return dataclasses.replace(spec, block_size=block_size)
        fresh = dataclasses.replace(spec, block_size=block_size)
        return dataclasses.replace(fresh, page_size_padded=max(spec.page_size_bytes, fresh.page_size_bytes))

    break_it(AttentionSpec, "copy_with_new_block_size", copy_with_new_block_size)
    return ReferenceTarget()


def alignment_lost_in_merge() -> ReferenceTarget:
    """The merged spec is made field by field, and one field is forgotten."""

    def merge(cls: type[Any], specs: Sequence[Any]) -> Any:
        merged = _merge(cls, specs)
        return dataclasses.replace(merged, alignment=None)

    break_it(PaddedKVCacheSpec, "merge", classmethod(merge))
    return ReferenceTarget()


def block_size_not_compared_in_merge() -> ReferenceTarget:
    """Specs merge whatever their block sizes."""

    def merge(cls: type[Any], specs: Sequence[Any]) -> Any:
        return _merge(cls, [dataclasses.replace(spec, block_size=specs[0].block_size) for spec in specs])

    break_it(KVCacheSpec, "merge", classmethod(merge))
    return ReferenceTarget()
