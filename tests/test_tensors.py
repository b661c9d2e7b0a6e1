"""The memory of caches, the views of layers, and the canonical view, on the CPU."""

import io
import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_layout import BLOCKS, config_of, full, states, window

from kvref.canonical import register_kv_caches
from kvref.errors import InvalidConfigError, OutOfCacheMemoryError
from kvref.layout import KVCacheLayout, place_kv_caches
from kvref.planning import (
    KVCacheConfig,
    KVCacheGroupSpec,
    get_kv_cache_config_from_groups,
    get_kv_cache_groups,
)
from kvref.specs import EncoderOnlyAttentionSpec
from kvref.tensors import (
    KVCaches,
    _free_bytes,
    allocate_kv_cache,
    bind_kv_cache,
    init_kv_cache,
    reshape_kv_cache,
)


def block(caches: KVCaches, layer: str, number: int) -> Any:
    cache = caches.layers[layer]
    return cache[number] if isinstance(cache, torch.Tensor) else [state[number] for state in cache]


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("layout", ["LBNHC", "LHBNC", "BLNHC", "BHLNC"])
def test_layers_see_their_own(layout: str, contiguous: bool) -> None:
    caches = allocate_kv_cache(config_of(full(), full()), "cpu", KVCacheLayout(layout), contiguous=contiguous)
    assert not any(bool(buffer.any()) for buffer in caches.buffers)
    for number, layer in enumerate(("layer.0", "layer.1")):
        for each in range(BLOCKS):
            block(caches, layer, each).fill_(10 * number + each + 1)
    for number, layer in enumerate(("layer.0", "layer.1")):
        for each in range(BLOCKS):
            assert set(block(caches, layer, each).flatten().tolist()) == {10 * number + each + 1}
    assert caches.num_bytes == sum(buffer.numel() for buffer in caches.buffers) == 2 * BLOCKS * 96


def test_layers_that_take_turns() -> None:
    """The two layers use the same bytes for the same block, and other bytes for other blocks."""
    caches = allocate_kv_cache(config_of(full(), states()), "cpu", KVCacheLayout("LKBNHC"))
    first, second = caches.layers["layer.1"]
    assert (first.dtype, first.shape, second.dtype, second.shape) == (
        torch.float32,
        (BLOCKS, 2),
        torch.float16,
        (BLOCKS, 3),
    )
    second[1] = 7
    k_and_v = caches.layers["layer.0"]
    assert isinstance(k_and_v, torch.Tensor)
    assert k_and_v.shape == (2, BLOCKS, 2, 4, 3)
    assert k_and_v[:, 1].count_nonzero() == 3
    assert k_and_v[:, [0, 2]].count_nonzero() == 0


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.uint8, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    cache = allocate_kv_cache(config_of(full(dtype=dtype)), "cpu").layers["layer.0"]
    assert isinstance(cache, torch.Tensor)
    assert cache.dtype is dtype


def test_memory_of_an_odd_size() -> None:
    """In one buffer, single bytes follow half-precision values. So the buffer has an odd number of bytes."""
    byte = full(dtype=torch.uint8, num_kv_heads=1, page_size_padded=25)
    caches = allocate_kv_cache(config_of(full(), byte), "cpu", contiguous=True)
    assert [buffer.numel() for buffer in caches.buffers] == [BLOCKS * (96 + 25)]
    block(caches, "layer.0", 2).fill_(1)
    assert not any(bool(block(caches, "layer.1", number).any()) for number in range(BLOCKS))


def some_bytes(size: int = BLOCKS * 96, **how: Any) -> torch.Tensor:
    return torch.zeros(size, **{"dtype": torch.int8, **how})


@pytest.mark.parametrize(
    ("buffers", "said"),
    [
        ([some_bytes()], "1 buffers are given, but the placement has 2"),
        ([some_bytes()] * 3, "3 buffers are given, but the placement has 2"),
        ([some_bytes(), some_bytes(dtype=torch.uint8)], r"buffer 1 must be torch.int8 .*, not torch.uint8"),
        ([some_bytes(287), some_bytes()], r"buffer 0 must be .* shape \(288,\).* not .* shape \(287,\)"),
        ([some_bytes(289), some_bytes()], r"not torch.int8 of shape \(289,\)"),
        ([some_bytes(), some_bytes().view(BLOCKS, 96)], r"buffer 1 .* not torch.int8 of shape \(3, 96\)"),
        ([some_bytes(2 * 288)[::2], some_bytes()], r"buffer 0 .* strides \(2,\)"),
        ([some_bytes(300)[12:], some_bytes()], r"buffer 0 .* from element 12"),
        ([some_bytes(), some_bytes(device="meta")], r"on 2 devices, not on one: cpu, meta"),
    ],
)
def test_other_memory_than_was_placed(buffers: list[torch.Tensor], said: str) -> None:
    placement = place_kv_caches(config_of(full(), full()))
    with pytest.raises(InvalidConfigError, match=said):
        reshape_kv_cache(placement, buffers)
    assert reshape_kv_cache(placement, [some_bytes(), some_bytes()]).layers.keys() == {"layer.0", "layer.1"}


