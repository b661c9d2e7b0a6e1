"""The fast block pool: like `kvref.pool.BlockPool`, but with lists of numbers in place of dictionaries.

* For each block, one number holds the reference count and whether the block is cached. So one comparison
  shows whether a block needs special treatment.
* Free blocks without keys are on a stack. Blocks that were never used come after those on the stack; they are
  simply all blocks from `_first_unused` on.
* Free blocks with keys are in a queue: a list, and the index where the queue begins. If a block in the queue
  is touched or loses its keys, its entry stays in the list and is *stale*: the pool skips the entry when its
  turn comes. The pool rebuilds the list when it gets too long.
* Two lists hold the hash and the group of each block's first key. Further keys of a block, and further blocks
  of a key, are rare: dictionaries hold those.

So the time of a call depends on the number of its blocks, not on the size of the pool, apart from an
occasional rebuild of the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from kvref import pool
from kvref.errors import BlockError, PoolExhaustedError
from kvref.events import AllBlocksCleared, BlockRemoved
from kvref.pool import NULL_BLOCK, Key

__all__ = ["NULL_BLOCK", "BlockPool", "Key"]

_REFERENCE, _CACHED = 2, 1
"""A block's number in `BlockPool._state` is the sum of `_REFERENCE` for each reference, and `_CACHED` if the
block has a key."""
_FIRST_USED_TOGETHER = 1024
"""The pool puts at least this many never-used blocks on the stack at a time. One by one is slower."""
_ENTRIES_PER_BLOCK, _MORE_ENTRIES = 8, 16
"""The pool rebuilds the queue if its list has more than 8 entries for each queued block, plus 16."""


class BlockPool(pool.BlockPool):
    """Gives the same answers as `kvref.pool.BlockPool`, in less time."""

    def __init__(
        self,
        num_gpu_blocks: int,
        enable_caching: bool,
        hash_block_size: int,
        enable_kv_cache_events: bool = False,
    ) -> None:
        # The plain pool gets one block only, so that it builds no large lists. This class keeps the blocks.
        super().__init__(min(num_gpu_blocks, 1), enable_caching, hash_block_size, enable_kv_cache_events)
        self.num_gpu_blocks = num_gpu_blocks
        self._state = [0] * num_gpu_blocks
        """For each block: twice its reference count, plus 1 if it is cached."""
        self._stack: list[int] = []
        """Free blocks without keys, except those from `_first_unused` on. The last one is reused first."""
        self._first_unused = NULL_BLOCK + 1
        """This block and all after it were never used, and are not on the stack."""
        self._queue: list[int] = []
        """Free blocks with keys, mixed with stale entries. The block that is reused first comes first."""
        self._position = 0
        """The index in `_queue` where the queue begins."""
        self._num_queued = 0
        """How many blocks are in the queue. Stale entries do not count."""
        self._stale: dict[int, int] = {}
        """For each block with stale entries: how many. The block's valid entry, if any, comes after them."""
        self._hashes = [b""] * num_gpu_blocks
        """The hash of each block's first key. For a block without keys the value has no meaning."""
        self._groups = [0] * num_gpu_blocks
        """The group of each block's first key. For a block without keys the value has no meaning."""
        self._more_keys: dict[int, tuple[Key, ...]] = {}
        """For each block with several keys, all keys but the first."""
        self._more_blocks: dict[Key, dict[int, None]] = {}
        """For each key with several blocks: all but the first, in the order in which they got the key."""

    def get_num_free_blocks(self) -> int:
        return len(self._stack) + self.num_gpu_blocks - self._first_unused + self._num_queued

    def get_all_free_blocks(self) -> list[int]:
        return [*reversed(self._stack), *range(self._first_unused, self.num_gpu_blocks), *self._queued()]

    def get_ref_cnt(self, block: int) -> int:
        self._check_known((block,))
        return self._state[block] >> 1

    def count_references(self, blocks: Iterable[int], references: int) -> int:
        blocks = list(blocks)
        self._check_known(blocks)
        state = self._state
        return [state[block] >> 1 for block in blocks if block].count(references)

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        stack = self._stack
        if num_blocks > len(stack) and self._first_unused < self.num_gpu_blocks:
            self._stack_unused(num_blocks)
        if num_blocks == 1 and (
            stack or (self._num_queued and self._queue[self._position] not in self._stale)
        ):
            # The usual case: a step needs one block.
            block = stack.pop() if stack else self._dequeue_first()
            self._state[block] = _REFERENCE
            return [block]
        if num_blocks < 0:
            raise BlockError(f"cannot allocate {num_blocks} blocks")
        rest = len(stack) - num_blocks
        if rest < 0:
            if -rest > self._num_queued:
                raise PoolExhaustedError(f"{num_blocks} blocks wanted, {self.get_num_free_blocks()} free")
            evicted = self._dequeue(-rest)
            self._remove_from_index(evicted)
            blocks = stack[::-1] + evicted
            stack.clear()
        else:
            blocks = stack[rest:]
            blocks.reverse()
            del stack[rest:]
        state = self._state
        for block in blocks:
            state[block] = _REFERENCE
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        blocks = list(blocks)
        self._check_known(blocks)
        state, stale, num_touched = self._state, self._stale, 0
        try:
            for block in blocks:
                if block:
                    own = state[block]
                    if own == _CACHED:
                        stale[block] = stale.get(block, 0) + 1
                        num_touched += 1
                    elif not own:
                        # Slow but rare: no look-up finds a free block without keys, so no hit contains one.
                        self._stack_unused(self.num_gpu_blocks)
                        self._stack.remove(block)
                    state[block] = own + _REFERENCE
        finally:
            self._num_queued -= num_touched

    def free_blocks(self, ordered_blocks: Iterable[int]) -> None:
        blocks = [*ordered_blocks]
        if blocks and blocks[-1] == NULL_BLOCK:
            # Tables of windows begin with null blocks, and callers pass tables in reverse.
            blocks = [block for block in blocks if block != NULL_BLOCK]
        if len(blocks) == 1 and not self._pins:
            # One block is checked before anything changes, so nothing ever has to be undone.
            block = blocks[0]
            if 0 < block < self.num_gpu_blocks and self._state[block] >> 1 == 1:
                self._state[block] -= _REFERENCE
                if self._state[block]:
                    self._enqueue(blocks)
                else:
                    self._stack.append(block)
                return
        elif not self._pins and self._free_alike(blocks):
            return
        blocks = [block for block in blocks if block != NULL_BLOCK]
        self._check_known(blocks)
        state = self._state
        for block, times in Counter(blocks).items():
            references, pins = state[block] >> 1, self._pins[block]
            if times > references - pins:
                raise BlockError(
                    f"block {block} freed {times} times: {references} references, {pins} are pins"
                )
        freed: list[int] = []
        for block in blocks:
            state[block] -= _REFERENCE
            if state[block] <= _CACHED:
                freed.append(block)
        self._stack += [block for block in reversed(freed) if not state[block]]
        self._enqueue([block for block in freed if state[block]])

    def get_keys(self, block: int) -> tuple[Key, ...]:
        if not 0 <= block < self.num_gpu_blocks:
            self._check_known((block,))
        if not self._state[block] & _CACHED:
            return ()
        return (self._hashes[block], self._groups[block]), *self._more_keys.get(block, ())

    def get_blocks_by_key(self) -> Mapping[Key, Sequence[int]]:
        return {
            (block_hash, group): [block, *self._more_blocks.get((block_hash, group), ())]
            for group, index in self._found.items()
            for block_hash, block in index.items()
        }

    def have_keys(self, blocks: Sequence[int], hashes: Sequence[bytes], kv_cache_group_id: int) -> bool:
        if [*map(self._found[kv_cache_group_id].get, hashes)] == [*blocks]:
            return True
        # The blocks may have these keys even if a look-up finds other blocks with the same keys.
        self._check_known(blocks)
        pairs = zip_longest(blocks, hashes, fillvalue=NULL_BLOCK)
        return all((block_hash, kv_cache_group_id) in self.get_keys(block) for block, block_hash in pairs)

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        blocks = list(dict.fromkeys(block_ids))
        self._check_known(blocks)
        state = self._state
        blocks = [block for block in blocks if state[block] & _CACHED]
        self._remove_from_index(blocks)
        for block in blocks:
            state[block] -= _CACHED
            if not state[block]:
                self._stale[block] = self._stale.get(block, 0) + 1
                self._num_queued -= 1
                self._stack.append(block)

    def _clear(self) -> None:
        self._stack = self.get_all_free_blocks()[::-1]
        self._first_unused = self.num_gpu_blocks
        self._queue, self._position, self._num_queued = [], 0, 0
        self._stale.clear()
        self._state = [own & ~_CACHED for own in self._state]
        self._more_keys.clear()
        self._found.clear()
        self._more_blocks.clear()
        if self.enable_kv_cache_events:
            self._events.append(AllBlocksCleared())

    # References.

    def _free_alike(self, blocks: Sequence[int]) -> bool:
        """Free the blocks if they have one reference each, and are all cached or all without keys.

        This is the usual case. Returns False, and changes nothing, in any other case.
        """
        state, remaining, own = self._state, iter(blocks), 0
        try:
            own = state[blocks[0]]
            if own >> 1 != 1:
                return False
            left = own - _REFERENCE
            for block in remaining:
                if state[block] != own or block < 0:
                    break
                state[block] = left
            else:
                if left:
                    self._enqueue(blocks)
                else:
                    self._stack += reversed(blocks)
                return True
        except (IndexError, TypeError):
            pass
        # Undo the changes: to all blocks before the one at which the loop stopped.
        num_left = len([*remaining])
        for block in blocks[: -num_left - 1]:
            state[block] = own
        return False

    # The free list.

    def _stack_unused(self, num_blocks: int) -> None:
        """Put never-used blocks at the bottom of the stack: at least `num_blocks`, if there are that many."""
        stop = min(self._first_unused + max(num_blocks, _FIRST_USED_TOGETHER), self.num_gpu_blocks)
        self._stack[:0] = range(stop - 1, self._first_unused - 1, -1)
        self._first_unused = stop

    def _enqueue(self, blocks: Sequence[int]) -> None:
        queue = self._queue
        queue += blocks
        self._num_queued = num_queued = self._num_queued + len(blocks)
        if len(queue) > _ENTRIES_PER_BLOCK * num_queued + _MORE_ENTRIES:
            self._queue, self._position = self._queued(), 0
            self._stale.clear()

    def _dequeue_first(self) -> int:
        """Evict the first block of the queue and return it. Its entry must not be stale."""
        block = self._queue[self._position]
        self._position += 1
        self._num_queued -= 1
        if self._more_blocks or self._more_keys or self.enable_kv_cache_events:
            self._remove_from_index((block,))
        else:
            del self._found[self._groups[block]][self._hashes[block]]
        return block

    def _dequeue(self, num_blocks: int) -> list[int]:
        """Take the first `num_blocks` blocks from the queue. The queue must have at least that many."""
        queue, position, stale = self._queue, self._position, self._stale
        self._num_queued -= num_blocks
        if not stale:
            self._position = position + num_blocks
            return queue[position : self._position]
        taken: list[int] = []
        while len(taken) < num_blocks:
            block = queue[position]
            position += 1
            if block not in stale:
                taken.append(block)
            elif stale[block] > 1:
                stale[block] -= 1
            else:
                del stale[block]
        self._position = position
        return taken

    def _queued(self) -> list[int]:
        """The free blocks with keys. The block that is reused first comes first."""
        if not self._stale:
            return self._queue[self._position :]
        # If a block has several entries, the last one is valid.
        last = dict.fromkeys(reversed(self._queue[self._position :]))
        return [block for block in last if self._state[block] == _CACHED][::-1]

    # Keys.

    def _add_keys(
        self, table: Sequence[int], hashes: Sequence[bytes], mask: Sequence[bool], group: int
    ) -> list[int]:
        state = self._state
        places: list[int] = []
        for place, block in enumerate(table):
            if block and mask[place]:
                if state[block] < _REFERENCE:
                    free = [
                        block
                        for block, keyed in zip(table, mask, strict=True)
                        if block and keyed and state[block] < _REFERENCE
                    ]
                    raise BlockError(f"blocks {free} are free and cannot get keys")
                places.append(place)
        index, own_hashes, groups, keyed_this_step = (
            self._found[group],
            self._hashes,
            self._groups,
            self.keyed_this_step,
        )
        new: list[int] = []
        for place in places:
            block, block_hash = table[place], hashes[place]
            keyed_this_step.add(block)
            if state[block] & _CACHED or block_hash in index:
                if not self._add_key(block, (block_hash, group)):
                    continue
            else:
                own_hashes[block], groups[block] = block_hash, group
                state[block] += _CACHED
                index[block_hash] = block
            new.append(place)
        return new

    def _add_key(self, block: int, key: Key) -> bool:
        block_hash, group = key
        if key in self.get_keys(block):
            return False
        if self._state[block] & _CACHED:
            self._more_keys[block] = (*self._more_keys.get(block, ()), key)
        else:
            self._hashes[block], self._groups[block] = key
            self._state[block] += _CACHED
        if self._found[group].setdefault(block_hash, block) == block:
            return True
        self._more_blocks.setdefault(key, {})[block] = None
        return False

    def _remove_from_index(self, blocks: Iterable[int]) -> None:
        """Remove cached blocks from the index. The caller subtracts `_CACHED` from their states."""
        index, groups, hashes = self._found, self._groups, self._hashes
        if self._more_blocks or self._more_keys or self.enable_kv_cache_events:
            for block in blocks:
                self._remove_key(block, (hashes[block], groups[block]))
                for key in self._more_keys.pop(block, ()):
                    self._remove_key(block, key)
        else:
            for block in blocks:
                del index[groups[block]][hashes[block]]

    def _remove_key(self, block: int, key: Key) -> None:
        block_hash, group = key
        index = self._found[group]
        others = self._more_blocks.get(key)
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
            del self._more_blocks[key]

    def _check_known(self, blocks: Sequence[int]) -> None:
        stop = self.num_gpu_blocks
        for block in blocks:
            if not 0 <= block < stop:
                super()._check_known(blocks)
