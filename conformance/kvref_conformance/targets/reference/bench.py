"""The part `bench` of the reference: calls of kvref's own functions, for `kvref bench` to time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from types import SimpleNamespace

import kvref.planning
from kvref import canonical
from kvref.cache import KVCacheManager
from kvref.canonical import CanonicalKVCaches
from kvref.fast import canonical as fast_canonical
from kvref.fast.cache import KVCacheManager as FastKVCacheManager
from kvref.fast.pool import BlockPool as FastBlockPool
from kvref.hashing import BlockHasher
from kvref.layout import KVCacheLayout
from kvref.planning import KVCacheConfig, KVCacheGroupSpec
from kvref.pool import BlockPool
from kvref.registry import KVCacheSpecRegistry
from kvref.request import Request
from kvref.sharing import add_kv_sharing_layers_to_kv_cache_groups
from kvref.specs import MemoryLimits
from kvref.target import BenchCall, CacheCalls, Pair, PoolCalls, SpecDescriptor
from kvref.tensors import KVCaches, init_kv_cache
from kvref_conformance.targets.bench_models import FULL
from kvref_conformance.targets.reference.planner import make_all
from kvref_conformance.targets.reference.specs import make


def advance(request: Request, computed: int, token: int) -> None:
    request.num_computed_tokens = computed
    request.append_output_token_ids(token)


def plan(layers: Mapping[str, SpecDescriptor], memory: int, max_model_len: int) -> BenchCall:
    KVCacheSpecRegistry.initialise()
    specs = make_all(layers)
    limits = MemoryLimits(max_model_len, max_model_len)
    return BenchCall(
        fresh=lambda: dict(specs),
        run=lambda given: kvref.planning.get_kv_cache_configs([given], [memory], limits),
        size=lambda plans: plans[0].num_blocks,
    )


def join(groups: Sequence[Sequence[str]], sharing: Sequence[Pair]) -> BenchCall:
    spec = make(FULL)
    targets = dict(sharing)
    return BenchCall(
        fresh=lambda: [KVCacheGroupSpec(names, spec) for names in groups],
        run=lambda given: add_kv_sharing_layers_to_kv_cache_groups(targets, given),
        size=lambda joined: sum(len(group.layer_names) for group in joined),
    )


def allocate(
    layers: Mapping[str, SpecDescriptor], num_blocks: int, layout: str, buffers: str, device: str
) -> BenchCall:
    KVCacheSpecRegistry.initialise()
    groups = kvref.planning.get_kv_cache_groups(make_all(layers))
    config = kvref.planning.get_kv_cache_config_from_groups(groups, num_blocks)
    order, together = KVCacheLayout(layout), buffers == "one"
    return BenchCall(
        fresh=lambda: {name: SimpleNamespace(kv_sharing_target_layer_name=None) for name in layers},
        run=lambda model: init_kv_cache(model, config, device, order, contiguous=together),
        size=lambda caches: caches.num_bytes,
    )


def allocated(layers: Mapping[str, SpecDescriptor], num_blocks: int, layout: str, device: str) -> KVCaches:
    call = allocate(layers, num_blocks, layout, "each", device)
    made: KVCaches = call.run(call.fresh())
    return made


def bytes_of_a_block(made: CanonicalKVCaches) -> int:
    return sum(ref.page_size_bytes for refs in made.group_data_refs for ref in refs)


class Bench:
    """The part `bench` for one half of the reference, which has a pool, cache manager and canonical view."""

    plan = staticmethod(plan)
    join = staticmethod(join)
    allocate = staticmethod(allocate)

    def __init__(
        self,
        pool_class: type[BlockPool],
        manager_class: type[KVCacheManager],
        register_kv_caches: Callable[[KVCaches], CanonicalKVCaches],
        copy_blocks: Callable[..., None],
    ) -> None:
        self.pool_class = pool_class
        self.manager_class = manager_class
        self.register_kv_caches = register_kv_caches
        self.copy_blocks = copy_blocks

    def pool(self, num_blocks: int, block_size: int, events: bool) -> PoolCalls:
        made = self.pool_class(num_blocks, True, block_size, events)
        hasher = BlockHasher(block_size)

        def cache(request: Request, blocks: Sequence[int]) -> None:
            made.cache_full_blocks(request, blocks, 0, len(blocks), block_size, 0)

        return PoolCalls(
            take=made.get_new_blocks,
            free=made.free_blocks,
            touch=made.touch,
            find=made.get_cached_block,
            num_free=made.get_num_free_blocks,
            take_events=made.take_events,
            request=lambda tokens: Request("request", tokens, hasher),
            hashes=attrgetter("block_hashes"),
            cache=cache,
        )

    def cache(
        self, groups: Sequence[SpecDescriptor], num_blocks: int, block_size: int, max_model_len: int
    ) -> CacheCalls:
        KVCacheSpecRegistry.initialise()
        specs = [KVCacheGroupSpec((f"layer.{place}",), make(spec)) for place, spec in enumerate(groups)]
        manager = self.manager_class(
            KVCacheConfig(num_blocks, (), specs),
            max_model_len,
            scheduler_block_size=block_size,
            hash_block_size=block_size,
        )
        hasher = BlockHasher(block_size)
        return CacheCalls(
            request=lambda name, tokens: Request(name, tokens, hasher),
            new_step=manager.new_step_starts,
            find=manager.get_computed_blocks,
            allocate=manager.allocate_slots,
            advance=advance,
            tables=lambda request: manager.get_block_ids(request.request_id),
            free=manager.free,
        )

    def register(
        self, layers: Mapping[str, SpecDescriptor], num_blocks: int, layout: str, device: str
    ) -> BenchCall:
        caches = allocated(layers, num_blocks, layout, device)
        return BenchCall(fresh=lambda: caches, run=self.register_kv_caches, size=bytes_of_a_block)

    def copy(
        self,
        layers: Mapping[str, SpecDescriptor],
        num_blocks: int,
        layout: str,
        device: str,
        pairs: Sequence[tuple[int, int]],
    ) -> BenchCall:
        made = self.register_kv_caches(allocated(layers, num_blocks, layout, device))
        return BenchCall(
            fresh=lambda: pairs,
            run=lambda given: self.copy_blocks(made, made, 0, given),
            size=lambda nothing: len(pairs) * bytes_of_a_block(made),
        )


PLAIN = Bench(BlockPool, KVCacheManager, canonical.register_kv_caches, canonical.copy_blocks)
FAST = Bench(FastBlockPool, FastKVCacheManager, fast_canonical.register_kv_caches, fast_canonical.copy_blocks)
