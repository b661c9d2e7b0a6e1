"""The KV cache as a scheduler sees it: requests go in, block tables come out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvref.coordinators import get_kv_cache_coordinator
from kvref.errors import InvalidRequestError
from kvref.events import KVCacheEvent
from kvref.managers.base import TokenCounts
from kvref.planning import KVCacheConfig
from kvref.pool import BlockPool
from kvref.request import Request
from kvref.specs import MemoryLimits

__all__ = ["KVCacheBlocks", "KVCacheManager", "Request"]


@dataclass(frozen=True)
class KVCacheBlocks:
    """A request's blocks in each group, in the order of its tokens. Null blocks stand where it needs none."""

    blocks: tuple[Sequence[int], ...]

    def get_block_ids(self) -> tuple[list[int], ...]:
        return tuple(list(blocks) for blocks in self.blocks)


class KVCacheManager:
    """Finds prefix hits and allocates blocks.

    A scheduler calls `get_computed_blocks` for a waiting request, passes the hit on to `allocate_slots`,
    calls `allocate_slots` again for each later step, and `free` when the request ends or is preempted.

    Args:
        max_model_len: tokens of the longest request, prompt and output together.
        scheduler_block_size: prefix hits are multiples of it. It must be a multiple of every group's block
            size.
        hash_block_size: tokens from one hash of a request to the next. With caching, every group's block size
            must be a multiple of it.
        use_eagle: whether draft layers read one token ahead; see `KVCacheCoordinator`.
        max_in_flight_tokens: the most tokens of a request that are in flight; None means `max_model_len`.
        max_encoder_tokens: the most encoder tokens of one request.

    Raises:
        InvalidConfigError, UnregisteredSpecError, PoolExhaustedError: at construction; see
            `KVCacheCoordinator`.
    """

    block_pool_class: ClassVar[type[BlockPool]] = BlockPool

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        max_model_len: int,
        *,
        scheduler_block_size: int,
        hash_block_size: int,
        enable_caching: bool = True,
        use_eagle: bool = False,
        enable_kv_cache_events: bool = False,
        max_in_flight_tokens: int | None = None,
        max_encoder_tokens: int = 0,
    ) -> None:
        in_flight = max_model_len if max_in_flight_tokens is None else max_in_flight_tokens
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.kv_cache_config = kv_cache_config
        self.coordinator = get_kv_cache_coordinator(
            kv_cache_config,
            MemoryLimits(max_model_len, in_flight, max_encoder_tokens),
            scheduler_block_size=scheduler_block_size,
            hash_block_size=hash_block_size,
            enable_caching=enable_caching,
            use_eagle=use_eagle,
            enable_kv_cache_events=enable_kv_cache_events,
            block_pool_class=self.block_pool_class,
        )
        self.block_pool = self.coordinator.block_pool
        self.empty_kv_cache_blocks = KVCacheBlocks(tuple(() for _ in kv_cache_config.kv_cache_groups))

    @property
    def usage(self) -> float:
        """The fraction of the usable blocks that is referenced, from 0 to 1."""
        return self.block_pool.get_usage()

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """Look up a request that has no blocks. Returns the blocks of its prefix hit and the hit's length.

        The length is in tokens. It leaves at least one token to compute, because the engine needs the output
        of the last one. The blocks get no reference yet: pass the hit on to `allocate_slots` before you
        allocate anything else.

        Raises:
            InvalidRequestError: caching is on, but the request has no hashes for this `hash_block_size`.
        """
        self._check_hashes(request)
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return self.empty_kv_cache_blocks, 0
        tables, length = self.coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)
        return KVCacheBlocks(tables), length

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
        """Give a request slots for the tokens that it computes next.

        First it frees the request's blocks that no token needs again. They stay free even if there are still
        too few free blocks.

        Args:
            num_new_tokens: tokens to compute now, drafts included.
            num_new_computed_tokens: length of the prefix hit, for a request without blocks.
            new_computed_blocks: the blocks of the hit.
            num_lookahead_tokens: further slots, for tokens that only a draft model computes.
            num_external_computed_tokens: tokens after the hit that are loaded from elsewhere, for a request
                without blocks.
            delay_cache_blocks: give no keys yet, since loaded tokens have not arrived; see `cache_blocks`.
            num_encoder_tokens: tokens for cross attention, for a request without blocks.
            full_sequence_must_fit: if the free blocks are too few for all known tokens of the request,
                refuse before anything is freed.

        Returns:
            For each group the blocks that are new at the end of the request's table, after the hit. None if
            there are too few free blocks, or if the request has to wait for the next step (`must_wait`).

        Raises:
            InvalidRequestError: the arguments make no sense. Nothing has changed.
        """
        coordinator, request_id = self.coordinator, request.request_id
        hits = (new_computed_blocks or self.empty_kv_cache_blocks).blocks
        running = coordinator.has_blocks(request_id)
        self._check_hashes(request)
        counts = {
            "num_new_tokens": num_new_tokens,
            "num_new_computed_tokens": num_new_computed_tokens,
            "num_lookahead_tokens": num_lookahead_tokens,
            "num_external_computed_tokens": num_external_computed_tokens,
            "num_encoder_tokens": num_encoder_tokens,
        }
        computed = request.num_computed_tokens + num_new_computed_tokens + num_external_computed_tokens
        # If all tokens of a request were loaded, it computes the last one again, for its output.
        resume = computed if running else min(computed, request.num_tokens - 1)
        if reason := self._why_not(request, running, counts, hits, resume):
            raise InvalidRequestError(f"request {request_id!r}: {reason}")
        if any(hits) and coordinator.must_wait(hits):
            return None
        main_model = min(computed + num_new_tokens, self.max_model_len)
        if full_sequence_must_fit:
            whole = max(main_model, min(request.num_tokens, self.max_model_len))
            tokens = TokenCounts(whole, whole, num_encoder_tokens)
            needed = coordinator.get_num_blocks_to_allocate(request_id, tokens, hits, resume, True)
            if needed > self.block_pool.get_num_free_blocks():
                return None
        with_lookahead = min(main_model + num_lookahead_tokens, self.max_model_len)
        tokens = TokenCounts(with_lookahead, main_model, num_encoder_tokens)
        return self._allocate(request, tokens, hits, resume, delay_cache_blocks)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Cache the full blocks of loaded tokens once they have arrived, after `delay_cache_blocks`.

        Raises:
            InvalidRequestError: the request has no blocks.
        """
        if not self.coordinator.has_blocks(request.request_id):
            raise InvalidRequestError(f"request {request.request_id!r} has no blocks to cache")
        self.coordinator.cache_blocks(request, min(num_computed_tokens, request.num_tokens))

    def free(self, request: Request) -> None:
        """Free a request's blocks. The last ones are reused first. Does nothing if it has none.

        Call it before you reset `request.num_computed_tokens`: blocks after these tokens lose the keys that
        they got in this step.
        """
        self.coordinator.take_back_keys(request.request_id, request.num_computed_tokens)
        self.coordinator.free(request.request_id)

    def reset_prefix_cache(self) -> bool:
        """Take all keys from all blocks and return True. While a block is referenced, only return False."""
        return self.block_pool.reset_prefix_cache()

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Take all keys from these blocks. Requests that hold them keep them."""
        self.block_pool.evict_blocks(block_ids)

    def take_events(self) -> list[KVCacheEvent]:
        """The events of the prefix cache since the last call."""
        return self.block_pool.take_events()

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        """The block tables of a request; empty ones if it has none."""
        return KVCacheBlocks(self.coordinator.get_blocks(request_id))

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return self.get_blocks(request_id).get_block_ids()

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """For each group, the number of blocks, from the first on, that all requests have in common.

        `running_request_id` is any request with blocks.
        """
        managers = self.coordinator.single_type_managers
        return [manager.get_num_common_prefix_blocks(running_request_id) for manager in managers]

    def take_new_block_ids(self) -> list[int]:
        """The blocks allocated since the last call, each once, for an engine that zeroes new blocks."""
        managers = self.coordinator.single_type_managers
        return list(dict.fromkeys(block for manager in managers for block in manager.take_new_block_ids()))

    def new_step_starts(self) -> None:
        """Begin a step: what earlier steps wrote can be read now. Call it before you schedule anything."""
        self.block_pool.keyed_this_step.clear()

    def _allocate(
        self,
        request: Request,
        tokens: TokenCounts,
        hits: Sequence[Sequence[int]],
        resume: int,
        delay_cache_blocks: bool,
    ) -> KVCacheBlocks | None:
        """Allocate and cache blocks as `allocate_slots` does, with arguments that it has checked.

        Args:
            resume: how many tokens count as computed. The request computes the tokens after them.
        """
        coordinator, request_id = self.coordinator, request.request_id
        coordinator.remove_skipped_blocks(request_id, max(0, resume - request.num_in_flight_tokens))
        needed = coordinator.get_num_blocks_to_allocate(request_id, tokens, hits, resume)
        if needed > self.block_pool.get_num_free_blocks():
            return None
        added = coordinator.allocate(request_id, tokens, hits, resume)
        if not delay_cache_blocks:
            coordinator.cache_blocks(request, min(tokens.num_tokens_main_model, request.num_tokens))
        return KVCacheBlocks(added)

    def _check_hashes(self, request: Request) -> None:
        hasher = request.block_hasher
        size = self.coordinator.hash_block_size
        if self.enable_caching and (hasher is None or hasher.hash_block_size != size):
            raise InvalidRequestError(
                f"request {request.request_id!r} needs a BlockHasher of hash_block_size {size} for prefix "
                f"caching, not {hasher!r}"
            )

    def _why_not(
        self,
        request: Request,
        running: bool,
        counts: Mapping[str, int],
        hits: Sequence[Sequence[int]],
        resume: int,
    ) -> str | None:
        """What is wrong with the arguments of `allocate_slots`; None if nothing is."""
        if min(counts.values()) < 0:
            return f"numbers of tokens must be at least 0: {dict(counts)}"
        found, loaded = counts["num_new_computed_tokens"], counts["num_external_computed_tokens"]
        if not (counts["num_new_tokens"] or found or loaded):
            return "there are no new tokens, and no computed ones to adopt"
        computed = request.num_computed_tokens + found + loaded
        if computed > self.max_model_len:
            return f"it has {computed} computed tokens, but max_model_len is {self.max_model_len}"
        managers = self.coordinator.single_type_managers
        if len(hits) != len(managers):
            return f"there are blocks of {len(hits)} groups, not of {len(managers)}"
        if managers and not running and request.num_computed_tokens:
            return f"it has no blocks, so num_computed_tokens cannot be {request.num_computed_tokens}"
        if not (found or loaded or any(hits)):
            return None
        if running:
            return "it is running and cannot adopt computed tokens"
        for manager, hit in zip(managers, hits, strict=True):
            group, size = manager.kv_cache_group_id, manager.block_size
            if len(hit) * size != found:
                return f"{len(hit)} blocks of {size} tokens, in group {group}, are not {found} tokens"
            if hit and not (self.enable_caching and manager.is_hit(request.block_hashes, hit, resume)):
                return f"blocks {hit}, of group {group}, are not all cached for it: have they been evicted?"
        return None
