"""Draws models as a planner sees them: the spec of each layer by name, in the order of the model.

Each model belongs to a family of similar models. The families are the subjects of the workloads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import strategies as st

from kvref.target import SpecDescriptor
from kvref_strategies.spec_groups import LONE_VENDOR, VENDOR, derive_vendor
from kvref_strategies.specs import class_info, declares, minimal, missing_menu, with_field
from kvref_strategies.workload import Description, Draw, Stage, Subjects, Workload

UNREGISTERED = "UnregisteredSpec"
"""The name of a spec class that is not registered. None of its ancestors is registered, either."""

MAX_LAYERS = 8
MAX_MODEL_LEN = 128
LIMITS = {"max_model_len": MAX_MODEL_LEN, "max_in_flight_tokens": 64}
"""The limits of the engine, in tokens."""

Specs = Callable[[Draw, Stage, Description], list[SpecDescriptor]]
"""A function that draws the specs that the layers of a model may have."""


@dataclass(frozen=True)
class Family:
    """A family of models: the spec classes that the models need, and a function that draws the specs.

    `registered` is true if a vendor registers one of the classes. Then the target must have a registry.
    """

    classes: tuple[str, ...]
    specs: Specs
    registered: bool = False


def spec_with(description: Description, name: str, **fields: Any) -> SpecDescriptor:
    """The simplest spec of the class, with those of the given fields that the class has."""
    info = class_info(description, name)
    known = {field: value for field, value in fields.items() if declares(info, field)}
    return {"class": name, "fields": {**minimal(info)["fields"], **known}}


def _attention(draw: Draw) -> dict[str, Any]:
    """Draw the fields that all attention layers of a model share."""
    return {
        "block_size": draw(st.sampled_from([16, 32])),
        "num_kv_heads": draw(st.sampled_from([1, 2])),
        "head_size": 8,
        "dtype": "torch.float16",
    }


def _other_heads(draw: Draw, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, perhaps with another number or size of heads. Layers of some models differ in this."""
    changed = draw(st.sampled_from([{}, {"num_kv_heads": 4}, {"head_size": 64}, {"num_kv_heads": 3}]))
    return {**fields, **changed}


def _perhaps_more_heads(draw: Draw, fields: dict[str, Any]) -> dict[str, Any]:
    return draw(st.sampled_from([fields, {**fields, "num_kv_heads": 4}]))


def _full(draw: Draw, stage: Stage, description: Description) -> list[SpecDescriptor]:
    fields = _attention(draw)
    return [
        spec_with(description, "FullAttentionSpec", **fields),
        spec_with(description, "FullAttentionSpec", **_other_heads(draw, fields)),
    ]


def _windows(draw: Draw, stage: Stage, description: Description) -> list[SpecDescriptor]:
    fields = _attention(draw)
    window = draw(st.sampled_from([64, 16, 100]))
    heads = _other_heads(draw, fields)
    return [
        spec_with(description, "FullAttentionSpec", **fields),
        spec_with(description, "SlidingWindowSpec", **heads, sliding_window=window),
    ]


def _chunks(draw: Draw, stage: Stage, description: Description) -> list[SpecDescriptor]:
    fields = _attention(draw)
    return [
        spec_with(description, "FullAttentionSpec", **fields),
        spec_with(description, "ChunkedLocalAttentionSpec", **fields, attention_chunk_size=64),
    ]


def _latent(draw: Draw, stage: Stage, description: Description) -> list[SpecDescriptor]:
    fields = {"block_size": draw(st.sampled_from([64, 32])), "num_kv_heads": 1, "dtype": "torch.float16"}
    # The layer sets `cache_dtype_str`. The index that some models keep besides the layer does not.
    layer = spec_with(description, "MLAAttentionSpec", **fields, head_size=576, cache_dtype_str="auto")
    index = spec_with(description, "MLAAttentionSpec", **{**fields, "dtype": "torch.uint8"}, head_size=132)
    return [layer, draw(st.sampled_from([layer, index]))]


def _drafted(draw: Draw, stage: Stage, description: Description) -> list[SpecDescriptor]:
    """Latent attention (MLA), and a draft model with sliding windows."""
    [latent, index] = _latent(draw, stage, description)
    heads = {
        "block_size": latent["fields"]["block_size"],
        "num_kv_heads": draw(st.sampled_from([1, 2, 8])),
        "head_size": draw(st.sampled_from([64, 128])),
        "dtype": "torch.float16",
    }
    return [latent, spec_with(description, "SlidingWindowSpec", **heads, sliding_window=64), index]


def _hidden(draw: Draw, stage: Stage, description: Description) -> list[SpecDescriptor]:
    """Attention layers, and a layer that caches hidden states of other layers for the user."""
    fields = _attention(draw)
    full = spec_with(description, "FullAttentionSpec", **fields)
    window = spec_with(description, "SlidingWindowSpec", **fields, sliding_window=64)
    kept = {**fields, "num_kv_heads": draw(st.sampled_from([1, 3])), "head_size": 64}
    return [
        full,
        spec_with(description, "HiddenStateCacheSpec", **kept),
        draw(st.sampled_from([full, window])),
    ]


