"""Targets whose page size is right for every block size but one."""

from __future__ import annotations

import dataclasses
from typing import Any

import vendor_toy

from kvref.specs import AttentionSpec
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

BLOCK_SIZE = 131_071
_content: property = AttentionSpec.__dict__["unpadded_page_size_bytes"]


def reference() -> ReferenceTarget:
    """The reference, with a page of 0 bytes for that block size."""
    page = property(lambda spec: 0 if spec.block_size == BLOCK_SIZE else _content.__get__(spec))
    break_it(AttentionSpec, "unpadded_page_size_bytes", page)
    return ReferenceTarget()


@dataclasses.dataclass(frozen=True)
class ToySpec(vendor_toy.KVCacheSpec):
    block_size: int
    num_kv_heads: int
    head_size: int

    @property
    def page_size_bytes(self) -> int:
        if self.block_size < BLOCK_SIZE or self.block_size > BLOCK_SIZE:
            return 2 * 2 * self.block_size * self.num_kv_heads * self.head_size
        return 0


def toy() -> Any:
    """A vendor's target without torch, with the same mistake."""

    def build(spec: dict[str, Any]) -> dict[str, Any]:
        made = ToySpec(**spec["fields"])
        return {
            "class": "ToySpec",
            "fields": dataclasses.asdict(made),
            "page_size_bytes": made.page_size_bytes,
        }

    def classes() -> list[dict[str, Any]]:
        fields = [{"name": field.name} for field in dataclasses.fields(ToySpec)]
        return [{"name": "ToySpec", "mro": ["ToySpec", "KVCacheSpec"], "fields": fields, "role": "layer"}]

    return vendor_toy.target(classes=classes, build=build)
