"""Cache dtypes: an open set of names that a platform can extend.

A cache dtype says how K and V vectors are stored: with which torch dtype, in how many bits a value, and with
how many bytes of scales a vector. The built-in ones are here; a platform adds its own from its hook (vLLM RFC
51751, and what RFC 36668 left to do). A spec takes the numbers, not the name, so that its page size never
depends on what a process happens to have registered:

    packed = register_cache_dtype("acme_int4", torch.uint8, bits_per_value=4, scale_bytes=4)
    FullAttentionSpec(
        block_size=16,
        num_kv_heads=8,
        head_size=128,
        dtype=packed.storage,
        kv_quant_mode=packed.name,
        state_content_bytes=packed.state_bytes(128, 128),
    )
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import torch

from kvref.errors import ConflictingRegistrationError, RegistrationError, UnknownCacheDtypeError

__all__ = ["CacheDtype", "cache_dtypes", "get_cache_dtype", "register_cache_dtype"]


@dataclass(frozen=True, kw_only=True)
class CacheDtype:
    """How a K or V vector of one head and one token is stored.

    Raises:
        RegistrationError: at construction, for a field of the wrong type or out of range.
    """

    name: str
    storage: torch.dtype
    """What the cache tensor's elements are."""
    bits_per_value: int | Fraction
    """Bits one value takes; a fraction where blocks of values share a scale, 9/2 for instance."""
    scale_bytes: int = 0
    """Bytes of scales and zero points that each vector takes on top."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise RegistrationError(f"a cache dtype needs a name, not {self.name!r}")
        if not isinstance(self.storage, torch.dtype):
            raise RegistrationError(
                f"cache dtype {self.name!r}: storage must be a torch.dtype, not {self.storage!r}"
            )
        bits = self.bits_per_value
        if not isinstance(bits, int | Fraction) or isinstance(bits, bool) or bits <= 0:
            raise RegistrationError(
                f"cache dtype {self.name!r}: bits_per_value must be an int or Fraction above 0, not {bits!r}"
            )
        scales = self.scale_bytes
        if type(scales) is not int or scales < 0:
            raise RegistrationError(
                f"cache dtype {self.name!r}: scale_bytes must be an int of at least 0, not {scales!r}"
            )

    def vector_bytes(self, head_size: int) -> int:
        """Bytes of one vector of `head_size` values with its scales, in whole storage elements."""
        size = head_size * Fraction(self.bits_per_value) / 8 + self.scale_bytes
        return ceil(size / self.storage.itemsize) * self.storage.itemsize

    def state_bytes(self, head_size: int, head_size_v: int) -> int:
        """Bytes of K and V of one head and one token, for a spec's `state_content_bytes`.

        A `head_size_v` of 0 means that there is no V, hence no scale of V either (MLA).
        """
        value_bytes = self.vector_bytes(head_size_v) if head_size_v else 0
        return self.vector_bytes(head_size) + value_bytes


def _dense(name: str, storage: torch.dtype) -> CacheDtype:
    return CacheDtype(name=name, storage=storage, bits_per_value=storage.itemsize * 8)


_lock = threading.Lock()
_cache_dtypes: dict[str, CacheDtype] = {
    cache_dtype.name: cache_dtype
    for cache_dtype in (
        _dense("float16", torch.float16),
        _dense("bfloat16", torch.bfloat16),
        _dense("float32", torch.float32),
        _dense("fp8", torch.float8_e4m3fn),
        _dense("fp8_e4m3", torch.float8_e4m3fn),
        _dense("fp8_e5m2", torch.float8_e5m2),
        _dense("int8", torch.int8),
    )
}


def register_cache_dtype(
    name: str,
    storage: torch.dtype,
    *,
    bits_per_value: int | Fraction | None = None,
    scale_bytes: int = 0,
) -> CacheDtype:
    """Add a cache dtype under a name, or find it there already; see `CacheDtype` for the units.

    `bits_per_value` is that of the storage dtype unless given.

    Raises:
        RegistrationError: a field of the wrong type or out of range.
        ConflictingRegistrationError: the name stands for another cache dtype. Nothing is changed.
    """
    if bits_per_value is None and isinstance(storage, torch.dtype):
        bits_per_value = storage.itemsize * 8
    cache_dtype = CacheDtype(
        name=name,
        storage=storage,
        bits_per_value=0 if bits_per_value is None else bits_per_value,
        scale_bytes=scale_bytes,
    )
    with _lock:
        registered = _cache_dtypes.setdefault(name, cache_dtype)
    if registered != cache_dtype:
        raise ConflictingRegistrationError(
            f"cache dtype {name!r} is registered as {registered}, which differs from {cache_dtype}: "
            "choose another name"
        )
    return registered


def get_cache_dtype(name: str) -> CacheDtype:
    """The cache dtype of this name.

    Raises:
        UnknownCacheDtypeError: there is none.
    """
    with _lock:
        cache_dtype = _cache_dtypes.get(name)
        known = sorted(_cache_dtypes)
    if cache_dtype is None:
        raise UnknownCacheDtypeError(
            f"no cache dtype is named {name!r}: register it with register_cache_dtype, "
            f"or use one of {', '.join(known)}"
        )
    return cache_dtype


def cache_dtypes() -> dict[str, CacheDtype]:
    """Every cache dtype by name, as it is now."""
    with _lock:
        return dict(_cache_dtypes)
