"""Specs of layers as in real models, for benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

from kvref.target import SpecDescriptor

BLOCK_SIZE = 16
"""Tokens in a block."""

_HEADS, _HEAD_SIZE = 8, 128

PAGE = 2 * BLOCK_SIZE * _HEADS * _HEAD_SIZE * 2
"""Bytes of a page of `FULL`: K and V of each token and head, in two-byte numbers."""


def _spec(name: str, **fields: int) -> SpecDescriptor:
    usual = {
        "block_size": BLOCK_SIZE,
        "num_kv_heads": _HEADS,
        "head_size": _HEAD_SIZE,
        "dtype": "torch.bfloat16",
    }
    return {"class": name, "fields": {**usual, **fields}}


FULL = _spec("FullAttentionSpec")


def full_of(page: int) -> SpecDescriptor:
    """A full attention spec with pages of `page` bytes. Larger pages get larger blocks."""
    return _spec("FullAttentionSpec", block_size=BLOCK_SIZE * page // PAGE)


SMALL = _spec("FullAttentionSpec", num_kv_heads=1, head_size=8)
"""A spec with very small pages, for benchmarks whose times must not depend on the size of the memory."""


def _window(tokens: int) -> SpecDescriptor:
    return _spec("SlidingWindowSpec", sliding_window=tokens)


GROUPS: dict[str, list[SpecDescriptor]] = {
    "full": [FULL],
    "full + window": [FULL, _window(1024)],
    "4 groups": [FULL, *[_window(1024)] * 3],
}
"""Setups for benchmarks of the cache manager: for each name, the spec of each group."""

MODELS: dict[str, list[SpecDescriptor]] = {
    "full": [FULL],
    "full + window": [FULL, *[_window(1024)] * 5],
    "4 specs": [FULL, _window(1024), _window(512), _window(256)],
}
"""Setups for benchmarks of planning: for each name, the specs of the layers.

A model in a benchmark has more layers than there are specs here, so the specs repeat (`layers_of`).
"""


def layers_of(specs: Sequence[SpecDescriptor], number: int) -> dict[str, SpecDescriptor]:
    return {f"layer.{place}": specs[place % len(specs)] for place in range(number)}
