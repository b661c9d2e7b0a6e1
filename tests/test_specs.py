from __future__ import annotations

import copy
import dataclasses
import multiprocessing
import pickle
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings, strategies as st

from kvref.errors import InvalidSpecError, SpecMergeError, UnregisteredSpecError
from kvref.managers import FullAttentionManager, SlidingWindowManager
from kvref.platform import Platform, set_current_platform
from kvref.registry import KVCacheSpecRegistry as Registry
from kvref.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheSpec,
    KVQuantMode,
    MambaSpec,
    MemoryLimits,
    MergeRule,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
    UniformTypeKVCacheSpecs,
)
from kvref.uniform import get_uniform_type_specs, is_uniform_type, is_uniform_with_collection
from kvref_conformance.proofs.managers import made

ATTENTION: dict[str, Any] = {"block_size": 16, "num_kv_heads": 2, "head_size": 8, "dtype": torch.float16}
MAMBA: dict[str, Any] = {
    "block_size": 16,
    "shapes": ((2, 3), (5,)),
    "dtypes": (torch.float32, torch.float16),
}
REQUIRED: dict[type[KVCacheSpec], dict[str, Any]] = {
    FullAttentionSpec: ATTENTION,
    MLAAttentionSpec: ATTENTION,
    HiddenStateCacheSpec: ATTENTION,
    TQFullAttentionSpec: ATTENTION,
    SinkFullAttentionSpec: ATTENTION,
    SlidingWindowSpec: {**ATTENTION, "sliding_window": 64},
    SlidingWindowMLASpec: {**ATTENTION, "sliding_window": 64},
    ChunkedLocalAttentionSpec: {**ATTENTION, "attention_chunk_size": 64},
    CrossAttentionSpec: ATTENTION,
    EncoderOnlyAttentionSpec: ATTENTION,
    MambaSpec: MAMBA,
}
SPECS: list[KVCacheSpec] = [spec_class(**fields) for spec_class, fields in REQUIRED.items()]
LIMITS = MemoryLimits(max_model_len=1000, max_in_flight_tokens=128, max_encoder_tokens=100)


@dataclass(frozen=True, kw_only=True)
class VendorSpec(SlidingWindowSpec):
    """A vendor's class with two fields of its own: `tile` must be equal to merge, `hot` has a merge rule."""

    tile: int = 4
    hot: bool = False

    merge_rules: ClassVar[dict[str, MergeRule]] = {**SlidingWindowSpec.merge_rules, "hot": any}


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    set_current_platform(Platform)
    with Registry.snapshot():
        yield
    set_current_platform(None)


def full(**fields: Any) -> FullAttentionSpec:
    return FullAttentionSpec(**{**ATTENTION, **fields})


def window(size: int = 64, **fields: Any) -> SlidingWindowSpec:
    return SlidingWindowSpec(**{**ATTENTION, "sliding_window": size, **fields})


def mamba(**fields: Any) -> MambaSpec:
    return MambaSpec(**{**MAMBA, **fields})


@st.composite
def attention_fields(draw: st.DrawFn) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "block_size": 16 * draw(st.integers(1, 8)),
        "num_kv_heads": draw(st.integers(1, 8)),
        "head_size": draw(st.integers(1, 256)),
        "dtype": draw(st.sampled_from([torch.float16, torch.float32, torch.uint8, torch.float8_e4m3fn])),
        "tokens_per_state": draw(st.sampled_from([1, 2, 16, Fraction(1, 4), Fraction(16, 3)])),
        "kv_quant_mode": draw(st.sampled_from(KVQuantMode)),
        "alignment": draw(st.none() | st.integers(1, 5000)),
        "state_content_bytes": draw(st.none() | st.integers(1, 1000)),
    }
    if draw(st.booleans()):
        fields["head_size_v"] = draw(st.integers(0, 256))
    return fields


@st.composite
def specs(draw: st.DrawFn) -> KVCacheSpec:
    spec_class = draw(st.sampled_from(list(REQUIRED)))
    if spec_class is MambaSpec:
        return mamba(
            block_size=draw(st.integers(1, 100)),
            mamba_cache_mode=draw(st.sampled_from(["none", "all", "align"])),
            num_speculative_blocks=draw(st.integers(0, 3)),
            alignment=draw(st.none() | st.integers(1, 5000)),
        )
    spec = spec_class(**{**REQUIRED[spec_class], **draw(attention_fields())})
    if draw(st.booleans()):
        padded = spec.page_size_bytes + draw(st.integers(0, 10)) * (getattr(spec, "alignment", None) or 1)
        spec = dataclasses.replace(spec, page_size_padded=padded)  # type: ignore[call-arg]
    return spec


