from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import pytest
import torch

from kvref import dtypes
from kvref.dtypes import cache_dtypes, get_cache_dtype, register_cache_dtype
from kvref.errors import ConflictingRegistrationError, RegistrationError, UnknownCacheDtypeError
from kvref.specs import FullAttentionSpec, KVQuantMode


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtypes, "_cache_dtypes", cache_dtypes())


@pytest.mark.parametrize(
    ("name", "storage", "size"),
    [
        ("float16", torch.float16, 2),
        ("bfloat16", torch.bfloat16, 2),
        ("float32", torch.float32, 4),
        ("fp8", torch.float8_e4m3fn, 1),
        ("fp8_e4m3", torch.float8_e4m3fn, 1),
        ("fp8_e5m2", torch.float8_e5m2, 1),
        ("int8", torch.int8, 1),
    ],
)
def test_built_in(name: str, storage: torch.dtype, size: int) -> None:
    cache_dtype = get_cache_dtype(name)
    assert cache_dtype.storage is storage
    assert cache_dtype.vector_bytes(128) == 128 * size
    assert cache_dtype.state_bytes(128, 64) == 192 * size


def test_a_platform_adds_one_and_a_spec_takes_its_numbers() -> None:
    packed = register_cache_dtype("acme_int4", torch.uint8, bits_per_value=4, scale_bytes=4)
    assert packed.state_bytes(128, 128) == 2 * (64 + 4)
    assert packed.state_bytes(128, 0) == 64 + 4
    spec = FullAttentionSpec(
        block_size=16,
        num_kv_heads=8,
        head_size=128,
        dtype=packed.storage,
        kv_quant_mode=packed.name,
        state_content_bytes=packed.state_bytes(128, 128),
    )
    assert spec.page_size_bytes == 16 * 8 * 136


def test_int8_with_scales_takes_what_the_quantised_spec_takes() -> None:
    scaled = register_cache_dtype("acme_int8", torch.int8, scale_bytes=4)
    spec = FullAttentionSpec(
        block_size=16,
        num_kv_heads=2,
        head_size=8,
        dtype=torch.int8,
        kv_quant_mode=KVQuantMode.INT8_PER_TOKEN_HEAD,
    )
    assert scaled.state_bytes(8, 8) == spec.state_content_size_bytes == 24


def test_fractions_of_a_bit_and_whole_storage_elements() -> None:
    blocks = register_cache_dtype("acme_fp4", torch.uint8, bits_per_value=Fraction(9, 2))
    assert blocks.vector_bytes(128) == 72
    words = register_cache_dtype("acme_words", torch.int32, bits_per_value=3)
    assert words.vector_bytes(12) == 8  # 36 bits take two words


def test_again_is_a_no_op_and_different_is_refused() -> None:
    first = register_cache_dtype("acme", torch.int8)
    assert register_cache_dtype("acme", torch.int8, bits_per_value=8) is first
    with pytest.raises(ConflictingRegistrationError, match="'acme'"):
        register_cache_dtype("acme", torch.uint8)
    with pytest.raises(ConflictingRegistrationError, match="'float16'"):
        register_cache_dtype("float16", torch.bfloat16)
    assert get_cache_dtype("acme") is first


def test_unknown_is_refused() -> None:
    with pytest.raises(UnknownCacheDtypeError, match=r"'auto'.*bfloat16"):
        get_cache_dtype("auto")


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": ""},
        {"name": 3},
        {"storage": "int8"},
        {"bits_per_value": 0},
        {"bits_per_value": True},
        {"bits_per_value": 4.5},
        {"scale_bytes": -1},
        {"scale_bytes": True},
    ],
)
def test_nonsense_is_refused(arguments: dict[str, Any]) -> None:
    before = cache_dtypes()
    with pytest.raises(RegistrationError):
        register_cache_dtype(**{"name": "acme", "storage": torch.int8, **arguments})
    assert cache_dtypes() == before


def test_threads_that_register_the_same_agree() -> None:
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda _: register_cache_dtype("acme", torch.int8), range(64)))
    assert all(result is results[0] for result in results)
