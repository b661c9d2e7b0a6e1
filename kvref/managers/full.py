"""Full attention."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from kvref.managers.base import SingleTypeKVCacheManager
from kvref.specs import FullAttentionSpec

__all__ = ["FullAttentionManager"]


class FullAttentionManager(SingleTypeKVCacheManager):
    """Every token attends to all earlier ones, so a request keeps its blocks until it ends.

    A hit needs every block from the first on. So a look-up stops at the first block that is not cached.

    Latent attention (MLA) works in the same way. So does a full-attention spec that records a window or a
    chunk.
    """

    spec_class = FullAttentionSpec
    prefix_closed = True

    def find_longest_cache_hit(self, block_hashes: Sequence[bytes], max_length: int) -> int:
        index = self.block_pool.get_index(self.kv_cache_group_id)
        ahead = self._num_blocks_ahead
        candidates = self._hashes(block_hashes)[: max_length // self.block_size + ahead]
        cached = len([*takewhile(index.__contains__, candidates)])
        return max(0, self._aligned(min(max_length, (cached - ahead) * self.block_size)))
