"""Laws of specs on events made by hand: correct events break no law, wrong ones do."""

from types import SimpleNamespace
from typing import Any

import pytest

import kvref.specs
from kvref.specs import KVCacheSpec, UniformTypeKVCacheSpecs
from kvref_conformance.laws import LawBroken
from kvref_conformance.laws.spec import (
    copy_consistent,
    illegal_refused,
    illegalities,
    merge_refuses_unequal,
    pickle_round_trip,
)
from kvref_conformance.laws.spec_groups import (
    merge_keeps_class,
    merge_order_free,
    uniform_separates,
    uniform_symmetric,
    uniform_total,
)
from kvref_conformance.laws.spec_pages import (
    alignment_honoured,
    build_total,
    content_bytes,
    item_bytes,
    memory_monotone,
    memory_window_flat,
    page_covers_content,
    page_no_waste,
    page_positive,
    page_scaling,
)
from kvref_conformance.processes.host import parts
from kvref_strategies.specs import KNOWN_KINDS

Event = dict[str, Any]
DENSE = {"block_size": 16, "num_kv_heads": 2, "head_size": 8, "dtype": "torch.float16"}


def spec(cls: str = "FullAttentionSpec", **fields: Any) -> dict[str, Any]:
    return {"class": cls, "fields": {**DENSE, **fields}}


def facts(built: dict[str, Any], page: Any, *ancestors: str, **more: Any) -> dict[str, Any]:
    mro = [built["class"], *(ancestors or ("AttentionSpec", "KVCacheSpec"))]
    return {"class": built["class"], "fields": built["fields"], "page_size_bytes": page, "mro": mro, **more}


def event(op: str, value: Any = None, /, **arguments: Any) -> Event:
    outcome = {"error": {"type": "ValueError", "message": "no"}} if value is None else {"value": value}
    return {"op": op, "args": arguments, "outcome": outcome}


def build(page: Any, *ancestors: str, of: dict[str, Any] | None = None, **more: Any) -> Event:
    built = of or spec()
    return event("specs.build", facts(built, page, *ancestors, **more), spec=built)


def facets(law: Any, *events: Event) -> tuple[str, ...]:
    with pytest.raises(LawBroken) as broken:
        law([list(events)])
    return broken.value.facets


@pytest.mark.parametrize(
    ("kind", "name", "judged"),
    [
        ("ValueError", "AcmeSpec", 0),
        ("AssertionError", "AcmeSpec", 0),
        ("KeyError", "AcmeSpec", None),
        ("ValueError", "SlidingWindowSpec", None),
        ("AssertionError", "MambaSpec", None),
    ],
)
def test_a_vendors_class_may_refuse_what_its_device_cannot_do(
    kind: str, name: str, judged: int | None
) -> None:
    refused = event("specs.build", spec=spec(name))
    refused["outcome"]["error"]["type"] = kind
    if judged is None:
        assert facets(build_total, refused) == (kind,)
    else:
        assert build_total([[refused]]) == judged
    assert build_total([[build(1, of=spec(name))]]) == 1


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float16", 2), ("bfloat16", 2), ("float8_e4m3fn", 1), ("uint8", 1), ("float32", 4), ("bool", 1)],
)
def test_item_bytes(dtype: str, size: int) -> None:
    assert item_bytes(f"torch.{dtype}") == size


INT8 = {"enum": "KVQuantMode", "name": "INT8_PER_TOKEN_HEAD"}


@pytest.mark.parametrize(
    ("built", "ancestors", "content"),
    [
        (spec(), (), 2 * 16 * (8 + 8) * 2),
        (spec(head_size_v=None), (), 2 * 16 * (8 + 8) * 2),
        (spec(head_size_v=4), (), 2 * 16 * (8 + 4) * 2),
        (spec(state_content_bytes=40), (), 2 * 16 * 40),
        (spec(num_head_slots=1), (), 16 * (8 + 8) * 2),
        (spec(dtype="torch.int8", kv_quant_mode=INT8), (), 2 * 16 * (8 + 8 + 2 * 4)),
        (spec(tokens_per_state=4), (), 2 * 4 * (8 + 8) * 2),
        (spec(tokens_per_state={"fraction": [1, 4]}), (), 2 * 64 * (8 + 8) * 2),
        # some releases have no head_size_v for windowed latent attention
        (spec("SlidingWindowMLASpec", compress_ratio=4), ("AttentionSpec",), 2 * 4 * 8 * 2),
        (spec(shapes=[[4, 8], [2]], dtypes=["torch.float16", "torch.float32"]), (), 4 * 8 * 2 + 2 * 4),
        # kvref does not know how these classes pack their values
        (spec(kv_quant_mode={"enum": "KVQuantMode", "name": "NVFP4"}), (), None),
        (spec(kv_quant_mode="acme"), (), None),
        ({"class": "HotSpec", "fields": {"block_size": 16, "page_size": 64}}, ("KVCacheSpec",), None),
    ],
)
def test_content(built: dict[str, Any], ancestors: tuple[str, ...], content: int | None) -> None:
    assert content_bytes(facts(built, 1, *ancestors)) == content


