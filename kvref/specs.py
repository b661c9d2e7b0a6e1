"""KV-cache specs: what a layer stores in one block, and how many bytes that takes.

Names and fields follow vLLM V1. A spec is immutable, picklable and hashable, and its constructor checks the
fields. The bytes of one block in one layer are a *page*. Page sizes are in bytes, block sizes and other
lengths in tokens.

A *state* is what the cache stores for `tokens_per_state` tokens. In ordinary attention that is the K and V of
one token.

This module does not import managers or the registry; `kvref.registry` connects them with specs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from math import prod
from typing import Any, ClassVar, Self, cast

import torch

from kvref.errors import InvalidSpecError, SpecMergeError

__all__ = [
    "AttentionSpec",
    "ChunkedLocalAttentionSpec",
    "CrossAttentionSpec",
    "EncoderOnlyAttentionSpec",
    "FullAttentionSpec",
    "HiddenStateCacheSpec",
    "KVCacheSpec",
    "KVQuantMode",
    "MLAAttentionSpec",
    "MambaSpec",
    "MemoryLimits",
    "MergeRule",
    "PaddedKVCacheSpec",
    "SinkFullAttentionSpec",
    "SlidingWindowMLASpec",
    "SlidingWindowSpec",
    "TQFullAttentionSpec",
    "UniformTypeKVCacheSpecs",
    "one_if_any",
]

MergeRule = Callable[[Sequence[Any]], Any]
"""Takes the values that several specs have in one field, and returns the value of the merged spec. Raises
ValueError if the values cannot be merged."""

_SCALE_BYTES = torch.float32.itemsize
_MAMBA_CACHE_MODES = ("none", "all", "align")
_STEPS_IN_FLIGHT = 2
"""How many steps are in flight at a time with asynchronous scheduling."""


class KVQuantMode(IntEnum):
    """The quantisation modes of vLLM, with vLLM's names and numbers.

    A platform may have other modes: `AttentionSpec.kv_quant_mode` also takes a string.
    """

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4
    NVFP4 = 5
    TURBOQUANT_K8V4 = 6
    TURBOQUANT_4BIT_NC = 7
    TURBOQUANT_K3V4_NC = 8
    TURBOQUANT_3BIT_NC = 9
    NVFP4_DS_MLA = 10
    ULTRAQUANT_4BIT = 11

    @property
    def is_per_token_head(self) -> bool:
        """Whether each K vector and each V vector of a token and head has a float32 scale in the page."""
        return self.name.endswith("_PER_TOKEN_HEAD")


@dataclass(frozen=True)
class MemoryLimits:
    """The engine's limits that bound how many blocks a request can hold.

    Raises:
        InvalidSpecError: at construction, if a field is no int or too small.
    """

    max_model_len: int
    """The most tokens that a request can have, prompt and output together."""
    max_in_flight_tokens: int
    """The most tokens that can be in flight at a time, over all steps."""
    max_encoder_tokens: int = 0
    """The most encoder tokens that a request can have, for cross attention."""

    def __post_init__(self) -> None:
        _require_int(self, "max_model_len")
        _require_int(self, "max_in_flight_tokens", 0)
        _require_int(self, "max_encoder_tokens", 0)


def one_if_any(values: Sequence[Any]) -> Any:
    """Merge rule that ignores None: all other values must be equal. Returns None if all are None.

    Raises:
        ValueError: there are different values.
    """
    given = list(dict.fromkeys(value for value in values if value is not None))
    if len(given) > 1:
        raise ValueError(f"one cache cannot serve {', '.join(map(str, given))}")
    return given[0] if given else None


@dataclass(frozen=True, kw_only=True)
class KVCacheSpec:
    """What one layer asks of its KV cache. All specs derive from this class.

    A subclass defines the size of a page (`unpadded_page_size_bytes`, `page_size_bytes`) and the memory of
    one request (`max_memory_usage_bytes`), and checks its own fields in `check_fields`. Copies, merges and
    comparisons use all dataclass fields, including those that a vendor adds.

    Raises:
        InvalidSpecError: at construction, if a field is invalid. The message names class, field and value.
    """

    block_size: int
    """Tokens in a block."""

    merge_rules: ClassVar[Mapping[str, MergeRule]] = {}
    """For each field that may differ among specs to merge: how to merge it. Other fields must be equal."""

    def __post_init__(self) -> None:
        self.check_fields()

    def check_fields(self) -> None:
        """Check the fields. A subclass calls `super().check_fields()` first.

        Raises:
            InvalidSpecError: a field has the wrong type, or is out of range.
        """
        _require_int(self, "block_size")

    @property
    def unpadded_page_size_bytes(self) -> int:
        """Bytes of a page without padding."""
        raise NotImplementedError(f"{type(self).__name__} must define unpadded_page_size_bytes")

    @property
    def page_size_bytes(self) -> int:
        """Bytes of a page, padding included."""
        raise NotImplementedError(f"{type(self).__name__} must define page_size_bytes")

    @property
    def uniform_key(self) -> Hashable:
        """Specs with the same uniform base are uniform if they also have equal keys; see `kvref.uniform`."""
        return ()

    def max_memory_usage_bytes(self, limits: MemoryLimits) -> int:
        """The most bytes that one request can take in this layer. The number is a whole number of pages."""
        raise NotImplementedError(f"{type(self).__name__} must define max_memory_usage_bytes")

    def max_admission_blocks_per_request(self, max_in_flight_tokens: int, max_model_len: int) -> int | None:
        """The most blocks that a request needs at a time; None if longer requests always need more."""
        return None

    def copy_with_new_block_size(self, block_size: int) -> Self:
        """The same spec with another block size. Derived values such as padding are computed anew.

        vLLM stores derived padding in the spec, so its copies keep the padding of the old size (PR 31635).

        Raises:
            InvalidSpecError: the new block size makes the spec invalid: `page_size_padded` is too small, for
                example.
        """
        return dataclasses.replace(self, block_size=block_size)

    @classmethod
    def merge(cls, specs: Sequence[Self]) -> Self:
        """Merge the specs of several layers into one. The order of the specs does not matter.

        All specs must be of one class, so a merge never loses the fields of a subclass. They must be equal in
        every field that has no rule in `merge_rules`.

        Raises:
            SpecMergeError: there are no specs, they are of several classes, or a field differs.
        """
        specs = list(specs)
        if not specs:
            raise SpecMergeError(f"{cls.__name__}.merge needs at least one spec")
        first = specs[0]
        classes = {type(spec) for spec in specs}
        if len(classes) > 1 or not isinstance(first, cls):
            names = ", ".join(sorted(spec_class.__name__ for spec_class in classes))
            raise SpecMergeError(
                f"{cls.__name__}.merge cannot merge {names}: give specs of one class, {cls.__name__} or a "
                "subclass, and put the others in groups of their own"
            )
        changes: dict[str, Any] = {}
        # A vendor's field with compare=False does not count in comparisons, so it may differ.
        for field in [field for field in dataclasses.fields(first) if field.compare]:
            values = [getattr(spec, field.name) for spec in specs]
            try:
                merged = cls._merged_value(values, first.merge_rules.get(field.name))
            except ValueError as error:
                raise SpecMergeError(
                    f"{type(first).__name__}.{field.name} differs among the specs to merge: {error}; "
                    "put the layers in different groups"
                ) from error
            if merged != values[0]:
                changes[field.name] = merged
        if not changes:
            return first
        try:
            return dataclasses.replace(first, **changes)
        except InvalidSpecError as error:
            raise SpecMergeError(
                f"the merged {type(first).__name__} is impossible: {error}; "
                "put the layers in different groups"
            ) from error

    @staticmethod
    def _merged_value(values: Sequence[Any], rule: MergeRule | None) -> Any:
        if rule is not None:
            return rule(values)
        if any(value != values[0] for value in values):
            raise ValueError(" and ".join(dict.fromkeys(map(repr, values))))
        return values[0]


@dataclass(frozen=True, kw_only=True)
class PaddedKVCacheSpec(KVCacheSpec):
    """The spec of a single layer, whose page a platform may pad (vLLM PR 31635).

    Raises:
        InvalidSpecError: at construction, if `page_size_padded` is smaller than the content, or no multiple
            of `alignment`.
    """

    page_size_padded: int | None = None
    """Bytes of a page, as set by the platform. None means: the content rounded up to `alignment`."""
    alignment: int | None = None
    """The page size is a multiple of this many bytes; None means no alignment."""

    def __post_init__(self) -> None:
        super().__post_init__()
        content = self.unpadded_page_size_bytes
        padded = self.page_size_padded
        if padded is None:
            return
        if padded < content:
            raise InvalidSpecError(
                f"{type(self).__name__}.page_size_padded is {padded} bytes, but a page of "
                f"block_size {self.block_size} needs {content}: give at least that, or leave it out"
            )
        if self.alignment is not None and padded % self.alignment:
            raise InvalidSpecError(
                f"{type(self).__name__}.page_size_padded is {padded} bytes, which is no multiple of "
                f"alignment {self.alignment}: give a multiple, or leave one of them out"
            )

    def check_fields(self) -> None:
        super().check_fields()
        _require_int_if_any(self, "page_size_padded")
        _require_int_if_any(self, "alignment")

    @property
    def page_size_bytes(self) -> int:
        """Bytes of a page: `page_size_padded`, or if that is None, the content rounded up to `alignment`.

        The property computes the size anew each time. So a copy never has the padding of another block size.
        """
        if self.page_size_padded is not None:
            return self.page_size_padded
        alignment = self.alignment or 1
        return _cdiv(self.unpadded_page_size_bytes, alignment) * alignment


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(PaddedKVCacheSpec):
    """A layer that stores K and V for each token and head. All kinds of attention derive from this class.

    Raises:
        InvalidSpecError: at construction, if a field is invalid, or if a block does not hold a whole number
            of states.
    """

    num_kv_heads: int
    head_size: int
    """Number of values in a K vector."""
    dtype: torch.dtype
    """Dtype of the stored values."""
    head_size_v: int = cast(int, None)
    """Number of values in a V vector: `head_size` if None. With 0, the layer has no V."""
    kv_quant_mode: KVQuantMode | str = KVQuantMode.NONE
    """How values are quantised. A string is a platform's own mode, and requires `state_content_bytes`."""
    state_content_bytes: int | None = None
    """Bytes of one state of one head, scales included, if K and V are packed. None: they are not packed."""
    tokens_per_state: int | Fraction = 1
    """Tokens per state. More than 1 if tokens are compressed; less than 1 if a token has several states."""

    def __post_init__(self) -> None:
        # A spec without head_size_v must equal a spec with head_size_v=head_size.
        if self.head_size_v is None:
            object.__setattr__(self, "head_size_v", self.head_size)
        super().__post_init__()

    def check_fields(self) -> None:
        super().check_fields()
        _require_int(self, "num_kv_heads")
        _require_int(self, "head_size")
        _require_int(self, "head_size_v", 0)
        _require_int_if_any(self, "state_content_bytes")
        _require_type(self, "dtype", torch.dtype)
        _require_type(self, "kv_quant_mode", KVQuantMode | str)
        if not isinstance(self.kv_quant_mode, KVQuantMode) and self.packed_state_bytes is None:
            raise InvalidSpecError(
                f"{type(self).__name__}.kv_quant_mode {self.kv_quant_mode!r} is none of KVQuantMode, so the "
                "size of a state is unknown: give state_content_bytes"
            )
        tokens = self.tokens_per_state
        if not isinstance(tokens, Fraction):
            _require_int(self, "tokens_per_state")
        if tokens <= 0 or Fraction(self.block_size) % tokens:
            raise InvalidSpecError(
                f"{type(self).__name__}: block_size {self.block_size} is no whole number of states of "
                f"tokens_per_state {tokens}: choose a block size that is a multiple of it"
            )

    @property
    def num_states(self) -> int:
        """Number of states in a block."""
        return int(self.block_size // self.tokens_per_state)

    @property
    def packed_state_bytes(self) -> int | None:
        """Bytes of one state of one head if K and V are packed, else None."""
        return self.state_content_bytes

    @property
    def state_content_size_bytes(self) -> int:
        """Bytes of one state of one head: K, V, and the scales of per-token-head quantisation.

        vLLM 0.32 leaves out the scales. So its pages are too small unless a backend sets the size itself.
        """
        if self.packed_state_bytes is not None:
            return self.packed_state_bytes
        values = (self.head_size + self.head_size_v) * self.dtype.itemsize
        if not (isinstance(self.kv_quant_mode, KVQuantMode) and self.kv_quant_mode.is_per_token_head):
            return values
        vectors = 2 if self.head_size_v else 1
        return values + vectors * _SCALE_BYTES

    @property
    def unpadded_page_size_bytes(self) -> int:
        """Bytes of a page without padding: heads x states x bytes of one state of one head."""
        return self.num_kv_heads * self.num_states * self.state_content_size_bytes


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(AttentionSpec):
    """Attention over all earlier tokens: a request keeps every block until it ends.

    A kernel may attend only to a window or a chunk, although the cache keeps all tokens. The spec then
    records `sliding_window` or `attention_chunk_size`. A spec that records one of them merges with specs that
    record neither.
    """

    sliding_window: int | None = None
    attention_chunk_size: int | None = None

    merge_rules: ClassVar[Mapping[str, MergeRule]] = {
        "sliding_window": one_if_any,
        "attention_chunk_size": one_if_any,
    }

    def check_fields(self) -> None:
        super().check_fields()
        _require_int_if_any(self, "sliding_window")
        _require_int_if_any(self, "attention_chunk_size")
        if self.sliding_window is not None and self.attention_chunk_size is not None:
            raise InvalidSpecError(
                f"{type(self).__name__} has both sliding_window {self.sliding_window} and "
                f"attention_chunk_size {self.attention_chunk_size}: leave one of them out"
            )

    def max_memory_usage_bytes(self, limits: MemoryLimits) -> int:
        return _cdiv(limits.max_model_len, self.block_size) * self.page_size_bytes


@dataclass(frozen=True, kw_only=True)
class MLAAttentionSpec(FullAttentionSpec):
    """Multi-head latent attention: one latent vector per token and no V."""

    head_size_v: int = 0
    cache_dtype_str: str | None = None
    """Name of the cache dtype, for the backend. A dtype that packs values needs `state_content_bytes`."""
    model_version: str | None = None

    def check_fields(self) -> None:
        super().check_fields()
        _require_type(self, "cache_dtype_str", str | None)
        _require_type(self, "model_version", str | None)


@dataclass(frozen=True, kw_only=True)
class HiddenStateCacheSpec(MLAAttentionSpec):
    """Hidden states, stored in pages like those of MLA so that they can be extracted."""


@dataclass(frozen=True, kw_only=True)
class TQFullAttentionSpec(FullAttentionSpec):
    """Full attention that packs K and V of one token and head into one *slot* (vLLM up to 0.27)."""

    tq_slot_size: int = 0
    """Bytes of a slot; 0 means that K and V are not packed."""

    def check_fields(self) -> None:
        super().check_fields()
        _require_int(self, "tq_slot_size", 0)
        if self.tq_slot_size and self.state_content_bytes not in (None, self.tq_slot_size):
            raise InvalidSpecError(
                f"{type(self).__name__} has both tq_slot_size {self.tq_slot_size} and state_content_bytes "
                f"{self.state_content_bytes}, which differ but mean the same size: leave one out"
            )

    @property
    def packed_state_bytes(self) -> int | None:
        return self.tq_slot_size or self.state_content_bytes


@dataclass(frozen=True, kw_only=True)
class SinkFullAttentionSpec(FullAttentionSpec):
    """Full attention with `sink_len` additional sink tokens, which are stored once for all requests."""

    sink_len: int = 0

    def check_fields(self) -> None:
        super().check_fields()
        _require_int(self, "sink_len", 0)

    def max_memory_usage_bytes(self, limits: MemoryLimits) -> int:
        """The bytes of full attention plus the bytes of the sink blocks, which every request needs."""
        sinks = _cdiv(self.sink_len, self.block_size) * self.page_size_bytes
        return super().max_memory_usage_bytes(limits) + sinks


@dataclass(frozen=True, kw_only=True)
class SlidingWindowSpec(AttentionSpec):
    """Attention over the last `sliding_window` tokens, the token itself included."""

    sliding_window: int
    extra_retained_tokens: int = 0
    """Tokens before the window that are kept for draft models, which compute the last tokens again."""

    def check_fields(self) -> None:
        super().check_fields()
        _require_int(self, "sliding_window")
        _require_int(self, "extra_retained_tokens", 0)

    @property
    def uniform_key(self) -> Hashable:
        return "sliding_window", self.sliding_window, self.extra_retained_tokens

    def max_admission_blocks_per_request(self, max_in_flight_tokens: int, max_model_len: int) -> int:
        """Enough blocks for the window before the next token and for the tokens in flight.

        One more block is counted than these tokens fill, because the window may start within a block.
        """
        window = self.sliding_window - 1 + self.extra_retained_tokens
        return _cdiv(min(window + max_in_flight_tokens, max_model_len), self.block_size) + 1

    def max_memory_usage_bytes(self, limits: MemoryLimits) -> int:
        return self.page_size_bytes * self.max_admission_blocks_per_request(
            limits.max_in_flight_tokens, limits.max_model_len
        )


@dataclass(frozen=True, kw_only=True)
class SlidingWindowMLASpec(SlidingWindowSpec):
    """Sliding-window attention over MLA's latent vectors."""

    head_size_v: int = 0
    cache_dtype_str: str | None = None
    """As in `MLAAttentionSpec`."""
    model_version: str | None = None

    def check_fields(self) -> None:
        super().check_fields()
        _require_type(self, "cache_dtype_str", str | None)
        _require_type(self, "model_version", str | None)


@dataclass(frozen=True, kw_only=True)
class ChunkedLocalAttentionSpec(AttentionSpec):
    """Attention within chunks: a token attends to itself and the earlier tokens of its own chunk."""

    attention_chunk_size: int

    def check_fields(self) -> None:
        super().check_fields()
        _require_int(self, "attention_chunk_size")

    @property
    def uniform_key(self) -> Hashable:
        return "attention_chunk_size", self.attention_chunk_size

    def max_admission_blocks_per_request(self, max_in_flight_tokens: int, max_model_len: int) -> int:
        """Enough blocks for one chunk and the tokens in flight, but at most those of the longest request.

        If a chunk can start within a block, one more block is counted. (vLLM does not count that block.)
        """
        tokens = self.attention_chunk_size + max_in_flight_tokens
        unaligned = self.attention_chunk_size % self.block_size != 0
        return min(_cdiv(tokens, self.block_size) + unaligned, _cdiv(max_model_len, self.block_size))

    def max_memory_usage_bytes(self, limits: MemoryLimits) -> int:
        return self.page_size_bytes * self.max_admission_blocks_per_request(
            limits.max_in_flight_tokens, limits.max_model_len
        )


@dataclass(frozen=True, kw_only=True)
class CrossAttentionSpec(AttentionSpec):
    """Attention of a decoder to its encoder's output. A request keeps the blocks of all encoder tokens."""

    def max_memory_usage_bytes(self, limits: MemoryLimits) -> int:
        return _cdiv(limits.max_encoder_tokens, self.block_size) * self.page_size_bytes


@dataclass(frozen=True, kw_only=True)
class EncoderOnlyAttentionSpec(AttentionSpec):
    """Attention within one forward pass of an encoder. It stores nothing and has no manager."""

    def max_memory_usage_bytes(self, limits: MemoryLimits) -> int:
        return 0


@dataclass(frozen=True, kw_only=True)
class MambaSpec(PaddedKVCacheSpec):
    """A recurrent layer: a block holds one snapshot of the layer's states, whatever the block size.

    `block_size` is the number of tokens from one snapshot to the next.
    """

    shapes: tuple[tuple[int, ...], ...]
    """The shape of each state tensor of the layer."""
    dtypes: tuple[torch.dtype, ...]
    """The dtype of each state tensor of the layer."""
    mamba_type: str = "mamba2"
    """Name of the kind of layer, for the backend."""
    mamba_cache_mode: str = "none"
    """When snapshots are taken for prefix caching: "none" (never), "all" (at the end of each block) or
    "align" (at the end of a step)."""
    num_speculative_blocks: int = 0
    """Additional blocks of a request, for the states of draft tokens."""

    def check_fields(self) -> None:
        super().check_fields()
        name = type(self).__name__
        if not _is_tuple_of(self.shapes, tuple) or not self.shapes:
            raise InvalidSpecError(f"{name}.shapes must be a tuple of shapes, not {self.shapes!r}")
        if any(type(size) is not int or size < 1 for shape in self.shapes for size in shape):
            raise InvalidSpecError(f"{name}.shapes must have sizes of at least 1, not {self.shapes!r}")
        if not _is_tuple_of(self.dtypes, torch.dtype):
            raise InvalidSpecError(f"{name}.dtypes must be a tuple of torch.dtype, not {self.dtypes!r}")
        if len(self.shapes) != len(self.dtypes):
            raise InvalidSpecError(
                f"{name} has {len(self.shapes)} shapes and {len(self.dtypes)} dtypes: "
                "give one dtype for each shape"
            )
        _require_type(self, "mamba_type", str)
        if self.mamba_cache_mode not in _MAMBA_CACHE_MODES:
            raise InvalidSpecError(
                f"{name}.mamba_cache_mode must be one of {', '.join(_MAMBA_CACHE_MODES)}, "
                f"not {self.mamba_cache_mode!r}"
            )
        _require_int(self, "num_speculative_blocks", 0)

    @property
    def unpadded_page_size_bytes(self) -> int:
        """Bytes of one snapshot: of all states of the layer."""
        states = zip(self.shapes, self.dtypes, strict=True)
        return sum(prod(shape) * dtype.itemsize for shape, dtype in states)

    @property
    def uniform_key(self) -> Hashable:
        return "mamba", self.page_size_bytes, self.num_speculative_blocks, self.mamba_cache_mode

    def max_memory_usage_bytes(self, limits: MemoryLimits) -> int:
        """The bytes of the running state, the states that steps in flight write, and the speculative blocks.

        In mode "align", a step writes one new state, and each step in flight still reads the state before it.
        In the other modes, each `block_size` tokens have a block of their own. A request then holds the block
        of the last computed token and the blocks of the tokens in flight.
        """
        if self.mamba_cache_mode == "align":
            states = 1 + _STEPS_IN_FLIGHT
        else:
            states = min(
                _cdiv(limits.max_model_len, self.block_size),
                _cdiv(limits.max_in_flight_tokens, self.block_size) + 1,
            )
        return (states + self.num_speculative_blocks) * self.page_size_bytes


class _LayerSpecs(Mapping[str, KVCacheSpec]):
    """An immutable mapping from layer names to specs.

    Unlike `MappingProxyType` it can be pickled, copied and hashed.
    """

    __slots__ = ("_specs",)

    def __init__(self, specs: Mapping[str, KVCacheSpec]) -> None:
        self._specs = dict(specs)

    def __getitem__(self, layer_name: str) -> KVCacheSpec:
        return self._specs[layer_name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def __hash__(self) -> int:
        return hash(frozenset(self._specs.items()))

    def __repr__(self) -> str:
        return repr(self._specs)


@dataclass(frozen=True, kw_only=True)
class UniformTypeKVCacheSpecs(KVCacheSpec):
    """The *composite*: specs of uniform layers in one group, each with its own page size.

    See `kvref.uniform` for which layers are uniform.

    Raises:
        InvalidSpecError: at construction, if there are no layers, if a layer's spec is a composite itself, or
            if block sizes differ.
    """

    kv_cache_specs: Mapping[str, KVCacheSpec]
    """The spec of each layer, by the layer's name. The composite keeps an immutable copy of the mapping."""

    def __post_init__(self) -> None:
        _require_type(self, "kv_cache_specs", Mapping)
        object.__setattr__(self, "kv_cache_specs", _LayerSpecs(self.kv_cache_specs))
        super().__post_init__()

    def check_fields(self) -> None:
        super().check_fields()
        if not self.kv_cache_specs:
            raise InvalidSpecError(f"{type(self).__name__}.kv_cache_specs is empty: give at least one layer")
        for layer_name, spec in self.kv_cache_specs.items():
            if not isinstance(spec, KVCacheSpec) or isinstance(spec, UniformTypeKVCacheSpecs):
                raise InvalidSpecError(
                    f"{type(self).__name__}: layer {layer_name!r} must have the spec of a single layer, "
                    f"not {spec!r}"
                )
            if spec.block_size != self.block_size:
                raise InvalidSpecError(
                    f"{type(self).__name__} of block_size {self.block_size}: layer {layer_name!r} has "
                    f"block_size {spec.block_size}; give all layers the same"
                )

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block in all layers together."""
        return sum(spec.page_size_bytes for spec in self.kv_cache_specs.values())

    def max_memory_usage_bytes(self, limits: MemoryLimits) -> int:
        """The blocks of the layer that needs most blocks, times the bytes of one block in all layers."""
        specs = self.kv_cache_specs.values()
        blocks = max(_cdiv(spec.max_memory_usage_bytes(limits), spec.page_size_bytes) for spec in specs)
        return blocks * self.page_size_bytes


def _cdiv(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _require_int(owner: object, field: str, minimum: int = 1) -> None:
    value = getattr(owner, field)
    # Compare the exact type: bools and enum members are ints, too, but no sizes.
    if type(value) is not int or value < minimum:
        raise InvalidSpecError(
            f"{type(owner).__name__}.{field} must be an int of at least {minimum}, not {value!r}"
        )


def _require_int_if_any(owner: object, field: str) -> None:
    if getattr(owner, field) is not None:
        _require_int(owner, field)


def _require_type(owner: object, field: str, wanted: Any) -> None:
    value = getattr(owner, field)
    if not isinstance(value, wanted):
        name = wanted.__name__ if isinstance(wanted, type) else str(wanted)
        raise InvalidSpecError(f"{type(owner).__name__}.{field} must be of type {name}, not {value!r}")


def _is_tuple_of(value: object, wanted: type) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(item, wanted) for item in cast(Iterable[object], value)
    )
