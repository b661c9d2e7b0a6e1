"""kvref refuses wrong configurations with its own errors, which name layers and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kvref.cache import KVCacheManager
from kvref.errors import (
    BlockError,
    InvalidConfigError,
    InvalidSpecError,
    PoolExhaustedError,
    SpecKindError,
    UnregisteredSpecError,
)
from kvref.managers import SlidingWindowManager
from kvref.planning import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    get_kv_cache_configs,
    get_kv_cache_groups,
    get_kv_cache_report,
    resolve_kv_cache_block_sizes,
    unify_kv_cache_spec_page_size,
)
from kvref.pool import BlockPool
from kvref.registry import KVCacheSpecRegistry
from kvref.specs import (
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MemoryLimits,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

LIMITS = MemoryLimits(max_model_len=100, max_in_flight_tokens=20)
FIELDS: dict[str, Any] = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float16}
PAGE = 512
"""The bytes of a block of 16 tokens in one layer."""


@dataclass(frozen=True, kw_only=True)
class StubbornSpec(KVCacheSpec):
    """A vendor's spec with a fixed page size."""

    @property
    def page_size_bytes(self) -> int:
        return 100


def full(block_size: int = 16) -> KVCacheSpec:
    return FullAttentionSpec(block_size=block_size, **FIELDS)


def window(block_size: int = 16) -> KVCacheSpec:
    return SlidingWindowSpec(block_size=block_size, **FIELDS, sliding_window=40)


def mamba(**more: Any) -> KVCacheSpec:
    return MambaSpec(block_size=8, shapes=((4,),), dtypes=(torch.float32,), **more)


def sink(tokens: int, block_size: int = 16) -> KVCacheSpec:
    return SinkFullAttentionSpec(block_size=block_size, **FIELDS, sink_len=tokens)


CROSS = CrossAttentionSpec(block_size=16, **FIELDS)
ENCODER = EncoderOnlyAttentionSpec(block_size=16, **FIELDS)


def group(names: Sequence[str], spec: KVCacheSpec | None = None) -> KVCacheGroupSpec:
    return KVCacheGroupSpec(names, spec or full())


def composite(**specs: KVCacheSpec) -> KVCacheSpec:
    return UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs=specs)


def cache(
    *specs: KVCacheSpec, scheduler: int = 16, hashes: int = 16, blocks: int = 200, caching: bool = True
) -> KVCacheManager:
    """A cache manager with one group for each spec. The layers are called a, b and so on."""
    groups = [KVCacheGroupSpec(name, spec) for name, spec in zip("abc", specs, strict=False)]
    return KVCacheManager(
        KVCacheConfig(blocks, [], groups),
        100,
        scheduler_block_size=scheduler,
        hash_block_size=hashes,
        enable_caching=caching,
    )


def plan(*workers: dict[str, KVCacheSpec], memory: Sequence[int], **more: Any) -> list[KVCacheConfig]:
    return get_kv_cache_configs(workers, memory, LIMITS, **more)


def registered_for_another_kind() -> KVCacheManager:
    """A vendor's class is registered with a manager of another kind. Making the cache fails."""

    @dataclass(frozen=True, kw_only=True)
    class VendorSpec(FullAttentionSpec):
        pass

    with KVCacheSpecRegistry.snapshot():
        KVCacheSpecRegistry.register(VendorSpec, SlidingWindowManager)
        return cache(VendorSpec(block_size=16, **FIELDS))


Refusal = tuple[type[Exception], str, Callable[[], object]]

