"""Draws specs of layers that may share a group, merges them in two orders, and asks if they are uniform."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from kvref.target import SpecClassInfo, SpecDescriptor
from kvref_strategies.specs import (
    OPTIONAL_WINDOWS,
    class_info,
    declares,
    descriptors,
    is_required,
    menu,
    minimal,
    perturbations,
    spec_subjects,
    with_field,
)
from kvref_strategies.workload import Description, Draw, Stage, Subjects, Workload

VENDOR = "VendorSpec"
"""A vendor's class, derived from the subject. It is not registered: look-ups find the subject's entry."""

LONE_VENDOR = "LoneVendorSpec"
"""A vendor's class, derived from the subject. It is registered as its own uniform base."""

UNPLANNED = "EncoderOnlyAttentionSpec"
"""A class whose layers keep nothing between steps. It is not registered, and planners never get its specs."""


def merge_orders(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Build two or three specs, and merge them in two orders. They may be of two classes."""
    for specs in _draw_lists(draw, stage, description, subject, [VENDOR]):
        if all("value" in stage.perform("specs.build", spec=spec) for spec in _distinct(specs)):
            stage.perform("specs.merge", specs=specs)
            stage.perform("specs.merge", specs=_reordered(draw, specs))


def uniformity(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Ask whether a planner treats layers with these two or three specs as one type. Ask in two orders."""
    registry = "registry" in description["parts"]
    if registry:
        stage.perform("registry.initialise")
    vendors = [VENDOR, LONE_VENDOR] if registry else [VENDOR]
    for specs in _draw_lists(draw, stage, description, subject, vendors):
        for spec in _distinct(specs):
            if "value" not in stage.perform("specs.build", spec=spec):
                return
            if registry:
                stage.perform("registry.lookup", spec=spec)
        stage.perform("specs.uniform", specs=specs)
        stage.perform("specs.uniform", specs=_reordered(draw, specs))


def _draw_lists(
    draw: Draw, stage: Stage, description: Description, subject: str, vendors: list[str]
) -> Iterator[list[SpecDescriptor]]:
    """Draw a list of specs, then perhaps pairs of specs of the subject that differ in one field."""
    yield _draw_specs(draw, stage, description, subject, vendors)
    if draw(st.booleans()):
        for first, second in draw(perturbations(class_info(description, subject), mergeable=True)):
            yield [first, second]


def _draw_specs(
    draw: Draw, stage: Stage, description: Description, subject: str, vendors: list[str]
) -> list[SpecDescriptor]:
    """Draw a spec of the subject, and one or two more specs.

    These may equal the first spec, differ from it in one field, or have another class.
    """
    info = class_info(description, subject)
    first = draw(descriptors(info))
    later = _later_classes(description, subject)
    derived = [name for name in later if subject in class_info(description, name)["mro"]]
    unrelated = [name for name in later if name not in derived]
    pools = [pool for pool in ([subject], vendors, derived, unrelated) if pool]
    other = draw(st.sampled_from(draw(st.sampled_from(pools))))
    if other in vendors:
        derive_vendor(draw, stage, first, other)
    specs = [first]
    for name in [other, *draw(st.lists(st.sampled_from([subject, other]), max_size=1))]:
        stock = info if name in vendors else class_info(description, name)
        spec = _as_class(first, name, stock)
        if draw(st.booleans()):
            varied = [f for f in stock["fields"] if menu(stock, f["name"])]
            windows = [f for f in varied if f["name"] in OPTIONAL_WINDOWS]
            field = draw(st.sampled_from(draw(st.sampled_from([windows or varied, varied]))))
            values = [*menu(stock, field["name"]), *([] if is_required(field) else [field.get("default")])]
            spec = with_field(spec, field["name"], draw(st.sampled_from(values)))
        specs.append(spec)
    return specs


def _later_classes(description: Description, subject: str) -> list[str]:
    """The classes that the target lists after the subject.

    Each subject is compared only with these. So no pair of classes is compared twice.
    """
    drawable = [name for name, reason in spec_subjects(description).items() if reason is None]
    return [name for name in drawable[drawable.index(subject) + 1 :] if _may_be_planned(description, name)]


def _may_be_planned(description: Description, name: str) -> bool:
    """Whether planners get layers of the class, and so the class is drawn.

    If the target has a registry, every class is drawn: look-ups show the law which classes are registered.
    """
    return "registry" in description["parts"] or UNPLANNED not in class_info(description, name)["mro"]


def _planned_subjects(description: Description) -> Subjects:
    return {
        name: reason if _may_be_planned(description, name) else "planners never get layers of this class"
        for name, reason in spec_subjects(description).items()
    }


def derive_vendor(draw: Draw, stage: Stage, spec: SpecDescriptor, name: str) -> None:
    """Define `VENDOR` or `LONE_VENDOR`, derived from the class of the spec."""
    fields = draw(st.sampled_from([{}, {"vendor_field": 0}]))
    stage.perform("specs.derive", name=name, base=spec["class"], fields=fields)
    if name == LONE_VENDOR:
        entry = stage.perform("registry.lookup", spec=spec).get("value") or {}
        if entry.get("manager"):
            stage.perform("registry.register", spec_class=name, manager=entry["manager"], base=None)


def _as_class(spec: SpecDescriptor, name: str, info: SpecClassInfo) -> SpecDescriptor:
    """A legal spec of the class `name` with as many of the values of `spec` as possible.

    `info` describes the class `name` or, if that is a vendor's class, the class from which it derives.
    """
    common = {field: value for field, value in spec["fields"].items() if declares(info, field)}
    alike = {field: value for field, value in common.items() if value in menu(info, field)}
    fields: dict[str, Any] = {**minimal(info)["fields"], **alike}
    return with_field({"class": name, "fields": fields}, "block_size", spec["fields"]["block_size"])


def _distinct(specs: list[SpecDescriptor]) -> list[SpecDescriptor]:
    return [spec for index, spec in enumerate(specs) if spec not in specs[:index]]


def _reordered(draw: Draw, specs: list[SpecDescriptor]) -> list[SpecDescriptor]:
    places = list(itertools.permutations(range(len(specs))))[1:]
    return [specs[place] for place in draw(st.sampled_from(places))]


WORKLOADS = [
    Workload("specs.merge-orders", ("specs", "specs.derive"), spec_subjects, merge_orders, weight=0.8),
    Workload(
        "specs.uniformity",
        ("specs", "specs.derive", "specs.uniform"),
        _planned_subjects,
        uniformity,
        weight=0.8,
    ),
]
