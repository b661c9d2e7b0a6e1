"""The prefix-cache index: which blocks have which keys. Its events let others keep a copy of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kvref.errors import BlockError
from kvref.events import AllBlocksCleared, BlockRemoved, KVCacheEvent

__all__ = ["Key", "PrefixIndex"]

Key = tuple[bytes, int]
"""A block hash, which is the hash of all tokens up to the end of a block, and the group of the block."""


class PrefixIndex:
    """The keys of each block, and the blocks of each key. Both can be several.

    Args:
        num_gpu_blocks: number of blocks; the first is 0.
        enable_kv_cache_events: record events. They pile up until `take_events` is called.
    """

    def __init__(self, num_gpu_blocks: int, enable_kv_cache_events: bool) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.enable_kv_cache_events = enable_kv_cache_events
        self._events: list[KVCacheEvent] = []
        self._keys: dict[int, list[Key]] = {}
        """The keys of each block that has any, in the order in which it got them."""
        self._blocks: dict[Key, list[int]] = {}
        """The blocks of each key, in the order in which they got it."""
        self._found = defaultdict[int, dict[bytes, int]](dict)
        """By group and hash, the block that a look-up finds: the one that has had the key longest."""

    def get_keys(self, block: int) -> tuple[Key, ...]:
        """The keys of a block, in the order in which it got them."""
        self._check_known([block])
        return tuple(self._keys.get(block, ()))

    def get_blocks_by_key(self) -> Mapping[Key, Sequence[int]]:
        """The blocks of each key, in the order in which they got it."""
        return self._blocks

    def get_index(self, kv_cache_group_id: int) -> Mapping[bytes, int]:
        """The block that a look-up in this group finds, by hash."""
        return self._found[kv_cache_group_id]

    def get_cached_block(self, block_hash: bytes, kv_cache_group_ids: Sequence[int]) -> list[int] | None:
        """A block with this hash in each group, or None if a group has none. Adds no reference."""
        found = []
        for group in kv_cache_group_ids:
            block = self._found[group].get(block_hash)
            if block is None:
                return None
            found.append(block)
        return found

    def have_keys(self, blocks: Sequence[int], hashes: Sequence[bytes], kv_cache_group_id: int) -> bool:
        """Whether each block has the key of the hash at its index. False if the numbers of both differ."""
        keys = [self.get_keys(block) for block in blocks]
        return len(keys) == len(hashes) and all(
            (block_hash, kv_cache_group_id) in own for block_hash, own in zip(hashes, keys, strict=True)
        )

    def take_events(self) -> list[KVCacheEvent]:
        """The events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def _add_key(self, block: int, key: Key) -> bool:
        """Give a block a key. Returns True if no block had this key before."""
        blocks = self._blocks.setdefault(key, [])
        if block in blocks:
            return False
        blocks.append(block)
        self._keys.setdefault(block, []).append(key)
        block_hash, group = key
        self._found[group][block_hash] = blocks[0]
        return len(blocks) == 1

    def _drop_keys(self, block: int) -> None:
        """Take all keys from a block, and record an event for each key that no block has any more."""
        for key in self._keys.pop(block, ()):
            blocks = self._blocks[key]
            blocks.remove(block)
            block_hash, group = key
            if blocks:
                self._found[group][block_hash] = blocks[0]
            else:
                del self._blocks[key], self._found[group][block_hash]
                if self.enable_kv_cache_events:
                    self._events.append(BlockRemoved((block_hash,), group))

    def _clear(self) -> None:
        """Take all keys from all blocks."""
        for mapping in (self._keys, self._blocks, self._found):
            mapping.clear()
        if self.enable_kv_cache_events:
            self._events.append(AllBlocksCleared())

    def _check_known(self, blocks: Sequence[int]) -> None:
        if foreign := [block for block in blocks if not 0 <= block < self.num_gpu_blocks]:
            raise BlockError(
                f"{foreign} are no blocks of this pool, which has 0 to {self.num_gpu_blocks - 1}"
            )
