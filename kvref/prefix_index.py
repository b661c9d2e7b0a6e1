"""The prefix-cache index: which blocks have which keys.

The index records events. A subscriber can use them to keep a copy of the index.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kvref.errors import BlockError
from kvref.events import AllBlocksCleared, BlockRemoved, KVCacheEvent

__all__ = ["Key", "PrefixIndex"]

Key = tuple[bytes, int]
"""A block hash, and the index of the group that the block belongs to."""


class PrefixIndex:
    """Knows which blocks have which keys. A block can have several keys, and a key can have several blocks.

    Args:
        num_gpu_blocks: number of blocks; the first is 0.
        enable_kv_cache_events: whether to record events. They accumulate until `take_events` is called.
    """

    def __init__(self, num_gpu_blocks: int, enable_kv_cache_events: bool) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.enable_kv_cache_events = enable_kv_cache_events
        self._events: list[KVCacheEvent] = []
        self._keys: dict[int, list[Key]] = {}
        """For each block with keys: its keys, in the order in which it got them."""
        self._blocks: dict[Key, list[int]] = {}
        """For each key that a block has: the blocks with this key, in the order in which they got it."""
        self._found = defaultdict[int, dict[bytes, int]](dict)
        """For each group and hash: the block that a look-up finds. It is the one that got the key first."""

    def get_keys(self, block: int) -> tuple[Key, ...]:
        """The keys of a block, in the order in which it got them."""
        self._check_known([block])
        return tuple(self._keys.get(block, ()))

    def get_blocks_by_key(self) -> Mapping[Key, Sequence[int]]:
        """For each key, the blocks that have it, in the order in which they got it."""
        return self._blocks

    def get_index(self, kv_cache_group_id: int) -> Mapping[bytes, int]:
        """For each hash, the block that a look-up in this group finds."""
        return self._found[kv_cache_group_id]

    def get_cached_block(self, block_hash: bytes, kv_cache_group_ids: Sequence[int]) -> list[int] | None:
        """For each of these groups, the block that a look-up of this hash finds. Adds no reference.

        Returns:
            The blocks, or None if there is no such block in one of the groups.
        """
        found = []
        for group in kv_cache_group_ids:
            block = self._found[group].get(block_hash)
            if block is None:
                return None
            found.append(block)
        return found

    def have_keys(self, blocks: Sequence[int], hashes: Sequence[bytes], kv_cache_group_id: int) -> bool:
        """Whether each block has the key with the hash at the same index of `hashes`.

        Also False if `blocks` and `hashes` are not equally long.
        """
        keys = [self.get_keys(block) for block in blocks]
        return len(keys) == len(hashes) and all(
            (block_hash, kv_cache_group_id) in own for block_hash, own in zip(hashes, keys, strict=True)
        )

    def take_events(self) -> list[KVCacheEvent]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def _add_key(self, block: int, key: Key) -> bool:
        """Give a key to a block. Returns True if no block had this key before."""
        blocks = self._blocks.setdefault(key, [])
        if block in blocks:
            return False
        blocks.append(block)
        self._keys.setdefault(block, []).append(key)
        block_hash, group = key
        self._found[group][block_hash] = blocks[0]
        return len(blocks) == 1

    def _drop_keys(self, block: int) -> None:
        """Take all keys from a block. Record an event for each of these keys that no other block has."""
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
        for mapping in (self._keys, self._blocks, self._found):
            mapping.clear()
        if self.enable_kv_cache_events:
            self._events.append(AllBlocksCleared())

    def _check_known(self, blocks: Sequence[int]) -> None:
        if foreign := [block for block in blocks if not 0 <= block < self.num_gpu_blocks]:
            raise BlockError(
                f"{foreign} are no blocks of this pool, which has 0 to {self.num_gpu_blocks - 1}"
            )
