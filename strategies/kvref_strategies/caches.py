"""Runs engines that drive a cache manager, for the laws of managers, coordinators, admission and events.

All sizes are small. The block sizes of the groups go together as docs/engine-contract.md demands.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import asdict, replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from kvref.target import CacheGroup, SpecClassInfo
from kvref_strategies.engine import CHOICES, GRANTED, NEEDED, STRAIGHT, Engine, Setup
from kvref_strategies.specs import class_info, declares, judged, minimal, missing_menu
from kvref_strategies.workload import Description, Draw, Driven, Machine, Stage, Subjects, Workload

KINDS = (
    "FullAttentionSpec",
    "SlidingWindowSpec",
    "SlidingWindowMLASpec",
    "ChunkedLocalAttentionSpec",
    "CrossAttentionSpec",
    "MambaSpec",
)
"""The kinds of layers whose rules the laws know. A kind has the name of a spec class.

Classes that derive from it are of the same kind, unless a nearer ancestor names another kind.
"""

OTHER_KINDS = ("RSWASpec", "EncoderOnlyAttentionSpec", "KpoolTailSpec")
"""The kinds whose rules the laws do not know."""

COMPANION = "FullAttentionSpec"
"""The spec class of the groups that a cache may have besides groups of the subject."""

UNKNOWN_KIND = "kvref does not know the rules of its kind"
"""The reason why kvref makes no cache for a class."""

BLOCK_SIZES = [2, 4]
"""The block sizes in tokens. If a class allows only larger blocks, all lengths grow by the same factor."""

WINDOWS = [4, 2, 3, 6, 9]
"""Sliding windows in tokens."""


def kind_of(info: SpecClassInfo) -> str | None:
    """The kind of a spec class, if it is one of `KINDS`. Else None."""
    nearest = next((name for name in info["mro"] if name in (*KINDS, *OTHER_KINDS)), None)
    return nearest if nearest in KINDS else None


def _why_no_cache(info: SpecClassInfo) -> str | None:
    if kind_of(info) is None:
        return UNKNOWN_KIND
    return missing_menu(info)


def cache_subjects(description: Description) -> Subjects:
    """Each class to judge, with None if caches are made for it, else with the reason why not."""
    return {info["name"]: _why_no_cache(info) for info in judged(description)}


OWN_TABLES = "own"
"""The kind that `_group` sets for classes with the capability `own_tables`: their block tables are not in the
order of tokens."""


def _values(info: SpecClassInfo, field: str) -> list[int]:
    """The values that the target lists for this field of the class. The list may be empty."""
    return next((list(each.get("values", ())) for each in info["fields"] if each["name"] == field), [])


def _group(info: SpecClassInfo, eagle: bool, own_tables: bool, **fields: Any) -> CacheGroup:
    known = {name: value for name, value in fields.items() if declares(info, name)}
    spec_fields = {**minimal(info)["fields"], **known}
    return {
        "spec": {"class": info["name"], "fields": spec_fields},
        "eagle": eagle,
        "kind": OWN_TABLES if own_tables else kind_of(info) or "",
    }


def setups(
    draw: Draw,
    description: Description,
    subject: str,
    reads_ahead: bool = False,
    companions: Collection[str] = (COMPANION,),
) -> Setup:
    """Draw the setup of an engine. The first group has layers of the class `subject`.

    Args:
        reads_ahead: use draft tokens and a draft model (EAGLE) if the layers allow them.
        companions: the classes that the other groups may have, apart from `subject`.
    """
    info = class_info(description, subject)
    kind = kind_of(info)
    others = [info, *(each for each in description["classes"] if each["name"] in companions)]
    infos = [info, *draw(st.lists(st.sampled_from(others), max_size=2))]
    kinds = [kind_of(each) for each in infos]
    enable_caching = "CrossAttentionSpec" not in kinds and draw(st.sampled_from([True, True, True, False]))
    chunked, recurrent = "ChunkedLocalAttentionSpec" in kinds, "MambaSpec" in kinds
    # If there are chunked or recurrent layers, all groups need the same block size.
    known = _values(info, "block_size") or BLOCK_SIZES
    sizes, scale = st.sampled_from(known[:2]), -(-min(known[:2]) // BLOCK_SIZES[0])
    size = draw(sizes)
    one_size = chunked or recurrent or len(infos) == 1
    block_sizes = [size if one_size else draw(sizes) for _ in infos]
    max_model_len = scale * draw(st.sampled_from([16, 24, 33]))
    drafts = draw(st.sampled_from([1, 2, 3] if reads_ahead else [0, 0, 1, 2]))
    max_batches, is_async = draw(st.sampled_from([(1, False), (2, True), (2, False)]))
    if max_batches == 2 and not is_async and not reads_ahead:
        drafts = 0
    use_eagle = drafts > 0 and not chunked and (reads_ahead or draw(st.booleans()))
    batch = scale * draw(st.sampled_from([32, 8, 5]))
    modes = description["capabilities"].get("mamba_cache_modes", ["align", "all"])
    if reads_ahead and "align" in modes:
        # The other mode, "all", has no draft tokens.
        modes = ["align"]
    mode = draw(st.sampled_from(modes)) if enable_caching else "none"
    if recurrent:
        # The last token and its drafts have to fit into one block of a recurrent layer.
        size = next((each for each in (size, *known[:2]) if each > drafts), size)
        block_sizes, drafts = [size for _ in infos], min(drafts, size - 1)
    if mode == "all":
        drafts, use_eagle = (0, False) if recurrent else (drafts, use_eagle)
    windows = [scale * window for window in WINDOWS]
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
                each["name"] in description["capabilities"].get("own_tables", ()),
                block_size=state_size,
                sliding_window=draw(st.sampled_from(_values(each, "sliding_window") or windows)),
                attention_chunk_size=block_size * draw(st.sampled_from([2, 1, 3])),
                sink_len=2 * block_size,
                mamba_cache_mode=mode,
                num_speculative_blocks=drafts,
            )
        )
        if kinds[place] == "FullAttentionSpec":
            for optional in ("sliding_window", "attention_chunk_size"):
                groups[-1]["spec"]["fields"].pop(optional, None)
    if all(group["spec"] == groups[0]["spec"] for group in groups):
        # A planner puts layers with equal specs into one group.
        groups = [{**groups[0], "eagle": any(group["eagle"] for group in groups)}]
    real = [group["spec"]["fields"]["block_size"] for group in groups]
    scheduler_block_size = math.lcm(*real)
    hash_block_size = math.gcd(*real) if enable_caching else scheduler_block_size
    if recurrent and mode == "align":
        batch = max(batch, scheduler_block_size)
    if enable_caching and len(groups) > 1 and not chunked and mode != "all":
        hash_block_size //= draw(st.sampled_from([1, 1, 2]))
    loads = "CrossAttentionSpec" not in kinds and draw(st.sampled_from([False, False, True]))
    if recurrent and mode == "align":
        loads = loads and bool(description["capabilities"].get("loads_states", True))
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


def max_blocks(stage: Stage, setup: Setup, group: CacheGroup) -> int | None:
    """The most blocks that the group's spec allows a request to hold. None if the target refuses to say."""
    built = stage.perform("specs.build", spec=group["spec"])
    memory = stage.perform(
        "specs.max_memory",
        spec=group["spec"],
        max_model_len=setup.max_model_len,
        max_in_flight_tokens=setup.arguments["max_in_flight_tokens"],
        max_encoder_tokens=setup.max_encoder_tokens,
    )
    if "value" not in built or "value" not in memory:
        return None
    return -(-int(memory["value"]) // int(built["value"]["page_size_bytes"]))


def build_specs(stage: Stage, setup: Setup) -> None:
    """Build the spec of every group, as an engine does before it makes a cache."""
    max_blocks(stage, setup, setup.groups[0])
    for group in setup.groups[1:]:
        stage.perform("specs.build", spec=group["spec"])


class CacheMachine(Machine):
    """Runs an engine. Each call of the rule makes the engine take one of the possible actions."""

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        setup = setups(data.draw, self.description, self.subject)
        build_specs(self.stage, setup)
        self.engine = Engine(self.stage, setup, self.description["parts"])

    @rule(choice=st.integers(0, CHOICES - 1))
    def go_on(self, choice: int) -> None:
        self.engine.go_on(choice)


def drive(stage: Stage, description: Description, setup: dict[str, Any], choices: Iterable[int]) -> None:
    """Run the same engine as `CacheMachine`, with this setup and these choices."""
    made = Setup(**setup)
    build_specs(stage, made)
    engine = Engine(stage, made, description["parts"])
    for choice in choices:
        engine.go_on(choice)


def drawn(draw: Draw, description: Description, subject: str) -> dict[str, Any]:
    return asdict(setups(draw, description, subject))


def resend(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Compute a prompt, then look up other prompts that begin with some of the same tokens.

    The pool has room for everything. If the setup has a draft model, do all this without the draft model
    first, then with it.
    """
    setup = setups(draw, description, subject, reads_ahead=draw(st.booleans()))
    setup = replace(setup, num_blocks=100, loads=False, max_batches=1, is_async=False)
    if not setup.enable_caching:
        return
    lengths = st.integers(1, setup.max_model_len - 2)
    prompt = [0] * draw(lengths)
    others = draw(st.lists(st.tuples(lengths, lengths), min_size=1, max_size=3))
    without = without_drafts(setup)
    for each in [without, setup] if setup.use_eagle else [without]:
        engine = Engine(stage, each, description["parts"])
        if not engine.possible:
            return
        engine.finish(engine.submit(prompt, 1))
        for shared, length in others:
            begin = prompt[:shared]
            request = engine.submit(begin + [1] * max(0, length - len(begin)), 1)
            engine.do("lookup", request=request.name)


def without_drafts(setup: Setup) -> Setup:
    """A copy of the setup without draft tokens and without a draft model."""
    groups = [_without_drafts(each) for each in setup.groups]
    return replace(setup, use_eagle=False, drafts=0, groups=groups)


def _without_drafts(group: CacheGroup) -> CacheGroup:
    fields = {
        name: value for name, value in group["spec"]["fields"].items() if name != "num_speculative_blocks"
    }
    return {**group, "eagle": False, "spec": {"class": group["spec"]["class"], "fields": fields}}


def alone(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Run one request up to `max_model_len`, in an engine with the least memory that lets an engine start."""
    setup = setups(draw, description, subject)
    setup = replace(setup, use_eagle=False, loads=False)
    blocks = [max_blocks(stage, setup, group) for group in setup.groups]
    if None in blocks:
        return
    trial = stage.perform("cache.create", **setup.arguments)
    if "value" not in trial:
        return
    kept = {trial["value"]["null"], *trial["value"]["reserved"]} - {None}
    setup = replace(setup, num_blocks=sum(filter(None, blocks)) + len(kept))
    engine = Engine(stage, setup, description["parts"])
    length = draw(st.integers(1, setup.max_model_len - 1))
    request = engine.submit([0] * length, setup.max_model_len, encoder=setup.max_encoder_tokens)
    # The choices vary the sizes of steps and the accepted drafts, but select no other action.
    engine.finish(request, draw(st.lists(st.integers(0, CHOICES // STRAIGHT - 1), max_size=12)))


def drafted(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Run one request after the other. Steps have many draft tokens, few, or none."""
    setup = setups(draw, description, subject, reads_ahead=True)
    setup = replace(setup, loads=False, max_batches=1, is_async=False, use_eagle=False)
    engine = Engine(stage, setup, description["parts"])
    prompt = [0] * draw(st.integers(1, setup.max_model_len // 4))
    # 16 bits suffice to decide a step. Hypothesis draws larger numbers less evenly.
    for how in draw(st.lists(st.integers(0, (1 << 16) - 1), min_size=12, max_size=24)):
        if not engine.running and not engine.waiting:
            engine.submit(prompt, setup.max_model_len, encoder=setup.max_encoder_tokens)
        # Schedule as much as possible, submit the step, and process its output. `how` decides the output.
        for choice in (0, 0, how * STRAIGHT):
            engine.go_on(choice)


_PARTS = ("specs", "specs.max_memory", "cache", *(f"cache.{name}" for name in (*NEEDED, "reset", "state")))
_UNOBSERVED = "the target made no cache for these layers, or no example gave the law anything to judge"

WORKLOADS = [
    Workload(
        "cache.machine",
        _PARTS,
        cache_subjects,
        CacheMachine,
        weight=0.5,
        unobserved=_UNOBSERVED,
        proof=GRANTED,
        driven=Driven(drawn, drive, CHOICES),
    ),
    Workload(
        "cache.resend", _PARTS, cache_subjects, resend, weight=0.3, unobserved=_UNOBSERVED, proof=GRANTED
    ),
    Workload("cache.alone", _PARTS, cache_subjects, alone, weight=0.2, unobserved=_UNOBSERVED, proof=GRANTED),
    Workload(
        "cache.drafted", _PARTS, cache_subjects, drafted, weight=0.25, unobserved=_UNOBSERVED, proof=GRANTED
    ),
]