def test_page_covers_content() -> None:
    assert page_covers_content([[build(1024), build(1024, unpadded_page_size_bytes=1024)]]) == 2
    assert facets(page_covers_content, build(1023)) == ("content",)
    assert facets(page_covers_content, build(2048, unpadded_page_size_bytes=2049)) == ("unpadded",)


@pytest.mark.parametrize("scaling", ["constant", "compressed", "packed"])
def test_what_a_page_holds_may_be_declared_to_be_another_thing(scaling: str) -> None:
    declared = {**spec(), "declared": {"page_scaling": scaling}}
    assert page_covers_content([[build(64, of=declared)]]) == 0
    assert facets(page_covers_content, build(64, of=declared, unpadded_page_size_bytes=65)) == ("unpadded",)


@pytest.mark.parametrize("page", [0, -512, 1024.0, True, "1024"])
def test_a_page_is_a_positive_int(page: Any) -> None:
    assert page_positive([[build(1024)]]) == 1
    assert facets(page_positive, build(page)) == ("",)


@pytest.mark.parametrize(
    ("declared", "kind", "small", "large", "right"),
    [
        (None, "AttentionSpec", 512, 1024, True),
        (None, "AttentionSpec", 512, 1023, False),
        (None, "MambaSpec", 64, 64, True),
        (None, "MambaSpec", 64, 128, False),
        (None, "UnheardOfSpec", 64, 65, True),
        (None, "UnheardOfSpec", 65, 64, False),
        ("constant", "AttentionSpec", 512, 512, True),
        ("constant", "AttentionSpec", 512, 1024, False),
        ("linear", "MambaSpec", 64, 128, True),
        ("packed", "UnheardOfSpec", 64, 128, True),
        ("packed", "UnheardOfSpec", 64, 127, False),
        ("compressed", "AttentionSpec", 512, 512, True),
        ("compressed", "AttentionSpec", 512, 1024, True),
        ("compressed", "AttentionSpec", 512, 1025, False),
        ("compressed", "AttentionSpec", 512, 256, False),
    ],
)
def test_page_scaling(declared: str | None, kind: str, small: int, large: int, right: bool) -> None:
    extra = {"declared": {"page_scaling": declared}} if declared else {}
    events = [
        build(large, kind, of={**spec(block_size=32), **extra}),
        build(small, kind, of={**spec(), **extra}),
    ]
    if right:
        assert page_scaling([events]) == 1
    else:
        with pytest.raises(LawBroken):
            page_scaling([events])


def test_padding_and_alignment_do_not_scale() -> None:
    for field in ("page_size_padded", "alignment"):
        padded = [spec(block_size=size, **{field: 4096}) for size in (16, 32)]
        assert page_scaling([[build(4096, of=one) for one in padded]]) == 0
        told = [
            build(4096, of=one, unpadded_page_size_bytes=one["fields"]["block_size"] * 64) for one in padded
        ]
        assert page_scaling([told]) == 1
        told[0]["outcome"]["value"]["unpadded_page_size_bytes"] += 1
        assert facets(page_scaling, *told) == ("linear",)


def memory(length: int, value: Any, in_flight: int = 16) -> Event:
    return event("specs.max_memory", value, max_model_len=length, max_in_flight_tokens=in_flight)


def test_memory_grows_in_pages() -> None:
    assert memory_monotone([[build(64), memory(20, 128), memory(1, 64), memory(2, 64)]]) == 3
    assert facets(memory_monotone, build(64), memory(1, 128), memory(20, 64)) == ("falls",)
    assert facets(memory_monotone, build(64), memory(1, 63), memory(20, 64)) == ("pages",)


def test_memory_behind_a_window_is_flat() -> None:
    window = build(64, "SlidingWindowSpec", of=spec("VendorSpec", sliding_window=16, extra_retained_tokens=2))
    # Memory stops growing at 50 tokens: window 16, retained 2, in flight 16, and one block of 16.
    assert memory_window_flat([[window, memory(49, 256), memory(50, 320), memory(5000, 320)]]) == 3
    assert facets(memory_window_flat, window, memory(50, 256), memory(5000, 320)) == ("flat",)
    assert facets(memory_window_flat, window, memory(16, 192), memory(17, 192)) == ("full",)
    assert memory_window_flat([[build(64), memory(50, 256), memory(5000, 20032)]]) == 0


