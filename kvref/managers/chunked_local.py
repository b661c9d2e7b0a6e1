"""Chunked local attention."""

from __future__ import annotations

from typing import Any

from kvref.managers.base import SingleTypeKVCacheManager
from kvref.specs import ChunkedLocalAttentionSpec

__all__ = ["ChunkedLocalAttentionManager"]


class ChunkedLocalAttentionManager(SingleTypeKVCacheManager):
    """A token attends to itself and the earlier tokens of its own chunk.

    A chunk is skipped as soon as it is complete, because the next token begins a new chunk. A hit needs the
    blocks of the chunk in which it ends. A hit that ends with a complete chunk needs no blocks.
    """

    spec_class = ChunkedLocalAttentionSpec

    def __init__(self, kv_cache_spec: ChunkedLocalAttentionSpec, **engine: Any) -> None:
        super().__init__(kv_cache_spec, **engine)
        self.attention_chunk_size = kv_cache_spec.attention_chunk_size

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """The tokens of all complete chunks. With chunks of 64: 0 if 63 tokens are computed, 64 if 64 are."""
        return num_computed_tokens // self.attention_chunk_size * self.attention_chunk_size
