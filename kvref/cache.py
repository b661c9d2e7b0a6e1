"""The cache manager that a scheduler calls: it finds prefix hits and allocates blocks for requests."""

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
    """Blocks of one request: a list for each group, in the order of the request's tokens.

    A null block stands where the request needs no block.
    """

    blocks: tuple[Sequence[int], ...]

    def get_block_ids(self) -> tuple[list[int], ...]:
        return tuple(list(blocks) for blocks in self.blocks)


class KVCacheManager:
    """Finds prefix hits and allocates blocks for requests.

    A scheduler calls `get_computed_blocks` for a waiting request and passes the prefix hit to
    `allocate_slots`. For each later step it calls `allocate_slots` again. When the request ends or is
    preempted, it calls `free`.

    Args:
        max_model_len: the most tokens that a request can have, prompt and output together.
        scheduler_block_size: the length of every prefix hit is a multiple of this many tokens. It must be a
            multiple of every group's block size.
        hash_block_size: a request has one block hash for each `hash_block_size` tokens. With caching, every
            group's block size must be a multiple of it.
        use_eagle: whether draft layers (EAGLE) read one token ahead; see `KVCacheCoordinator`.
        max_in_flight_tokens: the most tokens of a request that can be in flight at a time; None means
            `max_model_len`.
        max_encoder_tokens: the most encoder tokens that a request can have.

    Raises:
        InvalidConfigError, InvalidSpecError, PoolExhaustedError, SpecKindError, UnregisteredSpecError: at
            construction; see `KVCacheCoordinator` and `MemoryLimits`.
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
        """The fraction of the pool's usable blocks that are in use; see `BlockPool.get_usage`."""
        return self.block_pool.get_usage()

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """Find the longest prefix hit of a request that has no blocks yet.

        The hit leaves at least one token of the request to compute, because the engine needs the output of
        the last token. The blocks of the hit get no reference yet. So pass the hit to `allocate_slots` before
        you allocate anything else.

        Returns:
            The blocks of the hit, and its length in tokens.

        Raises:
            InvalidRequestError: caching is on, but the request has no `BlockHasher`, or one with another
                `hash_block_size`.
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
        """Allocate slots for the tokens that a request computes next.

        The call first frees those blocks of the request that no later token needs. They stay free even if the
        call then returns None because there are too few free blocks.

        Args:
            num_new_tokens: tokens to compute in this step, draft tokens included.
            num_new_computed_tokens: the length of the prefix hit in tokens. Only for a request without
                blocks.
            new_computed_blocks: the blocks of the prefix hit.
            num_lookahead_tokens: additional slots, for tokens that only a draft model computes.
            num_external_computed_tokens: tokens after the prefix hit that a connector loads. Only for a
                request without blocks.
            delay_cache_blocks: cache no block in this call, because loaded tokens have not arrived yet. Call
                `cache_blocks` when they have.
            num_encoder_tokens: the request's encoder tokens, for cross attention. Only for a request without
                blocks.
            full_sequence_must_fit: if the free blocks are too few for all known tokens of the request, return
                None before any block is freed.

        Returns:
            For each group, the blocks that this call added to the request's block table after the prefix hit.
            None if there are too few free blocks, or if the request must wait for the next step because this
            step still writes the hit (`KVCacheCoordinator.must_wait`).

        Raises:
            InvalidRequestError: the arguments contradict each other, or do not fit the request. Nothing has
                changed.
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
        # If all tokens were loaded, the request computes the last one again, for its output.
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
        """Cache a request's full blocks after its loaded tokens have arrived.

        Call this after `allocate_slots` with `delay_cache_blocks`.

        Args:
            num_computed_tokens: how many tokens of the request have their KV in the cache.

        Raises:
            InvalidRequestError: the request has no blocks.
        """
        if not self.coordinator.has_blocks(request.request_id):
            raise InvalidRequestError(f"request {request.request_id!r} has no blocks to cache")
        self.coordinator.cache_blocks(request, min(num_computed_tokens, request.num_tokens))

    def free(self, request: Request) -> None:
        """Free all blocks of a request, the last block first. Does nothing for a request without blocks.

        Call this before you reset `request.num_computed_tokens`. Blocks after these tokens lose the keys that
        they got in this step, because no step will write their content.
        """
        self.coordinator.take_back_keys(request.request_id, request.num_computed_tokens)
        self.coordinator.free(request.request_id)

    def reset_prefix_cache(self) -> bool:
        """Take all keys from all blocks.

        Returns:
            True if that was done. False if a usable block is not free; then nothing has changed.
        """
        return self.block_pool.reset_prefix_cache()

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Take all keys from these blocks. A request that holds one of the blocks keeps the block."""
        self.block_pool.evict_blocks(block_ids)

    def take_events(self) -> list[KVCacheEvent]:
        """Return the prefix-cache events since the last call, in order."""
        return self.block_pool.take_events()

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        """The block table of a request in each group. The tables are empty if the request has no blocks."""
        return KVCacheBlocks(self.coordinator.get_blocks(request_id))

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return self.get_blocks(request_id).get_block_ids()

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """For each group, how many blocks at the start of the block table are the same in all requests.

        `running_request_id` is any request that has blocks. The count ends at the first null block.
        """
        managers = self.coordinator.single_type_managers
        return [manager.get_num_common_prefix_blocks(running_request_id) for manager in managers]

    def take_new_block_ids(self) -> list[int]:
        """Return the blocks allocated since the last call, each once. Some engines zero new blocks."""
        managers = self.coordinator.single_type_managers
        return list(dict.fromkeys(block for manager in managers for block in manager.take_new_block_ids()))

    def new_step_starts(self) -> None:
        """Begin a step. Call this before you schedule the first request of the step.

        From then on, the content of blocks that earlier steps cached counts as written.
        """
        self.block_pool.keyed_this_step.clear()

    def _allocate(
        self,
        request: Request,
        tokens: TokenCounts,
        hits: Sequence[Sequence[int]],
        resume: int,
        delay_cache_blocks: bool,
    ) -> KVCacheBlocks | None:
        """Do the part of `allocate_slots` that comes after the checks of the arguments.

        Args:
            resume: position of the token that the request computes next.
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
        """Why `allocate_slots` must refuse its arguments; None if they are valid."""
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