def test_what_some_can_mean_is_legal() -> None:
    for fields in (
        {"sliding_window": -1},
        {"sliding_window": None},
        {"attention_chunk_size": 0},
        {"head_size_v": 0},
        {"head_size": 0},
        {"num_speculative_blocks": 0},
        {"tokens_per_state": 16},
        {"tokens_per_state": -1},
        {"tokens_per_state": {"fraction": [1, 4]}},
        {"shapes": [[0]], "dtypes": ["torch.float16"]},
        {"page_size_padded": 1024},
    ):
        assert illegalities({**DENSE, **fields}, 1024) == []


def test_a_spec_that_nobody_can_mean_is_refused() -> None:
    half = spec(page_size_padded=512)
    refused = event("specs.build", None, spec=half)
    assert illegal_refused([[build(1024), refused]]) == 1
    assert facets(illegal_refused, build(1024), build(512, of=half)) == ("",)
    # Only the spec without this padding shows that the padding is too small.
    assert illegal_refused([[build(512, of=half)]]) == 0
    assert illegal_refused([[build(1024), build(512, of=spec(page_size_padded=512, head_size=4))]]) == 0


def test_a_pickle_has_every_field() -> None:
    pickled = [build(1024), event("specs.pickled", "...", spec=spec())]
    for restored, equal, wrong in (
        (facts(spec(), 1024), True, None),
        (facts(spec(), 1024), False, ("==",)),
        (facts(spec(dtype="torch.float32"), 2048), False, ("dtype",)),
        (facts(spec(), 2048), True, ("page_size_bytes",)),
    ):
        unpickled = event("specs.unpickled", {"facts": restored, "equal": equal})
        if wrong is None:
            assert pickle_round_trip([pickled, [unpickled]]) == 1
        else:
            with pytest.raises(LawBroken) as broken:
                pickle_round_trip([pickled, [unpickled]])
            assert broken.value.facets == wrong


FULL = spec(sliding_window=None)
WINDOW = spec(sliding_window=64)
VENDOR = spec("VendorSpec", sliding_window=None)
OLD_VENDOR = spec("VendorSpec", block_size=32)


def merges(one: Any, other: Any, *specs: dict[str, Any]) -> list[Event]:
    built = [
        build(1024, *(("FullAttentionSpec",) if s["class"] == "VendorSpec" else ()), of=s) for s in specs
    ]
    return [
        *built,
        event("specs.merge", one and facts(one, 1024, "FullAttentionSpec"), specs=list(specs)),
        event("specs.merge", other and facts(other, 1024, "FullAttentionSpec"), specs=list(specs[::-1])),
    ]


def test_merge_order_free() -> None:
    assert merge_order_free([merges(WINDOW, WINDOW, FULL, WINDOW)]) == 1
    assert merge_order_free([merges(None, None, FULL, WINDOW)]) == 1
    assert facets(merge_order_free, *merges(WINDOW, FULL, FULL, WINDOW)) == ("sliding_window",)
    assert facets(merge_order_free, *merges(None, WINDOW, FULL, WINDOW)) == ("refused",)
    assert facets(merge_order_free, *merges(FULL, VENDOR, FULL, VENDOR)) == (
        "FullAttentionSpec and VendorSpec",
    )
    # VENDOR and OLD_VENDOR must not merge at all, but that is for spec.merge-refuses-unequal.
    assert merge_order_free([merges(VENDOR, OLD_VENDOR, VENDOR, OLD_VENDOR)]) == 1


def test_merge_keeps_class() -> None:
    assert merge_keeps_class([merges(None, None, FULL, VENDOR)]) == 2
    assert merge_keeps_class([merges(VENDOR, VENDOR, FULL, VENDOR)]) == 2
    assert merge_keeps_class([merges(FULL, FULL, FULL, WINDOW)]) == 0
    assert facets(merge_keeps_class, *merges(VENDOR, FULL, FULL, VENDOR)) == ("VendorSpec",)


def uniform(*answers: Any) -> list[Event]:
    return [
        event("specs.uniform", a, specs=[FULL, VENDOR][:: 1 - 2 * (n % 2)]) for n, a in enumerate(answers)
    ]


