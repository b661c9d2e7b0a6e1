"""Sliding-window attention."""

from __future__ import annotations

from typing import Any

from kvref.managers.base import SingleTypeKVCacheManager
from kvref.specs import SlidingWindowSpec

__all__ = ["SlidingWindowManager"]


class SlidingWindowManager(SingleTypeKVCacheManager):
    """A token attends to the last `sliding_window` tokens, itself included.

    With n computed tokens and a window of W, the next token has position n and needs the tokens from position
    n - W + 1 on. The manager also keeps the `extra_retained_tokens` tokens before that position. A hit needs
    only the blocks of all these tokens. Latent attention (MLA) works in the same way.
    """

    spec_class = SlidingWindowSpec

    def __init__(self, kv_cache_spec: SlidingWindowSpec, **engine: Any) -> None:
        super().__init__(kv_cache_spec, **engine)
        self.sliding_window = kv_cache_spec.sliding_window
        self.extra_retained_tokens = kv_cache_spec.extra_retained_tokens

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """max(0, n - W + 1 - extra). With W = 40 and extra = 0, that is 0 for n = 39 and 1 for n = 40."""
        return max(0, num_computed_tokens - self.sliding_window + 1 - self.extra_retained_tokens)
