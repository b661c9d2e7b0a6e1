"""Cross attention."""

from __future__ import annotations

from kvref.managers.base import SingleTypeKVCacheManager
from kvref.specs import CrossAttentionSpec

__all__ = ["CrossAttentionManager"]


class CrossAttentionManager(SingleTypeKVCacheManager):
    """Every decoder token attends to all encoder tokens, so nothing is skipped before the request ends."""

    spec_class = CrossAttentionSpec
