"""Sliding-window attention."""

from __future__ import annotations

from typing import Any

from kvref.managers.base import SingleTypeKVCacheManager
from kvref.specs import SlidingWindowSpec

__all__ = ["SlidingWindowManager"]


class SlidingWindowManager(SingleTypeKVCacheManager):
    """A token attends to the last `sliding_window` tokens, itself among them.

    So the next token, at position n, needs positions n - W + 1 and later; `extra_retained_tokens` more before
    these are kept. A hit needs the blocks of these positions only. K and V and latent vectors (MLA) are
    alike.
    """

    spec_class = SlidingWindowSpec

    def __init__(self, kv_cache_spec: SlidingWindowSpec, **engine: Any) -> None:
        super().__init__(kv_cache_spec, **engine)
        self.sliding_window = kv_cache_spec.sliding_window
        self.extra_retained_tokens = kv_cache_spec.extra_retained_tokens

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """max(0, n - W + 1 - extra): with W = 40, 39 computed tokens skip none and 40 skip one."""
        return max(0, num_computed_tokens - self.sliding_window + 1 - self.extra_retained_tokens)
