from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from kvref.cache import KVCacheManager
from kvref.errors import InvalidConfigError, UnregisteredSpecError
from kvref.managers import FullAttentionManager, SinkFullAttentionManager
from kvref.planning import (
    BlockSizeWarning,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    get_kv_cache_configs,
    get_kv_cache_groups,
    get_kv_cache_report,
    get_manager_for_kv_cache_spec,
    resolve_kv_cache_block_sizes,
    unify_kv_cache_spec_page_size,
)
from kvref.pool import BlockPool
from kvref.registry import KVCacheSpecRegistry
from kvref.request import Request
from kvref.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MemoryLimits,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

LIMITS = MemoryLimits(max_model_len=100, max_in_flight_tokens=20, max_encoder_tokens=30)

pytestmark = pytest.mark.filterwarnings("ignore::kvref.planning.BlockSizeWarning")


def attention(heads: int = 1, block_size: int = 16) -> dict[str, Any]:
    return {"block_size": block_size, "num_kv_heads": heads, "head_size": 8, "dtype": torch.float16}


def full(heads: int = 1, **more: Any) -> KVCacheSpec:
    return FullAttentionSpec(**attention(heads), **more)


def window(heads: int = 1, size: int = 40) -> KVCacheSpec:
    return SlidingWindowSpec(**attention(heads), sliding_window=size)


def chunk(heads: int = 1) -> KVCacheSpec:
    return ChunkedLocalAttentionSpec(**attention(heads), attention_chunk_size=64)


def mamba(size: int = 8, mode: str = "align", **more: Any) -> KVCacheSpec:
    return MambaSpec(block_size=16, shapes=((size,),), dtypes=(torch.float32,), mamba_cache_mode=mode, **more)


def sink(length: int) -> KVCacheSpec:
    return SinkFullAttentionSpec(**attention(), sink_len=length)


def named(specs: str, **kinds: KVCacheSpec) -> dict[str, KVCacheSpec]:
    """Layers with the given names; the first letter of a name chooses the kind."""
    return {name: kinds[name[0]] for name in specs.split()}


def manager_of(spec: KVCacheSpec) -> Any:
    engine: dict[str, Any] = {"kv_cache_group_id": 0, "scheduler_block_size": 16, "use_eagle": False}
    pool = BlockPool(9, True, 16)
    return get_manager_for_kv_cache_spec(spec, LIMITS, block_pool=pool, enable_caching=True, **engine)


def layers(groups: list[KVCacheGroupSpec]) -> list[list[str]]:
    return [list(group.layer_names) for group in groups]


def test_no_layers_no_groups() -> None:
    assert get_kv_cache_groups({}) == []


def test_layers_that_merge_are_one_group() -> None:
    specs = {"a": full(), "b": full(sliding_window=8), "c": full()}
    assert get_kv_cache_groups(specs) == [KVCacheGroupSpec("abc", full(sliding_window=8))]
    assert get_kv_cache_groups({"a": window()}) == [KVCacheGroupSpec("a", window())]


def test_layers_of_one_type_are_one_group_with_pages_of_their_own() -> None:
    specs = {"a": full(1), "b": full(2), "c": MLAAttentionSpec(**attention())}
    [group] = get_kv_cache_groups(specs)
    assert isinstance(group.kv_cache_spec, UniformTypeKVCacheSpecs)
    assert group.kv_cache_spec.kv_cache_specs == specs
    assert len(get_kv_cache_groups({"a": window(size=8), "b": window(size=9)})) == 2


def test_layers_of_one_type_with_different_managers_are_apart() -> None:
    groups = get_kv_cache_groups({"a": full(), "b": sink(32), "c": full()})
    assert sorted(layers(groups)) == [["a", "c"], ["b"]] or sorted(layers(groups)) == [["a"], ["b"], ["c"]]
    managers = {type(manager_of(group.kv_cache_spec)) for group in groups}
    assert managers == {FullAttentionManager, SinkFullAttentionManager}


def test_kinds_are_dealt_out_to_groups_of_one_size() -> None:
    specs = named("f0 s0 s1 f1 s2 s3", f=full(), s=window())
    assert layers(get_kv_cache_groups(specs)) == [["f0", "f1"], ["s0", "s2"], ["s1", "s3"]]