def test_uniformity() -> None:
    unknown = event("registry.lookup", {"manager": None, "base": None}, spec=VENDOR)
    known = event("registry.lookup", {"manager": "FullManager", "base": None}, spec=VENDOR)
    assert uniform_symmetric([uniform(False, False)]) == uniform_symmetric([uniform(True, None)]) == 1
    assert facets(uniform_symmetric, *uniform(True, False)) == ("FullAttentionSpec and VendorSpec",)
    assert uniform_total([uniform(True, False)]) == 2
    assert uniform_total([[unknown, *uniform(None, None)]]) == 2
    assert facets(uniform_total, known, *uniform(False, None)) == ("FullAttentionSpec and VendorSpec",)
    assert facets(uniform_total, *uniform(1)) == ("FullAttentionSpec and VendorSpec",)


def asked(answer: bool, cls: str, *fields: dict[str, Any]) -> list[Event]:
    specs = [spec(cls, **each) for each in fields]
    return [*(build(1024, of=one) for one in specs), event("specs.uniform", answer, specs=specs)]


def test_uniform_specs_keep_the_same_blocks() -> None:
    other_windows = {"sliding_window": 64}, {"sliding_window": 16}
    assert uniform_separates([asked(False, "SlidingWindowSpec", *other_windows)]) == 1
    assert uniform_separates([asked(True, "FullAttentionSpec", *other_windows)]) == 0
    assert uniform_separates([asked(True, "SlidingWindowSpec", *[{"sliding_window": 64}] * 2)]) == 0
    assert facets(uniform_separates, *asked(True, "SlidingWindowSpec", *other_windows)) == ("sliding_window",)
    sizes = {"block_size": 16}, {"block_size": 32}
    assert facets(uniform_separates, *asked(True, "FullAttentionSpec", *sizes)) == ("block_size",)


def test_a_page_is_not_larger_than_its_content() -> None:
    content = 16 * 2 * (8 + 8) * 2
    assert page_no_waste([[build(content)]]) == 1
    assert facets(page_no_waste, build(content + 1)) == ("",)
    for fields in ({"alignment": 768}, {"page_size_padded": 1536}):
        assert page_no_waste([[build(1536, of=spec(**fields))]]) == 0
    assert page_no_waste([[build(content + 1, of=spec("AcmeSpec"))]]) == 0  # unknown page format


def test_aligned_pages() -> None:
    aligned = spec(alignment=576)
    assert alignment_honoured([[build(1024)]]) == 0
    assert alignment_honoured([[build(1152, of=aligned)]]) == 1
    assert facets(alignment_honoured, build(1024, of=aligned)) == ("",)


def test_each_merge_of_an_example_is_judged() -> None:
    small, large = spec(), spec(head_size=16)
    built = [build(1024, of=small), build(2048, of=large)]
    refused = event("specs.merge", specs=[small, large])
    accepted = event("specs.merge", facts(small, 1024), specs=[large, small])
    assert merge_refuses_unequal([[*built, refused, refused]]) == 2
    assert facets(merge_refuses_unequal, *built, refused, accepted) == ("head_size",)


def test_a_copy_is_compared_with_the_last_two_specs_built() -> None:
    padded, fresh = spec(page_size_padded=4096), spec(page_size_padded=4096, block_size=32)
    builds = [build(1024), build(4096, of=padded), build(4096, of=fresh)]
    good = event("specs.copy", facts(fresh, 4096), spec=padded, block_size=32)
    lost = event("specs.copy", facts(spec(block_size=32), 2048), spec=padded, block_size=32)
    assert copy_consistent([[*builds[:2], good, builds[2]]]) == 1
    assert "page_size_padded" in facets(copy_consistent, *builds[:2], lost, builds[2])


def test_an_operation_that_a_target_lacks_is_not_among_its_parts() -> None:
    specs = SimpleNamespace(classes=list, build=dict, merge=dict, own_helper=dict)
    target: Any = SimpleNamespace(specs=specs, registry=None)
    assert parts(target) == ["specs", "specs.classes", "specs.build", "specs.merge"]


def test_known_kinds_are_those_of_the_reference() -> None:
    """Each spec class for layers derives from exactly one known kind, unless kinds derive from it."""
    kinds = [getattr(kvref.specs, name) for name in KNOWN_KINDS]
    for name in kvref.specs.__all__:
        spec_class = getattr(kvref.specs, name)
        if isinstance(spec_class, type) and issubclass(spec_class, KVCacheSpec):
            abstract = any(issubclass(kind, spec_class) and kind is not spec_class for kind in kinds)
            of_kinds = [kind for kind in kinds if issubclass(spec_class, kind)]
            assert len(of_kinds) == 1 or abstract or spec_class is UniformTypeKVCacheSpecs, name
