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

__all__ = ["SingleTypeKVCacheManager", "TokenCounts"]


class TokenCounts(NamedTuple):
    """How many tokens a request needs slots for, including tokens that already have one."""

    num_tokens: int
    """Prompt, output, drafts and lookahead."""
    num_tokens_main_model: int
    """The same without the lookahead, which only a draft model computes."""
    num_encoder_tokens: int = 0
    """Tokens of its encoder, which the other counts leave out."""


class SingleTypeKVCacheManager:
    """Manages the block tables of one group of layers. A subclass has the rules of one attention kind.

    A request's *block table* has a block for each `block_size` tokens, in the order of the tokens. Where no
    later token needs the content, the table has a null block. For a simple kind it is enough to override
    `get_num_skipped_tokens` and `table_length`.

    Args:
        kv_cache_spec: the spec of the group's layers.
        block_pool: where blocks come from.
        enable_caching: whether blocks get keys.
        kv_cache_group_id: number of the group.
        scheduler_block_size: prefix hits are multiples of this many tokens.
        limits: the engine's limits, from which `max_admission_blocks_per_request` follows.
        use_eagle: whether draft layers of the group read one token ahead. A hit then needs one more cached
            block after it.

    Raises:
        SpecKindError: at construction, for a spec of another kind.
    """

    spec_class: ClassVar[type[KVCacheSpec]] = KVCacheSpec
    """The kind of spec it manages, subclasses included."""
    prefix_cacheable: ClassVar[bool] = True
    """Whether one request can use the blocks of another."""
    prefix_closed: ClassVar[bool] = False
    """Whether a hit of some length means that every shorter length is a hit, too."""

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
        """How many blocks of each table `cache_blocks` has handled, whether they got a key or not."""
        self._num_adopted: dict[str, int] = {}
        """How many blocks of each table came from the request's prefix hit."""
        self._num_nulled: dict[str, int] = {}
        """How many blocks at the beginning of each table are null."""
        self._new_block_ids: dict[int, None] = {}
        self._useful: list[bool] = []
        """What `_is_useful` answers for the first indices of a table."""

    # The rules of the kind.

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """How many tokens at the beginning of a request no later token needs.

        Args:
            num_computed_tokens: tokens computed so far, at least 0; the next one has this position.

        Returns:
            At most `num_computed_tokens`. It is 0 for a kind that needs all earlier tokens.
        """
        return 0

    def table_length(self, tokens: TokenCounts) -> int:
        """The length of a block table with slots for these tokens, null blocks included."""
        return -(-tokens.num_tokens // self.block_size)

    def max_blocks(self, limits: MemoryLimits) -> int | None:
        """The most blocks, null ones left out, that a request ever holds. None: those of all its tokens."""
        return self.kv_cache_spec.max_admission_blocks_per_request(
            limits.max_in_flight_tokens, limits.max_model_len
        )

    def must_wait(self, new_computed_blocks: Sequence[int]) -> bool:
        """Whether a request with this prefix hit has to wait for the next step."""
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
        """How many free blocks of the pool this allocation uses.

        Args:
            tokens: the tokens that the request needs slots for, at least `total_computed_tokens`.
            new_computed_blocks: the prefix hit of a request without a table.
            total_computed_tokens: for a request without a table, the tokens that it need not compute: those
                of its hit, and those that are loaded.
            apply_admission_cap: assume that the request computes the tokens in several steps and frees
                blocks between them. Count the most blocks that it then holds at a time.
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
        # Blocks that only this request holds are free again once it does not need them. Shared ones are not.
        own = self.block_pool.count_references(table or (), 1)
        return min(needed, max(0, self.max_admission_blocks_per_request - own))

    def add_local_computed_blocks(
        self, request_id: str, new_computed_blocks: Sequence[int], total_computed_tokens: int
    ) -> None:
        """Make the table of a new request from its hit, with null blocks where it needs no block."""
        skipped = self._num_skipped_blocks(total_computed_tokens)
        kept = list(new_computed_blocks[skipped:])
        self.block_pool.touch(kept)
        self.req_to_blocks[request_id] = [NULL_BLOCK] * skipped + kept
        self._num_nulled[request_id] = skipped
        self._num_adopted[request_id] = self.num_cached_block[request_id] = len(new_computed_blocks)

    def allocate_new_blocks(
        self, request_id: str, tokens: TokenCounts, total_computed_tokens: int = 0
    ) -> list[int]:
        """Make a request's table long enough for these tokens.

        Args:
            tokens: the tokens that the request needs slots for.
            total_computed_tokens: as in `get_num_blocks_to_allocate`.

        Returns:
            The blocks that are new at the end of the table, null ones included.
        """
        table = self.req_to_blocks[request_id]
        old_length = len(table)
        self._append_new(table, self.table_length(tokens) - old_length)
        return table[old_length:]

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Free the blocks that no token needs again, the last first, and put null blocks in their place.

        Args:
            num_computed_tokens: tokens computed for certain: those in flight do not count.
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
        """Forget a request. Returns its table; the caller frees the blocks, the last first."""
        self.num_cached_block.pop(request_id, None)
        self._num_adopted.pop(request_id, None)
        self._num_nulled.pop(request_id, None)
        return self.req_to_blocks.pop(request_id, [])

    def take_back_keys(self, request_id: str, num_computed_tokens: int) -> None:
        """Take back the keys that a request's blocks got in this step for tokens that it will not compute.

        Call it before `free`. A preempted request may already have slots in the present step and is then
        withdrawn from it. The content for these slots is never written, so no look-up may find the blocks.
        (In vLLM look-ups do find them: issue 57580.)

        Args:
            num_computed_tokens: tokens that are computed or submitted.
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
        """The blocks allocated since the last call, each once."""
        ids, self._new_block_ids = self._new_block_ids, {}
        return list(ids)

    def get_num_common_prefix_blocks(self, running_request_id: str) -> int:
        """How many blocks, from the first on, all requests have in common.

        `running_request_id` is any request with a table. Null blocks end the count.
        """
        tables = self.req_to_blocks
        columns = zip(tables.get(running_request_id, ()), *tables.values(), strict=False)
        return sum(1 for _ in takewhile(lambda column: column[0] and len({*column}) == 1, columns))

    # Prefix caching.

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Cache the full blocks of a request's first `num_tokens` tokens, which are certain.

        Blocks that no hit can need get no key (`_is_useful`), so that the pool reuses them first.
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
        """The length of this group's longest prefix hit.

        Args:
            block_hashes: the block hashes of a request.
            max_length: tokens that the hit must not exceed.

        Returns:
            The largest multiple of `scheduler_block_size`, up to `max_length`, for which all blocks that the
            next token needs are cached, and with `use_eagle` the block after it as well.
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
            # This block is not cached, so a hit has to end before it.
            length = self._aligned((block - ahead) * self.block_size)
        return 0

    def get_hit_blocks(self, block_hashes: Sequence[bytes], length: int) -> list[int]:
        """The block table of a hit of this length, with null blocks where the next token needs no block."""
        hashes = self._hashes(block_hashes)
        index = self.block_pool.get_index(self.kv_cache_group_id)
        skipped, stop = self._num_skipped_blocks(length), length // self.block_size
        return [NULL_BLOCK] * skipped + [index[block_hash] for block_hash in hashes[skipped:stop]]

    def is_hit(self, block_hashes: Sequence[bytes], table: Sequence[int], num_computed_tokens: int) -> bool:
        """Whether those blocks of a table that the next token needs have the keys of their hashes."""
        skipped = self._num_skipped_blocks(num_computed_tokens)
        hashes = self._hashes(block_hashes)[skipped : len(table)]
        return self.block_pool.have_keys(table[skipped:], hashes, self.kv_cache_group_id)

    # For subclasses.

    @property
    def _num_blocks_ahead(self) -> int:
        """How many blocks after a hit must be cached as well."""
        return int(self.use_eagle)

    def _aligned(self, num_tokens: int) -> int:
        """`num_tokens` rounded down to a length that a hit can have."""
        return max(0, num_tokens // self.scheduler_block_size * self.scheduler_block_size)

    def _hashes(self, block_hashes: Sequence[bytes]) -> Sequence[bytes]:
        return hashes_at(block_hashes, self.block_pool.hash_block_size, self.block_size)

    def _num_skipped_blocks(self, num_computed_tokens: int) -> int:
        return self.get_num_skipped_tokens(num_computed_tokens) // self.block_size

    def _num_new_blocks(
        self, request_id: str, tokens: TokenCounts, length: int, total_computed_tokens: int
    ) -> int:
        """How many blocks `allocate_new_blocks` allocates if the table has `length` blocks now."""
        return max(0, self.table_length(tokens) - length)

    def _num_to_cache(self, num_tokens: int) -> int:
        """How many blocks of a table `cache_blocks` handles once `num_tokens` tokens are certain."""
        aligned = num_tokens - num_tokens % self.scheduler_block_size
        # As long as no hit is possible, no block after a hit is needed either.
        if not self.enable_caching or not aligned:
            return 0
        return min(num_tokens, aligned + self._num_blocks_ahead * self.block_size) // self.block_size

    def _is_useful(self, place: int) -> bool:
        """Whether some hit needs the block at index `place` of a table.

        It is enough to check the shortest hit that reaches the block, because longer hits skip more blocks.
        A hit also reaches the `_num_blocks_ahead` blocks after it.
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
