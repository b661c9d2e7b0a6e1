"""Engines with a cache to be driven: groups of layers whose block sizes fit together, and small numbers."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from kvref.target import CacheGroup, SpecClassInfo
from kvref_strategies.engine import CHOICES, Engine, Setup
from kvref_strategies.specs import class_info, declares, judged, minimal, missing_menu
from kvref_strategies.workload import Description, Draw, Machine, Subjects, Workload

KINDS = (
    "FullAttentionSpec",
    "SlidingWindowSpec",
    "SlidingWindowMLASpec",
    "ChunkedLocalAttentionSpec",
    "CrossAttentionSpec",
    "MambaSpec",
)
"""The kinds whose rules the laws of the cache know; a class is of the nearest of them among its ancestors."""

OTHER_KINDS = ("RSWASpec", "EncoderOnlyAttentionSpec")
"""Kinds with other rules, whatever they derive from."""

COMPANIONS = ("FullAttentionSpec", "SlidingWindowSpec", "MambaSpec")
"""What layers there are beside those of the class in question."""

BLOCK_SIZES = [2, 4]
"""Tokens."""


def kind_of(info: SpecClassInfo) -> str | None:
    """The kind whose rules the class follows, or None if they are not known."""
    nearest = next((name for name in info["mro"] if name in (*KINDS, *OTHER_KINDS)), None)
    return nearest if nearest in KINDS else None


def _reason(info: SpecClassInfo) -> str | None:
    if kind_of(info) is None:
        return "the rules of its kind are not known here"
    return missing_menu(info)


def cache_subjects(description: Description) -> Subjects:
    """The classes that are judged, each with the reason why there is no cache for its layers."""
    return {info["name"]: _reason(info) for info in judged(description)}


def _group(info: SpecClassInfo, eagle: bool, **fields: Any) -> CacheGroup:
    known = {name: value for name, value in fields.items() if declares(info, name)}
    spec_fields = {**minimal(info)["fields"], **known}
    return {
        "spec": {"class": info["name"], "fields": spec_fields},
        "eagle": eagle,
        "kind": kind_of(info) or "",
    }


def setups(draw: Draw, description: Description, subject: str) -> Setup:
    """An engine for layers of the class, alone or beside layers of other stock classes."""
    info = class_info(description, subject)
    kind = kind_of(info)
    others = [
        each for each in description["classes"] if each["name"] in COMPANIONS and not missing_menu(each)
    ]
    infos = [info, *draw(st.lists(st.sampled_from(others), max_size=2))]
    kinds = [kind_of(each) for each in infos]
    enable_caching = "CrossAttentionSpec" not in kinds and draw(st.sampled_from([True, True, True, False]))
    chunked, recurrent = "ChunkedLocalAttentionSpec" in kinds, "MambaSpec" in kinds
    # Chunks, and states that are kept now and then, need blocks of one length in all groups.
    sizes = st.sampled_from(BLOCK_SIZES)
    size = draw(sizes)
    one_size = chunked or recurrent or len(infos) == 1
    block_sizes = [size if one_size else draw(sizes) for _ in infos]
    max_model_len = draw(st.sampled_from([16, 24, 33]))
    drafts = draw(st.sampled_from([0, 0, 1, 2]))
    max_batches, is_async = draw(st.sampled_from([(1, False), (2, True), (2, False)]))
    if max_batches == 2 and not is_async:
        drafts = 0
    use_eagle = drafts > 0 and not chunked and draw(st.booleans())
    batch = draw(st.sampled_from([32, 8, 5]))
    mode = draw(st.sampled_from(["align", "all"])) if enable_caching else "none"
    if mode == "all":
        drafts, use_eagle = (0, False) if recurrent else (drafts, use_eagle)
    groups: list[CacheGroup] = []
    for place, (each, block_size) in enumerate(zip(infos, block_sizes, strict=True)):
        state_size = max_model_len if mode == "none" and each["name"] == "MambaSpec" else block_size
        if kinds[place] == "MambaSpec" and mode == "none":
            state_size = max_model_len
        eagle = use_eagle and kinds[place] != "MambaSpec" and draw(st.booleans())
        groups.append(
            _group(
                each,
                eagle,
                block_size=state_size,
                sliding_window=draw(st.sampled_from([4, 1, 3, 6, 9])),
                attention_chunk_size=block_size * draw(st.sampled_from([2, 1, 3])),
                sink_len=2 * block_size,
                mamba_cache_mode=mode,
                num_speculative_blocks=drafts,
            )
        )
        if kinds[place] == "FullAttentionSpec":
            for optional in ("sliding_window", "attention_chunk_size"):
                groups[-1]["spec"]["fields"].pop(optional, None)
    real = [group["spec"]["fields"]["block_size"] for group in groups]
    scheduler_block_size = math.lcm(*real)
    hash_block_size = math.gcd(*real) if enable_caching else scheduler_block_size
    if recurrent and mode == "align":
        batch = max(batch, scheduler_block_size)
    if enable_caching and len(groups) > 1 and not chunked and mode != "all":
        hash_block_size //= draw(st.sampled_from([1, 1, 2]))
    loads = "CrossAttentionSpec" not in kinds and draw(st.sampled_from([False, False, True]))
    return Setup(
        groups=groups,
        num_blocks=draw(st.sampled_from([12, 24, 8, 40])),
        scheduler_block_size=scheduler_block_size,
        hash_block_size=hash_block_size,
        max_model_len=max_model_len,
        max_num_batched_tokens=batch,
        enable_caching=enable_caching,
        use_eagle=use_eagle,
        drafts=drafts,
        max_encoder_tokens=8 if kind == "CrossAttentionSpec" else 0,
        max_batches=max_batches,
        is_async=is_async,
        whole=draw(st.booleans()),
        align=scheduler_block_size if recurrent and mode == "align" else None,
        loads=loads,
        drops=loads and draw(st.booleans()),
        priority=draw(st.sampled_from([False, False, True])),
    )


class CacheMachine(Machine):
    """An engine that goes on as it likes."""

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        setup = setups(data.draw, self.description, self.subject)
        self.engine = Engine(self.stage, setup, self.description["parts"])

    @rule(choice=st.integers(0, CHOICES - 1))
    def go_on(self, choice: int) -> None:
        self.engine.go_on(choice)


_USED = (
    "create",
    "add",
    "lookup",
    "allocate",
    "progress",
    "cache_blocks",
    "free",
    "reset",
    "new_step",
    "state",
)

WORKLOADS = [
    Workload(
        "cache.machine",
        ("specs", "cache", *(f"cache.{name}" for name in _USED)),
        cache_subjects,
        CacheMachine,
        weight=0.5,
        unobserved="no cache for such layers could be made, or it offered nothing to judge",
    ),
]