def test_no_layers_no_memory() -> None:
    caches = allocate_kv_cache(KVCacheConfig(1, [], []), "cpu")
    assert (caches.buffers, caches.layers, caches.num_bytes) == ((), {}, 0)
    assert register_kv_caches(caches).tensors == ()


def test_too_little_memory() -> None:
    config = get_kv_cache_config_from_groups(get_kv_cache_groups({"small": full(), "large": full()}), 1 << 40)
    with pytest.raises(OutOfCacheMemoryError, match=r"layer 'small' on cpu: it needs \d+ bytes, and \d+ are"):
        allocate_kv_cache(config, "cpu")


def test_all_tensors_together_have_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer alone would fit. kvref refuses both before torch allocates anything."""
    config = get_kv_cache_config_from_groups(get_kv_cache_groups({"first": full(), "second": full()}), 3)
    size = 3 * 96
    monkeypatch.setattr("kvref.tensors._free_bytes", lambda device: 2 * size)
    assert allocate_kv_cache(config, "cpu").num_bytes == 2 * size
    monkeypatch.setattr("kvref.tensors._free_bytes", lambda device: 2 * size - 1)
    monkeypatch.setattr(torch, "zeros", None)
    with pytest.raises(
        OutOfCacheMemoryError, match=f"'second' on cpu: it needs {size} .* {size - 1} are free after"
    ):
        allocate_kv_cache(config, "cpu")
    with pytest.raises(OutOfCacheMemoryError, match="layer 'first', 'second' on cpu"):
        allocate_kv_cache(config, "cpu", contiguous=True)


def test_free_memory_is_what_can_be_had() -> None:
    """Memory that holds only cached files counts as free."""
    page = os.sysconf("SC_PAGE_SIZE")
    free = _free_bytes(torch.device("cpu"))
    assert os.sysconf("SC_AVPHYS_PAGES") * page // 2 < free <= os.sysconf("SC_PHYS_PAGES") * page


@pytest.mark.parametrize("told", [None, "MemTotal: 5 kB\n"])
def test_free_memory_where_nobody_tells(monkeypatch: pytest.MonkeyPatch, told: str | None) -> None:
    def opened(path: str, **how: str) -> io.StringIO:
        assert path == "/proc/meminfo"
        if told is None:
            raise FileNotFoundError(path)
        return io.StringIO(told)

    monkeypatch.setattr("kvref.tensors.open", opened, raising=False)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert _free_bytes(torch.device("cpu")) == total


def test_a_device_that_is_not_there_is_another_mistake() -> None:
    with pytest.raises((RuntimeError, AssertionError), match=r"(?i)cuda|xpu"):
        allocate_kv_cache(config_of(full()), "xpu")


def encoder_config(runner_only: tuple[str, ...]) -> KVCacheConfig:
    """A group that has memory, and a group of an encoder layer, which needs none."""
    encoder = EncoderOnlyAttentionSpec(block_size=4, num_kv_heads=2, head_size=3, dtype=torch.float16)
    config = config_of(full())
    groups = [*config.kv_cache_groups, KVCacheGroupSpec(["encoder"], encoder)]
    return KVCacheConfig(BLOCKS, config.kv_cache_tensors, groups, runner_only)


def test_every_layer_is_bound_but_the_runners_own() -> None:
    model = {"layer.0": SimpleNamespace(), "encoder": SimpleNamespace(), "other": SimpleNamespace()}
    caches = init_kv_cache(model, encoder_config(("encoder",)), "cpu")
    assert model["layer.0"].kv_cache is caches.layers["layer.0"]
    assert not hasattr(model["encoder"], "kv_cache")
    assert register_kv_caches(caches).group_data_refs[1] == ()
    with pytest.raises(InvalidConfigError, match="layers encoder have a tensor and no group"):
        encoder_config(())
    with pytest.raises(InvalidConfigError, match="names layers that are in no group: ghost"):
        encoder_config(("encoder", "ghost"))


def test_binding_is_exact() -> None:
    caches = allocate_kv_cache(config_of(full(), full()), "cpu")
    with pytest.raises(InvalidConfigError, match=r"with a cache are not in the model: layer.1"):
        bind_kv_cache(caches, {"layer.0": SimpleNamespace()})
    model = {name: SimpleNamespace() for name in ("layer.0", "layer.1", "ghost")}
    caches.layers["ghost"] = caches.layers["layer.0"]
    with pytest.raises(InvalidConfigError, match="with a cache are in no group: ghost"):
        bind_kv_cache(caches, model)
    del caches.layers["ghost"], caches.layers["layer.1"]
    with pytest.raises(InvalidConfigError, match=r"of groups have no cache: layer.1"):
        bind_kv_cache(caches, model)
    assert not any(hasattr(layer, "kv_cache") for layer in model.values())


class Slots:
    __slots__ = ("name",)


@pytest.mark.parametrize("layer", [Slots(), None, torch.float16])
def test_a_layer_that_takes_no_cache(layer: object) -> None:
    caches = allocate_kv_cache(config_of(full(), full(), full()), "cpu")
    model = {"layer.0": SimpleNamespace(), "layer.1": SimpleNamespace(), "layer.2": layer}
    with pytest.raises(InvalidConfigError, match=r"layer 'layer.2' of class \w+ does not accept kv_cache"):
        bind_kv_cache(caches, model)


def test_blocks_are_counted_in_whole_numbers() -> None:
    groups = get_kv_cache_groups({"a": full()})
    for number in (1.5, True):
        with pytest.raises(InvalidConfigError, match=f"num_blocks must be at least 1.* not {number}"):
            get_kv_cache_config_from_groups(groups, number)  # type: ignore[arg-type]


def test_bytes_that_no_number_holds() -> None:
    config = get_kv_cache_config_from_groups(get_kv_cache_groups({"large": full()}), 1 << 60)
    with pytest.raises(OutOfCacheMemoryError, match="layer 'large'"):
        allocate_kv_cache(config, "cpu")


def test_a_refused_layout_leaves_nothing_allocated() -> None:
    config = config_of(full())
    with pytest.raises(InvalidConfigError) as refused:
        allocate_kv_cache(config, "cpu", kernel_block_sizes=[3])
    frames = []
    traceback = refused.value.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    assert not any(
        "buffers" in frame.f_locals for frame in frames if frame.f_code.co_name == "allocate_kv_cache"
    )


@pytest.mark.parametrize(
    ("layout", "shapes", "refs"),
    [
        # One row for each page. Two layers in two groups use the same rows.
        ("LBNHC", [(3, 96)], [[0], [0]]),
        ("BLNHC", [(3, 96)], [[0], [0]]),
        # A row for each head (LHBNC), or one row for K and one for V (LKBNHC).
        ("LHBNC", [(3, 48), (3, 48)], [[0, 1], [0, 1]]),
        ("LKBNHC", [(3, 48), (3, 48)], [[0, 1], [0, 1]]),
    ],
)
def test_canonical(layout: str, shapes: list[tuple[int, int]], refs: list[list[int]]) -> None:
    caches = allocate_kv_cache(config_of(full(), window()), "cpu", KVCacheLayout(layout))
    made = register_kv_caches(caches)
    assert [tuple(each.tensor.shape) for each in made.tensors] == shapes
    assert [[ref.tensor_idx for ref in group] for group in made.group_data_refs] == refs
    cache = caches.layers["layer.0"]
    assert isinstance(cache, torch.Tensor)
    for each in made.tensors:
        assert each.tensor.dtype is torch.int8
        each.tensor[1] = 1
    axis = 1 if "K" in layout else 0
    assert cache.select(axis, 1).view(torch.int8).eq(1).all()
    assert not cache.select(axis, 2).any()


def test_canonical_rows_are_as_long_as_pages_and_references_as_content() -> None:
    made = register_kv_caches(allocate_kv_cache(config_of(full(), states()), "cpu"))
    assert [each.page_size_bytes for each in made.tensors] == [96]
    assert [[ref.page_size_bytes for ref in group] for group in made.group_data_refs] == [[96], [14]]
