"""Asks for sizes in bytes: the page sizes of specs, and the most memory that a request needs."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kvref.target import SpecClassInfo, SpecDescriptor
from kvref_strategies.specs import (
    class_info,
    declares,
    descriptors,
    legal_block_sizes,
    one_of,
    padded_page,
    spec_subjects,
    with_field,
)
from kvref_strategies.workload import Description, Draw, Stage, Subjects, Workload

IN_FLIGHT = [128, 1, 16, 2048]
"""The values of `max_in_flight_tokens`."""

ENCODER_TOKENS = 1500

WINDOWED = ("SlidingWindowSpec", "ChunkedLocalAttentionSpec")
"""The spec classes of layers that free the blocks behind their window or chunk."""


def pages(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Build a spec. Then perhaps build it with other block sizes, and with a larger page."""
    info = class_info(description, subject)
    spec = _with_declared(description, draw(descriptors(info, often=("head_size_v",))))
    spec["fields"].update(draw(st.sampled_from(_formats(description, info))))
    built = stage.perform("specs.build", spec=spec)
    sizes = one_of(legal_block_sizes(info, spec))
    for block_size in draw(st.lists(sizes, max_size=2)):
        other = {**spec, "fields": {**spec["fields"], "block_size": block_size}}
        stage.perform("specs.build", spec=other)
    if "value" in built and declares(info, "page_size_padded") and draw(st.booleans()):
        page = padded_page(draw, spec, built["value"]["page_size_bytes"])
        stage.perform("specs.build", spec=with_field(spec, "page_size_padded", page))


def _with_declared(description: Description, spec: SpecDescriptor) -> SpecDescriptor:
    """Add to the spec the page scaling that the target declares for the spec's class. The laws read it."""
    scaling = description["capabilities"].get("page_scaling", {}).get(spec["class"])
    return {**spec, "declared": {"page_scaling": scaling}} if scaling else spec


def _formats(description: Description, info: SpecClassInfo) -> list[dict[str, Any]]:
    """For each storage format, the fields that select it.

    The formats are: plain, packed by a backend, and quantised with the scales in the page.
    """
    defaults = {field["name"]: field.get("default") for field in info["fields"]}
    formats: list[dict[str, Any]] = [{}]
    formats += [{field: 656} for field in ("state_content_bytes", "tq_slot_size") if field in defaults]
    # If the target does not declare `quant_scales`, its scales are part of a packed format.
    mode = defaults.get("kv_quant_mode")
    if description["capabilities"].get("quant_scales") and isinstance(mode, dict):
        mode = {**mode, "name": "INT8_PER_TOKEN_HEAD"}
        formats.append({"kv_quant_mode": mode, "dtype": "torch.int8"})
    return formats


def memory(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Build a spec, and ask for the most memory of a request with growing values of `max_model_len`."""
    spec = draw(descriptors(class_info(description, subject)))
    in_flight = draw(st.sampled_from(IN_FLIGHT))
    lengths = draw(st.lists(st.integers(1, 40_000), min_size=2, max_size=4, unique=True))
    _ask_memory(stage, spec, in_flight, lengths)


def window_memory(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Like `memory`, for layers with a window.

    The memory of a request stops growing at a certain length. Half of the drawn lengths are just above it.
    """
    spec = draw(descriptors(class_info(description, subject)))
    fields = spec["fields"]
    in_flight = draw(st.sampled_from(IN_FLIGHT))
    window = fields.get("sliding_window") or fields["attention_chunk_size"]
    edge = window + fields.get("extra_retained_tokens", 0) + in_flight + fields["block_size"]
    around = st.integers(0, 300) | st.integers(-edge + 1, 40_000)
    lengths = [edge + offset for offset in draw(st.lists(around, min_size=2, max_size=4, unique=True))]
    _ask_memory(stage, spec, in_flight, lengths)


def _ask_memory(stage: Stage, spec: SpecDescriptor, in_flight: int, lengths: list[int]) -> None:
    stage.perform("specs.build", spec=spec)
    for length in sorted(lengths):
        stage.perform(
            "specs.max_memory",
            spec=spec,
            max_model_len=length,
            max_in_flight_tokens=in_flight,
            max_encoder_tokens=ENCODER_TOKENS,
        )


def window_subjects(description: Description) -> Subjects:
    """The subjects of `spec_subjects` whose class is, or derives from, one of `WINDOWED`."""
    windowed = [info["name"] for info in description["classes"] if set(WINDOWED) & set(info["mro"])]
    subjects = {name: reason for name, reason in spec_subjects(description).items() if name in windowed}
    return subjects or {"": "the target has no windowed spec class"}


WORKLOADS = [
    Workload(
        "specs.pages",
        ("specs",),
        spec_subjects,
        pages,
        unobserved="its specs do not show what this law compares",
        symbolic=True,
    ),
    Workload("specs.memory", ("specs", "specs.max_memory"), spec_subjects, memory, weight=0.4, symbolic=True),
    Workload(
        "specs.window-memory",
        ("specs", "specs.max_memory"),
        window_subjects,
        window_memory,
        weight=0.4,
        symbolic=True,
    ),
]