@pytest.mark.parametrize(("many", "few", "sizes"), [(13, 12, [13, 12]), (6, 4, [4, 3, 3]), (5, 4, [5, 4])])
def test_a_few_places_may_stay_empty(many: int, few: int, sizes: list[int]) -> None:
    specs = {f"f{place}": full() for place in range(many)} | {f"s{place}": window() for place in range(few)}
    groups = get_kv_cache_groups(specs)
    assert sorted(map(len, layers(groups)), reverse=True) == sizes
    assert max(map(len, layers(groups))) == sizes[0]


def test_pages_are_made_equal_by_larger_blocks_or_padding() -> None:
    unified = unify_kv_cache_spec_page_size({"a": full(1), "b": full(2), "c": mamba(8), "d": full(3)})
    assert {spec.page_size_bytes for spec in unified.values()} == {full(3).page_size_bytes}
    assert [spec.block_size for spec in unified.values()] == [48, 16, 16, 16]
    padded = mamba(8, page_size_padded=full(2).page_size_bytes)
    unified = unify_kv_cache_spec_page_size({"a": full(2), "b": padded, "c": full(4)})
    assert [(spec.block_size, spec.page_size_bytes) for spec in unified.values()] == [
        (32, full(4).page_size_bytes),
        (16, full(4).page_size_bytes),
        (16, full(4).page_size_bytes),
    ]
    assert unify_kv_cache_spec_page_size({}) == {}
    assert unify_kv_cache_spec_page_size({"a": full()}) == {"a": full()}


@pytest.mark.filterwarnings("error")
def test_much_coarser_hits_are_said() -> None:
    unify_kv_cache_spec_page_size({"a": full(1), "b": full(2)})
    with pytest.warns(BlockSizeWarning, match="multiples of 128 tokens"):
        unify_kv_cache_spec_page_size({"a": full(1), "b": full(8)})


def test_unregistered_specs_are_refused_first() -> None:
    specs = {"a": full(), "b": EncoderOnlyAttentionSpec(**attention())}
    with pytest.raises(UnregisteredSpecError, match="'b'"):
        get_kv_cache_groups(specs)
    with pytest.raises(UnregisteredSpecError, match="EncoderOnlyAttentionSpec"):
        manager_of(specs["b"])
    assert len(get_kv_cache_groups({"a": full()})) == 1


def test_substitutes_are_planned_with() -> None:
    @dataclass(frozen=True, kw_only=True)
    class AcmeSpec(FullAttentionSpec):
        tile: int = 4

    with KVCacheSpecRegistry.snapshot():
        KVCacheSpecRegistry.override(FullAttentionSpec, substitute=AcmeSpec)
        [group] = get_kv_cache_groups({"a": full()})
        assert isinstance(group.kv_cache_spec, AcmeSpec)


def test_hybrids_can_be_disabled() -> None:
    specs = {"a": full(), "b": window(size=8), "c": full()}
    [group] = get_kv_cache_groups(specs, disable_hybrid_kv_cache_manager=True)
    assert group == KVCacheGroupSpec("abc", full(sliding_window=8))
    assert len(get_kv_cache_groups({**specs, "d": chunk(), "e": window(size=9)}, True)) == 1


def test_the_manager_of_a_composite_is_its_layers() -> None:
    composite = UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"a": full(1), "b": full(2)})
    assert manager_of(composite).kv_cache_spec == full(1)
    sinks = UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"a": sink(16), "b": sink(48)})
    manager = manager_of(sinks)
    assert isinstance(manager, SinkFullAttentionManager)
    assert manager.num_sink_blocks == 3


def test_tensors_are_shared_across_groups() -> None:
    specs = named("f0 s0 s1 f1 s2 s3", f=full(), s=window())
    page = full().page_size_bytes
    [config] = get_kv_cache_configs([specs], [101 * page], LIMITS)
    assert config.num_blocks == 50
    assert config.kv_cache_tensors == (
        KVCacheTensor(50 * page, ("f0", "s0", "s1")),
        KVCacheTensor(50 * page, ("f1", "s2", "s3")),
    )


