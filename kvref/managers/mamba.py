"""Recurrent layers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from kvref.managers.base import SingleTypeKVCacheManager, Slots
from kvref.pool import NULL_BLOCK
from kvref.request import Request
from kvref.specs import MambaSpec, MemoryLimits

__all__ = ["MambaManager"]


class MambaManager(SingleTypeKVCacheManager):
    """The state after the last computed token says all about the tokens before it.

    So only the block of the last computed token is needed: it has the state that the next token starts from.
    A block that is full has the state at its end, so that a hit needs just the block that it ends with.
    After the block of the last token a table has `num_speculative_blocks` more, for the states of drafts.

    * "none": every position has a block. No state is kept for others, so that nothing gets a key.
    * "all": every position has a block, and every full block gets a key.
    * "align": a step writes one state, at its end. It gets one new block for it, however many blocks of
      tokens it computes; the blocks in between are null, and the speculative blocks move along to the end of
      the table. A block gets a key only if a step without drafts ended with it, so that it is sure to have
      the state at its end.

    Lookahead needs no block, since draft models have no recurrent layers.

    A state is copied before a step writes its own. So a request whose hit ends in a block that is only being
    written in the present step has to wait for the next (`new_step_starts`): it is told that it needs more
    blocks than there are. Looking ahead costs nothing here, either.
    """

    spec_class = MambaSpec

    def __init__(self, kv_cache_spec: MambaSpec, **engine: Any) -> None:
        super().__init__(kv_cache_spec, **engine)
        self.mamba_cache_mode = kv_cache_spec.mamba_cache_mode
        self.num_speculative_blocks = kv_cache_spec.num_speculative_blocks
        self.enable_caching = self.enable_caching and self.mamba_cache_mode != "none"
        self._has_state: set[str] = set()
        """Requests, of mode "align", whose tables end with a state and the speculative blocks."""

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """All but the last computed token: max(0, n - 1). vLLM answers -1 for a request without tokens."""
        return max(0, num_computed_tokens - 1)

    def table_length(self, slots: Slots) -> int:
        return -(-slots.num_tokens_main_model // self.block_size) + self.num_speculative_blocks

    def max_blocks(self, limits: MemoryLimits) -> int:
        """What the spec counts. vLLM knows no bound, as if a request held all blocks of its length."""
        return self.kv_cache_spec.max_memory_usage_bytes(limits) // self.kv_cache_spec.page_size_bytes

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        slots: Slots,
        new_computed_blocks: Sequence[int] = (),
        total_computed_tokens: int = 0,
        apply_admission_cap: bool = False,
    ) -> int:
        if new_computed_blocks and self._is_being_written(new_computed_blocks[-1]):
            return sys.maxsize
        return super().get_num_blocks_to_allocate(
            request_id, slots, new_computed_blocks, total_computed_tokens, apply_admission_cap
        )

    def allocate_new_blocks(self, request_id: str, slots: Slots, total_computed_tokens: int = 0) -> list[int]:
        if self.mamba_cache_mode != "align":
            return super().allocate_new_blocks(request_id, slots, total_computed_tokens)
        table = self.req_to_blocks[request_id]
        old_length = len(table)
        if self._lacks_loaded_state(request_id, old_length, total_computed_tokens):
            self._append_new(table, 1)
        length = self.table_length(slots)
        movable = self.num_speculative_blocks if request_id in self._has_state else 0
        self._has_state.add(request_id)
        if length > len(table):
            first, state = len(table) - movable, length - 1 - self.num_speculative_blocks
            if state > first:
                table[first:] = [NULL_BLOCK] * (state - first) + table[state:] + table[first:state]
            self._append_new(table, length - len(table))
        return table[old_length:]

    def is_settled(self, request_id: str, slots: Slots) -> bool:
        return False

    def _num_new_blocks(self, request_id: str, slots: Slots, start: int, total_computed_tokens: int) -> int:
        missing = super()._num_new_blocks(request_id, slots, start, total_computed_tokens)
        if self.mamba_cache_mode != "align":
            return missing
        if request_id in self._has_state:
            return min(missing, 1)
        loaded = self._lacks_loaded_state(request_id, start, total_computed_tokens)
        return min(missing, 1 + self.num_speculative_blocks + loaded)

    def _lacks_loaded_state(self, request_id: str, length: int, total_computed_tokens: int) -> bool:
        """Whether the table ends before the block of a state that is loaded from elsewhere."""
        new = request_id not in self._has_state
        return new and total_computed_tokens > 0 and length == self._num_skipped_blocks(total_computed_tokens)

    def pop_blocks_for_free(self, request_id: str) -> list[int]:
        self._has_state.discard(request_id)
        return super().pop_blocks_for_free(request_id)

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        if self.mamba_cache_mode == "align":
            name, full = request.request_id, num_tokens // self.block_size
            if full != len(self.req_to_blocks[name]) - self.num_speculative_blocks:
                return
            self.num_cached_block[name] = max(self.num_cached_block[name], full - 1)
        super().cache_blocks(request, num_tokens)

    def _is_being_written(self, block: int) -> bool:
        """Whether a request has the block, which has got its key since the step began."""
        keyed = self.block_pool.keyed_this_step
        return block in keyed and any(block in table for table in self.req_to_blocks.values())

    @property
    def _num_blocks_ahead(self) -> int:
        return 0
