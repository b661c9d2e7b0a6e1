"""The KV cache of the device: pages are whole banks, and the device learns which blocks leave a window."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, Self

from vllm.utils.math_utils import cdiv, round_up
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec, replace_as

FAULTS = os.environ.get("BANKDEV_FAULTS", "").split(",")
"""The mistakes that the tutorial asks for: `merge`, `window`, or both."""

BANK_BYTES = 4096
"""The bank size of the first chip; later chips have larger banks."""


@dataclass(frozen=True, kw_only=True)
class Banked:
    """A mixin for attention specs: pads pages to whole banks, by which the device addresses memory."""

    bank_bytes: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.page_size_padded is None and self._banks != self.unpadded_page_size_bytes:
            object.__setattr__(self, "page_size_padded", self._banks)
        if self.page_size_bytes % self.bank_bytes:
            raise ValueError(
                f"a page of {self.page_size_bytes} bytes is not a whole number of banks of {self.bank_bytes}"
            )

    @property
    def _banks(self) -> int:
        """The bytes of the banks that hold a page's content."""
        return round_up(self.unpadded_page_size_bytes, self.bank_bytes)

    def copy_with_new_block_size(self, block_size: int) -> Self:
        """Compute the padding of this class anew; keep a page size that the caller chose."""
        padded = None if self.page_size_padded == self._banks else self.page_size_padded
        return replace(self, block_size=block_size, page_size_padded=padded)


@dataclass(frozen=True, kw_only=True)
class BankedSpec(Banked, FullAttentionSpec):
    """Full attention."""

    @classmethod
    def merge(cls, specs: list[Self]) -> Self:
        """Return the spec of a group. AssertionError tells the planner that the layers cannot form one."""
        if any(type(spec) is not cls or spec.bank_bytes != specs[0].bank_bytes for spec in specs):
            raise AssertionError("all layers of a group need the same class and bank size")
        bank_bytes = BANK_BYTES if "merge" in FAULTS else specs[0].bank_bytes
        return replace_as(FullAttentionSpec.merge(specs), cls, bank_bytes=bank_bytes)


@dataclass(frozen=True, kw_only=True)
class BankedWindowSpec(Banked, SlidingWindowSpec):
    """Attention with a sliding window."""


class BankedWindowManager(SlidingWindowManager):
    """Records the blocks that left a window, so that the device stops prefetching them."""

    def __init__(self, kv_cache_spec: BankedWindowSpec, **options: Any) -> None:
        super().__init__(kv_cache_spec, **options)
        self.left: list[int] = []

    def remove_skipped_blocks(
        self, request_id: str, processed_computed_tokens: int, num_prompt_tokens: int | None = None
    ) -> None:
        if "window" in FAULTS:
            # Wrong: this keeps as many blocks as a window fills, but a window seldom starts with a block.
            kept = cdiv(self.sliding_window, self.block_size)
            end = max(cdiv(processed_computed_tokens, self.block_size) - kept, 0)
        else:
            end = self.get_num_skipped_tokens(processed_computed_tokens) // self.block_size
        blocks = self.req_to_blocks.get(request_id, [])[:end]
        self.left += [block.block_id for block in blocks if not block.is_null]
        self._remove_blocks_in_range(request_id, 0, end)