def test_layers_of_one_group_share_nothing() -> None:
    [config] = get_kv_cache_configs([{"a": full(1), "b": full(2)}], [100 * full(3).page_size_bytes], LIMITS)
    sizes = {tensor.shared_by: tensor.size for tensor in config.kv_cache_tensors}
    assert sizes == {("a",): 100 * full(1).page_size_bytes, ("b",): 100 * full(2).page_size_bytes}


def test_workers_agree() -> None:
    specs = named("f0 s0 s1 f1 s2 s3", f=full(), s=window())
    page = full().page_size_bytes
    ranks = [named("f0 s0 s1", f=full(), s=window()), named("f1 s2 s3", f=full(), s=window())]
    whole, again = get_kv_cache_configs([specs, specs], [200 * page, 100 * page], LIMITS)
    assert whole == again
    first, second = get_kv_cache_configs(ranks, [100 * page, 90 * page], LIMITS)
    assert first.num_blocks == second.num_blocks == 90
    assert [list(group.layer_names) for group in first.kv_cache_groups] == [["f0"], ["s0"], ["s1"]]
    assert [list(group.layer_names) for group in second.kv_cache_groups] == [["f1"], ["s2"], ["s3"]]


def test_a_worker_may_lack_a_group_or_all() -> None:
    page = full().page_size_bytes
    first, second, third = get_kv_cache_configs(
        [{"a": full()}, {"b": full(2)}, {}], [80 * page, 80 * page, 0], LIMITS
    )
    assert [config.num_blocks for config in (first, second, third)] == [40, 40, 40]
    assert [list(config.kv_cache_groups[0].layer_names) for config in (first, second, third)] == [
        ["a"],
        ["b"],
        [],
    ]
    assert third.kv_cache_tensors == ()
    [nothing] = get_kv_cache_configs([{}], [0], LIMITS)
    assert nothing == KVCacheConfig(1, [], [])


def test_memory_for_one_request_is_enough() -> None:
    page = full().page_size_bytes
    with pytest.raises(InvalidConfigError):
        get_kv_cache_configs([{"a": full()}], [8 * page - 1], LIMITS)
    [config] = get_kv_cache_configs([{"a": full()}], [8 * page], LIMITS)
    assert config.num_blocks == 8
    assert get_kv_cache_configs([{"a": full()}], [0], LIMITS, num_gpu_blocks_override=9)[0].num_blocks == 9


def test_block_sizes() -> None:
    groups = get_kv_cache_groups({"a": full(1), "b": window(2), "c": window(2, 50)})
    assert resolve_kv_cache_block_sizes(groups) == (32, 16)
    assert resolve_kv_cache_block_sizes(groups, enable_caching=False) == (32, 32)


def test_report() -> None:
    page = full().page_size_bytes
    [config] = get_kv_cache_configs([{"a": full()}], [15 * page], LIMITS)
    report = get_kv_cache_report(config, LIMITS)
    assert (report.max_concurrency, report.num_tokens) == (2.0, 200)
    [config] = get_kv_cache_configs([{"a": sink(32)}], [17 * page], LIMITS)
    report = get_kv_cache_report(config, LIMITS)
    assert (report.max_concurrency, report.num_tokens) == (2.0, 200)
    nothing = get_kv_cache_report(KVCacheConfig(1, [], []), LIMITS)
    assert (nothing.max_concurrency, nothing.num_tokens) == (float("inf"), 0)


KINDS = [
    full(1),
    full(2),
    full(3),
    full(1, sliding_window=8),
    full(1, sliding_window=9),
    window(1),
    window(2),
]
KINDS += [window(1, 50), chunk(), mamba(8), mamba(300), mamba(8, "all"), sink(32)]
KINDS += [MLAAttentionSpec(**attention()), CrossAttentionSpec(**attention())]
LAYERS = st.lists(st.sampled_from(KINDS), min_size=1, max_size=8).map(
    lambda kinds: {f"layer.{place}": spec for place, spec in enumerate(kinds)}
)