# --- construction


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_frozen_and_hashable(spec: KVCacheSpec) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.block_size = 32  # type: ignore[misc]
    twin = type(spec)(**REQUIRED[type(spec)])
    assert twin == spec
    assert hash(twin) == hash(spec)


@pytest.mark.parametrize("spec_class", REQUIRED)
def test_fields_are_keywords(spec_class: type[KVCacheSpec]) -> None:
    with pytest.raises(TypeError):
        spec_class(16)  # type: ignore[call-arg]


BAD_INTS = [0, -1, True, 16.0, "16", None, KVQuantMode.NVFP4]


@pytest.mark.parametrize("spec_class", REQUIRED)
@pytest.mark.parametrize("value", BAD_INTS)
def test_bad_block_size(spec_class: type[KVCacheSpec], value: object) -> None:
    with pytest.raises(InvalidSpecError, match=rf"{spec_class.__name__}\.block_size .*{value!r}"):
        spec_class(**{**REQUIRED[spec_class], "block_size": value})


@pytest.mark.parametrize(
    ("spec_class", "fields", "message"),
    [
        *((FullAttentionSpec, {"num_kv_heads": bad}, "num_kv_heads") for bad in BAD_INTS),
        *((FullAttentionSpec, {"head_size": bad}, "head_size") for bad in BAD_INTS),
        *((SlidingWindowSpec, {"sliding_window": bad}, "sliding_window") for bad in BAD_INTS),
        *((ChunkedLocalAttentionSpec, {"attention_chunk_size": bad}, "attention_chunk") for bad in BAD_INTS),
        (FullAttentionSpec, {"head_size_v": -1}, "head_size_v"),
        (FullAttentionSpec, {"dtype": "float16"}, "dtype"),
        (FullAttentionSpec, {"kv_quant_mode": 2}, "kv_quant_mode"),
        (FullAttentionSpec, {"kv_quant_mode": "acme_int5"}, "acme_int5.*state_content_bytes"),
        (FullAttentionSpec, {"state_content_bytes": 0}, "state_content_bytes"),
        (FullAttentionSpec, {"page_size_padded": 0}, "page_size_padded"),
        (FullAttentionSpec, {"page_size_padded": 1023}, "page_size_padded is 1023 .* needs 1024"),
        (FullAttentionSpec, {"page_size_padded": 1100, "alignment": 512}, "1100 .* alignment 512"),
        (FullAttentionSpec, {"alignment": 0}, "alignment"),
        (FullAttentionSpec, {"tokens_per_state": 0}, "tokens_per_state"),
        (FullAttentionSpec, {"tokens_per_state": True}, "tokens_per_state"),
        (FullAttentionSpec, {"tokens_per_state": 1.0}, "tokens_per_state"),
        (FullAttentionSpec, {"tokens_per_state": 3}, "block_size 16 .* tokens_per_state 3"),
        (FullAttentionSpec, {"tokens_per_state": 32}, "block_size 16 .* tokens_per_state 32"),
        (FullAttentionSpec, {"tokens_per_state": Fraction(-1, 2)}, "tokens_per_state -1/2"),
        (FullAttentionSpec, {"tokens_per_state": Fraction(3, 2)}, "tokens_per_state 3/2"),
        (FullAttentionSpec, {"sliding_window": 0}, "sliding_window"),
        (FullAttentionSpec, {"attention_chunk_size": 0}, "attention_chunk_size"),
        (
            FullAttentionSpec,
            {"sliding_window": 8, "attention_chunk_size": 4},
            "sliding_window 8 .* attention_chunk_size 4",
        ),
        (SlidingWindowSpec, {"extra_retained_tokens": -1}, "extra_retained_tokens"),
        (MLAAttentionSpec, {"cache_dtype_str": 8}, "cache_dtype_str"),
        (MLAAttentionSpec, {"model_version": 4}, "model_version"),
        (SlidingWindowMLASpec, {"cache_dtype_str": 8}, "cache_dtype_str"),
        (TQFullAttentionSpec, {"tq_slot_size": -1}, "tq_slot_size"),
        (TQFullAttentionSpec, {"tq_slot_size": 8, "state_content_bytes": 9}, "tq_slot_size 8 .* 9"),
        (SinkFullAttentionSpec, {"sink_len": -1}, "sink_len"),
        (MambaSpec, {"shapes": ()}, "shapes"),
        (MambaSpec, {"shapes": [(2, 3), (5,)]}, "shapes"),
        (MambaSpec, {"shapes": ((2, 3), [5])}, "shapes"),
        (MambaSpec, {"shapes": ((2, 3), (0,))}, "shapes"),
        (MambaSpec, {"shapes": ((2, True), (5,))}, "shapes"),
        (MambaSpec, {"dtypes": (torch.float32,)}, "2 shapes and 1 dtypes"),
        (MambaSpec, {"dtypes": (torch.float32, "float16")}, "dtypes"),
        (MambaSpec, {"mamba_cache_mode": "most"}, "mamba_cache_mode"),
        (MambaSpec, {"mamba_cache_mode": ["none"]}, "mamba_cache_mode"),
        (MambaSpec, {"mamba_type": 2}, "mamba_type"),
        (MambaSpec, {"num_speculative_blocks": -1}, "num_speculative_blocks"),
        (MambaSpec, {"page_size_padded": 33}, "page_size_padded is 33 .* needs 34"),
    ],
)
def test_impossible_fields(spec_class: type[KVCacheSpec], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpecError, match=rf"{spec_class.__name__}.*{message}"):
        spec_class(**{**REQUIRED[spec_class], **fields})


