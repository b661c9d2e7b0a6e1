"""A plugin of the reference, as a vendor would write one: a spec, a manager, a platform, a patch."""

from __future__ import annotations

from dataclasses import dataclass

from kvref.managers import FullAttentionManager
from kvref.platform import Platform
from kvref.registry import KVCacheSpecRegistry
from kvref.specs import FullAttentionSpec, MemoryLimits


@dataclass(frozen=True, kw_only=True)
class AcmeSpec(FullAttentionSpec):
    """Full attention in memory of several banks, which are filled evenly."""

    banks: int = 1

    @property
    def unpadded_page_size_bytes(self) -> int:
        """A whole number of bytes in each bank."""
        return -(-super().unpadded_page_size_bytes // self.banks) * self.banks

    def max_memory_usage_bytes(self, limits: MemoryLimits) -> int:
        """As for any full attention."""
        return super().max_memory_usage_bytes(limits)

    def max_admission_blocks_per_request(self, max_in_flight_tokens: int, max_model_len: int) -> int | None:
        """No cap."""
        return None


class AcmeManager(FullAttentionManager):
    """Keeps all tokens, as full attention does."""

    spec_class = FullAttentionSpec

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return 0


class AcmePlatform(Platform):
    """Registers the spec."""

    @classmethod
    def register_custom_kv_cache_specs(cls, vllm_config: object = None) -> None:
        KVCacheSpecRegistry.register(AcmeSpec, AcmeManager, FullAttentionSpec)