def shape(configs: list[KVCacheConfig]) -> object:
    """A plan without the names and the order of its layers."""
    [config] = configs
    groups = Counter(
        (
            len(group.layer_names),
            group.spec_of(name),
            type(manager_of(group.kv_cache_spec)),
        )
        for group in config.kv_cache_groups
        for name in group.layer_names[:1]
    )
    sizes = Counter((tensor.size, len(tensor.shared_by)) for tensor in config.kv_cache_tensors)
    uniform = isinstance(config.kv_cache_groups[0].kv_cache_spec, UniformTypeKVCacheSpecs)
    return config.num_blocks, sum(size * n for (size, _), n in sizes.items()), None if uniform else groups


def of_each_layer(config: KVCacheConfig) -> Mapping[str, object]:
    return {
        name: (group.spec_of(name), type(manager_of(group.kv_cache_spec)))
        for group in config.kv_cache_groups
        for name in group.layer_names
    }


@given(specs=LAYERS, data=st.data())
@settings(max_examples=150, deadline=None)
def test_plans_hold_together(specs: dict[str, KVCacheSpec], data: st.DataObject) -> None:
    before = dict(specs)
    memory = 400_000
    [config] = get_kv_cache_configs([specs], [memory], LIMITS)
    assert specs == before
    names = [name for group in config.kv_cache_groups for name in group.layer_names]
    assert sorted(names) == sorted(specs)
    assert sum(tensor.size for tensor in config.kv_cache_tensors) <= memory
    for tensor in config.kv_cache_tensors:
        for group in config.kv_cache_groups:
            assert len(set(tensor.shared_by) & set(group.layer_names)) <= 1
    scheduler, hashes = resolve_kv_cache_block_sizes(config.kv_cache_groups)
    for group in config.kv_cache_groups:
        assert scheduler % group.kv_cache_spec.block_size == group.kv_cache_spec.block_size % hashes == 0
        for name in group.layer_names:
            kept, was = group.spec_of(name), specs[name]
            assert type(kept) is type(was)
            assert (
                kept.page_size_bytes >= was.page_size_bytes * kept.block_size // was.block_size
                or isinstance(kept, MambaSpec)
            )
    order = data.draw(st.permutations(sorted(specs)))
    other = get_kv_cache_configs([{name: specs[name] for name in order}], [memory], LIMITS)
    assert shape(other) == shape([config])
    assert of_each_layer(other[0]) == of_each_layer(config)
    assert get_kv_cache_report(other[0], LIMITS) == get_kv_cache_report(config, LIMITS)


@given(specs=LAYERS)
@settings(max_examples=60, deadline=None)
def test_what_is_planned_as_enough_is_enough(specs: dict[str, KVCacheSpec]) -> None:
    """The fewest blocks that the planner accepts let one request of the longest length start and complete."""
    groups = get_kv_cache_groups(specs)
    fewest = next(blocks for blocks in range(1, 400) if accepted(specs, blocks))
    [config] = get_kv_cache_configs([specs], [0], LIMITS, num_gpu_blocks_override=fewest)
    scheduler, hashes = resolve_kv_cache_block_sizes(groups, enable_caching=False)
    manager = KVCacheManager(
        config,
        LIMITS.max_model_len,
        scheduler_block_size=scheduler,
        hash_block_size=hashes,
        enable_caching=False,
        max_in_flight_tokens=LIMITS.max_in_flight_tokens,
        max_encoder_tokens=LIMITS.max_encoder_tokens,
    )
    request = Request("a", range(LIMITS.max_model_len))
    for start in range(0, LIMITS.max_model_len, LIMITS.max_in_flight_tokens):
        count = min(LIMITS.max_in_flight_tokens, LIMITS.max_model_len - start)
        encoder = 0 if start else LIMITS.max_encoder_tokens
        added = manager.allocate_slots(
            request, count, num_encoder_tokens=encoder, full_sequence_must_fit=not start
        )
        assert added is not None
        request.num_computed_tokens += count


def accepted(specs: dict[str, KVCacheSpec], blocks: int) -> bool:
    try:
        get_kv_cache_configs([specs], [0], LIMITS, num_gpu_blocks_override=blocks)
    except InvalidConfigError:
        return False
    return True