def test_one_value_written_two_ways_is_one_value() -> None:
    assert full() == full(head_size_v=8) == full(head_size_v=None)
    assert full().head_size_v == 8
    assert full(tokens_per_state=Fraction(2, 1)) == full(tokens_per_state=2)
    assert MLAAttentionSpec(**ATTENTION).head_size_v == 0
    assert SlidingWindowMLASpec(**ATTENTION, sliding_window=8).head_size_v == 0


@pytest.mark.parametrize(
    "fields", [{"max_model_len": 0}, {"max_in_flight_tokens": -1}, {"max_encoder_tokens": True}]
)
def test_impossible_limits(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpecError, match=f"MemoryLimits.{next(iter(fields))}"):
        MemoryLimits(**{"max_model_len": 10, "max_in_flight_tokens": 10, **fields})


# --- pages


@pytest.mark.parametrize(
    ("spec", "content", "page"),
    [
        (full(), 16 * 2 * (8 + 8) * 2, 1024),
        (full(head_size_v=4), 16 * 2 * 12 * 2, 768),
        (full(head_size_v=0), 512, 512),
        (full(tokens_per_state=4), 256, 256),
        (full(tokens_per_state=Fraction(1, 4)), 4096, 4096),
        (full(state_content_bytes=11), 16 * 2 * 11, 352),
        (full(kv_quant_mode="acme_int5", state_content_bytes=12), 384, 384),
        (full(page_size_padded=2000), 1024, 2000),
        (full(alignment=1000), 1024, 2000),
        (full(alignment=512), 1024, 1024),
        (full(alignment=1000, page_size_padded=3000), 1024, 3000),
        # The page includes the scales. vLLM 0.32 leaves them out and has 512 bytes.
        (full(dtype=torch.int8, kv_quant_mode=KVQuantMode.INT8_PER_TOKEN_HEAD), 768, 768),
        (full(dtype=torch.uint8, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR), 512, 512),
        (window(), 1024, 1024),
        (MLAAttentionSpec(**ATTENTION), 512, 512),
        (
            MLAAttentionSpec(**{**ATTENTION, "dtype": torch.int8}, kv_quant_mode=KVQuantMode(2)),
            16 * 2 * (8 + 4),
            384,
        ),
        (TQFullAttentionSpec(**ATTENTION), 1024, 1024),
        (TQFullAttentionSpec(**ATTENTION, tq_slot_size=10), 320, 320),
        (TQFullAttentionSpec(**ATTENTION, kv_quant_mode="acme", tq_slot_size=10), 320, 320),
        (mamba(), 2 * 3 * 4 + 5 * 2, 34),
        (mamba(block_size=4096), 34, 34),
        (mamba(page_size_padded=100), 34, 100),
        (mamba(alignment=16), 34, 48),
    ],
)
def test_page_numbers(spec: KVCacheSpec, content: int, page: int) -> None:
    assert spec.unpadded_page_size_bytes == content
    assert spec.page_size_bytes == page


