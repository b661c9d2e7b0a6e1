"""What the managers of all attention kinds share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import ClassVar, NamedTuple

from kvref.errors import SpecKindError
from kvref.hashing import hashes_at
from kvref.pool import NULL_BLOCK, BlockPool
from kvref.request import Request
from kvref.specs import KVCacheSpec, MemoryLimits

__all__ = ["SingleTypeKVCacheManager", "Slots"]


class Slots(NamedTuple):
    """The tokens that a request needs places for, those counted that have one."""

    num_tokens: int
    """All of them, lookahead included."""
    num_tokens_main_model: int
    """Without the lookahead, which only a draft model computes."""
    num_encoder_tokens: int = 0
    """Tokens of its encoder, not among the others."""


class SingleTypeKVCacheManager:
    """Manages the blocks of one group of layers; a subclass knows the rules of one attention kind.

    A request's *table* has a block for each `block_size` tokens, in the order of the tokens, with null blocks
    where no token will need the content again. The base class is right for every kind that is described by
    `get_num_skipped_tokens` and `table_length` alone.

    Args:
        kv_cache_spec: of the group's layers.
        block_pool: where blocks come from; without one the manager knows its rules, but has no blocks.
        enable_caching: whether blocks get keys.
        kv_cache_group_id: number of the group.
        scheduler_block_size: cache hits are multiples of this many tokens.
        limits: what bounds a request, for `max_admission_blocks_per_request`.
        use_eagle: whether draft layers of the group read one token ahead, so that a hit must be followed by a
            block that is cached, too.

    Raises:
        SpecKindError: at construction, for a spec of another kind.
    """

    spec_class: ClassVar[type[KVCacheSpec]] = KVCacheSpec
    """The kind of spec it manages, subclasses included."""
    prefix_cacheable: ClassVar[bool] = True
    """Whether another request's blocks can ever be used again."""
    prefix_closed: ClassVar[bool] = False
    """Whether with a hit of some length each shorter one is a hit, too."""

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        *,
        block_pool: BlockPool,
        enable_caching: bool,
        kv_cache_group_id: int,
        scheduler_block_size: int,
        limits: MemoryLimits,
        use_eagle: bool,
    ) -> None:
        if not isinstance(kv_cache_spec, self.spec_class):
            raise SpecKindError(
                f"{type(self).__name__} manages {self.spec_class.__name__} and its subclasses, "
                f"not {type(kv_cache_spec).__name__}: register that class with a manager of its kind"
            )
        self.kv_cache_spec = kv_cache_spec
        self.block_size = kv_cache_spec.block_size
        self.block_pool = block_pool
        self.enable_caching = enable_caching and self.prefix_cacheable
        self.kv_cache_group_id = kv_cache_group_id
        self.scheduler_block_size = scheduler_block_size
        self.use_eagle = use_eagle
        self.max_admission_blocks_per_request = self.max_blocks(limits)
        self.req_to_blocks: dict[str, list[int]] = {}
        self.num_cached_block: dict[str, int] = {}
        """How many blocks of a request's table have been considered for keys."""
        self._num_adopted: dict[str, int] = {}
        """How many blocks of a request's table have been found for it."""
        self._num_nulled: dict[str, int] = {}
        """How many blocks at the beginning of a request's table are null."""
        self._new_block_ids: dict[int, None] = {}
        self._useful: list[bool] = []
        """What `_is_useful` says of the first places, as far as any table has come."""

    # The rules of the kind.

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """How many tokens, counted from the first, no later token will need again.

        Args:
            num_computed_tokens: tokens computed so far, at least 0; the next one has this position.

        Returns:
            A number of tokens, never above `num_computed_tokens`; 0 unless the kind forgets.
        """
        return 0

    def table_length(self, slots: Slots) -> int:
        """How many blocks a table has, null ones included, that has places for these tokens."""
        return -(-slots.num_tokens // self.block_size)

    def max_blocks(self, limits: MemoryLimits) -> int | None:
        """The most blocks that one request ever holds, null ones not counted; None if all of its tokens."""
        return self.kv_cache_spec.max_admission_blocks_per_request(
            limits.max_in_flight_tokens, limits.max_model_len
        )

    # Allocation.

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        slots: Slots,
        new_computed_blocks: Sequence[int] = (),
        total_computed_tokens: int = 0,
        apply_admission_cap: bool = False,
    ) -> int:
        """How many blocks the pool will have fewer after this allocation.

        Args:
            slots: what the request needs, at least `total_computed_tokens`.
            new_computed_blocks: blocks found in the cache for a request without a table.
            total_computed_tokens: tokens found, here or elsewhere, for a request without a table.
            apply_admission_cap: count the most that is held at any time on the way to there, instead of
                taking it that all is allocated at once.
        """
        table = self.req_to_blocks.get(request_id)
        if table is not None:
            taken, start = 0, len(table)
        else:
            skipped = self._num_skipped_blocks(total_computed_tokens)
            taken = self.block_pool.count_references(new_computed_blocks[skipped:], 0)
            start = max(skipped, len(new_computed_blocks))
        if not apply_admission_cap:
            return taken + self._num_new_blocks(request_id, slots, start, total_computed_tokens)
        needed = taken + max(0, self.table_length(slots) - start)
        if self.max_admission_blocks_per_request is None:
            return needed
        # What it holds alone goes back to the pool when it needs it no more; what it shares does not.
        own = self.block_pool.count_references(table or (), 1)
        return min(needed, max(0, self.max_admission_blocks_per_request - own))

    def add_local_computed_blocks(
        self, request_id: str, new_computed_blocks: Sequence[int], total_computed_tokens: int
    ) -> None:
        """Make the table of a new request of the blocks found for it, those not needed left out."""
        skipped = self._num_skipped_blocks(total_computed_tokens)
        kept = list(new_computed_blocks[skipped:])
        self.block_pool.touch(kept)
        self.req_to_blocks[request_id] = [NULL_BLOCK] * skipped + kept
        self._num_nulled[request_id] = skipped
        self._num_adopted[request_id] = self.num_cached_block[request_id] = len(new_computed_blocks)

    def allocate_new_blocks(self, request_id: str, slots: Slots, total_computed_tokens: int = 0) -> list[int]:
        """Make a request's table long enough, those of its computed tokens included that have no block yet.

        Args:
            slots: what the request needs.
            total_computed_tokens: tokens found, here or elsewhere, for a request that is new.

        Returns:
            What has been added to the table, null blocks included.
        """
        table = self.req_to_blocks[request_id]
        old_length = len(table)
        self._append_new(table, self.table_length(slots) - old_length)
        return table[old_length:]

    def is_settled(self, request_id: str, slots: Slots) -> bool:
        """Whether a request can go on up to so many tokens without any change to its table or keys.

        No is always right: whoever overrides what happens to a table answers so, unless it is sure.
        """
        num_tokens = slots.num_tokens
        num_cached = self.num_cached_block[request_id]
        return (
            self.table_length(slots) <= len(self.req_to_blocks[request_id])
            and (num_tokens // self.block_size <= num_cached or self._num_to_cache(num_tokens) <= num_cached)
            # One of them at least is yet to be computed.
            and self._num_skipped_blocks(num_tokens - 1) <= self._num_nulled[request_id]
        )

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Free the blocks that no token will need again, the last first; the table has null blocks instead.

        Args:
            num_computed_tokens: tokens computed for certain, those in flight not counted.
        """
        table = self.req_to_blocks.get(request_id)
        if table is None:
            return
        start, stop = self._num_nulled[request_id], self._num_skipped_blocks(num_computed_tokens)
        stop = min(stop, len(table))
        if start < stop:
            self.block_pool.free_blocks(table[start:stop][::-1])
            table[start:stop] = [NULL_BLOCK] * (stop - start)
            self._num_nulled[request_id] = stop

    def pop_blocks_for_free(self, request_id: str) -> list[int]:
        """Forget a request. Returns its table, of which the caller frees the blocks, the last first."""
        self.num_cached_block.pop(request_id, None)
        self._num_adopted.pop(request_id, None)
        self._num_nulled.pop(request_id, None)
        return self.req_to_blocks.pop(request_id, [])

    def take_back_keys(self, request_id: str, num_computed_tokens: int) -> None:
        """Take the keys that a request's blocks got in this step, for tokens that it is not to compute now.

        To be called before `free`: whoever makes room may have places in the step already, and is taken out
        of it again. Nothing is ever written to these blocks (vLLM issue 57580; vLLM lets others find them).

        Args:
            num_computed_tokens: tokens computed, or handed over to be computed.
        """
        table = self.req_to_blocks.get(request_id)
        if table is not None:
            first = max(self._num_adopted[request_id], num_computed_tokens // self.block_size)
            own = table[first : self.num_cached_block[request_id]]
            keyed = self.block_pool.keyed_this_step
            self.block_pool.evict_blocks([block for block in own if block in keyed])

    def free(self, request_id: str) -> None:
        """Forget a request and free its blocks. Does nothing for one that has none."""
        self.block_pool.free_blocks(reversed(self.pop_blocks_for_free(request_id)))

    def take_new_block_ids(self) -> list[int]:
        """The blocks taken from the pool since the last call, each once."""
        ids, self._new_block_ids = self._new_block_ids, {}
        return list(ids)

    def get_num_common_prefix_blocks(self, running_request_id: str) -> int:
        """How many blocks at the beginning of a request's table begin all other tables, too."""
        tables = self.req_to_blocks
        columns = zip(tables.get(running_request_id, ()), *tables.values(), strict=False)
        return sum(1 for _ in takewhile(lambda column: column[0] and len({*column}) == 1, columns))

    # Prefix caching.

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Give keys to the full blocks of a request's first `num_tokens` tokens, which are certain.

        Only to those that some hit needs, which is a matter of `scheduler_block_size`: others would take the
        place of useful ones.
        """
        start = self.num_cached_block[request.request_id]
        if start >= num_tokens // self.block_size:
            return
        full = self._num_to_cache(num_tokens)
        if start >= full:
            return
        useful = self._useful
        if len(useful) < full:
            useful += map(self._is_useful, range(len(useful), full))
        self.block_pool.cache_full_blocks(
            request,
            self.req_to_blocks[request.request_id],
            start,
            full,
            self.block_size,
            self.kv_cache_group_id,
            useful[start:full],
            kind=type(self.kv_cache_spec).__name__,
        )
        self.num_cached_block[request.request_id] = full

    def find_longest_cache_hit(self, block_hashes: Sequence[bytes], max_length: int) -> int:
        """The longest hit of this group.

        Args:
            block_hashes: a request's.
            max_length: tokens that the hit must not exceed.

        Returns:
            The largest multiple of `scheduler_block_size`, at most `max_length`, for which all blocks that a
            next token needs are cached, and with `use_eagle` the block after it, too.
        """
        hashes = self._hashes(block_hashes)
        index = self.block_pool.get_index(self.kv_cache_group_id)
        ahead = self._num_blocks_ahead
        end = self._aligned(min(max_length, (len(hashes) - ahead) * self.block_size))
        while end:
            block = end // self.block_size + ahead - 1
            first = self._num_skipped_blocks(end)
            while block >= first and hashes[block] in index:
                block -= 1
            if block < first:
                return end
            end = self._aligned((block - ahead) * self.block_size)
        return 0

    def get_hit_blocks(self, block_hashes: Sequence[bytes], length: int) -> list[int]:
        """The table of a hit of that length: blocks that a next token needs, and null ones before them."""
        hashes = self._hashes(block_hashes)
        index = self.block_pool.get_index(self.kv_cache_group_id)
        skipped, stop = self._num_skipped_blocks(length), length // self.block_size
        return [NULL_BLOCK] * skipped + [index[block_hash] for block_hash in hashes[skipped:stop]]

    def is_hit(self, block_hashes: Sequence[bytes], table: Sequence[int], num_computed_tokens: int) -> bool:
        """Whether what a next token needs of a table is cached in these very blocks."""
        skipped = self._num_skipped_blocks(num_computed_tokens)
        hashes = self._hashes(block_hashes)[skipped : len(table)]
        return self.block_pool.have_keys(table[skipped:], hashes, self.kv_cache_group_id)

    # For subclasses.

    @property
    def _num_blocks_ahead(self) -> int:
        """How many blocks after a hit must be cached as well."""
        return int(self.use_eagle)

    def _aligned(self, num_tokens: int) -> int:
        return max(0, num_tokens // self.scheduler_block_size * self.scheduler_block_size)

    def _hashes(self, block_hashes: Sequence[bytes]) -> Sequence[bytes]:
        return hashes_at(block_hashes, self.block_pool.hash_block_size, self.block_size)

    def _num_skipped_blocks(self, num_computed_tokens: int) -> int:
        return self.get_num_skipped_tokens(num_computed_tokens) // self.block_size

    def _num_new_blocks(self, request_id: str, slots: Slots, start: int, total_computed_tokens: int) -> int:
        """How many blocks `allocate_new_blocks` takes for a table of length `start`."""
        return max(0, self.table_length(slots) - start)

    def _num_to_cache(self, num_tokens: int) -> int:
        """How many blocks of a table are considered for keys by the time that so many tokens are certain."""
        aligned = num_tokens - num_tokens % self.scheduler_block_size
        # Where there is no hit yet, there is none to look ahead from.
        if not self.enable_caching or not aligned:
            return 0
        return min(num_tokens, aligned + self._num_blocks_ahead * self.block_size) // self.block_size

    def _is_useful(self, place: int) -> bool:
        """Whether a hit can need the block there: if any, then the shortest that reaches or looks so far."""
        if self.prefix_closed:
            return True
        behind = (place - self._num_blocks_ahead) * self.block_size
        return place >= self._num_skipped_blocks(self._aligned(behind) + self.scheduler_block_size)

    def _append_new(self, table: list[int], num_blocks: int) -> None:
        if num_blocks > 0:
            taken = self.block_pool.get_new_blocks(num_blocks)
            table += taken
            for block in taken:
                self._new_block_ids[block] = None
