"""The pool of blocks that all requests and groups share, and the index of those that can be served again.

A block is its number: 0 is the *null block*, which stands for a block that is not needed. It is never handed
out, counted or found, and whoever holds it may say so or not. Every other block is either free or referenced.

A *key* is a (hash, group): what a block must hold to be served for that prefix in that group. A block may
have several keys, and a key several blocks. Free blocks keep their keys until they are handed out again.

Free blocks are reused in this order: those without keys first, the last freed batch before earlier ones; then
those with keys, the first freed before later ones. So a request that frees its blocks from the last to the
first loses its end before its beginning.

Free blocks without keys are a stack, under which are those that were never used: these are no more than two
numbers. Those with keys are a line, which they can leave anywhere: then they are passed over at their turn,
and the line is made anew when these are too many. All that is done for each block is done by C code or in a
loop that looks at little: what a call costs depends on its own blocks, and now and then on the line.
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

_HELD_ONCE, _KEYED = 2, 1
"""What a reference and what keys count in `BlockPool._holds`, so that one look tells of both."""
_USED_TOGETHER = 1024
"""Blocks that are used for the first time at once, since that is quicker than one by one."""
_PLACES_PER_BLOCK, _MORE_PLACES = 8, 16
"""How long the line may get by those who join it: so many places for each block in it, and these."""

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
        self._unkeyed: list[int] = []
        """Free blocks that have been used and have no keys, the next to be reused at the end."""
        self._unused = NULL_BLOCK + 1
        """From this one on no block was ever used."""
        self._line: list[int] = []
        """Free blocks with keys in the order of their reuse, among some that are gone from there."""
        self._next = 0
        """The place in the line whose turn is next; those before it are over."""
        self._num_keyed = 0
        """How many free blocks have keys."""
        self._gone: dict[int, int] = {}
        """How many places in the line a block is gone from: its first ones there."""
        self._holds = [0] * num_gpu_blocks
        """For each block twice the number of references, and one more if it has keys."""
        self._pins = Counter[int]()
        self._reserved: set[int] = set()
        self._hashes = [b""] * num_gpu_blocks
        """For each block the hash of its first key, or of the one that it had."""
        self._groups = [0] * num_gpu_blocks
        """The group of that key."""
        self._more_keys: dict[int, tuple[Key, ...]] = {}
        """The other keys of the blocks that have several."""
        self._index: defaultdict[int, dict[bytes, int]] = defaultdict(dict)
        """For each group, the block that is served for a hash: the first of those that have the key."""
        self._others: dict[Key, dict[int, None]] = {}
        """The other blocks of a key that has several, in the order in which they got it."""
        self.keyed_this_step = set[int]()
        """Blocks that have got a key since the step began; some may have lost it again."""
        self._events: list[KVCacheEvent] = []

    # What there is.

    def get_num_free_blocks(self) -> int:
        return len(self._unkeyed) + self.num_gpu_blocks - self._unused + self._num_keyed

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that requests can hold: neither the null block nor reserved for good."""
        return self.num_gpu_blocks - 1 - len(self._reserved)

    def get_usage(self) -> float:
        """The part of the usable blocks that is held, from 0 to 1; 0 when there is none."""
        usable = self.num_usable_blocks
        return 1 - self.get_num_free_blocks() / usable if usable else 0.0

    def get_all_free_blocks(self) -> list[int]:
        """All free blocks in the order of their reuse. Takes time in proportion to the size of the pool."""
        return [*reversed(self._unkeyed), *range(self._unused, self.num_gpu_blocks), *self._in_line()]

    def get_ref_cnt(self, block: int) -> int:
        """How often a block is held, pins included; 0 for a free one and for the null block."""
        self._check_known((block,))
        return self._holds[block] >> 1

    def count_references(self, blocks: Iterable[int], references: int) -> int:
        """How many of these blocks, null ones aside, are held exactly so often."""
        blocks = list(blocks)
        self._check_known(blocks)
        holds = self._holds
        return [holds[block] >> 1 for block in blocks if block].count(references)

    def get_num_pins(self, block: int) -> int:
        """How many of the references to a block are pins."""
        return self._pins[block]

    def get_keys(self, block: int) -> tuple[Key, ...]:
        """The keys of a block, in the order in which it got them."""
        self._check_known((block,))
        if not self._holds[block] & _KEYED:
            return ()
        return (self._hashes[block], self._groups[block]), *self._more_keys.get(block, ())

    # Taking and giving back.

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Take free blocks, each with one reference from then on and no keys.

        Raises:
            PoolExhaustedError: there are not so many.
            BlockError: a negative number.
        """
        unkeyed = self._unkeyed
        if num_blocks > len(unkeyed) and self._unused < self.num_gpu_blocks:
            self._use_more(num_blocks)
        if num_blocks == 1 and (unkeyed or (self._num_keyed and self._line[self._next] not in self._gone)):
            # What every request asks for again and again.
            if unkeyed:
                block = unkeyed.pop()
            else:
                block = self._line[self._next]
                self._next += 1
                self._num_keyed -= 1
                if self._others or self._more_keys or self.enable_kv_cache_events:
                    self._drop_keys((block,))
                else:
                    del self._index[self._groups[block]][self._hashes[block]]
            self._holds[block] = _HELD_ONCE
            return [block]
        if num_blocks < 0:
            raise BlockError(f"cannot take {num_blocks} blocks")
        rest = len(unkeyed) - num_blocks
        if rest < 0:
            taken = self._take_keyed_too(num_blocks)
        else:
            taken = unkeyed[rest:]
            taken.reverse()
            del unkeyed[rest:]
        holds = self._holds
        for block in taken:
            holds[block] = _HELD_ONCE
        return taken

    def touch(self, blocks: Iterable[int]) -> None:
        """Hold blocks once more, and take those that were free out of the line for reuse."""
        blocks = list(blocks)
        self._check_known(blocks)
        holds, gone, num_gone = self._holds, self._gone, 0
        try:
            for block in blocks:
                if block:
                    held = holds[block]
                    if held == _KEYED:
                        gone[block] = gone.get(block, 0) + 1
                        num_gone += 1
                    elif not held:
                        self._take_out(block)
                    holds[block] = held + _HELD_ONCE
        finally:
            self._num_keyed -= num_gone

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
        if not blocks:
            return
        if len(blocks) == 1:
            block = blocks[0]
            if 0 < block < self.num_gpu_blocks and self._holds[block] >> 1 == 1:
                self._holds[block] -= _HELD_ONCE
                if self._holds[block]:
                    self._line_up(blocks)
                else:
                    self._unkeyed.append(block)
                return
        # Mostly all of them are held once, and either all have keys or none has.
        holds, remaining, held = self._holds, iter(blocks), 0
        try:
            held = holds[blocks[0]]
            left = held - _HELD_ONCE
            if held >> 1 == 1:
                for block in remaining:
                    if holds[block] != held or block < 0:
                        break
                    holds[block] = left
                else:
                    if left:
                        self._line_up(blocks)
                    else:
                        blocks.reverse()
                        self._unkeyed += blocks
                    return
        except (IndexError, TypeError):
            pass
        for block in blocks[: -length_hint(remaining) - 1]:
            holds[block] = held
        self._free_mixed(blocks)

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
        if [*map(self._index[kv_cache_group_id].get, hashes)] == [*blocks]:
            return True
        # They may have it, and another block be served for the hash.
        self._check_known(blocks)
        pairs = zip_longest(blocks, hashes, fillvalue=NULL_BLOCK)
        return all((block_hash, kv_cache_group_id) in self.get_keys(block) for block, block_hash in pairs)

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
        wanted = blocks[num_cached_blocks:num_full_blocks]
        hashes = request.block_hashes[(num_cached_blocks + 1) * step - 1 : num_full_blocks * step : step]
        mask = [True] * len(wanted) if block_mask is None else block_mask
        if not len(wanted) == len(hashes) == len(mask) == num_full_blocks - num_cached_blocks:
            raise BlockError(
                f"blocks {num_cached_blocks} to {num_full_blocks} of size {block_size} should get keys, "
                f"but the table has {len(blocks)} blocks, the request {len(request.block_hashes)} hashes of "
                f"{self.hash_block_size} tokens, and the mask {len(mask)} entries"
            )
        self._check_known(wanted)
        holds, index = self._holds, self._index[kv_cache_group_id]
        chosen: list[int] = []
        for place, block in enumerate(wanted):
            if block and mask[place]:
                if holds[block] < _HELD_ONCE:
                    raise BlockError(f"block {block} is free and cannot get a key")
                chosen.append(place)
        stored: list[int] = []
        for place in chosen:
            block, block_hash = wanted[place], hashes[place]
            self.keyed_this_step.add(block)
            if holds[block] & _KEYED or block_hash in index:
                if not self._add_key_too(block, (block_hash, kv_cache_group_id)):
                    continue
            else:
                self._hashes[block], self._groups[block] = block_hash, kv_cache_group_id
                holds[block] += _KEYED
                index[block_hash] = block
            stored.append(place)
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
        blocks = list(dict.fromkeys(block_ids))
        self._check_known(blocks)
        holds = self._holds
        blocks = [block for block in blocks if holds[block] & _KEYED]
        self._drop_keys(blocks)
        for block in blocks:
            holds[block] -= _KEYED
            if not holds[block]:
                self._gone[block] = self._gone.get(block, 0) + 1
                self._num_keyed -= 1
                self._unkeyed.append(block)

    def reset_prefix_cache(self) -> bool:
        """Take all keys from all blocks, unless a request or a pin holds a block.

        Returns:
            Whether it was done. If not, nothing has changed.
        """
        if self.get_num_free_blocks() != self.num_usable_blocks:
            return False
        self._unkeyed = self.get_all_free_blocks()[::-1]
        self._unused = self.num_gpu_blocks
        self._line, self._next, self._num_keyed = [], 0, 0
        self._gone.clear()
        self._holds = [held & ~_KEYED for held in self._holds]
        self._more_keys.clear()
        self._index.clear()
        self._others.clear()
        if self.enable_kv_cache_events:
            self._events.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[KVCacheEvent]:
        """The events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def _add_key_too(self, block: int, key: Key) -> bool:
        """Give a block a key that another one has, or one more. Returns whether nothing was served for it."""
        block_hash, group = key
        if key in self.get_keys(block):
            return False
        if self._holds[block] & _KEYED:
            self._more_keys[block] = (*self._more_keys.get(block, ()), key)
        else:
            self._hashes[block], self._groups[block] = key
            self._holds[block] += _KEYED
        if self._index[group].setdefault(block_hash, block) == block:
            return True
        self._others.setdefault(key, {})[block] = None
        return False

    def _drop_keys(self, blocks: Iterable[int]) -> None:
        """Take blocks that have keys out of the index. Who calls it marks them as without."""
        index, groups, hashes = self._index, self._groups, self._hashes
        if self._others or self._more_keys or self.enable_kv_cache_events:
            for block in blocks:
                for key in self.get_keys(block):
                    self._drop_key(block, key)
                self._more_keys.pop(block, None)
        else:
            for block in blocks:
                del index[groups[block]][hashes[block]]

    def _drop_key(self, block: int, key: Key) -> None:
        block_hash, group = key
        index = self._index[group]
        others = self._others.get(key)
        if others is None:
            del index[block_hash]
            if self.enable_kv_cache_events:
                self._events.append(BlockRemoved((block_hash,), group))
            return
        leaving = block
        if index[block_hash] == block:
            index[block_hash] = leaving = next(iter(others))
        del others[leaving]
        if not others:
            del self._others[key]

    # Free blocks, and checks.

    def _use_more(self, num_blocks: int) -> None:
        """Put blocks that were never used under those without keys, so many that these are enough."""
        stop = min(self._unused + max(num_blocks, _USED_TOGETHER), self.num_gpu_blocks)
        self._unkeyed[:0] = range(stop - 1, self._unused - 1, -1)
        self._unused = stop

    def _take_keyed_too(self, num_blocks: int) -> list[int]:
        """As many as wanted, when those without keys are too few."""
        unkeyed = self._unkeyed
        num_keyed = num_blocks - len(unkeyed)
        if num_keyed > self._num_keyed:
            raise PoolExhaustedError(f"{num_blocks} blocks wanted, {self.get_num_free_blocks()} free")
        evicted = self._take_from_line(num_keyed)
        self._drop_keys(evicted)
        taken = unkeyed[::-1] + evicted
        unkeyed.clear()
        return taken

    def _free_mixed(self, blocks: Sequence[int]) -> None:
        """As `free_blocks`, whatever they are."""
        self._check_known(blocks)
        holds = self._holds
        unkeyed: list[int] = []
        keyed: list[int] = []
        freed = 0
        try:
            for block in blocks:
                if block:
                    held = holds[block] - _HELD_ONCE
                    if held < 0:
                        raise BlockError(f"block {block} is freed more often than it is held")
                    holds[block] = held
                    if held <= _KEYED:
                        (keyed if held else unkeyed).append(block)
                freed += 1
        except (BlockError, TypeError):
            for block in filter(None, blocks[:freed]):
                holds[block] += _HELD_ONCE
            raise
        unkeyed.reverse()
        self._unkeyed += unkeyed
        self._line_up(keyed)

    def _line_up(self, blocks: Sequence[int]) -> None:
        """Put free blocks with keys at the end of their line."""
        line = self._line
        line += blocks
        self._num_keyed = num_keyed = self._num_keyed + len(blocks)
        if len(line) > _PLACES_PER_BLOCK * num_keyed + _MORE_PLACES:
            self._line, self._next = self._in_line(), 0
            self._gone.clear()

    def _in_line(self) -> list[int]:
        """Free blocks with keys, in the order of their reuse."""
        if not self._gone:
            return self._line[self._next :]
        # The last place of a block is the one that counts.
        last = dict.fromkeys(reversed(self._line[self._next :]))
        return [block for block in last if self._holds[block] == _KEYED][::-1]

    def _take_from_line(self, num_blocks: int) -> list[int]:
        """Take so many from its front, of those that are still there."""
        line, start, gone = self._line, self._next, self._gone
        self._num_keyed -= num_blocks
        if not gone:
            self._next = start + num_blocks
            return line[start : self._next]
        taken: list[int] = []
        while len(taken) < num_blocks:
            block = line[start]
            start += 1
            if block not in gone:
                taken.append(block)
            elif gone[block] > 1:
                gone[block] -= 1
            else:
                del gone[block]
        self._next = start
        return taken

    def _take_out(self, block: int) -> None:
        """Take a block without keys out of its line. Slow, but nobody looks for a block without content."""
        self._use_more(self.num_gpu_blocks)
        self._unkeyed.remove(block)

    def _check_known(self, blocks: Sequence[int]) -> None:
        stop = self.num_gpu_blocks
        for block in blocks:
            if not 0 <= block < stop:
                foreign = [block for block in blocks if not 0 <= block < stop]
                raise BlockError(f"{foreign} are no blocks of this pool, which has 0 to {stop - 1}")

    def _check_not_pinned(self, blocks: Sequence[int]) -> None:
        self._check_known(blocks)
        for block, times in Counter(blocks).items():
            held = self._holds[block] >> 1
            if block and times > held - self._pins[block]:
                raise BlockError(
                    f"block {block} is freed {times} times, but held {held} times of which "
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
