"""The block pool: reference counts and the free list, on top of the prefix-cache index.

`kvref.fast.pool` does the same in less time. Block 0 is the *null block*: it means "no block needed here",
and the pool never allocates, counts or caches it. Any other block is referenced or in the free list. A free
block keeps its keys, so a look-up still finds it. The pool evicts the block when it allocates it again.

The free list is in the order of reuse: first blocks without a key, then cached ones. `free_blocks` puts its
blocks without keys in front and appends its cached blocks, both in the order of the call. A request frees its
blocks from the last to the first, so the pool evicts the request's last blocks first.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from kvref.errors import BlockError, PoolExhaustedError
from kvref.events import blocks_stored
from kvref.hashing import HashedTokens
from kvref.prefix_index import Key, PrefixIndex

__all__ = ["NULL_BLOCK", "BlockPool", "Key"]

NULL_BLOCK = 0


class BlockPool(PrefixIndex):
    """Allocates blocks, counts references to them, and finds cached blocks.

    A method that gets invalid blocks or numbers raises `BlockError` and changes nothing.

    Args:
        num_gpu_blocks: number of blocks, the null block included.
        enable_caching: whether blocks may get keys.
        hash_block_size: a request has one block hash for each `hash_block_size` tokens.
        enable_kv_cache_events: whether to record events. They accumulate until `take_events` is called.
    """

    null_block = NULL_BLOCK

    def __init__(
        self,
        num_gpu_blocks: int,
        enable_caching: bool,
        hash_block_size: int,
        enable_kv_cache_events: bool = False,
    ) -> None:
        if num_gpu_blocks < 1:
            raise BlockError(f"a pool needs at least its null block, not {num_gpu_blocks} blocks")
        if hash_block_size < 1:
            raise BlockError(f"hash_block_size must be at least 1 token, not {hash_block_size}")
        super().__init__(num_gpu_blocks, enable_kv_cache_events)
        self.enable_caching = enable_caching
        self.hash_block_size = hash_block_size
        self.keyed_this_step = set[int]()
        """Blocks that were cached since the step began. Some may have been evicted since."""
        self._ref_cnt = [0] * num_gpu_blocks
        self._free = OrderedDict.fromkeys(range(NULL_BLOCK + 1, num_gpu_blocks))
        self._pins = Counter[int]()
        """How many references of each block are pins (`pin`). A reserved block always has one."""
        self._reserved = set[int]()

    def get_num_free_blocks(self) -> int:
        return len(self._free)

    def get_all_free_blocks(self) -> list[int]:
        return list(self._free)

    @property
    def num_usable_blocks(self) -> int:
        """How many blocks requests can get: all but the null block and the reserved blocks."""
        return self.num_gpu_blocks - 1 - len(self._reserved)

    def get_usage(self) -> float:
        """The fraction of the usable blocks that are referenced, from 0 to 1; 0 if no block is usable."""
        usable = self.num_usable_blocks
        return 1 - self.get_num_free_blocks() / usable if usable else 0.0

    def get_ref_cnt(self, block: int) -> int:
        """The reference count of a block, pins included."""
        self._check_known([block])
        return self._ref_cnt[block]

    def count_references(self, blocks: Iterable[int], references: int) -> int:
        """How many of these blocks have the reference count `references`. Null blocks are left out."""
        return [self.get_ref_cnt(block) for block in blocks if block].count(references)

    def get_num_pins(self, block: int) -> int:
        return self._pins[block]

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Evict and reference the first free blocks. Raises `PoolExhaustedError` if too few are free."""
        if num_blocks < 0:
            raise BlockError(f"cannot allocate {num_blocks} blocks")
        if num_blocks > len(self._free):
            raise PoolExhaustedError(f"{num_blocks} blocks wanted, {len(self._free)} free")
        blocks = [self._free.popitem(last=False)[0] for _ in range(num_blocks)]
        for block in blocks:
            self._drop_keys(block)
            self._ref_cnt[block] = 1
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block, except null blocks. Free blocks leave the free list."""
        blocks = list(blocks)
        self._check_known(blocks)
        for block in filter(None, blocks):
            self._free.pop(block, None)
            self._ref_cnt[block] += 1

    def free_blocks(self, ordered_blocks: Iterable[int]) -> None:
        """Take a reference from each block, except null blocks. A block without references becomes free."""
        blocks = [block for block in ordered_blocks if block != NULL_BLOCK]
        self._check_known(blocks)
        for block, times in Counter(blocks).items():
            references, pins = self._ref_cnt[block], self._pins[block]
            if times > references - pins:
                raise BlockError(
                    f"block {block} freed {times} times: {references} references, {pins} are pins"
                )
        freed = []
        for block in blocks:
            self._ref_cnt[block] -= 1
            if not self._ref_cnt[block]:
                freed.append(block)
        self._add_to_free_list(freed)

    def pin(self, blocks: Iterable[int]) -> None:
        """Add a *pin* to each block, except null blocks: a reference that `free_blocks` cannot take."""
        blocks = list(filter(None, blocks))
        self.touch(blocks)
        self._pins.update(blocks)

    def unpin(self, blocks: Iterable[int]) -> None:
        """Take a pin from each block, except null blocks. A reserved block always keeps one pin."""
        blocks = list(filter(None, blocks))
        for block, times in Counter(blocks).items():
            pins = self._pins[block] - (block in self._reserved)
            if times > pins:
                raise BlockError(f"block {block} has {pins} pins, not {times}")
        self._pins -= Counter(blocks)
        self.free_blocks(blocks)

    def reserve_blocks(self, num_blocks: int) -> list[int]:
        """Allocate blocks for good: no request can get or free them, and `get_usage` leaves them out."""
        blocks = self.get_new_blocks(num_blocks)
        self._pins.update(blocks)
        self._reserved.update(blocks)
        return blocks

    def cache_full_blocks(
        self,
        request: HashedTokens,
        blocks: Sequence[int],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        block_mask: Sequence[bool] | None = None,
        kind: str = "",
    ) -> None:
        """Cache blocks `num_cached_blocks` to `num_full_blocks` - 1 of a block table, except null blocks.

        Args:
            request: the tokens and block hashes of the request.
            blocks: the block table.
            block_mask: for each block from index `num_cached_blocks` on, whether it gets a key; None: all do.
            kind: name of the class of the group's spec, for events.
        """
        start, number = num_cached_blocks, num_full_blocks - num_cached_blocks
        if number <= 0:
            return
        if not self.enable_caching:
            raise BlockError("blocks cannot get keys: caching is off")
        step, rest = divmod(block_size, self.hash_block_size)
        if start < 0 or step < 1 or rest:
            raise BlockError(
                f"cannot cache {start=}, {block_size=} with hash_block_size {self.hash_block_size}"
            )
        table = blocks[start:num_full_blocks]
        hashes = request.block_hashes[(start + 1) * step - 1 : num_full_blocks * step : step]
        mask = [True] * number if block_mask is None else block_mask
        if not len(table) == len(hashes) == len(mask) == number:
            raise BlockError(f"{number} blocks to cache, but {len(table)=}, {len(hashes)=}, {len(mask)=}")
        self._check_known(table)
        new = self._add_keys(table, hashes, mask, kv_cache_group_id)
        if self.enable_kv_cache_events:
            new = [start + place for place in new]
            self._events += blocks_stored(request, new, step, block_size, kv_cache_group_id, kind)

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Take all keys from these blocks. Free blocks that had a key move to the front of the free list."""
        blocks = [block for block in dict.fromkeys(block_ids) if self.get_keys(block)]
        for block in blocks:
            self._drop_keys(block)
        self._add_to_free_list([block for block in reversed(blocks) if block in self._free])

    def reset_prefix_cache(self) -> bool:
        """Take all keys from all blocks. If a usable block is not free, change nothing and return False."""
        if self.get_num_free_blocks() != self.num_usable_blocks:
            return False
        self._clear()
        return True

    def _add_to_free_list(self, blocks: Sequence[int]) -> None:
        self._free.update(dict.fromkeys(blocks))
        for block in reversed(blocks):
            if block not in self._keys:
                self._free.move_to_end(block, last=False)

    def _add_keys(
        self, table: Sequence[int], hashes: Sequence[bytes], mask: Sequence[bool], group: int
    ) -> list[int]:
        """Cache the blocks that are neither null nor masked out. Return the indices with new keys."""
        places = [place for place, block in enumerate(table) if block and mask[place]]
        if free := [table[place] for place in places if table[place] in self._free]:
            raise BlockError(f"blocks {free} are free and cannot get keys")
        self.keyed_this_step.update(table[place] for place in places)
        return [place for place in places if self._add_key(table[place], (hashes[place], group))]
