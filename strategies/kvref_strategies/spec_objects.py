"""Treats specs as Python objects: compares, changes and pickles them, and builds them with illegal values."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kvref.target import SpecDescriptor
from kvref_strategies.specs import class_info, descriptors, judged, menu, minimal, missing_menu, spec_subjects
from kvref_strategies.workload import Description, Draw, Stage, Subjects, Workload

ILLEGAL: dict[str, list[Any]] = {
    "block_size": [0, -16],
    "num_kv_heads": [0, -1],
    "head_size": [-8],
    "head_size_v": [-8],
    "alignment": [0, -8],
    "page_size_padded": [-256],
    "sliding_window": [-64],
    "attention_chunk_size": [-64],
    "sink_len": [-16],
    "extra_retained_tokens": [-1],
    "num_speculative_blocks": [-1],
    "shapes": [[[-4, 8]]],
    "dtypes": [[]],
}
"""Illegal values of each field. 0 and -1 are left out where some implementations read them as "none"."""

COMPRESSIONS = ("tokens_per_state", "compress_ratio")
"""The fields that say how many tokens one stored state covers. More tokens than a block has are illegal."""


def identity(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Build a spec. Then either build it twice and compare the two, or try to change each of its fields."""
    spec = draw(descriptors(class_info(description, subject)))
    if "value" in stage.perform("specs.build", spec=spec):
        stage.perform(draw(st.sampled_from(["specs.twins", "specs.mutable_fields"])), spec=spec)


def pickling(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Build and pickle a spec in one process, and unpickle it in another."""
    spec = draw(descriptors(class_info(description, subject)))
    if "value" not in stage.perform("specs.build", spec=spec):
        return
    pickled = stage.perform("specs.pickled", spec=spec)
    if "value" in pickled:
        stage.fresh()
        stage.perform("specs.unpickled", data=pickled["value"], spec=spec)


def illegal(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Build a spec of a class that has the field `subject`.

    Then build it with an illegal value in this field.
    """
    info = class_info(description, draw(st.sampled_from(_classes_by_field(description)[subject])))
    spec = minimal(info)
    built = stage.perform("specs.build", spec=spec)
    if "value" in built:
        value = draw(st.sampled_from(_illegal_values(subject, spec, built["value"])))
        # `with_field` is not used here, because it would make the spec legal.
        stage.perform("specs.build", spec={**spec, "fields": {**spec["fields"], subject: value}})


def _illegal_values(field: str, spec: SpecDescriptor, facts: dict[str, Any]) -> list[Any]:
    if field in COMPRESSIONS:
        return [spec["fields"]["block_size"] * 2]
    too_small = [facts["page_size_bytes"] // 2] if field == "page_size_padded" else []
    return [*ILLEGAL[field], *too_small]


def _classes_by_field(description: Description) -> dict[str, list[str]]:
    """Each field for which kvref knows an illegal value, with the classes that have this field."""
    classes: dict[str, list[str]] = {}
    for info in judged(description):
        for field in (f["name"] for f in info["fields"] if missing_menu(info) is None):
            if field in ILLEGAL or (field in COMPRESSIONS and menu(info, field)):
                classes.setdefault(field, []).append(info["name"])
    return classes


def _fields(description: Description) -> Subjects:
    return dict.fromkeys(_classes_by_field(description))


WORKLOADS = [
    Workload(
        "specs.identity",
        ("specs", "specs.twins", "specs.mutable_fields"),
        spec_subjects,
        identity,
        weight=0.2,
    ),
    Workload(
        "specs.pickling",
        ("specs", "specs.pickled", "specs.unpickled"),
        spec_subjects,
        pickling,
        isolated=True,
        weight=0.05,
    ),
    Workload("specs.illegal", ("specs",), _fields, illegal, weight=0.4),
]
