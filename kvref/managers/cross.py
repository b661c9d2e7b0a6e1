"""Cross attention."""

from __future__ import annotations

from kvref.managers.base import SingleTypeKVCacheManager, TokenCounts
from kvref.specs import CrossAttentionSpec

__all__ = ["CrossAttentionManager"]


class CrossAttentionManager(SingleTypeKVCacheManager):
    """Every decoder token attends to all encoder tokens, so a request keeps its blocks until it ends.

    A request gets blocks for its encoder tokens in its first allocation, and none later. The content of these
    blocks depends on the encoder's input, but block hashes cover only decoder tokens. So requests never share
    these blocks.
    """

    spec_class = CrossAttentionSpec
    prefix_cacheable = False

    def table_length(self, tokens: TokenCounts) -> int:
        return -(-tokens.num_encoder_tokens // self.block_size)
