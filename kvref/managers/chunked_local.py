"""Chunked local attention."""

from __future__ import annotations

from typing import Any

from kvref.managers.base import SingleTypeKVCacheManager
from kvref.specs import ChunkedLocalAttentionSpec

__all__ = ["ChunkedLocalAttentionManager"]


class ChunkedLocalAttentionManager(SingleTypeKVCacheManager):
    """A token attends to the earlier tokens of its own chunk.

    So all chunks before the next token's chunk are skipped: a chunk is skipped as soon as it is complete.
    A hit needs the blocks of the chunk that it ends in, and none if it ends where a chunk ends.
    """

    spec_class = ChunkedLocalAttentionSpec

    def __init__(self, kv_cache_spec: ChunkedLocalAttentionSpec, **engine: Any) -> None:
        super().__init__(kv_cache_spec, **engine)
        self.attention_chunk_size = kv_cache_spec.attention_chunk_size

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """n rounded down to whole chunks: with chunks of 64, 63 computed tokens skip none and 64 skip 64."""
        return num_computed_tokens // self.attention_chunk_size * self.attention_chunk_size
