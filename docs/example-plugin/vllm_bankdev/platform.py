"""The platform: its device, and the hook that registers its KV-cache specs with vLLM.

vLLM imports this module before it knows its platform. Most of vLLM's modules need to know it, so they are
imported inside the hook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.platforms.interface import Platform, PlatformEnum

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class BankdevPlatform(Platform):
    """An accelerator whose memory comes in banks."""

    _enum = PlatformEnum.OOT
    device_name = "bankdev"
    device_type = "cpu"

    @classmethod
    def register_custom_kv_cache_specs(cls, vllm_config: VllmConfig) -> None:
        """Register the specs of this device, each with its manager and a uniform base of its own."""
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
            raise ValueError("bankdev keeps windows in separate banks: leave the hybrid manager enabled")
