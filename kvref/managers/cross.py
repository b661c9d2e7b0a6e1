"""Cross attention."""

from __future__ import annotations

from kvref.managers.base import SingleTypeKVCacheManager, Slots
from kvref.specs import CrossAttentionSpec

__all__ = ["CrossAttentionManager"]


class CrossAttentionManager(SingleTypeKVCacheManager):
    """Every decoder token attends to all encoder tokens, so nothing is skipped before the request ends.

    A request gets the blocks of its encoder tokens when it is first allocated, and no more. Their content
    depends on what the encoder was given, which the hashes of decoder tokens do not tell: it is never shared.
    """

    spec_class = CrossAttentionSpec
    prefix_cacheable = False

    def table_length(self, slots: Slots) -> int:
        return -(-slots.num_encoder_tokens // self.block_size)