REFUSALS: dict[str, Refusal] = {
    # block sizes
    "scheduler block no multiple of hashes": (
        InvalidConfigError,
        "block_size 16 of the group of a must be a multiple of hash_block_size 12",
        lambda: cache(full(), window(), hashes=12),
    ),
    "scheduler block no multiple of a group's": (
        InvalidConfigError,
        "scheduler_block_size 24 must be a multiple of block_size 16 of the group of a",
        lambda: cache(full(), scheduler=24, hashes=8),
    ),
    "scheduler block no multiple of another group's": (
        InvalidConfigError,
        "scheduler_block_size 16 must be a multiple of block_size 32 of the group of b",
        lambda: cache(full(), full(32)),
    ),
    "scheduler block no multiple of a group's, without caching": (
        InvalidConfigError,
        "scheduler_block_size 16 must be a multiple of block_size 32 of the group of a",
        lambda: cache(full(32), caching=False),
    ),
    "a group's block no multiple of hashes": (
        InvalidConfigError,
        "block_size 24 of the group of b must be a multiple of hash_block_size 16",
        lambda: cache(full(), full(24), scheduler=48),
    ),
    "scheduler block of no tokens": (
        InvalidConfigError,
        r"scheduler_block_size 0 .* at least 1 \(layers: a\)",
        lambda: cache(full(), scheduler=0),
    ),
    "scheduler block of fewer": (
        InvalidConfigError,
        "scheduler_block_size -16 .* at least 1",
        lambda: cache(full(), scheduler=-16),
    ),
    "hashes every 0 tokens": (
        InvalidConfigError,
        "hash_block_size 0 must be at least 1",
        lambda: cache(full(), hashes=0),
    ),
    "block of no tokens": (InvalidSpecError, "FullAttentionSpec.block_size .* 0", lambda: full(0)),
    "sinks that end within a block": (
        InvalidSpecError,
        "the group of b: SinkFullAttentionSpec.sink_len 20 is no multiple of block_size 16",
        lambda: cache(full(), sink(20)),
    ),
    "pool hashed every 0 tokens": (BlockError, "hash_block_size .* 0", lambda: BlockPool(9, True, 0)),
    # blocks
    "no blocks": (
        InvalidConfigError,
        r"num_blocks must be at least 1, for the null block, not 0 \(layers: a, b\)",
        lambda: KVCacheConfig(0, [], [group("ab")]),
    ),
    "fewer than none": (
        InvalidConfigError,
        r"num_blocks must be at least 1, for the null block, not -1 \(layers: none\)",
        lambda: KVCacheConfig(-1, [], []),
    ),
    "pool without blocks": (BlockError, "not 0 blocks", lambda: BlockPool(0, True, 16)),
    "no blocks asked for": (
        InvalidConfigError,
        "worker 0 with the layers a gets by num_gpu_blocks_override 0 blocks, .* it needs 8",
        lambda: plan({"a": full()}, memory=[99 * PAGE], num_gpu_blocks_override=0),
    ),
    "fewer blocks than a request needs": (
        InvalidConfigError,
        "worker 0 with the layers a gets by num_gpu_blocks_override 7 blocks, .* it needs 8",
        lambda: plan({"a": full()}, memory=[99 * PAGE], num_gpu_blocks_override=7),
    ),
    "fewer blocks than sinks": (
        PoolExhaustedError,
        "the group of b: 2 blocks wanted, 1 free",
        lambda: cache(full(), sink(32), blocks=2),
    ),
    # bytes
    **{
        f"memory of {memory} bytes": (
            InvalidConfigError,
            f"worker 1 with the layers b, c has {memory} bytes, room for {memory // (2 * PAGE)} blocks, too "
            f"few for a request of max_model_len 100: it needs 8 .* {16 * PAGE} bytes on this worker",
            lambda memory=memory: plan({"a": full()}, {"b": full(), "c": full()}, memory=[9999, memory]),
        )
        for memory in (-1, 0, PAGE - 1, 16 * PAGE - 1)
    },
    "tensor too small": (
        InvalidConfigError,
        "layer 'a' needs 2 pages of 512 bytes, but its tensor has 512",
        lambda: KVCacheConfig(2, [KVCacheTensor(512, "a")], [group("a")]),
    ),
    "tensor of nobody": (InvalidConfigError, "512 bytes is for no layers", lambda: KVCacheTensor(512, "")),
    "memory of fewer workers": (
        InvalidConfigError,
        "2 workers, but available_memory for 1",
        lambda: plan({"a": full()}, {"b": full()}, memory=[9999]),
    ),
    "pages that cannot be made equal": (
        InvalidConfigError,
        "layer 'b' of class StubbornSpec cannot have pages of 512 bytes, the largest .*: its .*100 bytes",
        lambda: unify_kv_cache_spec_page_size({"a": full(), "b": StubbornSpec(block_size=16)}),
    ),
    "pages that cannot be padded": (
        InvalidConfigError,
        "layer 'b' of class MambaSpec cannot have pages of 512 bytes, the largest of all layers",
        lambda: unify_kv_cache_spec_page_size({"a": full(), "b": mamba(alignment=300)}),
    ),
    # layers
    "no layers": (
        InvalidConfigError,
        "without groups there are no block sizes",
        lambda: resolve_kv_cache_block_sizes(get_kv_cache_groups({})),
    ),
    "composite of no layers": (InvalidSpecError, "at least one layer", lambda: composite()),
    "unknown layer": (
        InvalidConfigError,
        "layer 'z' is not in the group of a, b",
        lambda: group("ab").spec_of("z"),
    ),
    "unknown layer of a composite": (
        InvalidConfigError,
        "layer 'z' is not in the group of a",
        lambda: group("a", composite(a=full())).spec_of("z"),
    ),
    "tensor of an unknown layer": (
        InvalidConfigError,
        "layers z have a tensor and no group",
        lambda: KVCacheConfig(1, [KVCacheTensor(512, "az")], [group("a")]),
    ),
    "layer without tensor": (
        InvalidConfigError,
        "layers b have a tensor and no group",
        lambda: KVCacheConfig(1, [KVCacheTensor(512, "a")], [group("ab")]),
    ),
    "layer twice": (
        InvalidConfigError,
        "layers more than once: a",
        lambda: KVCacheConfig(1, [], [group("aa")]),
    ),
    "layer in two groups": (
        InvalidConfigError,
        "groups have layers more than once: a",
        lambda: KVCacheConfig(1, [], [group("a")] * 2),
    ),
    "layer in two tensors": (
        InvalidConfigError,
        "tensors have layers more than once: a",
        lambda: KVCacheConfig(1, [KVCacheTensor(512, "a"), KVCacheTensor(512, "a")], [group("a")]),
    ),
    "others than the composite's": (
        InvalidConfigError,
        r"\['a', 'b'\] has a composite spec of layers \['a'\]",
        lambda: group("ab", composite(a=full())),
    ),
    "workers with another layer of one name": (
        InvalidConfigError,
        "workers do not agree on layer 'a'",
        lambda: plan({"a": full()}, {"a": window()}, memory=[9999] * 2),
    ),
    "several groups where there must be one": (
        InvalidConfigError,
        r"FullAttentionSpec \(layer 'a'\), MambaSpec \(layer 'c'\) need several groups",
        lambda: get_kv_cache_groups({"a": full(), "b": full(), "c": mamba()}, True),
    ),
    # classes
    "unregistered class": (
        UnregisteredSpecError,
        "'b'.*EncoderOnlyAttentionSpec",
        lambda: get_kv_cache_groups({"a": full(), "b": ENCODER}),
    ),
    "group of an unregistered class": (
        UnregisteredSpecError,
        "the group of b: EncoderOnlyAttentionSpec has no manager",
        lambda: cache(full(), ENCODER),
    ),
    "group with several managers": (
        InvalidConfigError,
        "the group of a, b: .* FullAttentionManager, SinkFullAttentionManager",
        lambda: KVCacheManager(
            KVCacheConfig(9, [], [group("ab", composite(a=sink(16), b=full()))]),
            100,
            scheduler_block_size=16,
            hash_block_size=16,
        ),
    ),
    "manager of another kind": (
        SpecKindError,
        "the group of a: SlidingWindowManager manages SlidingWindowSpec .* not VendorSpec",
        registered_for_another_kind,
    ),
    "caching of what cannot be cached": (
        InvalidConfigError,
        "CrossAttentionManager of the group of b cannot cache prefixes",
        lambda: cache(full(), CROSS),
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_configuration_that_cannot_be_right_is_refused_by_name(name: str) -> None:
    error, message, make = REFUSALS[name]
    with pytest.raises(error, match=message) as refused:
        make()
    assert type(refused.value) is error


RIGHT: dict[str, Callable[[], object]] = {
    "block sizes": lambda: cache(full(), full(24), scheduler=48, hashes=8),
    "coarse hashes without caching": lambda: cache(full(), full(24), scheduler=48, caching=False),
    "sinks": lambda: cache(full(), sink(32), blocks=3),
    "the null block alone": lambda: KVCacheConfig(1, [], [group("ab")]),
    "no layers at all": lambda: (
        cache(),
        plan({}, memory=[0]),
        get_kv_cache_report(*plan({}, memory=[0]), LIMITS),
    ),
    "as many blocks as a request needs": lambda: plan({"a": full()}, memory=[0], num_gpu_blocks_override=8),
    "as many bytes": lambda: plan({"a": full()}, {"b": full(), "c": full()}, memory=[9999, 16 * PAGE]),
    "a tensor that fits": lambda: KVCacheConfig(2, [KVCacheTensor(1024, "a")], [group("a")]),
    "pages that can be padded": lambda: unify_kv_cache_spec_page_size(
        {"a": full(), "b": mamba(alignment=256)}
    ),
    "a composite's layers": lambda: group("a", composite(a=full())).spec_of("a"),
    "one group": lambda: get_kv_cache_groups({"a": full(), "b": window()}, True),
    "a composite with one manager": lambda: cache(composite(a=sink(16))),
    "what cannot be cached, without caching": lambda: cache(full(), CROSS, caching=False),
}


@pytest.mark.parametrize("name", RIGHT)
def test_done_right_it_is_accepted(name: str) -> None:
    RIGHT[name]()