def _states(draw: Draw, stage: Stage, description: Description) -> list[SpecDescriptor]:
    """Attention and recurrent layers. A draft model may add attention layers with more heads.

    As on real platforms, the pages of recurrent layers are padded to the size of attention pages.
    """
    fields = _attention(draw)
    full = spec_with(description, "FullAttentionSpec", **fields)
    shapes = draw(st.sampled_from([[[4, 8]], [[4, 8], [2, 3, 4]], [[16, 16], [32]]]))
    mode = draw(st.sampled_from(["none", "align"]))
    state = spec_with(
        description,
        "MambaSpec",
        shapes=shapes,
        dtypes=["torch.float32"] * len(shapes),
        mamba_cache_mode=mode,
        block_size=fields["block_size"],
    )
    pages = [
        outcome["value"]["page_size_bytes"]
        for outcome in (stage.perform("specs.build", spec=spec) for spec in (full, state))
        if "value" in outcome
    ]
    if len(pages) == 2:
        # Attention gets larger blocks, so that a recurrent state fits into the page of one.
        times = -(-pages[1] // pages[0])
        full = with_field(full, "block_size", fields["block_size"] * times)
        state = with_field(state, "page_size_padded", pages[0] * times)
        length = MAX_MODEL_LEN if mode == "none" else full["fields"]["block_size"]
        state = with_field(state, "block_size", length)
    drafts = [with_field(full, "num_kv_heads", 2 * fields["num_kv_heads"]), full]
    return [full, state, draw(st.sampled_from(drafts[::-1]))]


def _sinks(draw: Draw, stage: Stage, description: Description) -> list[SpecDescriptor]:
    fields = _attention(draw)
    return [
        spec_with(description, "FullAttentionSpec", **fields),
        spec_with(description, "SinkFullAttentionSpec", **_perhaps_more_heads(draw, fields), sink_len=128),
    ]


def _cross(draw: Draw, stage: Stage, description: Description) -> list[SpecDescriptor]:
    fields = _attention(draw)
    return [
        spec_with(description, "FullAttentionSpec", **fields),
        spec_with(description, "CrossAttentionSpec", **fields),
    ]


def _block_sizes(draw: Draw, stage: Stage, description: Description) -> list[SpecDescriptor]:
    """Full attention layers with different block sizes, as if they used different kernels."""
    fields = _attention(draw)
    full = spec_with(description, "FullAttentionSpec", **fields)
    return [full, with_field(full, "block_size", draw(st.sampled_from([64, 48])))]


def _vendor(name: str, draw: Draw, stage: Stage, description: Description) -> list[SpecDescriptor]:
    """Layers of one stock class, and layers of a vendor's class derived from it."""
    fields = _attention(draw)
    base = draw(st.sampled_from(["FullAttentionSpec", "SlidingWindowSpec"]))
    window = {"sliding_window": 64} if base == "SlidingWindowSpec" else {}
    stock = spec_with(description, base, **fields, **window)
    derive_vendor(draw, stage, stock, name)
    heads = _perhaps_more_heads(draw, fields)
    return [stock, {"class": name, "fields": spec_with(description, base, **heads, **window)["fields"]}]


FAMILIES = {
    "full attention": Family(("FullAttentionSpec",), _full),
    "windows": Family(("FullAttentionSpec", "SlidingWindowSpec"), _windows),
    "chunks": Family(("FullAttentionSpec", "ChunkedLocalAttentionSpec"), _chunks),
    "latent attention": Family(("MLAAttentionSpec",), _latent),
    "latent attention with a draft": Family(("MLAAttentionSpec", "SlidingWindowSpec"), _drafted),
    "recurrent states": Family(("FullAttentionSpec", "MambaSpec"), _states),
    "sinks": Family(("FullAttentionSpec", "SinkFullAttentionSpec"), _sinks),
    "cross attention": Family(("FullAttentionSpec", "CrossAttentionSpec"), _cross),
    "block sizes": Family(("FullAttentionSpec",), _block_sizes),
    "hidden states": Family(("FullAttentionSpec", "SlidingWindowSpec", "HiddenStateCacheSpec"), _hidden),
    "a vendor's class": Family(("FullAttentionSpec", "SlidingWindowSpec"), partial(_vendor, VENDOR), True),
    "a vendor's own kind": Family(
        ("FullAttentionSpec", "SlidingWindowSpec"), partial(_vendor, LONE_VENDOR), True
    ),
}
"""The families by name. The names are the subjects of the workloads."""


SEVERAL_KINDS = ("windows", "chunks", "latent attention with a draft", "recurrent states", "cross attention")
"""The families with layers of several kinds. An engine may manage all these layers as full attention."""


def families(description: Description) -> Subjects:
    """Maps each family to the reason why the target cannot have models of it, or to None if it can."""
    no_registry = None if has_registry(description) else "there is no registry"
    return {
        name: (no_registry if family.registered else None) or lacking(description, family.classes)
        for name, family in FAMILIES.items()
    }


def has_registry(description: Description) -> bool:
    return "registry" in description["parts"]


def lacking(description: Description, classes: tuple[str, ...]) -> str | None:
    """The reason why models with these classes cannot be drawn for the target. None if they can."""
    known = {info["name"]: missing_menu(info) for info in description["classes"]}
    for name in classes:
        if name not in known:
            return f"there is no {name}"
        if known[name]:
            return f"{name}: {known[name]}"
    return None


@dataclass(frozen=True)
class Model:
    """The drawn layers of a model."""

    layers: dict[str, SpecDescriptor]
    """The spec of each layer, by name."""
    numbers: dict[str, int]
    """A drawn number for each layer, by name. A workload may use it as the pipeline stage, for example."""
    page: int
    """The largest page size of all layers, in bytes."""

    def memory(self, draw: Draw) -> int:
        """Draw a memory size in bytes, enough for a few requests. It need not be a whole number of blocks."""
        blocks = draw(st.sampled_from([64, 100, 40]))
        return blocks * len(self.layers) * self.page + draw(st.sampled_from([0, 1, 1000]))


def draw_model(
    draw: Draw, stage: Stage, description: Description, subject: str, numbers: int
) -> Model | None:
    """Initialise the registry, and draw a model of the family `subject`.

    None if the target cannot build one of the specs.

    Args:
        numbers: each layer gets a drawn number below this one.
    """
    if has_registry(description):
        stage.perform("registry.initialise")
    specs = FAMILIES[subject].specs(draw, stage, description)
    # Drawn in pairs, so that Hypothesis removes a layer and its number together.
    drawn = draw(
        st.lists(
            st.tuples(st.sampled_from(specs), st.integers(0, numbers - 1)), min_size=1, max_size=MAX_LAYERS
        )
    )
    pages = []
    for spec in [spec for spec in specs if any(spec == one for one, _ in drawn)]:
        built = stage.perform("specs.build", spec=spec)
        if "value" not in built:
            return None
        pages.append(built["value"]["page_size_bytes"])
    layers = {f"layer.{place}": spec for place, (spec, _) in enumerate(drawn)}
    return Model(layers, {f"layer.{place}": number for place, (_, number) in enumerate(drawn)}, max(pages))


def plans(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Group the layers of a model, or plan their memory, with the layers in two orders."""
    model = draw_model(draw, stage, description, subject, MAX_LAYERS)
    if model is None:
        return
    layers = model.layers
    order = sorted(layers, key=lambda name: model.numbers[name])
    operation, limits = "planner.groups", {}
    if draw(st.booleans()):
        operation, limits = "planner.config", {"memory": model.memory(draw), **LIMITS}
    stage.perform(operation, layers=layers, **limits)
    if order != list(layers):
        stage.perform(operation, layers={name: layers[name] for name in order}, **limits)


def one_group(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Group the layers of a model for an engine that manages all of them as full attention."""
    model = draw_model(draw, stage, description, subject, 1)
    if model is not None:
        stage.perform("planner.one_group", layers=model.layers)


def unregistered(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Plan for layers of which at least one has a spec class that is not registered."""
    stage.perform("registry.initialise")
    fields = _attention(draw)
    full = spec_with(description, "FullAttentionSpec", **fields)
    stage.perform("specs.derive", name=UNREGISTERED, base="AttentionSpec", fields={})
    heads = _other_heads(draw, fields)
    unknown: SpecDescriptor = {
        "class": UNREGISTERED,
        "fields": {name: heads[name] for name in full["fields"] if name in heads},
    }
    if all("value" in stage.perform("specs.build", spec=spec) for spec in (full, unknown)):
        stage.perform("registry.lookup", spec=unknown)
        specs = [unknown, *draw(st.lists(st.sampled_from([full, unknown]), max_size=3))]
        stage.perform(
            "planner.config",
            layers={f"layer.{place}": spec for place, spec in enumerate(draw(st.permutations(specs)))},
            memory=1 << 24,
            **LIMITS,
        )


def _several_kinds(description: Description) -> Subjects:
    reasons = families(description)
    return {name: reasons[name] for name in SEVERAL_KINDS}


def _with_attention_base(description: Description) -> Subjects:
    bases = {info["name"] for info in description["classes"] if info["role"] == "base"}
    reason = lacking(description, ("FullAttentionSpec",))
    return {"planner": reason if "AttentionSpec" in bases else "there is no base class AttentionSpec"}


_PARTS = ("specs", "specs.derive", "planner", "planner.groups", "planner.config")

WORKLOADS = [
    Workload("models.plans", _PARTS, families, plans, weight=0.8),
    Workload("models.one-group", (*_PARTS, "planner.one_group"), _several_kinds, one_group, weight=0.4),
    Workload("models.unregistered", (*_PARTS, "registry"), _with_attention_base, unregistered, weight=0.2),
]
