"""What a target, or a profile for it, may declare beyond the parts it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Capability:
    """Something in which implementations may rightly differ.

    Attributes:
        value: JSON Schema of its value.
        what: what the value says.
        parts: parts of a target that it is about: laws of these ask accordingly.
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
            "the operations of its pool that take blocks by number, so that one can name one that it lacks",
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
            "the block sizes, in tokens, that its spec classes take; no others are drawn",
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
            "whether each tensor of a plan is an allocation, or all are one, or either",
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
            "the kinds of content, besides tokens, that requests may have; no others are drawn",
            (
                "hashing",
                "cache",
            ),
        ),
        Capability(
            "holds_stored_blocks",
            {"type": "boolean"},
            "whether its connector holds blocks until a store of them is done; others end the store before "
            "the step that writes to them",
            ("connector",),
        ),
        Capability(
            "kernel_blocks",
            {"type": "boolean"},
            "whether kernels may have smaller blocks than the pool",
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
            "the orders of axes in which it lays out memory, the outermost first: L layers, B blocks, K for "
            "K and V, H heads, N states, C content",
            (
                "tensors",
                "canonical",
            ),
        ),
        Capability(
            "never_pads",
            {"type": "boolean"},
            "whether every spec refuses `page_size_padded`; `spec.padding-honoured` then asks for it",
            ("specs",),
        ),
        Capability(
            "override",
            {"type": "boolean"},
            "whether its registry has `override`, and can put a class in the place of another; false leaves "
            "out what that has to do",
            ("registry",),
        ),
        Capability(
            "own_tables",
            {"type": "array", "items": {"type": "string"}},
            "classes in whose tables a place does not stand for a block of tokens: laws that read them so "
            "leave them out",
            ("cache",),
        ),
        Capability(
            "page_scaling",
            {
                "type": "object",
                "additionalProperties": {"enum": ["linear", "constant", "compressed", "packed"]},
            },
            "how the page of a class follows its block size, by class",
            ("specs",),
        ),
        Capability(
            "mamba_cache_modes",
            {"type": "array", "items": {"enum": ["all", "align"]}},
            "how its engine keeps recurrent states where prefixes are cached, if not both ways",
            ("cache",),
        ),
        Capability(
            "loads_states",
            {"type": "boolean"},
            "whether its engine loads tokens from elsewhere where recurrent states are kept at the ends of "
            "steps; not drawn if false",
            ("cache",),
        ),
        Capability(
            "partial_hits",
            {"type": "boolean"},
            "whether a hit may end within a block, which is then copied",
            ("cache",),
        ),
        Capability(
            "partial_keys",
            {"type": "boolean"},
            "whether a block may have a key for a part of it, beside that for all of it",
            (
                "cache",
                "pool",
            ),
        ),
        Capability(
            "quant_scales",
            {"type": "boolean"},
            "whether a page holds the scales of values quantised per token and head; drawn only then",
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
            "where in the line for reuse blocks go that are freed without and with keys, and where all go if "
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
            "whether memory for a cache reads zero when it is new",
            ("tensors",),
        ),
    )
}
"""Every capability that a law or a strategy makes use of, by name."""
