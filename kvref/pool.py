"""The pool of blocks that all requests and groups share, and the index of those that can be served again.

A block is its number: 0 is the *null block*, which stands for a block that is not needed. It is never handed
out, counted or found, and whoever holds it may say so or not. Every other block is either free or referenced.

A *key* is a (hash, group): what a block must hold to be served for that prefix in that group. A block may
have several keys, and a key several blocks. Free blocks keep their keys until they are handed out again.

Free blocks are reused in this order: those without keys first, the last freed batch before earlier ones; then
those with keys, the first freed before later ones. So a request that frees its blocks from the last to the
first loses its end before its beginning.

Free blocks without keys are a stack. Those with keys are doubly linked through two lists of numbers, with the
null block as both ends: they can leave the line anywhere, and Python has nothing faster for that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from operator import length_hint

from kvref.errors import BlockError, PoolExhaustedError
from kvref.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from kvref.hashing import HashedTokens

__all__ = ["NULL_BLOCK", "BlockPool", "Key"]

NULL_BLOCK = 0

Key = tuple[bytes, int]
"""Hash of the content up to the end of a block, and the group whose content it is."""


class BlockPool:
    """Hands out blocks, counts who holds them, and finds those whose content is wanted again.

    Args:
        num_gpu_blocks: blocks in all, the null block included.
        enable_caching: whether blocks may get keys.
        hash_block_size: tokens from one hash of a request to the next.
        enable_kv_cache_events: whether events are recorded; then they must be taken, or they pile up.

    Raises:
        BlockError: at construction, for fewer than one block or one token. Every method raises it for numbers
            that make no sense, and then has changed nothing.
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
        self.num_gpu_blocks = num_gpu_blocks
        self.enable_caching = enable_caching
        self.hash_block_size = hash_block_size
        self.enable_kv_cache_events = enable_kv_cache_events
        self._unkeyed = list(range(num_gpu_blocks - 1, NULL_BLOCK, -1))
        """Free blocks without keys, the next to be reused at the end."""
        self._num_keyed = 0
        """Free blocks with keys, which are linked."""
        self._next = [NULL_BLOCK] * num_gpu_blocks
        self._previous = [NULL_BLOCK] * num_gpu_blocks
        self._ref_cnts = [0] * num_gpu_blocks
        self._pins = Counter[int]()
        self._reserved: set[int] = set()
        self._keys: list[tuple[Key, ...]] = [()] * num_gpu_blocks
        self._index: defaultdict[int, dict[bytes, int]] = defaultdict(dict)
        """For each group, the block that is served for a hash: the first of those that have the key."""
        self._others: dict[Key, dict[int, None]] = {}
        """The other blocks of a key that has several, in the order in which they got it."""
        self._events: list[KVCacheEvent] = []

    # What there is.

    def get_num_free_blocks(self) -> int:
        return len(self._unkeyed) + self._num_keyed

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that requests can hold: neither the null block nor reserved for good."""
        return self.num_gpu_blocks - 1 - len(self._reserved)

    def get_usage(self) -> float:
        """The part of the usable blocks that is held, from 0 to 1; 0 when there is none."""
        usable = self.num_usable_blocks
        return 1 - self.get_num_free_blocks() / usable if usable else 0.0

    def get_all_free_blocks(self) -> list[int]:
        """All free blocks in the order of their reuse. Takes time in proportion to their number."""
        free = self._unkeyed[::-1]
        block = self._next[NULL_BLOCK]
        while block:
            free.append(block)
            block = self._next[block]
        return free

    def get_ref_cnt(self, block: int) -> int:
        """How often a block is held, pins included; 0 for a free one and for the null block."""
        self._check_known((block,))
        return self._ref_cnts[block]

    def count_references(self, blocks: Iterable[int], references: int) -> int:
        """How many of these blocks, null ones aside, are held exactly so often."""
        blocks = list(blocks)
        self._check_known(blocks)
        ref_cnts = self._ref_cnts
        return sum(1 for block in blocks if block and ref_cnts[block] == references)

    def get_num_pins(self, block: int) -> int:
        """How many of the references to a block are pins."""
        return self._pins[block]

    def get_keys(self, block: int) -> tuple[Key, ...]:
        """The keys of a block, in the order in which it got them."""
        self._check_known((block,))
        return self._keys[block]

    # Taking and giving back.

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Take free blocks, each with one reference from then on and no keys.

        Raises:
            PoolExhaustedError: there are not so many.
            BlockError: a negative number.
        """
        unkeyed = self._unkeyed
        if 0 < num_blocks <= len(unkeyed):
            taken = unkeyed[-num_blocks:]
            del unkeyed[-num_blocks:]
            taken.reverse()
        else:
            taken = self._take_keyed_too(num_blocks)
        ref_cnts = self._ref_cnts
        for block in taken:
            ref_cnts[block] = 1
        return taken

    def touch(self, blocks: Iterable[int]) -> None:
        """Hold blocks once more, and take those that were free out of the line for reuse."""
        blocks = list(blocks)
        self._check_known(blocks)
        ref_cnts = self._ref_cnts
        for block in blocks:
            if block:
                if not ref_cnts[block]:
                    if self._keys[block]:
                        self._unlink(block)
                    else:
                        self._unkeyed.remove(block)  # slow, but nobody looks for a block without content
                ref_cnts[block] += 1

    def free_blocks(self, ordered_blocks: Iterable[int]) -> None:
        """Give up one reference to each block; null blocks are passed over.

        Blocks that nobody holds any more are free, and reused in the given order.

        Raises:
            BlockError: a block is no block of the pool, or given up more often than it is held; a pinned or
                reserved one is held that much less.
        """
        blocks = [*ordered_blocks]
        if self._pins:
            self._check_not_pinned(blocks)
        ref_cnts, keys = self._ref_cnts, self._keys
        unkeyed: list[int] = []
        keyed: list[int] = []
        remaining = iter(blocks)
        try:
            for block in remaining:
                if block > 0:
                    ref_cnt = ref_cnts[block] - 1
                    if ref_cnt > 0:
                        ref_cnts[block] = ref_cnt
                    elif ref_cnt == 0:
                        ref_cnts[block] = 0
                        (keyed if keys[block] else unkeyed).append(block)
                    else:
                        raise BlockError(f"block {block} is freed more often than it is held")
                elif block < 0:
                    raise IndexError
        except (BlockError, IndexError, TypeError) as error:
            for done in blocks[: len(blocks) - length_hint(remaining) - 1]:
                if done:
                    ref_cnts[done] += 1
            if isinstance(error, IndexError):
                self._check_known(blocks)
            raise
        if unkeyed:
            unkeyed.reverse()
            self._unkeyed += unkeyed
        if keyed:
            self._link(keyed)

    def pin(self, blocks: Iterable[int]) -> None:
        """Hold blocks for something other than a request's table, a copy in progress for instance."""
        blocks = [block for block in blocks if block]
        self.touch(blocks)
        self._pins.update(blocks)

    def unpin(self, blocks: Iterable[int]) -> None:
        """Give up one pin of each block.

        Raises:
            BlockError: a block is not pinned so often, that it is reserved not counted.
        """
        blocks = [block for block in blocks if block]
        for block, times in Counter(blocks).items():
            pins = self._pins[block] - (block in self._reserved)
            if times > pins:
                raise BlockError(f"block {block} has {pins} pins, not {times}")
        for block in blocks:
            self._pins[block] -= 1
            if not self._pins[block]:
                del self._pins[block]
        self.free_blocks(blocks)

    def reserve_blocks(self, num_blocks: int) -> list[int]:
        """Take blocks for good: no request can get or free them, and usage does not count them."""
        taken = self.get_new_blocks(num_blocks)
        self._pins.update(taken)
        self._reserved.update(taken)
        return taken

    # Keys.

    def get_cached_block(self, block_hash: bytes, kv_cache_group_ids: Sequence[int]) -> list[int] | None:
        """For each group a block with that hash, or None if one of them has none. Holds nothing."""
        found = []
        for group in kv_cache_group_ids:
            block = self._index[group].get(block_hash)
            if block is None:
                return None
            found.append(block)
        return found

    def have_keys(self, blocks: Sequence[int], hashes: Sequence[bytes], kv_cache_group_id: int) -> bool:
        """Whether each block has the key of the hash with it. False unless there are as many of both."""
        self._check_known(blocks)
        pairs = zip_longest(blocks, hashes, fillvalue=NULL_BLOCK)
        return all((block_hash, kv_cache_group_id) in self._keys[block] for block, block_hash in pairs)

    def get_index(self, kv_cache_group_id: int) -> dict[bytes, int]:
        """The block that is served for each hash of a group: for look-ups in loops, and not to be changed."""
        return self._index[kv_cache_group_id]

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
        """Give keys to the blocks from `num_cached_blocks` up to `num_full_blocks` of a request's table.

        Args:
            request: whose tokens and hashes they hold.
            blocks: its table in the group; null blocks get no key.
            block_size: tokens in a block, a multiple of `hash_block_size`.
            block_mask: for each of these blocks whether it gets a key; None means all.
            kind: what to call the group in events.

        Raises:
            BlockError: the numbers do not fit together, the request has too few hashes, a block is free, or
                caching is off.
        """
        if num_cached_blocks >= num_full_blocks:
            return
        if not self.enable_caching:
            raise BlockError("blocks cannot get keys: caching is off")
        step, rest = divmod(block_size, self.hash_block_size)
        if num_cached_blocks < 0 or step < 1 or rest:
            raise BlockError(
                f"cannot give keys to blocks {num_cached_blocks} and later, of block_size {block_size}, with "
                f"hash_block_size {self.hash_block_size}"
            )
        wanted = list(blocks[num_cached_blocks:num_full_blocks])
        hashes = request.block_hashes[(num_cached_blocks + 1) * step - 1 : num_full_blocks * step : step]
        mask = [True] * len(wanted) if block_mask is None else block_mask
        if not len(wanted) == len(hashes) == len(mask) == num_full_blocks - num_cached_blocks:
            raise BlockError(
                f"blocks {num_cached_blocks} to {num_full_blocks} of size {block_size} should get keys, "
                f"but the table has {len(blocks)} blocks, the request {len(request.block_hashes)} hashes of "
                f"{self.hash_block_size} tokens, and the mask {len(mask)} entries"
            )
        self._check_known(wanted)
        chosen = [place for place, block in enumerate(wanted) if block and mask[place]]
        for place in chosen:
            if not self._ref_cnts[wanted[place]]:
                raise BlockError(f"block {wanted[place]} is free and cannot get a key")
        stored = [
            place for place in chosen if self._add_key(wanted[place], (hashes[place], kv_cache_group_id))
        ]
        if self.enable_kv_cache_events:
            for run in _runs(stored):
                start = num_cached_blocks + run.start
                parent = request.block_hashes[start * step - 1] if start else None
                tokens = request.all_token_ids[start * block_size : (start + len(run)) * block_size]
                self._events.append(
                    BlockStored(
                        block_hashes=tuple(hashes[run.start : run.stop]),
                        parent_block_hash=parent,
                        token_ids=tuple(tokens),
                        block_size=block_size,
                        group_idx=kv_cache_group_id,
                        kind=kind,
                    )
                )

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Take all keys from blocks. Who holds one keeps it; a free one is reused before those with keys."""
        blocks = [block for block in dict.fromkeys(block_ids) if block]
        self._check_known(blocks)
        for block in blocks:
            if self._keys[block]:
                self._drop_keys(block)
                if not self._ref_cnts[block]:
                    self._unlink(block)
                    self._unkeyed.append(block)

    def reset_prefix_cache(self) -> bool:
        """Take all keys from all blocks, unless a request or a pin holds a block.

        Returns:
            Whether it was done. If not, nothing has changed.
        """
        if self.get_num_free_blocks() != self.num_usable_blocks:
            return False
        free = self.get_all_free_blocks()
        free.reverse()
        self._unkeyed = free
        self._num_keyed = self._next[NULL_BLOCK] = self._previous[NULL_BLOCK] = 0
        self._keys = [()] * self.num_gpu_blocks
        self._index.clear()
        self._others.clear()
        if self.enable_kv_cache_events:
            self._events.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[KVCacheEvent]:
        """The events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def _add_key(self, block: int, key: Key) -> bool:
        """Give a key to a block. Returns whether nothing was served for it before."""
        if key in self._keys[block]:
            return False
        self._keys[block] += (key,)
        block_hash, group = key
        if self._index[group].setdefault(block_hash, block) == block:
            return True
        self._others.setdefault(key, {})[block] = None
        return False

    def _drop_keys(self, block: int) -> None:
        for key in self._keys[block]:
            block_hash, group = key
            index = self._index[group]
            others = self._others.get(key)
            if others is None:
                del index[block_hash]
                if self.enable_kv_cache_events:
                    self._events.append(BlockRemoved((block_hash,), group))
                continue
            leaving = block
            if index[block_hash] == block:
                index[block_hash] = leaving = next(iter(others))
            del others[leaving]
            if not others:
                del self._others[key]
        self._keys[block] = ()

    # The free blocks with keys, and checks.

    def _take_keyed_too(self, num_blocks: int) -> list[int]:
        if num_blocks > self.get_num_free_blocks():
            raise PoolExhaustedError(f"{num_blocks} blocks wanted, {self.get_num_free_blocks()} free")
        if num_blocks < 1:
            if num_blocks:
                raise BlockError(f"cannot take {num_blocks} blocks")
            return []
        taken = self._unkeyed[::-1]
        self._unkeyed.clear()
        for _ in range(num_blocks - len(taken)):
            block = self._next[NULL_BLOCK]
            self._unlink(block)
            self._drop_keys(block)
            taken.append(block)
        return taken

    def _unlink(self, block: int) -> None:
        before, behind = self._previous[block], self._next[block]
        self._next[before] = behind
        self._previous[behind] = before
        self._num_keyed -= 1

    def _link(self, blocks: Sequence[int]) -> None:
        """Put blocks at the end of the line."""
        following, previous = self._next, self._previous
        last = previous[NULL_BLOCK]
        for block in blocks:
            following[last] = block
            previous[block] = last
            last = block
        following[last] = NULL_BLOCK
        previous[NULL_BLOCK] = last
        self._num_keyed += len(blocks)

    def _check_known(self, blocks: Sequence[int]) -> None:
        if blocks and not (min(blocks) >= 0 and max(blocks) < self.num_gpu_blocks):
            foreign = [block for block in blocks if not 0 <= block < self.num_gpu_blocks]
            raise BlockError(
                f"{foreign} are no blocks of this pool, which has 0 to {self.num_gpu_blocks - 1}"
            )

    def _check_not_pinned(self, blocks: Sequence[int]) -> None:
        self._check_known(blocks)
        for block, times in Counter(blocks).items():
            if block and times > self._ref_cnts[block] - self._pins[block]:
                raise BlockError(
                    f"block {block} is freed {times} times, but held {self._ref_cnts[block]} times of which "
                    f"{self._pins[block]} are pins"
                )


def _runs(places: Sequence[int]) -> list[range]:
    """Ascending numbers as ranges without gaps."""
    runs: list[range] = []
    for place in places:
        if runs and runs[-1].stop == place:
            runs[-1] = range(runs[-1].start, place + 1)
        else:
            runs.append(range(place, place + 1))
    return runs
