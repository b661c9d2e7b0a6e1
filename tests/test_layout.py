"""Where a layout puts the bytes. The expected numbers were worked out by hand."""

from typing import Any

import pytest
import torch

from kvref.errors import InvalidConfigError
from kvref.layout import DEFAULT_LAYOUT, KVCacheLayout, LayerPlacement, place_kv_caches
from kvref.planning import KVCacheConfig, get_kv_cache_config_from_groups, get_kv_cache_groups
from kvref.specs import FullAttentionSpec, KVCacheSpec, MambaSpec, MLAAttentionSpec, SlidingWindowSpec
from kvref.tensors import allocate_kv_cache

BLOCKS = 3


def full(**fields: Any) -> FullAttentionSpec:
    """A page has 4 tokens, 2 heads, and K and V of 3 half-precision values each: 96 bytes."""
    plain = {"block_size": 4, "num_kv_heads": 2, "head_size": 3, "dtype": torch.float16}
    return FullAttentionSpec(**{**plain, **fields})


def window() -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=4, num_kv_heads=2, head_size=3, dtype=torch.float16, sliding_window=8)


def states() -> MambaSpec:
    """The states have 8 and 6 bytes, in a page of 96."""
    return MambaSpec(
        block_size=4, shapes=((2,), (3,)), dtypes=(torch.float32, torch.float16), page_size_padded=96
    )


def config_of(*specs: KVCacheSpec) -> KVCacheConfig:
    groups = get_kv_cache_groups({f"layer.{place}": spec for place, spec in enumerate(specs)})
    return get_kv_cache_config_from_groups(groups, BLOCKS)


def placed(layout: str, *specs: KVCacheSpec, **how: Any) -> dict[str, LayerPlacement]:
    return dict(place_kv_caches(config_of(*specs), KVCacheLayout(layout), **how).layers)


@pytest.mark.parametrize(
    ("layout", "strides", "runs"),
    [
        # A page has 48 elements: 4 tokens of 2 heads of 6 elements.
        ("LBNHC", (48, 6, 12, 1), [(96, 96)]),
        ("LBHNC", (48, 24, 6, 1), [(96, 96)]),
        # Heads lie outside of blocks: 24 elements of a head for each of 3 blocks.
        ("LHBNC", (24, 72, 6, 1), [(48, 48), (192, 48)]),
        ("BLNHC", (48, 6, 12, 1), [(96, 96)]),
        # K and V have an axis of their own: 3 elements of a head each.
        ("LKBNHC", (72, 24, 3, 6, 1), [(48, 48), (192, 48)]),
        ("LBKNHC", (24, 48, 3, 6, 1), [(96, 96)]),
        ("LBKHNC", (24, 48, 12, 3, 1), [(96, 96)]),
    ],
)
def test_one_layer(layout: str, strides: tuple[int, ...], runs: list[tuple[int, int]]) -> None:
    layer = placed(layout, full())["layer.0"]
    [view] = layer.pages.views
    assert view.axes == ("KBHNC" if "K" in layout else "BHNC")
    assert view.strides == strides
    assert [view.shape[view.axes.index(axis)] for axis in "BHNC"] == [3, 2, 4, 3 if "K" in layout else 6]
    assert list(layer.runs_of(1)) == runs
    assert layer.pages.page_size_bytes == layer.pages.content_size_bytes == 96


def test_axes_in_the_order_of_a_backend() -> None:
    """For example the order of FlashAttention: (2, blocks, tokens, heads, size)."""
    [view] = (
        place_kv_caches(config_of(full()), KVCacheLayout("LKBNHC", "KBNHC")).layers["layer.0"].pages.views
    )
    assert view.shape == (2, 3, 4, 2, 3)
    assert view.strides == (72, 24, 6, 3, 1)


@pytest.mark.parametrize(
    ("layout", "first", "second"),
    [
        # The layers lie one after another, or alternate page by page, or alternate head by head.
        ("LBNHC", [(96, 96)], [(288 + 96, 96)]),
        ("BLNHC", [(192, 96)], [(192 + 96, 96)]),
        ("BHLNC", [(192, 48), (288, 48)], [(192 + 48, 48), (288 + 48, 48)]),
    ],
)
def test_two_layers_alike(layout: str, first: list[Any], second: list[Any]) -> None:
    layers = placed(layout, full(), full(), contiguous=True)
    assert list(layers["layer.0"].runs_of(1)) == first
    assert list(layers["layer.1"].runs_of(1)) == second


