"""Full attention."""

from __future__ import annotations

from kvref.managers.base import SingleTypeKVCacheManager
from kvref.specs import FullAttentionSpec

__all__ = ["FullAttentionManager"]


class FullAttentionManager(SingleTypeKVCacheManager):
    """Every token attends to all earlier ones, so nothing is skipped before the request ends.

    That holds, too, for a full spec that records a window or a chunk: its cache is managed as full attention.
    """

    spec_class = FullAttentionSpec
