"""The cache manager, fast: most steps of a request change neither its block tables nor the prefix cache.

A request is *settled* up to a number of tokens if, until it has so many, its tables are long enough, no block
gets a key, and no block gets free. A step that stays within that number is answered at once.
"""

from __future__ import annotations

from functools import cache as memoised
from typing import Any

from kvref import cache
from kvref.cache import KVCacheBlocks
from kvref.fast.pool import BlockPool
from kvref.managers import SingleTypeKVCacheManager
from kvref.managers.base import TokenCounts
from kvref.planning import KVCacheConfig
from kvref.request import Request

__all__ = ["KVCacheBlocks", "KVCacheManager", "Request", "is_settled"]

_LEFT_OUT = ("get_num_blocks_to_allocate", "remove_skipped_blocks", "allocate_new_blocks", "cache_blocks")
"""The methods of a manager that a settled step does not call."""


class KVCacheManager(cache.KVCacheManager):
    """Does what the plain cache manager does; see there."""

    block_pool_class = BlockPool

    def __init__(self, kv_cache_config: KVCacheConfig, max_model_len: int, **engine: Any) -> None:
        super().__init__(kv_cache_config, max_model_len, **engine)
        managers = self.coordinator.single_type_managers
        for manager in managers:
            # It depends on nothing else than the place.
            vars(manager)["_is_useful"] = memoised(manager._is_useful)
        self._smallest_block_size = min((manager.block_size for manager in managers), default=1)
        self._settled: dict[str, int] = {}
        """Up to how many tokens each request is settled; 0 if the next step may change something."""

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
    ) -> KVCacheBlocks | None:
        tokens = request.num_computed_tokens + num_new_tokens + num_lookahead_tokens
        if (
            tokens <= self._settled.get(request.request_id, 0)
            and num_new_tokens > 0 <= num_lookahead_tokens
            and not (
                num_new_computed_tokens
                or new_computed_blocks
                or num_external_computed_tokens
                or num_encoder_tokens
                or full_sequence_must_fit
            )
        ):
            return self.empty_kv_cache_blocks
        added = super().allocate_slots(
            request,
            num_new_tokens,
            num_new_computed_tokens,
            new_computed_blocks,
            num_lookahead_tokens,
            num_external_computed_tokens,
            delay_cache_blocks,
            num_encoder_tokens,
            full_sequence_must_fit,
        )
        if added is not None:
            tokens += num_new_computed_tokens + num_external_computed_tokens
            self._settle(request.request_id, min(tokens, self.max_model_len))
        return added

    def free(self, request: Request) -> None:
        self._settled.pop(request.request_id, None)
        super().free(request)

    def _settle(self, request_id: str, num_tokens: int) -> None:
        """Note whether a request with slots for these tokens is settled up to the end of their last block."""
        size = self._smallest_block_size
        last = min(num_tokens // size * size + size - 1, self.max_model_len)
        managers = self.coordinator.single_type_managers
        self._settled[request_id] = (
            last if all(is_settled(each, request_id, last) for each in managers) else 0
        )


def is_settled(manager: SingleTypeKVCacheManager, request_id: str, num_tokens: int) -> bool:
    """Whether a request is settled up to this number of tokens in the group of a manager.

    It is not if its manager has rules of its own for what a step does: nothing is known of these.
    """
    if not _has_base_steps(type(manager)):
        return False
    length = manager.table_length(TokenCounts(num_tokens=num_tokens, num_tokens_main_model=num_tokens))
    num_cached = manager.num_cached_block[request_id]
    return (
        length <= len(manager.req_to_blocks[request_id])
        and (
            num_tokens // manager.block_size <= num_cached or manager._num_to_cache(num_tokens) <= num_cached
        )
        # At least one of the tokens is still to be computed.
        and manager._num_skipped_blocks(num_tokens - 1) <= manager._num_nulled[request_id]
    )


@memoised
def _has_base_steps(kind: type[SingleTypeKVCacheManager]) -> bool:
    """Whether a class of managers leaves to the base class all that a settled step does not call."""
    return all(getattr(kind, name) is getattr(SingleTypeKVCacheManager, name) for name in _LEFT_OUT)
