"""A plugin for the reference, as a vendor would write it: a spec, a manager and a platform."""

from __future__ import annotations

from dataclasses import dataclass

from kvref.managers import FullAttentionManager
from kvref.platform import Platform
from kvref.registry import KVCacheSpecRegistry
from kvref.specs import FullAttentionSpec, MemoryLimits


@dataclass(frozen=True, kw_only=True)
class AcmeSpec(FullAttentionSpec):
    """Full attention in memory with several banks. Each bank holds an equal part of a page."""

    banks: int = 1

    @property
    def unpadded_page_size_bytes(self) -> int:
        """The page size of full attention, rounded up to a multiple of the number of banks."""
        return -(-super().unpadded_page_size_bytes // self.banks) * self.banks

    def max_memory_usage_bytes(self, limits: MemoryLimits) -> int:
        """The same bytes as for full attention, but with this class's page size."""
        return super().max_memory_usage_bytes(limits)

    def max_admission_blocks_per_request(self, max_in_flight_tokens: int, max_model_len: int) -> int | None:
        """Return None: a request may have any number of blocks."""
        return None


class AcmeManager(FullAttentionManager):
    """Keeps all tokens, as full attention does."""

    spec_class = FullAttentionSpec

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return 0


class AcmePlatform(Platform):
    """Registers the spec with its manager."""

    @classmethod
    def register_custom_kv_cache_specs(cls, vllm_config: object = None) -> None:
        KVCacheSpecRegistry.register(AcmeSpec, AcmeManager, FullAttentionSpec)
