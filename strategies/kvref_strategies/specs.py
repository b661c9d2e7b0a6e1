"""Draws spec descriptors for any spec class of any release.

kvref knows legal values for a field by the field's name: values that an engine would set. These are the
*menu* of the field, the simplest value first. A descriptor leaves out the fields that have their default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from kvref.target import FieldInfo, SpecClassInfo, SpecDescriptor
from kvref_strategies.workload import Description, Draw, Stage, Subjects, Workload

_DTYPES = ["torch.float16", "torch.float32", "torch.bfloat16", "torch.uint8", "torch.float8_e4m3fn"]

MENUS: dict[str, list[Any]] = {
    "block_size": [16, 32, 64, 128, 48, 8, 4, 2, 1],
    "num_kv_heads": [1, 2, 4, 8],
    "head_size": [8, 16, 64, 128],
    "head_size_v": [4, 16, 64],
    "dtype": _DTYPES,
    "sliding_window": [16, 64, 100, 1],
    "attention_chunk_size": [64, 128],
    "sink_len": [128, 384],
    "cache_dtype_str": ["fp8", "auto"],
    "alignment": [576, 1024],
    "extra_retained_tokens": [1, 2],
    "shapes": [[[4, 8]], [[4, 8], [2, 3, 4]], [[16, 16], [32]]],
    "dtypes": [["torch.float16"], ["torch.float32"]],
    "mamba_cache_mode": ["align", "all"],
    "num_speculative_blocks": [1, 2],
    "tokens_per_state": [4],
    "compress_ratio": [4],
    "rswa_window": [64, 16],
    "state_content_bytes": [656],
    "tq_slot_size": [656],
    "kv_quant_mode": ["FP8_PER_TENSOR"],
    "model_version": ["deepseek_v4"],
    "mamba_type": ["mamba1"],
    "block_stride_alignment": [4096],
    "max_tp_shards": [2],
    "num_head_slots": [8],
    "cache_role": ["indexer"],
    "page_size": [4096, 512],
    "blocks_per_request": [4, 1],
}
"""The menu of each field, without its default, in the field's own unit. Enum members are given by name."""

# All heads share one latent vector for each token, and there is no separate V.
_LATENT: dict[str, list[Any]] = {
    "num_kv_heads": [1],
    "head_size_v": [],
    "head_size": [576, 512, 64],
    "tokens_per_state": MENUS["tokens_per_state"],
    "compress_ratio": MENUS["compress_ratio"],
}

KINDS: dict[str, dict[str, list[Any]]] = {
    # Latent layers may have a window, but are never chunked.
    "MLAAttentionSpec": {**_LATENT, "attention_chunk_size": []},
    "SlidingWindowMLASpec": _LATENT,
    # Only latent caches store several tokens in one state.
    "AttentionSpec": {"tokens_per_state": [], "compress_ratio": []},
    # A recurrent state does not depend on the number of tokens.
    "MambaSpec": {"tokens_per_state": []},
}
"""Menus that apply to a spec class and all classes derived from it, in place of those in `MENUS`.

With an empty menu, the field keeps its default.
"""

KNOWN_KINDS = (
    "FullAttentionSpec",
    "SlidingWindowSpec",
    "ChunkedLocalAttentionSpec",
    "CrossAttentionSpec",
    "EncoderOnlyAttentionSpec",
    "MambaSpec",
)
"""The spec classes whose rules the laws know. A class that derives from one of them follows the same
rules."""

OPTIONAL_WINDOWS = ("sliding_window", "attention_chunk_size")
"""Fields that mean "no limit" if they are left out. With full attention, layers with and without a limit can
be merged."""

ALWAYS = ("sink_len",)
"""Fields that engines always set, although the fields have a default."""

MOST_PAIRS = 12
"""The most pairs of specs that one example compares. Several pairs cover each field with fewer examples."""

PADDINGS = [256, 512, 4096]
"""The bytes that padding may add to a page. They are multiples of the size of every dtype."""

RANGES: dict[str, range] = {
    "block_size": range(1, 2**20 + 1),
    "num_kv_heads": range(1, 257),
    "head_size": range(8, 4097, 8),
    "head_size_v": range(8, 4097, 8),
    "sliding_window": range(1, 2**20 + 1),
    "attention_chunk_size": range(1, 2**20 + 1),
    "sink_len": range(1, 4097),
    "alignment": range(1, 2**16 + 1),
    "extra_retained_tokens": range(1, 65),
    "num_speculative_blocks": range(1, 65),
}
"""The full range of each field, for symbolic examples (see `widened`)."""


def class_info(description: Description, name: str) -> SpecClassInfo:
    return next(info for info in description["classes"] if info["name"] == name)


def is_required(field: FieldInfo) -> bool:
    return "default" not in field or field["name"] in ALWAYS


def menu(info: SpecClassInfo, field: str) -> Sequence[Any]:
    """The values to draw for `field` of this class. It is empty if the field keeps its default."""
    default: Any = None
    for known in info["fields"]:
        if known["name"] == field:
            if "values" in known:
                return known["values"]
            default = known.get("default")
    for ancestor in info["mro"]:
        if field in KINDS.get(ancestor, {}):
            return KINDS[ancestor][field]
    values = MENUS.get(field, [])
    if isinstance(default, bool) and not values:
        return [not default]
    if isinstance(default, dict) and "enum" in default:
        return [{**default, "name": name.upper()} for name in values]
    return values


