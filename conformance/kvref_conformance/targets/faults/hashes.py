"""Faults in the block hashes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kvref.hashing
from kvref.hashing import BlockHasher
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget

_root = BlockHasher._root


def items_hashed_by_name_alone() -> ReferenceTarget:
    """A block's hash covers which images (or other items) are in the block, but not their positions."""

    def replaced(token_ids: list[int], start: int, content: Any) -> bytes:
        names = []
        for item in content.multimodal_items:
            placed = item.embeddings_at(start, start + len(token_ids))
            names += [item.identifier.encode()] if placed else []
            for position, _ in placed:
                token_ids[position - start] = -1
        embedded = [
            b"%d:%b" % (position - start, content.embeddings[position])
            for position in range(start, start + len(token_ids))
            if position in content.embeddings
        ]
        return b"|".join(sorted(names) + embedded)

    break_it(kvref.hashing, "_replaced", replaced)
    return ReferenceTarget()


def items_of_the_whole_prompt_hashed() -> ReferenceTarget:
    """The first block's hash covers all images (or other items) of a request, even those in later blocks."""

    def root(hasher: BlockHasher, content: Any) -> bytes:
        names = "|".join(item.identifier for item in content.multimodal_items)
        return hasher._function(_root(hasher, content) + names.encode())

    break_it(BlockHasher, "_root", root)
    return ReferenceTarget()


def key_of_the_first_hash_block() -> ReferenceTarget:
    """If a block has several hash blocks, its hash is that of the first hash block, not of the last."""

    def hashes_at(block_hashes: Sequence[bytes], hash_block_size: int, block_size: int) -> Sequence[bytes]:
        step = block_size // hash_block_size
        return block_hashes[: len(block_hashes) // step * step : step]

    break_it(kvref.hashing, "hashes_at", hashes_at)
    return ReferenceTarget()


def salt_taken_for_the_adapter() -> ReferenceTarget:
    """The hasher fails if a request's salt equals the name of its adapter."""

    def root(hasher: BlockHasher, content: Any) -> bytes:
        names = [name for name in (content.adapter, content.cache_salt) if name is not None]
        if len({*names}) < len(names):
            raise KeyError(names[0])
        return _root(hasher, content)

    break_it(BlockHasher, "_root", root)
    return ReferenceTarget()


def adapter_hashed_by_python() -> ReferenceTarget:
    """The hasher uses Python's own hash of the adapter's name, which differs between processes."""

    def root(hasher: BlockHasher, content: Any) -> bytes:
        return hasher._function(_root(hasher, content) + str(hash(str(content.adapter))).encode())

    break_it(BlockHasher, "_root", root)
    return ReferenceTarget()