def test_page_numbers_of_vllm() -> None:
    mla: dict[str, Any] = {"block_size": 64, "num_kv_heads": 1, "head_size": 576}
    plain = MLAAttentionSpec(**{**mla, "block_size": 16}, dtype=torch.bfloat16)
    assert plain.page_size_bytes == 18432
    assert dataclasses.replace(plain, alignment=1000).page_size_bytes == 19000
    packed = MLAAttentionSpec(**mla, dtype=torch.uint8, cache_dtype_str="fp8_ds_mla", state_content_bytes=656)
    assert packed.page_size_bytes == 41984


@given(specs())
def test_page_holds_its_content(spec: KVCacheSpec) -> None:
    assert 0 < spec.unpadded_page_size_bytes <= spec.page_size_bytes
    alignment = getattr(spec, "alignment", None)
    if alignment is not None:
        assert spec.page_size_bytes % alignment == 0


@given(fields=attention_fields(), factor=st.integers(1, 5))
def test_content_is_linear_in_the_block_size(fields: dict[str, Any], factor: int) -> None:
    one = full(**fields)
    many = one.copy_with_new_block_size(one.block_size * factor)
    assert many.unpadded_page_size_bytes == factor * one.unpadded_page_size_bytes


# --- copies


@given(spec=specs(), factor=st.integers(1, 5))
def test_copy_is_what_a_fresh_spec_would_be(spec: KVCacheSpec, factor: int) -> None:
    size = spec.block_size * factor
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    try:
        fresh = type(spec)(**{**fields, "block_size": size})
    except InvalidSpecError:
        with pytest.raises(InvalidSpecError):
            spec.copy_with_new_block_size(size)
        return
    copied = spec.copy_with_new_block_size(size)
    assert type(copied) is type(spec)
    assert copied == fresh
    assert copied.page_size_bytes == fresh.page_size_bytes
    back = copied.copy_with_new_block_size(spec.block_size)
    assert back == spec


def test_copies_derive_their_padding_anew() -> None:
    spec = full(alignment=1000)
    assert spec.page_size_bytes == 2000
    assert spec.copy_with_new_block_size(64).page_size_bytes == 5000
    assert spec.copy_with_new_block_size(8).page_size_bytes == 1000
    explicit = full(page_size_padded=2000)
    assert explicit.copy_with_new_block_size(8).page_size_bytes == 2000
    with pytest.raises(InvalidSpecError, match=r"2000 bytes.*block_size 32 needs 2048"):
        explicit.copy_with_new_block_size(32)


@given(specs())
def test_pickles_and_copies_are_equal(spec: KVCacheSpec) -> None:
    for twin in (pickle.loads(pickle.dumps(spec)), copy.copy(spec), copy.deepcopy(spec)):
        assert twin == spec
        assert type(twin) is type(spec)
        assert hash(twin) == hash(spec)
        assert twin.page_size_bytes == spec.page_size_bytes


def _echo(spec: KVCacheSpec) -> tuple[KVCacheSpec, int]:
    return spec, spec.page_size_bytes


def test_specs_cross_processes() -> None:
    composite = UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"a": full(), "b": full(head_size=4)})
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for spec in (*SPECS, composite):
            assert pool.apply(_echo, (spec,)) == (spec, spec.page_size_bytes)


# --- merging


@given(specs())
def test_merging_equals_gives_the_same(spec: KVCacheSpec) -> None:
    twin = pickle.loads(pickle.dumps(spec))
    for merged in (spec.merge([spec]), spec.merge([spec, twin]), KVCacheSpec.merge([spec, twin])):
        assert merged == spec
        assert type(merged) is type(spec)


@given(one=specs(), other=specs())
def test_merging_is_order_free_and_strict(one: KVCacheSpec, other: KVCacheSpec) -> None:
    def merge(first: KVCacheSpec, second: KVCacheSpec) -> KVCacheSpec | None:
        try:
            return first.merge([first, second])
        except SpecMergeError:
            return None

    merged = merge(one, other)
    assert merged == merge(other, one)
    assert (merged is not None) == (one == other)


