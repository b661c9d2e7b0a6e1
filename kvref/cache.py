"""The KV cache as a scheduler sees it: requests in, block tables out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvref.coordinators import get_kv_cache_coordinator
from kvref.errors import InvalidRequestError
from kvref.events import KVCacheEvent
from kvref.managers.base import Slots
from kvref.planning import KVCacheConfig
from kvref.request import Request
from kvref.specs import MemoryLimits

__all__ = ["KVCacheBlocks", "KVCacheManager", "Request"]


@dataclass(frozen=True)
class KVCacheBlocks:
    """Blocks of one request in each group, in the order of its tokens; null ones where none is needed."""

    blocks: tuple[Sequence[int], ...]

    def get_block_ids(self) -> tuple[list[int], ...]:
        return tuple(list(blocks) for blocks in self.blocks)


class KVCacheManager:
    """Finds cached prefixes and allocates blocks.

    Args:
        max_model_len: tokens of the longest request, prompt and output together.
        scheduler_block_size: cache hits are multiples of it, and it is one of every group's block size.
        hash_block_size: tokens from one hash of a request to the next; divides `scheduler_block_size`.
        use_eagle: whether draft layers read one token ahead; see `KVCacheCoordinator`.
        max_in_flight_tokens: the most tokens of a request that are scheduled and not confirmed; None means
            `max_model_len`.
        max_encoder_tokens: the most encoder tokens of one request.

    Raises:
        InvalidConfigError, UnregisteredSpecError, PoolExhaustedError: at construction; see
            `KVCacheCoordinator`.
    """

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
        )
        self.block_pool = self.coordinator.block_pool
        self.empty_kv_cache_blocks = KVCacheBlocks(tuple(() for _ in kv_cache_config.kv_cache_groups))

    @property
    def usage(self) -> float:
        """The part of the usable blocks that is held, from 0 to 1."""
        return self.block_pool.get_usage()

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """The blocks that are cached for a request without blocks, and how many tokens that are.

        At least one token is left to compute, since its output is wanted. Nothing is held: pass both on to
        `allocate_slots` before anything else is allocated.

        Raises:
            InvalidRequestError: caching is on, and the request has not the hashes for it.
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
        """Give a request places for the tokens that it is to compute next.

        Before that its blocks are freed that no token needs again, whether the rest succeeds or not.

        Args:
            num_new_tokens: tokens to compute after those computed, drafts included.
            num_new_computed_tokens: tokens found in the cache, for a request without blocks.
            new_computed_blocks: the blocks where they were found.
            num_lookahead_tokens: further places, for tokens that only a draft model computes.
            num_external_computed_tokens: tokens after those found that are loaded from elsewhere, for a
                request without blocks.
            delay_cache_blocks: give no keys yet, since what is loaded has not arrived; see `cache_blocks`.
            num_encoder_tokens: tokens that cross attention attends to, for a request without blocks.
            full_sequence_must_fit: refuse unless all certain tokens of the request could be computed with the
                blocks that are free now.

        Returns:
            What was added to the table of each group, the cached blocks not among it; or None if there are
            not enough blocks.

        Raises:
            InvalidRequestError: the arguments make no sense. Nothing has changed.
        """
        coordinator, request_id = self.coordinator, request.request_id
        computing = num_new_tokens > 0 <= num_lookahead_tokens and not (
            num_new_computed_tokens
            or new_computed_blocks
            or num_external_computed_tokens
            or num_encoder_tokens
            or full_sequence_must_fit
        )
        if computing:
            # Most steps add a token for which there is room in all tables.
            wanted = request.num_computed_tokens + num_new_tokens + num_lookahead_tokens
            if wanted <= coordinator.settled.get(request_id, 0):
                return self.empty_kv_cache_blocks
        hits = (new_computed_blocks or self.empty_kv_cache_blocks).blocks
        local = request.num_computed_tokens + num_new_computed_tokens
        total = local + num_external_computed_tokens
        running = coordinator.has_blocks(request_id)
        self._check_hashes(request)
        if not (computing and running and total <= self.max_model_len):
            counts = (
                num_new_tokens,
                num_new_computed_tokens,
                num_lookahead_tokens,
                num_external_computed_tokens,
                num_encoder_tokens,
            )
            if reason := self._why_not(request, running, counts, hits, total):
                raise InvalidRequestError(f"request {request_id!r}: {reason}")
        main_model = min(total + num_new_tokens, self.max_model_len)
        slots = Slots(
            min(main_model + num_lookahead_tokens, self.max_model_len), main_model, num_encoder_tokens
        )
        # Whose tokens were all loaded computes the last one again, for its output.
        resume = total if running else min(total, request.num_tokens - 1)
        if full_sequence_must_fit:
            whole = max(main_model, min(request.num_tokens, self.max_model_len))
            everything = Slots(whole, whole, num_encoder_tokens)
            needed = coordinator.get_num_blocks_to_allocate(request_id, everything, hits, resume, True)
            if needed > self.block_pool.get_num_free_blocks():
                return None
        coordinator.remove_skipped_blocks(request_id, max(0, resume - request.num_in_flight_tokens))
        needed = coordinator.get_num_blocks_to_allocate(request_id, slots, hits, resume)
        if needed > self.block_pool.get_num_free_blocks():
            return None
        added = coordinator.allocate(request_id, slots, hits, resume)
        if not delay_cache_blocks:
            coordinator.cache_blocks(request, min(main_model, request.num_tokens))
        coordinator.settle(request_id, slots.num_tokens)
        return KVCacheBlocks(added)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Give keys to the full blocks of tokens that have arrived, after `delay_cache_blocks`.

        Raises:
            InvalidRequestError: the request has no blocks.
        """
        if not self.coordinator.has_blocks(request.request_id):
            raise InvalidRequestError(f"request {request.request_id!r} has no blocks that could get keys")
        self.coordinator.cache_blocks(request, min(num_computed_tokens, request.num_tokens))

    def free(self, request: Request) -> None:
        """Free a request's blocks, those at its end to be reused first. Does nothing if it has none.

        `request.num_computed_tokens` still counts what it has computed: keys for more than that, given since
        `new_step_starts`, are taken back.
        """
        self.coordinator.take_back_keys(request.request_id, request.num_computed_tokens)
        self.coordinator.free(request.request_id)

    def reset_prefix_cache(self) -> bool:
        """Forget all that is cached, unless some request holds blocks. Returns whether it was done."""
        return self.block_pool.reset_prefix_cache()

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Forget what is cached in these blocks; whoever holds them keeps them."""
        self.block_pool.evict_blocks(block_ids)

    def take_events(self) -> list[KVCacheEvent]:
        """What has happened to the prefix cache since the last call."""
        return self.block_pool.take_events()

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        """The tables of a request; empty ones if it has none."""
        return KVCacheBlocks(self.coordinator.get_blocks(request_id))

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return self.get_blocks(request_id).get_block_ids()

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """For each group how many blocks at the beginning of a request's table begin all others, too."""
        managers = self.coordinator.single_type_managers
        return [manager.get_num_common_prefix_blocks(running_request_id) for manager in managers]

    def take_new_block_ids(self) -> list[int]:
        """The blocks taken from the pool since the last call, each once: those to be zeroed, if any are."""
        managers = self.coordinator.single_type_managers
        return list(dict.fromkeys(block for manager in managers for block in manager.take_new_block_ids()))

    def new_step_starts(self) -> None:
        """To be called once before each step: what earlier ones were given has been computed by then."""
        self.block_pool.keyed_this_step.clear()

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
        counts: Sequence[int],
        hits: Sequence[Sequence[int]],
        total: int,
    ) -> str | None:
        """What is wrong with the arguments of `allocate_slots`, if anything."""
        new, computed, _, external, _ = counts
        if min(counts) < 0:
            return f"numbers of tokens must be at least 0, not {counts}"
        if not (new or computed or external):
            return "there are no new tokens, and no computed ones to adopt"
        if total > self.max_model_len:
            return f"it has {total} computed tokens, but max_model_len is {self.max_model_len}"
        managers = self.coordinator.single_type_managers
        adopting = computed or external or any(hits)
        if managers and not running and request.num_computed_tokens:
            return f"it has no blocks, so that num_computed_tokens cannot be {request.num_computed_tokens}"
        if not adopting:
            return None
        if running:
            return "it is running already and cannot adopt computed tokens"
        if len(hits) != len(managers):
            return f"there are blocks of {len(hits)} groups, not of {len(managers)}"
        for manager, hit in zip(managers, hits, strict=True):
            group, size = manager.kv_cache_group_id, manager.block_size
            if len(hit) * size != computed:
                return f"{len(hit)} blocks of {size} tokens, in group {group}, are not {computed} tokens"
            if hit and not (self.enable_caching and manager.is_hit(request.block_hashes, hit, total)):
                return (
                    f"blocks {hit}, of group {group}, are not all cached for it; has some call evicted them?"
                )
        return None
