"""One mistake in the reference's arithmetic for each contract, which must detect it."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from kvref import layout, planning, specs
from kvref.hashing import MultiModalItem
from kvref.layout import LayerPlacement
from kvref.managers import (
    ChunkedLocalAttentionManager,
    MambaManager,
    SingleTypeKVCacheManager,
    SlidingWindowManager,
)
from kvref.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    PaddedKVCacheSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
    UniformTypeKVCacheSpecs,
)
from kvref_conformance.proofs import rules


class Fault(NamedTuple):
    """A mistake, and arguments for which the contract detects it."""

    owner: Any
    name: str
    wrong: Any
    arguments: dict[str, Any]


def up(tokens: int, size: int) -> int:
    return -(-tokens // size)


def cap(spec: Any, in_flight: int, length: int) -> int:
    return up(length, spec.block_size)


def one_page(spec: Any, limits: Any) -> int:
    return int(spec.page_size_bytes)


_tensor_pages = planning._tensor_pages
_of_full = FullAttentionSpec.max_memory_usage_bytes
_states: property = AttentionSpec.__dict__["num_states"]
_content: property = MambaSpec.__dict__["unpadded_page_size_bytes"]

FAULTS = {
    "pages.one_token_of_one_head_is_its_values": Fault(
        AttentionSpec,
        "state_content_size_bytes",
        property(lambda spec: 2 * spec.head_size * spec.dtype.itemsize),
        {"head_size": 8, "head_size_v": 4, "wide": False},
    ),
    "pages.every_token_takes_the_same": Fault(
        AttentionSpec,
        "num_states",
        property(lambda spec: spec.block_size + 1),
        {"block_size": 2, "num_kv_heads": 1, "head_size": 8, "head_size_v": 8},
    ),
    "pages.every_head_takes_the_same": Fault(
        AttentionSpec,
        "unpadded_page_size_bytes",
        property(lambda spec: max(2, spec.num_kv_heads) * spec.num_states * spec.state_content_size_bytes),
        {"block_size": 2, "num_kv_heads": 1, "head_size": 8, "head_size_v": 8},
    ),
    "pages.each_vector_has_a_scale": Fault(
        specs, "_SCALE_BYTES", 2, {"block_size": 1, "num_kv_heads": 1, "head_size": 8, "head_size_v": 8}
    ),
    "pages.packed_states_take_what_is_told": Fault(
        TQFullAttentionSpec,
        "packed_state_bytes",
        property(lambda spec: spec.state_content_bytes),
        {"block_size": 2, "num_kv_heads": 1, "slot": 100},
    ),
    "pages.compressed_tokens_share_a_state": Fault(
        AttentionSpec,
        "num_states",
        property(lambda spec: spec.block_size),
        {"number": 2, "tokens": 4, "head_size": 8},
    ),
    "pages.several_states_of_a_token": Fault(
        AttentionSpec,
        "num_states",
        property(lambda spec: spec.block_size),
        {"block_size": 2, "states_per_token": 4, "head_size": 8},
    ),
    "pages.parts_of_states_are_refused": Fault(
        AttentionSpec, "check_fields", PaddedKVCacheSpec.check_fields, {"block_size": 3, "tokens": 2}
    ),
    "pages.pages_are_aligned": Fault(
        specs, "_cdiv", lambda size, unit: size // unit, {"block_size": 3, "head_size": 1, "alignment": 2}
    ),
    "pages.padding_is_kept_or_refused": Fault(
        PaddedKVCacheSpec,
        "page_size_bytes",
        property(lambda spec: spec.unpadded_page_size_bytes),
        {"block_size": 1, "head_size": 3, "padded": 4, "alignment": 2},
    ),
    "pages.copies_derive_their_padding": Fault(
        KVCacheSpec,
        "copy_with_new_block_size",
        lambda spec, size: dataclasses.replace(spec, block_size=size, page_size_padded=spec.page_size_bytes),
        {"block_size": 4, "other": 2, "head_size": 1, "alignment": 2},
    ),
    "pages.states_do_not_grow": Fault(
        MambaSpec,
        "unpadded_page_size_bytes",
        property(lambda spec: _content.__get__(spec) + spec.block_size - 1),
        {"block_size": 1, "other": 100, "alignment": 8},
    ),
    "pages.composites_hold_all_layers": Fault(
        UniformTypeKVCacheSpecs,
        "page_size_bytes",
        property(lambda spec: max(each.page_size_bytes for each in spec.kv_cache_specs.values())),
        {"block_size": 1, "head_size": 8, "other": 4},
    ),
    "memory.full_attention_keeps_all": Fault(
        FullAttentionSpec,
        "max_memory_usage_bytes",
        lambda spec, limits: limits.max_model_len // spec.block_size * spec.page_size_bytes,
        {"block_size": 2, "length": 3},
    ),
    "memory.full_attention_holds_no_more": Fault(
        FullAttentionSpec,
        "max_memory_usage_bytes",
        lambda spec, limits: limits.max_model_len // spec.block_size * spec.page_size_bytes,
        {"block_size": 2, "length": 3, "computed": 2, "in_flight": 1},
    ),
    "memory.sinks_come_on_top": Fault(
        SinkFullAttentionSpec,
        "max_memory_usage_bytes",
        _of_full,
        {"block_size": 2, "length": 3, "sink_len": 1},
    ),
    "memory.cross_attention_keeps_the_encoder": Fault(
        CrossAttentionSpec,
        "max_memory_usage_bytes",
        _of_full,
        {"block_size": 1, "length": 2, "encoder": 5, "tokens": 5},
    ),
    "memory.encoders_keep_nothing": Fault(
        EncoderOnlyAttentionSpec,
        "max_memory_usage_bytes",
        _of_full,
        {"block_size": 1, "length": 2, "in_flight": 1},
    ),
    "memory.windows_hold_no_more": Fault(
        SlidingWindowSpec,
        "max_admission_blocks_per_request",
        lambda spec, in_flight, length: up(
            min(spec.sliding_window - 1 + spec.extra_retained_tokens + in_flight, length), spec.block_size
        ),
        {
            "block_size": 2,
            "window": 2,
            "extra": 0,
            "limit": 1,
            "length": 100,
            "computed": 2,
            "in_flight": 1,
        },
    ),
    "memory.windows_take_little_more": Fault(
        SlidingWindowSpec,
        "max_admission_blocks_per_request",
        cap,
        {"block_size": 1, "window": 1, "extra": 0, "limit": 0, "length": 10},
    ),
    "memory.windows_stop_growing": Fault(
        SlidingWindowSpec,
        "max_admission_blocks_per_request",
        cap,
        {"block_size": 1, "window": 1, "extra": 0, "limit": 0, "length": 10, "longer": 20},
    ),
    "memory.chunks_of_whole_blocks_hold_no_more": Fault(
        ChunkedLocalAttentionSpec,
        "max_admission_blocks_per_request",
        lambda spec, in_flight, length: up(spec.attention_chunk_size, spec.block_size),
        {
            "block_size": 2,
            "number": 1,
            "limit": 2,
            "length": 100,
            "before": 0,
            "into": 1,
            "in_flight": 2,
        },
    ),
    # this is how vLLM counts
    "memory.chunks_across_blocks_hold_no_more": Fault(
        ChunkedLocalAttentionSpec,
        "max_admission_blocks_per_request",
        lambda spec, in_flight, length: up(
            min(spec.attention_chunk_size + in_flight, length), spec.block_size
        ),
        {"block_size": 4, "chunk": 7, "limit": 1, "length": 100, "computed": 13, "in_flight": 1},
    ),
    "memory.chunks_take_little_more": Fault(
        ChunkedLocalAttentionSpec,
        "max_admission_blocks_per_request",
        cap,
        {"block_size": 1, "chunk": 1, "limit": 0, "length": 10},
    ),
    "memory.chunks_stop_growing": Fault(
        ChunkedLocalAttentionSpec,
        "max_admission_blocks_per_request",
        cap,
        {"block_size": 1, "chunk": 1, "limit": 0, "length": 10, "longer": 20},
    ),
    "memory.states_hold_no_more": Fault(
        MambaSpec,
        "max_memory_usage_bytes",
        lambda spec, limits: up(limits.max_in_flight_tokens, spec.block_size) * spec.page_size_bytes,
        {"block_size": 2, "limit": 1, "length": 100, "computed": 2, "in_flight": 1},
    ),
    "memory.drafts_come_on_top": Fault(
        MambaSpec,
        "max_memory_usage_bytes",
        one_page,
        {"block_size": 2, "drafts": 1, "limit": 1, "length": 10, "align": True},
    ),
    "memory.aligned_states_are_those_of_steps": Fault(
        MambaSpec, "max_memory_usage_bytes", one_page, {"block_size": 2, "limit": 2, "length": 10}
    ),
    "memory.longer_requests_take_no_less": Fault(
        SlidingWindowSpec,
        "max_memory_usage_bytes",
        lambda spec, limits: 1000 // limits.max_model_len * spec.page_size_bytes,
        {"kind": 0, "block_size": 1, "size": 1, "limit": 0, "length": 1, "longer": 2},
    ),
    "memory.memory_is_whole_pages": Fault(
        FullAttentionSpec,
        "max_memory_usage_bytes",
        lambda spec, limits: limits.max_model_len * spec.page_size_bytes // spec.block_size,
        {"kind": 5, "block_size": 3, "size": 1, "limit": 0, "length": 1},
    ),
    "memory.more_in_flight_takes_no_less": Fault(
        MambaSpec,
        "max_memory_usage_bytes",
        lambda spec, limits: max(0, 10 - limits.max_in_flight_tokens) * spec.page_size_bytes,
        {"kind": 2, "block_size": 1, "size": 1, "limit": 0, "more": 1, "length": 10},
    ),
    "memory.groups_have_blocks_for_all_layers": Fault(
        UniformTypeKVCacheSpecs,
        "max_memory_usage_bytes",
        lambda spec, limits: sum(
            each.max_memory_usage_bytes(limits) for each in spec.kv_cache_specs.values()
        ),
        {"block_size": 1, "window": 1, "other": 3, "limit": 0, "length": 10},
    ),
    "rules.windows_skip_what_is_out_of_sight": Fault(
        SlidingWindowManager,
        "get_num_skipped_tokens",
        lambda manager, computed: max(0, computed - manager.sliding_window),
        {"window": 2, "computed": 3, "token": 1},
    ),
    "rules.windows_retain_some_more": Fault(
        SlidingWindowManager,
        "get_num_skipped_tokens",
        lambda manager, computed: max(0, computed - manager.sliding_window + 1),
        {"window": 1, "extra": 2, "computed": 3, "token": 1},
    ),
    "rules.chunks_skip_earlier_chunks": Fault(
        ChunkedLocalAttentionManager,
        "get_num_skipped_tokens",
        lambda manager, computed: max(0, computed - manager.attention_chunk_size),
        {"chunk": 2, "computed": 3, "token": 1},
    ),
    "rules.states_skip_all_but_the_last": Fault(
        MambaManager,
        "get_num_skipped_tokens",
        lambda manager, computed: computed,
        {"computed": 1, "token": 0},
    ),
    "rules.nothing_is_skipped_before_it_is_computed": Fault(
        SlidingWindowManager,
        "get_num_skipped_tokens",
        lambda manager, computed: computed - manager.sliding_window + 1,
        {"kind": 0, "size": 5, "computed": 0, "later": 0},
    ),
    "rules.tables_have_a_place_for_each_token": Fault(
        SingleTypeKVCacheManager,
        "table_length",
        lambda manager, slots: slots.num_tokens // manager.block_size,
        {"block_size": 2, "tokens": 3},
    ),
    "rules.tables_of_states_have_room_for_drafts": Fault(
        MambaManager,
        "table_length",
        lambda manager, slots: max(up(slots.num_tokens, manager.block_size), manager.num_speculative_blocks),
        {"block_size": 1, "tokens": 1, "drafts": 1, "align": True},
    ),
    "rules.states_do_not_look_ahead": Fault(
        MambaManager,
        "table_length",
        lambda manager, slots: up(slots.num_tokens, manager.block_size),
        {"block_size": 1, "tokens": 1, "ahead": 1, "align": False},
    ),
    "rules.blocks_that_a_hit_needs_get_keys": Fault(
        SlidingWindowManager,
        "_is_useful",
        lambda manager, place: (place + 1) * manager.block_size % manager.scheduler_block_size == 0,
        {"size": 1, "several": 2, "window": 20, "hit": 1, "place": 1, "eagle": False},
    ),
    "rules.hashes_are_those_at_the_ends_of_blocks": Fault(
        rules,
        "hashes_at",
        lambda hashes, size, block_size: hashes[:: block_size // size],
        {"size": 1, "step": 2, "number": 4, "block": 0},
    ),
    "rules.embeddings_are_where_the_item_is": Fault(
        MultiModalItem,
        "embeddings_at",
        lambda item, start, stop: [
            (place, place - start) for place in range(start, stop) if 0 <= place - item.offset < item.length
        ],
        {"offset": 2, "start": 1, "position": 3},
    ),
    "planning.memory_is_used_up": Fault(
        planning, "_tensor_pages", lambda groups: _tensor_pages(groups)[:1], {"memory": 6000}
    ),
    "planning.the_worker_with_least_room_decides": Fault(
        planning, "min", max, {"memory": 2560, "other": 10240}
    ),
    "planning.tensors_are_whole_pages": Fault(
        planning,
        "_tensor_pages",
        lambda groups: [(page + 1, names) for page, names in _tensor_pages(groups)],
        {"num_blocks": 7},
    ),
    "planning.scheduler_blocks_are_whole_blocks": Fault(planning, "lcm", max, {"size": 2, "other": 3}),
    "planning.blocks_are_whole_hash_blocks": Fault(planning, "gcd", min, {"size": 2, "other": 3}),
    "planning.pages_are_made_equal": Fault(
        planning,
        "_with_page",
        lambda name, spec, page: spec,
        {"block_size": 1, "heads": 1, "other": 2, "more": 1},
    ),
    "planning.states_are_padded": Fault(
        planning, "_with_page", lambda name, spec, page: spec, {"state": 3, "block_size": 1}
    ),
    "addresses.content_is_in_memory": Fault(
        layout,
        "_runs",
        lambda extents, itemsize: [(0, itemsize)],
        {"order": 0, "size": 1, "num_blocks": 3, "block": 1},
    ),
    "addresses.blocks_lie_apart": Fault(
        LayerPlacement,
        "runs_of",
        lambda placed, block: iter([(start + block, size) for start, size in placed.pages.runs]),
        {"order": 0, "num_blocks": 3, "block": 0, "other": 2},
    ),
    "addresses.layers_lie_apart": Fault(
        LayerPlacement,
        "runs_of",
        lambda placed, block: iter(
            [(block * placed.pages.block_stride + start, size) for start, size in placed.pages.runs]
        ),
        {"order": 0, "num_blocks": 3, "block": 1, "other": 1},
    ),
}
