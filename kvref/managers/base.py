"""The base class of all managers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import ClassVar, NamedTuple

from kvref.errors import SpecKindError
from kvref.hashing import hashes_at
from kvref.pool import NULL_BLOCK, BlockPool
from kvref.request import Request
from kvref.specs import KVCacheSpec, MemoryLimits

__all__ = ["SingleTypeKVCacheManager", "TokenCounts"]


class TokenCounts(NamedTuple):
    """How many tokens a request needs slots for. Tokens that have a slot already are included."""

    num_tokens: int
    """Prompt, output, draft and lookahead tokens."""
    num_tokens_main_model: int
    """`num_tokens` without lookahead tokens, which only a draft model computes."""
    num_encoder_tokens: int = 0
    """Encoder tokens of the request. The other counts do not include them."""


class SingleTypeKVCacheManager:
    """Manages the block tables of one group. Each subclass has the rules of one kind of layer.

    A request's *block table* has a block for each `block_size` tokens, in the order of the tokens. Tokens at
    the beginning of a request are *skipped* once no later token needs them. A block is skipped when all its
    tokens are. The table has null blocks in place of skipped blocks.

    A simple kind overrides only `get_num_skipped_tokens` and `table_length`.

    Args:
        kv_cache_spec: the spec of the group's layers.
        block_pool: the pool from which the manager allocates.
        enable_caching: whether blocks get keys.
        kv_cache_group_id: index of the group.
        scheduler_block_size: the length of every prefix hit is a multiple of this many tokens.
        limits: the engine's limits. `max_admission_blocks_per_request` is computed from them.
        use_eagle: whether the group has draft layers (EAGLE) that read one token ahead. A hit then also needs
            the block after the hit to be cached.

    Raises:
        SpecKindError: at construction, if `kv_cache_spec` is no instance of `spec_class`.
    """

    spec_class: ClassVar[type[KVCacheSpec]] = KVCacheSpec
    """The spec class that this manager serves, together with its subclasses."""
    prefix_cacheable: ClassVar[bool] = True
    """Whether a request can use the cached blocks of another request."""
    prefix_closed: ClassVar[bool] = False
    """Whether every shorter prefix of a hit is a hit as well."""

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
        """The block table of each request."""
        self.num_cached_block: dict[str, int] = {}
        """For each request, how many blocks of its table `cache_blocks` has seen. Not all of them got a
        key."""
        self._num_adopted: dict[str, int] = {}
        """For each request, how many blocks of its table came from its prefix hit."""
        self._num_nulled: dict[str, int] = {}
        """For each request, how many blocks at the beginning of its table are skipped and hence null."""
        self._new_block_ids: dict[int, None] = {}
        self._useful: list[bool] = []
        """The answers of `_is_useful` for the first indices of a table, computed once."""

    # The rules of a kind of layer. Subclasses override these.

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """How many tokens at the beginning of a request are skipped: no later token needs them.

        Args:
            num_computed_tokens: how many tokens are computed, at least 0. The next token has this position.

        Returns:
            At most `num_computed_tokens`; 0 for a kind that needs all earlier tokens.
        """
        return 0

    def table_length(self, tokens: TokenCounts) -> int:
        """The length of a block table with slots for these tokens, null blocks included."""
        return -(-tokens.num_tokens // self.block_size)

    def max_blocks(self, limits: MemoryLimits) -> int | None:
        """The most blocks that a request ever holds. Null blocks do not count.

        If it is None, a request holds blocks for all its tokens.
        """
        return self.kv_cache_spec.max_admission_blocks_per_request(
            limits.max_in_flight_tokens, limits.max_model_len
        )

    def must_wait(self, new_computed_blocks: Sequence[int]) -> bool:
        """Whether a request with this hit must wait until the next step, since this step writes the hit."""
        return False

    # Allocation.

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        tokens: TokenCounts,
        new_computed_blocks: Sequence[int] = (),
        total_computed_tokens: int = 0,
        apply_admission_cap: bool = False,
    ) -> int:
        """How many free blocks an allocation takes from the pool. Free blocks of the hit count as well.

        Args:
            tokens: the tokens that the request needs slots for, at least `total_computed_tokens`.
            new_computed_blocks: the prefix hit of a request without a table.
            total_computed_tokens: for a request without a table, the tokens that it need not compute because
                they are in the hit or are loaded.
            apply_admission_cap: assume that the request computes the tokens in several steps and frees
                skipped blocks between them. It then never holds more than `max_admission_blocks_per_request`
                blocks.
        """
        table = self.req_to_blocks.get(request_id)
        if table is not None:
            touched, length = 0, len(table)
        else:
            skipped = self._num_skipped_blocks(total_computed_tokens)
            touched = self.block_pool.count_references(new_computed_blocks[skipped:], 0)
            length = max(skipped, len(new_computed_blocks))
        if not apply_admission_cap:
            return touched + self._num_new_blocks(request_id, tokens, length, total_computed_tokens)
        needed = touched + max(0, self.table_length(tokens) - length)
        if self.max_admission_blocks_per_request is None:
            return needed
        # Blocks that only this request holds count towards the cap, because they are free again when skipped.
        # Shared blocks do not.
        own = self.block_pool.count_references(table or (), 1)
        return min(needed, max(0, self.max_admission_blocks_per_request - own))

    def add_local_computed_blocks(
        self, request_id: str, new_computed_blocks: Sequence[int], total_computed_tokens: int
    ) -> None:
        """Make the block table of a new request from its hit, with null blocks for skipped blocks."""
        skipped = self._num_skipped_blocks(total_computed_tokens)
        kept = list(new_computed_blocks[skipped:])
        self.block_pool.touch(kept)
        self.req_to_blocks[request_id] = [NULL_BLOCK] * skipped + kept
        self._num_nulled[request_id] = skipped
        self._num_adopted[request_id] = self.num_cached_block[request_id] = len(new_computed_blocks)

    def allocate_new_blocks(
        self, request_id: str, tokens: TokenCounts, total_computed_tokens: int = 0
    ) -> list[int]:
        """Extend a request's block table until it has slots for these tokens.

        Args:
            tokens: the tokens that the request needs slots for.
            total_computed_tokens: as in `get_num_blocks_to_allocate`.

        Returns:
            The blocks that were added at the end of the table, null blocks included.
        """
        table = self.req_to_blocks[request_id]
        old_length = len(table)
        self._append_new(table, self.table_length(tokens) - old_length)
        return table[old_length:]

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Free a request's skipped blocks, the last one first, and put null blocks in their place.

        Args:
            num_computed_tokens: how many tokens are certainly computed. Tokens in flight do not count.
        """
        table = self.req_to_blocks.get(request_id)
        if table is None:
            return
        start = self._num_nulled[request_id]
        stop = min(self._num_skipped_blocks(num_computed_tokens), len(table))
        if start < stop:
            self.block_pool.free_blocks(table[start:stop][::-1])
            table[start:stop] = [NULL_BLOCK] * (stop - start)
            self._num_nulled[request_id] = stop

    def pop_blocks_for_free(self, request_id: str) -> list[int]:
        """Forget a request and return its block table. The caller frees the blocks, the last one first."""
        self.num_cached_block.pop(request_id, None)
        self._num_adopted.pop(request_id, None)
        self._num_nulled.pop(request_id, None)
        return self.req_to_blocks.pop(request_id, [])

    def take_back_keys(self, request_id: str, num_computed_tokens: int) -> None:
        """Take the keys from a request's blocks that were cached in this step but will not be written.

        Call this before `free`. A preempted request may already have slots in the present step. It is then
        withdrawn from the step, and nothing writes to these slots. So no look-up may find their blocks. (In
        vLLM a look-up does find them: issue 57580.)

        Args:
            num_computed_tokens: how many tokens of the request are computed or submitted.
        """
        table = self.req_to_blocks.get(request_id)
        if table is not None:
            first = max(self._num_adopted[request_id], num_computed_tokens // self.block_size)
            own = table[first : self.num_cached_block[request_id]]
            keyed = self.block_pool.keyed_this_step
            self.block_pool.evict_blocks([block for block in own if block in keyed])

    def free(self, request_id: str) -> None:
        """Forget a request and free its blocks. Does nothing for a request without a table."""
        self.block_pool.free_blocks(reversed(self.pop_blocks_for_free(request_id)))

    def take_new_block_ids(self) -> list[int]:
        """Return the blocks allocated since the last call, each once."""
        ids, self._new_block_ids = self._new_block_ids, {}
        return list(ids)

    def get_num_common_prefix_blocks(self, running_request_id: str) -> int:
        """How many blocks at the start of the block table are the same in all requests.

        `running_request_id` is any request with a table. The count ends at the first null block.
        """
        tables = self.req_to_blocks
        columns = zip(tables.get(running_request_id, ()), *tables.values(), strict=False)
        return sum(1 for _ in takewhile(lambda column: column[0] and len({*column}) == 1, columns))

    # Prefix caching.

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Cache the full blocks of a request's first `num_tokens` tokens.

        None of these tokens may be a draft token. A block that no hit can need (`_is_useful`) gets no key, so
        that the pool reuses it first.
        """
        start = self.num_cached_block[request.request_id]
        if start >= num_tokens // self.block_size:
            return
        stop = self._num_to_cache(num_tokens)
        if start >= stop:
            return
        if len(self._useful) < stop:
            self._useful += map(self._is_useful, range(len(self._useful), stop))
        self.block_pool.cache_full_blocks(
            request,
            self.req_to_blocks[request.request_id],
            start,
            stop,
            self.block_size,
            self.kv_cache_group_id,
            self._useful[start:stop],
            kind=type(self.kv_cache_spec).__name__,
        )
        self.num_cached_block[request.request_id] = stop

    def find_longest_cache_hit(self, block_hashes: Sequence[bytes], max_length: int) -> int:
        """The length of the longest prefix hit in this group.

        A hit can end where all blocks that the next token needs are cached. With `use_eagle`, the block after
        the hit must be cached as well.

        Args:
            block_hashes: the block hashes of a request.
            max_length: the hit has at most this many tokens.

        Returns:
            A multiple of `scheduler_block_size`; 0 if there is no hit.
        """
        hashes = self._hashes(block_hashes)
        index = self.block_pool.get_index(self.kv_cache_group_id)
        ahead = self._num_blocks_ahead
        length = self._aligned(min(max_length, (len(hashes) - ahead) * self.block_size))
        while length:
            block = length // self.block_size + ahead - 1
            first = self._num_skipped_blocks(length)
            while block >= first and hashes[block] in index:
                block -= 1
            if block < first:
                return length
            # This block is not cached, so the hit must end before it.
            length = self._aligned((block - ahead) * self.block_size)
        return 0

    def get_hit_blocks(self, block_hashes: Sequence[bytes], length: int) -> list[int]:
        """The block table of a hit of this length, with null blocks for skipped blocks."""
        hashes = self._hashes(block_hashes)
        index = self.block_pool.get_index(self.kv_cache_group_id)
        skipped, stop = self._num_skipped_blocks(length), length // self.block_size
        return [NULL_BLOCK] * skipped + [index[block_hash] for block_hash in hashes[skipped:stop]]

    def is_hit(self, block_hashes: Sequence[bytes], table: Sequence[int], num_computed_tokens: int) -> bool:
        """Whether `table` is a hit: all its blocks that are not skipped have the keys of their hashes."""
        skipped = self._num_skipped_blocks(num_computed_tokens)
        hashes = self._hashes(block_hashes)[skipped : len(table)]
        return self.block_pool.have_keys(table[skipped:], hashes, self.kv_cache_group_id)

    # For subclasses.

    @property
    def _num_blocks_ahead(self) -> int:
        """How many blocks after a hit must be cached as well."""
        return int(self.use_eagle)

    def _aligned(self, num_tokens: int) -> int:
        """`num_tokens` rounded down to a multiple of the scheduler block size."""
        return max(0, num_tokens // self.scheduler_block_size * self.scheduler_block_size)

    def _hashes(self, block_hashes: Sequence[bytes]) -> Sequence[bytes]:
        return hashes_at(block_hashes, self.block_pool.hash_block_size, self.block_size)

    def _num_skipped_blocks(self, num_computed_tokens: int) -> int:
        return self.get_num_skipped_tokens(num_computed_tokens) // self.block_size

    def _num_new_blocks(
        self, request_id: str, tokens: TokenCounts, length: int, total_computed_tokens: int
    ) -> int:
        """How many blocks `allocate_new_blocks` would allocate for a table of `length` blocks."""
        return max(0, self.table_length(tokens) - length)

    def _num_to_cache(self, num_tokens: int) -> int:
        """How many blocks of a table `cache_blocks` processes for the first `num_tokens` tokens."""
        aligned = num_tokens - num_tokens % self.scheduler_block_size
        # Without a full scheduler block there is no hit, so nothing to cache.
        if not self.enable_caching or not aligned:
            return 0
        return min(num_tokens, aligned + self._num_blocks_ahead * self.block_size) // self.block_size

    def _is_useful(self, place: int) -> bool:
        """Whether some hit needs the block at index `place` of a table.

        A hit also needs the `_num_blocks_ahead` blocks after it. Of all hits that reach the block, the method
        checks only the shortest, because longer hits skip more blocks.
        """
        if self.prefix_closed:
            return True
        before = (place - self._num_blocks_ahead) * self.block_size
        return place >= self._num_skipped_blocks(self._aligned(before) + self.scheduler_block_size)

    def _append_new(self, table: list[int], num_blocks: int) -> None:
        if num_blocks > 0:
            blocks = self.block_pool.get_new_blocks(num_blocks)
            table += blocks
            for block in blocks:
                self._new_block_ids[block] = None