def test_buffers() -> None:
    config = config_of(full(), full(num_kv_heads=1))
    assert place_kv_caches(config).buffers == (288, 144)
    assert place_kv_caches(config, contiguous=True).buffers == (432,)
    assert place_kv_caches(config, KVCacheLayout("BLNHC")).buffers == (432,)
    assert place_kv_caches(get_kv_cache_config_from_groups([], 1), contiguous=True).buffers == ()


def test_pages_of_other_layers_between_blocks() -> None:
    layers = placed("BLHNC", full(), full(num_kv_heads=1))
    assert list(layers["layer.0"].runs_of(2)) == [(2 * 144, 96)]
    assert list(layers["layer.1"].runs_of(2)) == [(2 * 144 + 96, 48)]


@pytest.mark.parametrize("layout", ["LKBNHC", "LHBNC", "LNBHC"])
def test_pages_stay_together_where_others_use_them(layout: str) -> None:
    """Attention and recurrent layers use the same memory in turns.

    If a layout took pages apart, each half of a page would lie on another block of the other layer.
    """
    layers = placed(layout, full(), states())
    assert list(layers["layer.0"].runs_of(1)) == [(96, 96)]
    assert list(layers["layer.1"].runs_of(1)) == [(96, 14)]
    first, second = layers["layer.1"].pages.views
    assert (first.shape, first.strides, first.offset) == ((3, 2), (24, 1), 0)
    assert (second.shape, second.strides, second.offset) == ((3, 3), (48, 1), 8)


@pytest.mark.parametrize("layout", ["LKBNHC", "LHBNC"])
def test_layers_of_one_kind_may_take_pages_apart_together(layout: str) -> None:
    layers = placed(layout, full(), window())
    assert len(config_of(full(), window()).kv_cache_groups) == 2
    assert list(layers["layer.0"].runs_of(1)) == list(layers["layer.1"].runs_of(1)) == [(48, 48), (192, 48)]


@pytest.mark.parametrize("layout", ["LBNHC", "LHBNC", "LKBNHC"])
def test_padding_is_between_blocks(layout: str) -> None:
    layer = placed(layout, full(page_size_padded=128))["layer.0"]
    assert list(layer.runs_of(2)) == [(256, 96)]
    assert layer.pages.block_stride == 128


def test_latent_attention_has_no_v() -> None:
    spec = MLAAttentionSpec(block_size=4, num_kv_heads=1, head_size=6, dtype=torch.float16)
    [view] = placed("LKBNHC", spec)["layer.0"].pages.views
    assert view.shape == (1, 3, 1, 4, 6)


def test_what_is_no_attention_and_no_state_is_bytes() -> None:
    class Raw(KVCacheSpec):
        @property
        def page_size_bytes(self) -> int:
            return 24

        unpadded_page_size_bytes = page_size_bytes

    group = config_of(full()).kv_cache_groups[0]
    config = get_kv_cache_config_from_groups([type(group)(["layer.0"], Raw(block_size=4))], BLOCKS)
    [view] = place_kv_caches(config).layers["layer.0"].pages.views
    assert (view.dtype, view.shape, view.strides) == (torch.int8, (3, 24), (24, 1))


@pytest.mark.parametrize(
    ("layout", "strides", "runs"),
    [
        ("LBNHC", (24, 6, 12, 1), [(96, 96)]),
        ("LKBNHC", (72, 12, 3, 6, 1), [(48, 48), (192, 48)]),
        # Within a block, the kernel's blocks lie one after another, each with K and V.
        ("LBKNHC", (12, 24, 3, 6, 1), [(96, 96)]),
    ],
)
def test_blocks_of_the_kernel(layout: str, strides: tuple[int, ...], runs: list[Any]) -> None:
    layer = placed(layout, full(), kernel_block_sizes=[2])["layer.0"]
    [view] = layer.pages.views
    assert view.shape[view.axes.index("B")] == 6
    assert view.strides == strides
    assert list(layer.runs_of(1)) == runs