def _variants() -> Iterator[tuple[KVCacheSpec, KVCacheSpec, str]]:
    """Pairs of specs that must not merge, because they differ in one field, and the field's name."""
    attention = {
        "block_size": 32,
        "num_kv_heads": 1,
        "head_size": 4,
        "head_size_v": 4,
        "dtype": torch.bfloat16,
        "kv_quant_mode": KVQuantMode.FP8_PER_TENSOR,
        "state_content_bytes": 32,
        "tokens_per_state": 2,
        "page_size_padded": 4096,
        "alignment": 4096,
    }
    changes: dict[type[KVCacheSpec], dict[str, Any]] = {
        FullAttentionSpec: attention,
        MLAAttentionSpec: {**attention, "cache_dtype_str": "fp8", "model_version": "deepseek_v4"},
        HiddenStateCacheSpec: {},
        TQFullAttentionSpec: {"tq_slot_size": 8},
        SinkFullAttentionSpec: {"sink_len": 16},
        SlidingWindowSpec: {**attention, "sliding_window": 32, "extra_retained_tokens": 1},
        SlidingWindowMLASpec: {
            "sliding_window": 32,
            "cache_dtype_str": "fp8",
            "model_version": "deepseek_v4",
        },
        ChunkedLocalAttentionSpec: {**attention, "attention_chunk_size": 32},
        CrossAttentionSpec: attention,
        EncoderOnlyAttentionSpec: attention,
        MambaSpec: {
            "block_size": 32,
            "shapes": ((2, 3), (6,)),
            "dtypes": (torch.float32, torch.bfloat16),
            "page_size_padded": 64,
            "alignment": 64,
            "mamba_type": "gdn",
            "mamba_cache_mode": "align",
            "num_speculative_blocks": 1,
        },
    }
    for spec_class, fields in changes.items():
        for name, value in fields.items():
            one = spec_class(**REQUIRED[spec_class])
            yield one, dataclasses.replace(one, **{name: value}), name


@pytest.mark.parametrize(("one", "other", "field"), [*_variants()])
def test_specs_that_differ_do_not_merge(one: KVCacheSpec, other: KVCacheSpec, field: str) -> None:
    for pair in ([one, other], [other, one]):
        with pytest.raises(SpecMergeError, match=rf"{type(one).__name__}\.{field} differs"):
            one.merge(pair)


def test_full_attention_merges_with_and_without_one_window() -> None:
    for field in ("sliding_window", "attention_chunk_size"):
        with_it, without = full(**{field: 64}), full()
        for group in ([with_it, without], [without, with_it], [without, with_it, without, with_it]):
            assert FullAttentionSpec.merge(group) == with_it
        with pytest.raises(SpecMergeError, match=rf"{field}.*64, 32"):
            FullAttentionSpec.merge([with_it, without, full(**{field: 32})])
    with pytest.raises(SpecMergeError, match=r"sliding_window 64 and attention_chunk_size 64"):
        FullAttentionSpec.merge([full(sliding_window=64), full(attention_chunk_size=64)])


@pytest.mark.parametrize(
    "group",
    [
        [full(), MLAAttentionSpec(**ATTENTION, head_size_v=8)],
        [MLAAttentionSpec(**ATTENTION), HiddenStateCacheSpec(**ATTENTION)],
        [full(), SinkFullAttentionSpec(**ATTENTION)],
        [window(), VendorSpec(**ATTENTION, sliding_window=64)],
        [full(), window()],
    ],
)
def test_classes_never_mix(group: list[KVCacheSpec]) -> None:
    for order in (group, group[::-1]):
        for caller in (type(order[0]), KVCacheSpec):
            with pytest.raises(SpecMergeError, match=type(group[1]).__name__):
                caller.merge(order)


def test_merge_is_for_the_class_and_its_subclasses() -> None:
    mla = MLAAttentionSpec(**ATTENTION)
    assert FullAttentionSpec.merge([mla]) is mla
    with pytest.raises(SpecMergeError, match=r"MLAAttentionSpec\.merge cannot merge FullAttentionSpec"):
        MLAAttentionSpec.merge([full()])  # type: ignore[list-item]
    with pytest.raises(SpecMergeError, match="at least one"):
        FullAttentionSpec.merge([])