def one_of(values: Sequence[Any]) -> SearchStrategy[Any]:
    """A strategy that draws one of the values.

    If `values` is a range, the strategy draws an index and computes the value from it. So CrossHair can treat
    the value as a symbol.
    """
    if isinstance(values, range):
        start, step = values.start, values.step
        return st.integers(0, len(values) - 1).map(lambda place: start + step * place)
    return st.sampled_from(values)


def widened(description: Description) -> Description:
    """A copy of the description in which the menu of each field in `RANGES` is replaced by the field's range.

    A field keeps its menu if the menu comes from the target, or if it has fewer than two values.
    """

    def widened_field(info: SpecClassInfo, field: FieldInfo) -> Any:
        name = field["name"]
        fixed = "values" in field or len(menu(info, name)) < 2 or name not in RANGES
        return field if fixed else {**field, "values": RANGES[name]}

    classes = [
        {**info, "fields": [widened_field(info, field) for field in info["fields"]]}
        for info in description["classes"]
    ]
    return cast(Description, {**description, "classes": classes})


def missing_fields(info: SpecClassInfo) -> list[str]:
    """The required fields of the class for which neither kvref nor the target has a menu."""
    return [f["name"] for f in info["fields"] if is_required(f) and not menu(info, f["name"])]


def missing_menu(info: SpecClassInfo) -> str | None:
    """The reason why no spec of this class can be drawn, or None if one can."""
    unknown = missing_fields(info)
    if not unknown:
        return None
    return (
        f"no strategy for required field {', '.join(unknown)}: give values below [strategies.{info['name']}] "
        "in kvref.toml"
    )


def spec_subjects(description: Description) -> dict[str, str | None]:
    """Every class of role `layer`, with None if specs of it can be drawn, else with the reason why not."""
    return {info["name"]: missing_menu(info) for info in description["classes"] if info["role"] == "layer"}


def judged(description: Description) -> list[SpecClassInfo]:
    """The classes of role `layer` to judge. If there is a plugin, these are only the plugin's classes."""
    infos = [info for info in description["classes"] if info["role"] == "layer"]
    return [info for info in infos if description["plugin"] is None or info.get("origin") == "plugin"]


def minimal(info: SpecClassInfo) -> SpecDescriptor:
    """The simplest legal spec of the class."""
    required = [f["name"] for f in info["fields"] if is_required(f)]
    return _legal({"class": info["name"], "fields": {name: menu(info, name)[0] for name in required}})


@st.composite
def descriptors(draw: Draw, info: SpecClassInfo, often: tuple[str, ...] = ()) -> SpecDescriptor:
    """Draw a legal spec of the class.

    A field keeps its default three times out of four, or half of the time if it is listed in `often`.
    """
    spec = minimal(info)
    for field in info["fields"]:
        values = menu(info, field["name"])
        if not values:
            continue
        if is_required(field) or draw(st.booleans() if field["name"] in often else _rarely):
            spec["fields"][field["name"]] = draw(one_of(values))
    return _legal(spec)


_rarely: SearchStrategy[bool] = st.sampled_from([False, False, False, True])


