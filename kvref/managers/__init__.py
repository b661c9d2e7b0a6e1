"""Managers: one module for each kind of layer, with the rules of that kind."""

from kvref.managers.base import SingleTypeKVCacheManager
from kvref.managers.chunked_local import ChunkedLocalAttentionManager
from kvref.managers.cross import CrossAttentionManager
from kvref.managers.full import FullAttentionManager
from kvref.managers.mamba import MambaManager
from kvref.managers.sink import SinkFullAttentionManager
from kvref.managers.sliding_window import SlidingWindowManager

__all__ = [
    "ChunkedLocalAttentionManager",
    "CrossAttentionManager",
    "FullAttentionManager",
    "MambaManager",
    "SingleTypeKVCacheManager",
    "SinkFullAttentionManager",
    "SlidingWindowManager",
]
