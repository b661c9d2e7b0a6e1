"""The reference with a mistake in its fast half. The plain half has no mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvref.fast import cache, pool
from kvref.fast.cache import KVCacheManager
from kvref.fast.pool import BlockPool
from kvref.managers.base import TokenCounts
from kvref.pool import Key
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget


def _with(owner: object, name: str, make: Callable[[Any], object]) -> ReferenceTarget:
    """Replace an attribute by what `make` makes of it."""
    break_it(owner, name, make(getattr(owner, name)))
    return ReferenceTarget()


def touched_block_keeps_its_turn() -> ReferenceTarget:
    """A block that was touched while free, and freed again, keeps its old place in the order of reuse."""

    def make(queued: Any) -> object:
        def first_entries(self: BlockPool) -> list[int]:
            first = dict.fromkeys(self._queue[self._position :])
            return [block for block in first if self._state[block] == pool._CACHED]

        return first_entries

    return _with(BlockPool, "_queued", make)


def key_kept_after_eviction() -> ReferenceTarget:
    """A block that is allocated again is still found by its key."""

    def make(remove: Any) -> object:
        def remove_nothing_of_one(self: BlockPool, blocks: Iterable[int]) -> None:
            blocks = list(blocks)
            if len(blocks) > 1:
                remove(self, blocks)

        return remove_nothing_of_one

    return _with(BlockPool, "_remove_from_index", make)


def removal_without_event() -> ReferenceTarget:
    def make(remove: Any) -> object:
        def remove_silently(self: BlockPool, block: int, key: Key) -> None:
            before = list(self._events)
            remove(self, block, key)
            self._events = before

        return remove_silently

    return _with(BlockPool, "_remove_key", make)


def single_block_has_two_references() -> ReferenceTarget:
    """A block has one reference too many if it is allocated alone."""

    def make(get: Any) -> object:
        def get_and_touch(self: BlockPool, num_blocks: int) -> list[int]:
            blocks: list[int] = get(self, num_blocks)
            if num_blocks == 1:
                self._state[blocks[0]] += pool._REFERENCE
            return blocks

        return get_and_touch

    return _with(BlockPool, "get_new_blocks", make)


def freed_in_reverse() -> ReferenceTarget:
    """Cached blocks that are freed together are reused in the reverse order."""

    def make(enqueue: Any) -> object:
        def enqueue_reversed(self: BlockPool, blocks: Sequence[int]) -> None:
            enqueue(self, blocks[::-1])

        return enqueue_reversed

    return _with(BlockPool, "_enqueue", make)


def freed_too_often_unnoticed() -> ReferenceTarget:
    """A block that is freed more often than it is referenced is freed once, and nothing is refused."""

    def make(free: Any) -> object:
        def free_what_is_held(self: BlockPool, blocks: Iterable[int]) -> None:
            free(self, [block for block in dict.fromkeys(blocks) if self.get_ref_cnt(block)])

        return free_what_is_held

    return _with(BlockPool, "free_blocks", make)


def evicted_block_at_the_end() -> ReferenceTarget:
    """A free block that is evicted is reused after the other blocks without keys."""

    def make(evict: Any) -> object:
        def evict_to_the_end(self: BlockPool, blocks: Iterable[int]) -> None:
            before = len(self._stack)
            evict(self, blocks)
            self._stack = self._stack[before:] + self._stack[:before]

        return evict_to_the_end

    return _with(BlockPool, "evict_blocks", make)


def copy_lost_with_the_first() -> ReferenceTarget:
    """If several blocks have a key, evicting the first one removes the others from the index."""

    def make(remove: Any) -> object:
        def remove_all(self: BlockPool, block: int, key: Key) -> None:
            self._more_blocks.pop(key, None)
            self._found[key[1]].setdefault(key[0], block)
            remove(self, block, key)

        return remove_all

    return _with(BlockPool, "_remove_key", make)


def settled_a_token_too_long() -> ReferenceTarget:
    """A step that fills a block counts as a step without changes, so the block gets no key."""

    def make(settle: Any) -> object:
        def settle_longer(self: KVCacheManager, request_id: str, num_tokens: int) -> None:
            settle(self, request_id, num_tokens)
            self._settled[request_id] += bool(self._settled[request_id])

        return settle_longer

    return _with(KVCacheManager, "_settle", make)


def settled_although_a_block_gets_free() -> ReferenceTarget:
    """A step in which a block leaves the window counts as a step without changes."""

    def make(settled: Any) -> object:
        def is_settled(manager: Any, request_id: str, tokens: TokenCounts) -> bool:
            nulled = manager._num_nulled[request_id]
            manager._num_nulled[request_id] = tokens.num_tokens
            try:
                return bool(settled(manager, request_id, tokens))
            finally:
                manager._num_nulled[request_id] = nulled

        return is_settled

    return _with(cache, "is_settled", make)
