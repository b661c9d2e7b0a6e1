"""The capabilities that a target or its profile may declare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Capability:
    """A way in which implementations may differ without being wrong.

    Attributes:
        value: the JSON Schema of the capability's value.
        what: what the value means.
        parts: the parts of a target, such as `pool`, whose workloads and laws depend on the capability.
    """

    name: str
    value: dict[str, Any]
    what: str
    parts: tuple[str, ...]


CAPABILITIES = {
    capability.name: capability
    for capability in (
        Capability(
            "block_numbers",
            {
                "type": "array",
                "items": {"enum": ["touch", "free", "evict"]},
                "uniqueItems": True,
            },
            "pool operations that take block numbers, so that a caller can pass one that the pool lacks",
            ("pool",),
        ),
        Capability(
            "block_sizes",
            {
                "type": "array",
                "items": {"type": "integer", "minimum": 1},
                "minItems": 1,
                "uniqueItems": True,
            },
            "block sizes, in tokens, that its spec classes accept; no others are drawn",
            ("specs",),
        ),
        Capability(
            "buffers",
            {
                "type": "array",
                "items": {"enum": ["each", "one"]},
                "minItems": 1,
                "uniqueItems": True,
            },
            "whether each tensor of a plan has its own allocation, all share one, or both are possible",
            ("tensors",),
        ),
        Capability(
            "contents",
            {
                "type": "array",
                "items": {
                    "enum": ["adapter", "salt", "items", "interleaved items", "item shapes", "embeddings"]
                },
                "uniqueItems": True,
            },
            "kinds of content that requests may have besides tokens; no others are drawn",
            (
                "hashing",
                "cache",
            ),
        ),
        Capability(
            "holds_stored_blocks",
            {"type": "boolean"},
            "whether its connector holds blocks until their store is done; if false, the store ends before "
            "the next step that writes to them",
            ("connector",),
        ),
        Capability(
            "kernel_blocks",
            {"type": "boolean"},
            "whether kernels may use smaller blocks than the pool",
            ("tensors",),
        ),
        Capability(
            "layouts",
            {
                "type": "array",
                "items": {"type": "string", "pattern": "^[LBKHNC]{5,6}$"},
                "minItems": 1,
                "uniqueItems": True,
            },
            "orders of axes in which it lays out memory, outermost first: L layers, B blocks, K for K and V, "
            "H heads, N states, C content",
            (
                "tensors",
                "canonical",
            ),
        ),
        Capability(
            "never_pads",
            {"type": "boolean"},
            "whether every spec refuses `page_size_padded`; `spec.padding-honoured` then requires that",
            ("specs",),
        ),
        Capability(
            "override",
            {"type": "boolean"},
            "whether its registry has `override` and can substitute one class for another; if false, laws "
            "about that are not run",
            ("registry",),
        ),
        Capability(
            "own_tables",
            {"type": "array", "items": {"type": "string"}},
            "classes whose block tables follow their own rule; laws that read entry n as the n-th block of "
            "tokens skip them",
            ("cache",),
        ),
        Capability(
            "page_scaling",
            {
                "type": "object",
                "additionalProperties": {"enum": ["linear", "constant", "compressed", "packed"]},
            },
            "by class, how its page grows with its block size",
            ("specs",),
        ),
        Capability(
            "mamba_cache_modes",
            {"type": "array", "items": {"enum": ["all", "align"]}},
            "how its engine keeps recurrent states with prefix caching, if not in both modes",
            ("cache",),
        ),
        Capability(
            "loads_states",
            {"type": "boolean"},
            "whether its engine loads tokens through a connector while recurrent states are kept at the ends "
            "of steps; if false, this is not drawn",
            ("cache",),
        ),
        Capability(
            "partial_hits",
            {"type": "boolean"},
            "whether a prefix hit may end within a block, which is then copied",
            ("cache",),
        ),
        Capability(
            "partial_keys",
            {"type": "boolean"},
            "whether a block may have a key for a part of it besides the one for all of it",
            (
                "cache",
                "pool",
            ),
        ),
        Capability(
            "quant_scales",
            {"type": "boolean"},
            "whether a page holds scales of values quantised per token and head; only then is this drawn",
            ("specs",),
        ),
        Capability(
            "reuse_order",
            {
                "type": "object",
                "properties": {
                    name: {"enum": ["first", "last"]} for name in ("unkeyed", "keyed", "without_caching")
                },
                "required": ["unkeyed", "keyed"],
                "additionalProperties": False,
            },
            "at which end of the free list freed blocks are put: without keys, with keys, and any block if "
            "caching is off",
            ("pool",),
        ),
        Capability(
            "variants",
            {
                "type": "object",
                "properties": {
                    part: {
                        "type": "array",
                        "items": {"type": "string"},
                        "minItems": 2,
                        "uniqueItems": True,
                    }
                    for part in ("pool", "cache")
                },
                "additionalProperties": False,
            },
            "by part, the names of variants that are meant to be interchangeable: its `create` takes "
            "one of them",
            ("pool", "cache"),
        ),
        Capability(
            "zeroed",
            {"type": "boolean"},
            "whether new memory of a cache reads as zero",
            ("tensors",),
        ),
    )
}
"""Every capability that a law or strategy uses, by name."""