def _legal(spec: SpecDescriptor) -> SpecDescriptor:
    """Change the fields of the spec so that their values go together as in an engine.

    Return the same spec.
    """
    fields = spec["fields"]
    if "sliding_window" in fields and "attention_chunk_size" in fields:
        del fields["attention_chunk_size"]
    for states in ("tokens_per_state", "compress_ratio"):
        if states in fields and fields["block_size"] % fields[states]:
            del fields[states]
    if fields.get("tq_slot_size"):
        fields.pop("state_content_bytes", None)
    if "sink_len" in fields:
        fields["sink_len"] = -(-fields["sink_len"] // fields["block_size"]) * fields["block_size"]
    if "dtypes" in fields:
        fields["dtypes"] = [fields["dtypes"][0]] * len(fields["shapes"])
    return spec


def legal_block_sizes(info: SpecClassInfo, spec: SpecDescriptor) -> Sequence[int]:
    """The block sizes in the menu that hold a whole number of stored states and divide `sink_len`."""
    fields = spec["fields"]
    tokens: Any = fields.get("tokens_per_state", fields.get("compress_ratio", 1))
    every = menu(info, "block_size")
    if isinstance(every, range):
        # The divisors of a symbolic `sink_len` are unknown, except for 1.
        return range(1, 2) if "sink_len" in fields else range(tokens, every.stop, tokens)
    sizes = [size for size in every if size % tokens == 0]
    return [size for size in sizes if fields.get("sink_len", size) % size == 0]


def with_field(spec: SpecDescriptor, field: str, value: Any) -> SpecDescriptor:
    return _legal({"class": spec["class"], "fields": {**spec["fields"], field: value}})


def declares(info: SpecClassInfo, field: str) -> bool:
    return any(f["name"] == field for f in info["fields"])


def _padding_subjects(description: Description) -> Subjects:
    subjects = spec_subjects(description)
    for name in subjects:
        if not declares(class_info(description, name), "page_size_padded"):
            subjects[name] = "the class has no page_size_padded"
    return subjects


def padding(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Build a spec, then build it with its page padded to a larger size."""
    spec = draw(descriptors(class_info(description, subject)))
    built = stage.perform("specs.build", spec=spec)
    if "value" in built:
        page = padded_page(draw, spec, built["value"]["page_size_bytes"])
        padded = with_field(spec, "page_size_padded", page)
        if description["capabilities"].get("never_pads"):
            padded["declared"] = {"never_pads": True}
        stage.perform("specs.build", spec=padded)


def padded_page(draw: Draw, spec: SpecDescriptor, page: int) -> int:
    """Draw a page size in bytes that is larger than `page` and keeps the alignment of the spec."""
    alignment = spec["fields"].get("alignment") or 1
    return -(-(page + draw(st.sampled_from(PADDINGS))) // alignment) * alignment


def perhaps_padded(draw: Draw, stage: Stage, info: SpecClassInfo, spec: SpecDescriptor) -> SpecDescriptor:
    """Build the spec. Sometimes also build it with a larger page, and then return the spec with that page."""
    built = stage.perform("specs.build", spec=spec)
    if "value" not in built or not declares(info, "page_size_padded") or not draw(_rarely):
        return spec
    padded = with_field(spec, "page_size_padded", padded_page(draw, spec, built["value"]["page_size_bytes"]))
    stage.perform("specs.build", spec=padded)
    return padded


def merge_equal(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Build a spec, perhaps with a padded page, then merge it with itself."""
    info = class_info(description, subject)
    spec = perhaps_padded(draw, stage, info, draw(descriptors(info)))
    stage.perform("specs.merge", specs=[spec] * draw(st.integers(1, 3)))


@st.composite
def perturbations(
    draw: Draw, info: SpecClassInfo, mergeable: bool = False
) -> list[tuple[SpecDescriptor, SpecDescriptor]]:
    """Draw pairs of legal specs of the class. The two specs of a pair differ in one field.

    Each pair differs in another field. Two specs that differ so may not share a group. With `mergeable`, one
    pair may have a window in one spec and none in the other. Those two may share a group.
    """
    spec = draw(descriptors(info, often=tuple(field["name"] for field in info["fields"])))
    choices = {f["name"]: _distinct_values(info, f, mergeable) for f in info["fields"]}
    names = [name for name, values in choices.items() if len(values) > 1]

    def pairs_of(field: str) -> SearchStrategy[tuple[str, list[int]]]:
        places = st.integers(0, len(choices[field]) - 1)
        return st.tuples(st.just(field), st.lists(places, min_size=2, max_size=2, unique=True))

    # Each field is drawn together with its two values, so that Hypothesis removes all three together.
    drawn = st.lists(
        st.sampled_from(names).flatmap(pairs_of),
        min_size=1,
        max_size=MOST_PAIRS,
        unique_by=lambda pair: pair[0],
    )
    return [
        (with_field(spec, field, choices[field][first]), with_field(spec, field, choices[field][second]))
        for field, (first, second) in draw(drawn)
    ]


def _distinct_values(info: SpecClassInfo, field: FieldInfo, mergeable: bool) -> Sequence[Any]:
    """The values of the field to draw pairs from.

    Without `mergeable`, two specs that differ in two of these values may not share a group.
    """
    values = menu(info, field["name"])
    if not values or is_required(field) or (field["name"] in OPTIONAL_WINDOWS and not mergeable):
        return values
    default = field.get("default")
    return [default, *(value for value in values if value != default)]


def merge_unequal(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Build pairs of specs that differ in one field or in their padding, and merge each pair."""
    info = class_info(description, subject)
    for first, second in draw(perturbations(info)):
        built = stage.perform("specs.build", spec=first)
        if "value" in built and declares(info, "page_size_padded") and draw(_rarely):
            page = padded_page(draw, first, built["value"]["page_size_bytes"])
            second = with_field(first, "page_size_padded", page)
        stage.perform("specs.build", spec=second)
        stage.perform("specs.merge", specs=[first, second])


def copy(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Copy a spec, perhaps with a padded page, to another block size.

    Then build a spec of that block size.
    """
    info = class_info(description, subject)
    spec = draw(descriptors(info, often=("alignment",)))
    block_size = draw(one_of(legal_block_sizes(info, spec)))
    spec = perhaps_padded(draw, stage, info, spec)
    stage.perform("specs.copy", spec=spec, block_size=block_size)
    stage.perform("specs.build", spec=with_field(spec, "block_size", block_size))


WORKLOADS = [
    Workload("specs.padding", ("specs",), _padding_subjects, padding, symbolic=True),
    Workload("specs.merge-equal", ("specs",), spec_subjects, merge_equal, symbolic=True),
    Workload("specs.merge-unequal", ("specs",), spec_subjects, merge_unequal),
    Workload("specs.copy", ("specs",), spec_subjects, copy, symbolic=True),
]