def test_a_vendor_field_merges_for_free() -> None:
    cold = VendorSpec(**ATTENTION, sliding_window=64, tile=8)
    hot = dataclasses.replace(cold, hot=True)
    assert VendorSpec.merge([cold, hot]) == VendorSpec.merge([hot, cold]) == hot
    assert VendorSpec.merge([cold, cold]) == cold
    with pytest.raises(SpecMergeError, match=r"VendorSpec\.tile differs.*8 and 4"):
        VendorSpec.merge([cold, dataclasses.replace(cold, tile=4)])
    with pytest.raises(SpecMergeError, match="sliding_window"):
        VendorSpec.merge([cold, dataclasses.replace(cold, sliding_window=32)])
    assert cold.copy_with_new_block_size(32) == dataclasses.replace(cold, block_size=32)


def test_derived_and_ignored_vendor_fields_do_not_hinder_merging() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Labelled(FullAttentionSpec):
        label: str = dataclasses.field(default="", compare=False)
        windowed: bool = dataclasses.field(init=False, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "windowed", self.sliding_window is not None)
            super().__post_init__()

    wide, narrow = Labelled(**ATTENTION, label="a"), Labelled(**ATTENTION, label="b", sliding_window=64)
    for group in ([wide, narrow], [narrow, wide]):
        merged = Labelled.merge(group)
        assert merged == narrow
        assert merged.windowed


# --- uniformity


def uniform(one: KVCacheSpec, *others: KVCacheSpec) -> bool:
    return is_uniform_with_collection(one, {f"layers.{i}": spec for i, spec in enumerate(others)})


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (full(), full(head_size=64, block_size=32), True),
        (full(), full(sliding_window=64), True),
        (full(), MLAAttentionSpec(**ATTENTION), True),
        (full(), SinkFullAttentionSpec(**ATTENTION, sink_len=16), True),
        (full(), window(), False),
        (window(), window(num_kv_heads=1), True),
        (window(), window(32), False),
        (window(), window(extra_retained_tokens=1), False),
        (window(), SlidingWindowMLASpec(**ATTENTION, sliding_window=64), False),
        (window(), VendorSpec(**ATTENTION, sliding_window=64), True),
        (window(), VendorSpec(**ATTENTION, sliding_window=32), False),
        (window(), ChunkedLocalAttentionSpec(**ATTENTION, attention_chunk_size=64), False),
        (
            ChunkedLocalAttentionSpec(**ATTENTION, attention_chunk_size=64),
            ChunkedLocalAttentionSpec(**ATTENTION, attention_chunk_size=32),
            False,
        ),
        (mamba(), mamba(mamba_type="gdn"), True),
        (mamba(), mamba(page_size_padded=64), False),
        (mamba(), mamba(num_speculative_blocks=1), False),
        (mamba(), mamba(mamba_cache_mode="align"), False),
        (mamba(), full(), False),
        (CrossAttentionSpec(**ATTENTION), full(), False),
        (CrossAttentionSpec(**ATTENTION), CrossAttentionSpec(**ATTENTION), True),
    ],
)
def test_uniform_pairs(one: KVCacheSpec, other: KVCacheSpec, expected: bool) -> None:
    assert uniform(one, other) is uniform(other, one) is uniform(one, one, other) is expected


@given(
    st.lists(specs().filter(lambda spec: type(spec) is not EncoderOnlyAttentionSpec), min_size=1, max_size=4)
)
def test_uniformity_is_symmetric_total_and_agrees_with_the_base(group: list[KVCacheSpec]) -> None:
    answers = {uniform(one, *group) for one in group}
    assert len(answers) == 1
    assert answers == {uniform(one, *group[::-1]) for one in group}
    bases = {Registry.get_uniform_type_base_spec(spec) for spec in group}
    if answers == {True}:
        (base,) = bases
        assert base is not None
        assert all(isinstance(spec, base) for spec in group)


def test_a_registered_vendor_base_decides() -> None:
    vendor = VendorSpec(**ATTENTION, sliding_window=64)
    Registry.register(VendorSpec, SlidingWindowManager)
    assert not uniform(window(), vendor)
    assert not uniform(vendor, window())
    assert uniform(vendor, vendor)


def test_a_vendor_key_decides() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Tiled(FullAttentionSpec):
        tile: int = 4

        @property
        def uniform_key(self) -> Hashable:
            return "tile", self.tile

    Registry.register(Tiled, FullAttentionManager, FullAttentionSpec)
    assert uniform(Tiled(**ATTENTION), Tiled(**ATTENTION, head_size_v=4))
    assert not uniform(Tiled(**ATTENTION), Tiled(**ATTENTION, tile=8))
    assert not uniform(Tiled(**ATTENTION), full())
    assert not uniform(full(), Tiled(**ATTENTION))