@pytest.mark.parametrize(
    ("specs", "layout", "how", "message"),
    [
        ([full()], "LBNHC", {"kernel_block_sizes": [3]}, "layer 'layer.0' .*4 tokens, .* size, 3"),
        ([full()], "LBNHC", {"kernel_block_sizes": [0]}, "layer 'layer.0' .*4 tokens, .* size, 0"),
        ([full()], "LBNHC", {"kernel_block_sizes": [True]}, "kernel block size, True"),
        ([full(), states()], "LBNHC", {"kernel_block_sizes": [4, 3]}, "layer 'layer.1' .*block size, 3"),
        ([full()], "LBNHC", {"kernel_block_sizes": [2, 2]}, "2 kernel block sizes for 1 groups"),
        ([full(), full()], "BLNHC", {"kernel_block_sizes": [2]}, "layer 'layer.0'.*other layers between"),
        ([full(page_size_padded=128)], "LBNHC", {"kernel_block_sizes": [2]}, "padding between them"),
        ([full(head_size_v=2)], "LKBNHC", {}, "layer 'layer.0'.*K has head size 3 and V 2"),
        ([full(page_size_padded=97)], "LBNHC", {}, "layer 'layer.0'.*97 bytes .* torch.float16"),
        ([full(state_content_bytes=5)], "LBNHC", {}, "layer 'layer.0'.*5 bytes is no whole number"),
    ],
)
def test_refusals_name_the_layer(
    specs: list[KVCacheSpec], layout: str, how: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        placed(layout, *specs, **how)


def test_compressed_states_that_do_not_make_a_kernel_block() -> None:
    spec = MLAAttentionSpec(
        block_size=4, num_kv_heads=1, head_size=6, dtype=torch.float16, tokens_per_state=4
    )
    with pytest.raises(InvalidConfigError, match=r"1 states .* 2 kernel blocks"):
        placed("LBNHC", spec, kernel_block_sizes=[2])


def test_a_value_that_would_not_be_aligned() -> None:
    """In one buffer, a page of single bytes precedes a page of half-precision values."""
    byte = full(dtype=torch.uint8, num_kv_heads=1, page_size_padded=25)
    config = config_of(byte, full())
    assert place_kv_caches(config).layers.keys() == {"layer.0", "layer.1"}
    with pytest.raises(
        InvalidConfigError,
        match=r"'layer.1' in .* it would begin at byte 75, where no torch.float16 can: pad",
    ):
        place_kv_caches(config, contiguous=True)


def test_states_that_would_not_be_aligned() -> None:
    """The first state of a page moves the second one to an unaligned byte. Padding the page does not help."""
    dtypes = (torch.float16, torch.float32)
    config = config_of(MambaSpec(block_size=4, shapes=((3,), (2,)), dtypes=dtypes, page_size_padded=96))
    said = "'layer.0' in .* a state would begin at byte 6 of its page, .* largest dtype first"
    with pytest.raises(InvalidConfigError, match=said):
        place_kv_caches(config)
    assert place_kv_caches(config_of(states())).layers.keys() == {"layer.0"}


@pytest.mark.parametrize(("layout", "order"), [("LKBNHC", "LKBNHC"), (None, "LBNHC")])
def test_a_layout_is_no_string(layout: Any, order: str) -> None:
    for place in (place_kv_caches, lambda *given: allocate_kv_cache(given[0], "cpu", given[1])):
        with pytest.raises(
            InvalidConfigError, match=rf"not {layout!r}: for example KVCacheLayout\('{order}'\)"
        ):
            place(config_of(full()), layout)
    assert place_kv_caches(config_of(full()), KVCacheLayout(order)).layers.keys() == {"layer.0"}


@pytest.mark.parametrize("order", ["BNHC", "LBNHCC", "LBNHX", "lbnhc", ""])
def test_orders_that_are_none(order: str) -> None:
    with pytest.raises(InvalidConfigError, match="must have each of L, B, H, N, C exactly once"):
        KVCacheLayout(order)


def test_axes_that_are_none() -> None:
    with pytest.raises(
        InvalidConfigError, match=r"axes must have each of K, B, H, N, C exactly once, not 'BNHC'"
    ):
        KVCacheLayout("LKBNHC", "BNHC")
    assert DEFAULT_LAYOUT.is_layer_outermost
    assert not KVCacheLayout("BLNHC").is_layer_outermost
