"""Recurrent layers."""

from __future__ import annotations

from kvref.managers.base import SingleTypeKVCacheManager
from kvref.specs import MambaSpec

__all__ = ["MambaManager"]


class MambaManager(SingleTypeKVCacheManager):
    """The state after the last computed token says all about the tokens before it.

    So only the block of the last computed token is needed: it has the state that the next token starts from.
    """

    spec_class = MambaSpec

    def __init__(self, kv_cache_spec: MambaSpec) -> None:
        super().__init__(kv_cache_spec)
        self.mamba_cache_mode = kv_cache_spec.mamba_cache_mode
        self.num_speculative_blocks = kv_cache_spec.num_speculative_blocks

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """All but the last computed token: max(0, n - 1). vLLM answers -1 for a request without tokens."""
        return max(0, num_computed_tokens - 1)