def test_unregistered_specs_are_refused_wherever_they_stand() -> None:
    unknown = EncoderOnlyAttentionSpec(**ATTENTION)
    with pytest.raises(UnregisteredSpecError, match="EncoderOnlyAttentionSpec"):
        uniform(unknown, full())
    with pytest.raises(UnregisteredSpecError, match=r"'layers\.2'.*EncoderOnlyAttentionSpec"):
        uniform(full(), window(), full(), unknown)
    with pytest.raises(UnregisteredSpecError):
        get_uniform_type_specs({"a": full(), "b": unknown.copy_with_new_block_size(32)})


# --- memory


@pytest.mark.parametrize(
    ("spec", "blocks"),
    [
        (full(), 63),
        (full(sliding_window=64), 63),
        (SinkFullAttentionSpec(**ATTENTION, sink_len=32), 65),
        (window(), 13),
        (window(extra_retained_tokens=2), 14),
        (ChunkedLocalAttentionSpec(**ATTENTION, attention_chunk_size=64), 12),
        (ChunkedLocalAttentionSpec(**ATTENTION, attention_chunk_size=72), 14),
        (CrossAttentionSpec(**ATTENTION), 7),
        (EncoderOnlyAttentionSpec(**ATTENTION), 0),
        (mamba(block_size=1000), 1),
        (mamba(block_size=1000, num_speculative_blocks=2), 3),
        (mamba(), 9),
        (mamba(mamba_cache_mode="align"), 3),
        (mamba(mamba_cache_mode="align", num_speculative_blocks=2), 5),
    ],
)
def test_memory_numbers(spec: KVCacheSpec, blocks: int) -> None:
    assert spec.max_memory_usage_bytes(LIMITS) == blocks * spec.page_size_bytes


def test_admission_numbers() -> None:
    chunk = ChunkedLocalAttentionSpec(**ATTENTION, attention_chunk_size=64)
    assert window().max_admission_blocks_per_request(128, 10_000) == 13
    assert window().max_admission_blocks_per_request(128, 100) == 8
    assert chunk.max_admission_blocks_per_request(128, 10_000) == 12
    assert chunk.max_admission_blocks_per_request(128, 100) == 7
    assert full().max_admission_blocks_per_request(128, 10_000) is None
    assert mamba().max_admission_blocks_per_request(128, 10_000) is None


@given(spec=specs(), length=st.integers(1, 5000), more=st.integers(0, 5000), in_flight=st.integers(0, 500))
def test_memory_is_whole_pages_and_never_falls(
    spec: KVCacheSpec, length: int, more: int, in_flight: int
) -> None:
    short = spec.max_memory_usage_bytes(MemoryLimits(length, in_flight))
    long = spec.max_memory_usage_bytes(MemoryLimits(length + more, in_flight))
    assert short % spec.page_size_bytes == 0
    assert short <= long


@given(size=st.integers(1, 100), in_flight=st.integers(0, 100), length=st.integers(1, 1000))
def test_window_memory_is_flat_and_near_that_of_full_attention(
    size: int, in_flight: int, length: int
) -> None:
    chunk = ChunkedLocalAttentionSpec(**ATTENTION, attention_chunk_size=size)
    for spec, slack in ((window(size), 1), (chunk, 0)):
        here = spec.max_memory_usage_bytes(MemoryLimits(length, in_flight))
        everywhere = full().max_memory_usage_bytes(MemoryLimits(length, in_flight))
        assert here <= everywhere + slack * spec.page_size_bytes
        beyond = size + in_flight + 16
        flat = {spec.max_memory_usage_bytes(MemoryLimits(beyond + n, in_flight)) for n in (0, 1, 500)}
        assert len(flat) == 1


