"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvref.managers.base import SingleTypeKVCacheManager, TokenCounts
from kvref.pool import NULL_BLOCK
from kvref.request import Request
from kvref.specs import MambaSpec, MemoryLimits

__all__ = ["MambaManager"]


class MambaManager(SingleTypeKVCacheManager):
    """Recurrent layers: a state summarises all tokens before it.

    The next token needs only the state after the last computed token. A full block has the state at its end,
    so a hit needs only its last block. After the block of the last token, a block table has
    `num_speculative_blocks` more blocks, for the states of draft tokens.

    The rest depends on `mamba_cache_mode`:

    * "none": each `block_size` tokens get a block. No block gets a key, because earlier states are not kept.
    * "all": each `block_size` tokens get a block. Every full block at which a hit can end gets a key.
    * "align": a step writes one state, at its end. So it gets one new block, however many tokens it computes.
      Null blocks fill the table up to the new block, and the speculative blocks move to the end of the table.
      A block gets a key only if a step without drafts ended exactly at the block's end. Otherwise the block
      has the state after another token.

    Draft models have no recurrent layers. So lookahead tokens need no block, and a hit does not need the
    block after it, even with `use_eagle`.

    A step first copies the states of all hits, and then writes states. So if the present step writes the last
    block of a request's hit, the request must wait for the next step (`must_wait`).
    """

    spec_class = MambaSpec

    def __init__(self, kv_cache_spec: MambaSpec, **engine: Any) -> None:
        super().__init__(kv_cache_spec, **engine)
        self.mamba_cache_mode = kv_cache_spec.mamba_cache_mode
        self.num_speculative_blocks = kv_cache_spec.num_speculative_blocks
        self.enable_caching = self.enable_caching and self.mamba_cache_mode != "none"
        self._has_state: set[str] = set()
        """In mode "align", the requests whose tables end with the block of a state and speculative blocks."""

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """All computed tokens but the last: max(0, n - 1). vLLM returns -1 if no token is computed."""
        return max(0, num_computed_tokens - 1)

    def table_length(self, tokens: TokenCounts) -> int:
        return -(-tokens.num_tokens_main_model // self.block_size) + self.num_speculative_blocks

    def max_blocks(self, limits: MemoryLimits) -> int:
        """The number of blocks in the spec's `max_memory_usage_bytes`.

        vLLM has no bound here, as if a request kept all its blocks.
        """
        return self.kv_cache_spec.max_memory_usage_bytes(limits) // self.kv_cache_spec.page_size_bytes

    def must_wait(self, new_computed_blocks: Sequence[int]) -> bool:
        return bool(new_computed_blocks) and self._is_being_written(new_computed_blocks[-1])

    def allocate_new_blocks(
        self, request_id: str, tokens: TokenCounts, total_computed_tokens: int = 0
    ) -> list[int]:
        if self.mamba_cache_mode != "align":
            return super().allocate_new_blocks(request_id, tokens, total_computed_tokens)
        table = self.req_to_blocks[request_id]
        old_length = len(table)
        if self._lacks_loaded_state(request_id, old_length, total_computed_tokens):
            self._append_new(table, 1)
        length = self.table_length(tokens)
        movable = self.num_speculative_blocks if request_id in self._has_state else 0
        self._has_state.add(request_id)
        if length > len(table):
            first, state = len(table) - movable, length - 1 - self.num_speculative_blocks
            if state > first:
                table[first:] = [NULL_BLOCK] * (state - first) + table[state:] + table[first:state]
            self._append_new(table, length - len(table))
        return table[old_length:]

    def _num_new_blocks(
        self, request_id: str, tokens: TokenCounts, length: int, total_computed_tokens: int
    ) -> int:
        missing = super()._num_new_blocks(request_id, tokens, length, total_computed_tokens)
        if self.mamba_cache_mode != "align":
            return missing
        if request_id in self._has_state:
            return min(missing, 1)
        loaded = self._lacks_loaded_state(request_id, length, total_computed_tokens)
        return min(missing, 1 + self.num_speculative_blocks + loaded)

    def _lacks_loaded_state(self, request_id: str, length: int, total_computed_tokens: int) -> bool:
        """Whether the request is new and loads a state, but its table has no block for that state yet."""
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
        """Whether the block was cached since the step began, and a request still holds it."""
        keyed = self.block_pool.keyed_this_step
        return block in keyed and any(block in table for table in self.req_to_blocks.values())

    @property
    def _num_blocks_ahead(self) -> int:
        return 0
