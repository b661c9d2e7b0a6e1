"""The fast cache manager: `allocate_slots` returns at once if a step changes nothing.

Most steps of a request change neither its block tables nor the prefix cache. A request is *settled* up to n
tokens if this holds for every step that ends with at most n tokens: the block tables are long enough, no
block gets a key, and no block becomes free. For such a step, `allocate_slots` does not call the managers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvref import cache
from kvref.cache import KVCacheBlocks
from kvref.fast.pool import BlockPool
from kvref.managers import SingleTypeKVCacheManager
from kvref.managers.base import TokenCounts
from kvref.planning import KVCacheConfig
from kvref.request import Request

__all__ = ["KVCacheBlocks", "KVCacheManager", "Request", "is_settled"]

_LEFT_OUT = (
    "get_num_blocks_to_allocate",
    "remove_skipped_blocks",
    "allocate_new_blocks",
    "cache_blocks",
    "_num_new_blocks",
)
"""The methods of a manager that `allocate_slots` does not call for a settled request."""


class KVCacheManager(cache.KVCacheManager):
    """Gives the same answers as `kvref.cache.KVCacheManager`, in less time."""

    block_pool_class = BlockPool

    def __init__(self, kv_cache_config: KVCacheConfig, max_model_len: int, **engine: Any) -> None:
        super().__init__(kv_cache_config, max_model_len, **engine)
        managers = self.coordinator.single_type_managers
        self._smallest_block_size = min((manager.block_size for manager in managers), default=1)
        self._can_settle = all(has_base_steps(type(manager)) for manager in managers)
        self._settled: dict[str, int] = {}
        """For each request, the number of tokens up to which it is settled; 0 if it is not settled."""

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
        computed = request.num_computed_tokens
        settled = self._settled.get(request.request_id)
        if (
            settled is not None
            and num_new_tokens > 0 <= num_lookahead_tokens
            and computed <= self.max_model_len
            and not (
                num_new_computed_tokens
                or new_computed_blocks
                or num_external_computed_tokens
                or num_encoder_tokens
                or full_sequence_must_fit
            )
        ):
            # A later step of a running request. Of all checks, it needs only that of the hashes.
            if computed + num_new_tokens + num_lookahead_tokens <= settled:
                return self.empty_kv_cache_blocks
            self._check_hashes(request)
            main_model = min(computed + num_new_tokens, self.max_model_len)
            tokens = TokenCounts(min(main_model + num_lookahead_tokens, self.max_model_len), main_model)
            return self._allocate(
                request, tokens, self.empty_kv_cache_blocks.blocks, computed, delay_cache_blocks
            )
        return super().allocate_slots(
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

    def _allocate(
        self,
        request: Request,
        tokens: TokenCounts,
        hits: Sequence[Sequence[int]],
        resume: int,
        delay_cache_blocks: bool,
    ) -> KVCacheBlocks | None:
        added = super()._allocate(request, tokens, hits, resume, delay_cache_blocks)
        if added is not None:
            self._settle(request.request_id, tokens.num_tokens)
        return added

    def free(self, request: Request) -> None:
        self._settled.pop(request.request_id, None)
        super().free(request)

    def _settle(self, request_id: str, num_tokens: int) -> None:
        """Record up to how many tokens a request is settled, now that it has slots for `num_tokens`.

        The method tries only one number: the last one before another block of the smallest size becomes full.
        """
        size = self._smallest_block_size
        last = min(num_tokens // size * size + size - 1, self.max_model_len)
        tokens = TokenCounts(last, last)
        for manager in self.coordinator.single_type_managers:
            if not (self._can_settle and is_settled(manager, request_id, tokens)):
                last = 0
                break
        self._settled[request_id] = last


def has_base_steps(kind: type[SingleTypeKVCacheManager]) -> bool:
    """Whether a manager class overrides none of the methods in `_LEFT_OUT`.

    If a class overrides one of them, `is_settled` cannot know what a step of that class changes.
    """
    return all(getattr(kind, name) is getattr(SingleTypeKVCacheManager, name) for name in _LEFT_OUT)


def is_settled(manager: SingleTypeKVCacheManager, request_id: str, tokens: TokenCounts) -> bool:
    """Whether a request is settled up to these tokens in the manager's group.

    The manager's class must have base steps (`has_base_steps`).
    """
    num_tokens = tokens.num_tokens
    num_cached = manager.num_cached_block[request_id]
    return (
        manager.table_length(tokens) <= len(manager.req_to_blocks[request_id])
        and (
            num_tokens // manager.block_size <= num_cached or manager._num_to_cache(num_tokens) <= num_cached
        )
        # - 1: the step computes at least one of these tokens, so fewer are computed before it.
        and manager._num_skipped_blocks(num_tokens - 1) <= manager._num_nulled[request_id]
    )