@settings(max_examples=300)
@given(
    size=st.integers(1, 50),
    extra=st.integers(0, 10),
    block_size=st.integers(1, 20),
    in_flight=st.integers(1, 40),
    length=st.integers(1, 200),
)
def test_memory_covers_what_a_request_holds(
    size: int, extra: int, block_size: int, in_flight: int, length: int
) -> None:
    """During a step, a request holds the blocks from its first needed token to the last one of the step."""
    sizes: dict[str, Any] = {**ATTENTION, "block_size": block_size}
    for spec in (
        full(block_size=block_size),
        window(size, extra_retained_tokens=extra, block_size=block_size),
        ChunkedLocalAttentionSpec(**sizes, attention_chunk_size=size),
        mamba(block_size=block_size),
        mamba(block_size=block_size, mamba_cache_mode="all"),
    ):
        manager_class = Registry.get_manager_class(spec)
        assert manager_class is not None
        manager = made(manager_class, spec)
        maximum = spec.max_memory_usage_bytes(MemoryLimits(length, in_flight)) // spec.page_size_bytes
        for processed in range(length):
            end = min(processed + in_flight, length)
            held = -(-end // block_size) - manager.get_num_skipped_tokens(processed) // block_size
            assert held <= maximum, (spec, processed)


# --- the composite


def test_composite() -> None:
    layers: dict[str, KVCacheSpec] = {"a": full(), "b": full(head_size=4), "c": MLAAttentionSpec(**ATTENTION)}
    composite = get_uniform_type_specs(layers)
    assert composite is not None
    assert composite.block_size == 16
    assert composite.page_size_bytes == 2048
    assert composite.max_memory_usage_bytes(LIMITS) == 63 * 2048
    layers["d"] = full()
    assert list(composite.kv_cache_specs) == ["a", "b", "c"]
    with pytest.raises(TypeError):
        composite.kv_cache_specs["d"] = full()  # type: ignore[index]


def test_composite_of_windows_takes_the_most_demanding_layer() -> None:
    composite = get_uniform_type_specs({"a": window(), "b": window(num_kv_heads=1)})
    assert composite is not None
    assert composite.max_memory_usage_bytes(LIMITS) == 13 * (1024 + 512)


@pytest.mark.parametrize(
    "layers",
    [
        {},
        {"a": full(), "b": full(block_size=32)},
        {"a": full(), "b": window()},
        {"a": window(), "b": window(32)},
    ],
)
def test_layers_of_several_types_have_no_composite(layers: dict[str, KVCacheSpec]) -> None:
    assert not is_uniform_type(layers)
    assert get_uniform_type_specs(layers) is None


def test_composite_is_a_value() -> None:
    layers = {"a": full(), "b": full(head_size=4)}
    composite = UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs=layers)
    for twin in (
        UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs=dict(reversed(layers.items()))),
        pickle.loads(pickle.dumps(composite)),
        copy.copy(composite),
        copy.deepcopy(composite),
    ):
        assert twin == composite
        assert hash(twin) == hash(composite)
    assert composite != UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"a": full()})
    assert composite.merge([composite, composite]) == composite
    assert "head_size=4" in repr(composite)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({}, "empty"),
        (None, "kv_cache_specs"),
        ({"a": full(), "b": full(block_size=32)}, "'b' has block_size 32"),
        ({"a": 3}, "'a'"),
        ({"a": UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"b": full()})}, "'a'"),
    ],
)
def test_impossible_composites(layers: Any, message: str) -> None:
    with pytest.raises(InvalidSpecError, match=f"UniformTypeKVCacheSpecs.*{message}"):
        UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs=layers)


# --- subclassing


def test_a_direct_subclass_must_say_its_size() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Bare(KVCacheSpec):
        pass

    bare = Bare(block_size=16)
    with pytest.raises(NotImplementedError, match="Bare must define page_size_bytes"):
        _ = bare.page_size_bytes
    with pytest.raises(NotImplementedError, match="Bare must define unpadded_page_size_bytes"):
        _ = bare.unpadded_page_size_bytes
    with pytest.raises(NotImplementedError, match="Bare must define max_memory_usage_bytes"):
        bare.max_memory_usage_bytes(LIMITS)


def test_a_vendor_checks_its_fields_before_the_page_is_computed() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Tiled(AttentionSpec):
        tile: int

        def check_fields(self) -> None:
            super().check_fields()
            if self.tile < 1:
                raise InvalidSpecError(f"tile {self.tile}")

        @property
        def unpadded_page_size_bytes(self) -> int:
            return super().unpadded_page_size_bytes // self.tile

    assert Tiled(**ATTENTION, tile=2, alignment=500).page_size_bytes == 1000
    with pytest.raises(InvalidSpecError, match="tile 0"):
        Tiled(**ATTENTION, tile=0, page_size_padded=100)
