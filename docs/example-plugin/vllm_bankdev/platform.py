"""The platform: what device it is, and the hook by which vLLM learns of its KV cache.

While this is imported vLLM does not know its platform yet, and most of its modules ask for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.platforms.interface import Platform, PlatformEnum

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class BankdevPlatform(Platform):
    """An accelerator with memory in banks."""

    _enum = PlatformEnum.OOT
    device_name = "bankdev"
    device_type = "cpu"

    @classmethod
    def register_custom_kv_cache_specs(cls, vllm_config: VllmConfig) -> None:
        """Register the specs of this device, each with its manager and as a kind of its own."""
        from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
        from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

        from vllm_bankdev.kv_cache import BankedSpec, BankedWindowManager, BankedWindowSpec

        KVCacheSpecRegistry.register(BankedSpec, FullAttentionManager, uniform_type_base_spec=BankedSpec)
        KVCacheSpecRegistry.register(
            BankedWindowSpec, BankedWindowManager, uniform_type_base_spec=BankedWindowSpec
        )

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        return True

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        if vllm_config.scheduler_config.disable_hybrid_kv_cache_manager:
            raise ValueError("bankdev has windows in banks of their own: leave the hybrid manager enabled")
