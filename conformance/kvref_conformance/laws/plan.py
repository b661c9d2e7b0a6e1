"""Laws of planning: which layers share a group, and where their pages are."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvref_conformance.laws.core import Event, Law, LawBroken, Level, Runs
from kvref_conformance.laws.registry import error_line

INTERNAL_ERRORS = (
    "AssertionError",
    "AttributeError",
    "IndexError",
    "KeyError",
    "RecursionError",
    "StopIteration",
    "TypeError",
    "UnboundLocalError",
    "ZeroDivisionError",
)
"""Errors that a program raises by mistake. A deliberate refusal has another type, such as `ValueError`."""


def plans(runs: Runs) -> list[Event]:
    """Every call of the planner that returned or raised an error."""
    return [
        event
        for events in runs
        for event in events
        if event["op"] in ("planner.groups", "planner.config") and "died" not in event["outcome"]
    ]


def made(runs: Runs) -> list[Event]:
    """Every call of the planner that returned a plan."""
    return [event for event in plans(runs) if "value" in event["outcome"]]


def mix(layers: dict[str, Any]) -> str:
    """The spec classes of the layers, in words."""
    return " and ".join(sorted({spec["class"] for spec in layers.values()}))


def listed(group: dict[str, Any]) -> list[str]:
    return [layer["name"] for layer in group["layers"]]


def spec_in_words(spec: dict[str, Any]) -> str:
    """A planned spec in a few words: class, block size and page size."""
    size, page = spec["fields"].get("block_size"), spec["page_size_bytes"]
    return f"{spec['class']} (block size {size}, page size {page})"


def partition(runs: Runs) -> int:
    """The groups contain every given layer exactly once, and no other layer."""
    for event in made(runs):
        given = event["args"]["layers"]
        grouped = Counter(name for group in event["outcome"]["value"]["groups"] for name in listed(group))
        lost = [name for name in given if name not in grouped]
        twice = [name for name, times in grouped.items() if times > 1]
        invented = [name for name in grouped if name not in given]
        empty = any(not group["layers"] for group in event["outcome"]["value"]["groups"])
        wrong = {"lost": lost, "twice": twice, "invented": invented, "empty group": empty}
        if facets := tuple(facet for facet, found in wrong.items() if found):
            raise LawBroken(
                f"each of {', '.join(given)} is in exactly one group",
                "; ".join(f"{facet}: {wrong[facet]}" for facet in facets),
                facets,
            )
    return len(made(runs))


def one_manager(runs: Runs) -> int:
    """Every layer has the manager of its group."""
    for event in made(runs):
        for group in event["outcome"]["value"]["groups"]:
            managers = {layer["name"]: layer["manager"] for layer in group["layers"]}
            if any(manager != group["manager"] for manager in managers.values()):
                classes = sorted({layer["spec"]["class"] for layer in group["layers"]})
                raise LawBroken(
                    f"all layers of the group have its manager, {group['manager']}",
                    ", ".join(f"{name}: {manager}" for name, manager in managers.items()),
                    (" and ".join(classes),),
                )
    return len(made(runs))


def page_unified(runs: Runs) -> int:
    """All groups have the same page size, or a deliberate refusal names a layer."""
    judged = 0
    for event in plans(runs):
        if event["op"] != "planner.groups":
            continue
        judged += 1
        layers, outcome = event["args"]["layers"], event["outcome"]
        if "error" in outcome:
            kind = outcome["error"]["type"]
            if kind in INTERNAL_ERRORS:
                raise LawBroken(
                    "one page size for all groups, or a deliberate refusal",
                    error_line(outcome),
                    (f"{kind}, {mix(layers)}",),
                )
            if not any(name in outcome["error"]["message"] for name in layers):
                raise LawBroken(
                    f"the refusal names a layer, one of {', '.join(layers)}",
                    error_line(outcome),
                    (f"unnamed, {mix(layers)}",),
                )
        elif len(outcome["value"]["groups"]) > 1:
            pages = {
                layer["name"]: layer["spec"]["page_size_bytes"]
                for group in outcome["value"]["groups"]
                for layer in group["layers"]
            }
            if len(set(pages.values())) > 1:
                raise LawBroken(
                    "one page size for all groups, because their blocks come from one pool",
                    ", ".join(f"{name}: {page} bytes" for name, page in pages.items()),
                    (mix(layers),),
                )
    return judged


def inputs_unchanged(runs: Runs) -> int:
    """The planner leaves the specs it was given, and their order, unchanged."""
    built = [
        (event["args"]["spec"], event["outcome"]["value"])
        for event in runs[0]
        if event["op"] == "specs.build" and "value" in event["outcome"]
    ]
    judged = 0
    for event in made(runs):
        layers, given = event["args"]["layers"], event["outcome"]["value"]["given"]
        judged += 1
        if list(given) != list(layers):
            raise LawBroken(
                f"planning leaves the layers {', '.join(layers)}", ", ".join(given) or "none", ("layers",)
            )
        for name, spec in layers.items():
            before = next((facts for descriptor, facts in built if descriptor == spec), None)
            if before is not None and given[name] != before:
                raise LawBroken(
                    f"planning leaves {name} a {spec_in_words(before)}: {before['fields']}",
                    f"{spec_in_words(given[name])}: {given[name]['fields']}",
                    (spec["class"],),
                )
    return judged


def per_layer(plan: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """For each layer: its planned spec, the spec's manager, the group's manager, and the group's size."""
    return {
        layer["name"]: (layer["spec"], layer["manager"], group["manager"], len(group["layers"]))
        for group in plan["groups"]
        for layer in group["layers"]
    }


def plan_in_words(meaning: tuple[Any, ...]) -> str:
    spec, _, manager, size = meaning
    return f"{spec_in_words(spec)} with {manager} in a group of {size} layers"


def order_free(runs: Runs) -> int:
    """If the layers are given in another order, the plan is the same, or both orders are refused.

    The planner may choose which of several layers with the same spec share a group. So the law compares all
    layers with the same spec together, not layer by layer.
    """
    calls = plans(runs)
    if len(calls) < 2 or list(calls[0]["args"]["layers"]) == list(calls[1]["args"]["layers"]):
        return 0
    layers = calls[0]["args"]["layers"]
    one, other = (event["outcome"] for event in calls[:2])
    if ("value" in one) != ("value" in other):
        refused = one if "error" in one else other
        raise LawBroken(
            "layers that can be planned in one order can be planned in any order",
            f"a plan in one order, and {error_line(refused)} in the other",
            (f"refused, {mix(layers)}",),
        )
    if "error" in one:
        return 1
    first, second = per_layer(one["value"]), per_layer(other["value"])
    differing = {}
    for spec in layers.values():
        alike = [name for name in layers if layers[name] == spec]
        mine = sorted((first[name] for name in alike if name in first), key=repr)
        others = sorted((second[name] for name in alike if name in second), key=repr)
        if mine != others:
            differing.update(dict.fromkeys(alike, (spec, mine, others)))
    if differing:
        spec, mine, others = next(iter(differing.values()))
        pairs = [pair for pair in zip(mine, others, strict=False) if pair[0] != pair[1]]
        classes = mix({name: found[0] for name, found in differing.items()})
        raise LawBroken(
            f"the same plan for layers with a {spec['class']}, in any order of the layers",
            " or ".join(map(plan_in_words, pairs[0])) if pairs else f"{len(mine)} or {len(others)} of them",
            (f"{what_differs(list(differing.values()))}, {classes}",),
        )
    for what in ("num_blocks", "tensors"):
        if what in one["value"] and counted(one["value"][what]) != counted(other["value"][what]):
            raise LawBroken(
                f"the same {what} in any order of the layers",
                f"{one['value'][what]} or {other['value'][what]}",
                (f"{what}, {mix(layers)}",),
            )
    return 1


def what_differs(differing: list[tuple[Any, ...]]) -> str:
    """The facet of a difference: the group sizes if they differ, else the managers, else the specs."""
    for what, places in (("groups", (3,)), ("managers", (1, 2))):
        for _, mine, others in differing:
            if any(sorted(str(m[p]) for m in mine) != sorted(str(o[p]) for o in others) for p in places):
                return what
    return "specs"


def counted(value: Any) -> Any:
    return sorted(value) if isinstance(value, list) else value


def tensors_cover(runs: Runs) -> int:
    """Each layer has a page for each block inside its tensor, and pages of different blocks never overlap."""
    judged = 0
    for event in made(runs):
        if event["op"] == "planner.config":
            judged += 1
            refuse_uncovered(event["outcome"]["value"], event["args"]["memory"])
    return judged


def refuse_uncovered(plan: dict[str, Any], memory: int) -> None:
    """Raise `LawBroken` if a plan exceeds the memory, or if a page is missing, misplaced or overlapped."""
    total = sum(plan["tensors"])
    if total > memory:
        raise LawBroken(f"tensors of at most {memory} bytes", f"{total} bytes", ("budget",))
    pages = []
    for number, group in enumerate(plan["groups"]):
        for layer in group["layers"]:
            name, page = layer["name"], layer["spec"]["page_size_bytes"]
            place = plan["storage"].get(name)
            if place is None:
                raise LawBroken(
                    f"storage for {name}", f"storage for {', '.join(plan['storage'])} only", ("missing",)
                )
            for block in range(plan["num_blocks"]):
                start = place["offset"] + block * place["block_stride"]
                pages.append((place["tensor"], start, start + page, block, number, name))
    for tensor, start, end, block, _, name in pages:
        size = plan["tensors"][tensor] if 0 <= tensor < len(plan["tensors"]) else 0
        if start < 0 or end > size:
            raise LawBroken(
                f"the pages of {name} for {plan['num_blocks']} blocks lie inside its tensor of {size} bytes",
                f"the page of block {block} spans bytes {start} to {end}",
                ("outside",),
            )
    refuse_overlaps(pages)


def refuse_overlaps(pages: list[tuple[int, int, int, int, int, str]]) -> None:
    """Raise `LawBroken` if pages overlap.

    Pages of the same block may overlap if their layers are in different groups, because only one group at a
    time uses a block.
    """
    reaching: list[tuple[int, int, int, int, int, str]] = []
    for page in sorted(pages):
        tensor, start, _, block, group, name = page
        reaching = [earlier for earlier in reaching if earlier[0] == tensor and earlier[2] > start]
        for _, _, end, other_block, other_group, other in reaching:
            if block != other_block or group == other_group:
                raise LawBroken(
                    f"the pages of {name} for block {block} and of {other} for block {other_block} do not "
                    "overlap",
                    f"one starts at byte {start} of tensor {tensor}, the other ends at byte {end}",
                    ("overlap",),
                )
        reaching.append(page)


LOCAL = ("FullAttentionSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec")
"""The kinds that can be managed as full attention."""


def one_group(runs: Runs) -> int:
    """All layers form one group with one manager; kinds that cannot be in such a group may be refused."""
    judged = 0
    for event in [event for events in runs for event in events if event["op"] == "planner.one_group"]:
        layers, outcome = event["args"]["layers"], event["outcome"]
        if "died" in outcome:
            continue
        judged += 1
        sizes = {spec["fields"]["block_size"] for spec in layers.values()}
        local = all(spec["class"] in LOCAL for spec in layers.values()) and len(sizes) == 1
        if "error" in outcome:
            kind = outcome["error"]["type"]
            if local or kind in INTERNAL_ERRORS:
                raise LawBroken(
                    f"one group of {', '.join(layers)}" + ("" if local else ", or a deliberate refusal"),
                    error_line(outcome),
                    (f"{kind}, {mix(layers)}",),
                )
            continue
        groups = outcome["value"]["groups"]
        if [sorted(listed(group)) for group in groups] != [sorted(layers)]:
            raise LawBroken(
                f"one group of {', '.join(layers)}",
                "; ".join(", ".join(listed(group)) for group in groups),
                (f"groups, {mix(layers)}",),
            )
        managers = {str(layer["manager"]) for layer in groups[0]["layers"]}
        if managers != {str(groups[0]["manager"])}:
            raise LawBroken(
                f"all layers have the manager of the group, {groups[0]['manager']}",
                ", ".join(sorted(managers)),
                (f"managers, {mix(layers)}",),
            )
    return judged


def unregistered_refused(runs: Runs) -> int:
    """Layers of an unregistered class are refused with an error that names the layer and the class."""
    unknown = {
        event["args"]["spec"]["class"]
        for event in runs[0]
        if event["op"] == "registry.lookup" and event["outcome"].get("value", {}).get("manager", "") is None
    }
    judged = 0
    for event in plans(runs):
        layers, outcome = event["args"]["layers"], event["outcome"]
        unregistered = {name: spec["class"] for name, spec in layers.items() if spec["class"] in unknown}
        if not unregistered:
            continue
        judged += 1
        which = ", ".join(f"{name} of the unregistered class {cls}" for name, cls in unregistered.items())
        if "value" in outcome:
            raise LawBroken(f"planning refuses {which}", "it returned a plan", ("planned",))
        message = outcome["error"]["message"]
        if outcome["error"]["type"] in INTERNAL_ERRORS:
            raise LawBroken(
                f"a deliberate refusal of {which}", error_line(outcome), (outcome["error"]["type"],)
            )
        if not any(name in message and cls in message for name, cls in unregistered.items()):
            raise LawBroken(
                f"the refusal of {which} names the layer and the class", error_line(outcome), ("unnamed",)
            )
    return judged


UNREGISTERED_REFUSED = Law(
    id="registry.unregistered-refused",
    level=Level.SAFETY,
    statement=(
        "Planning refuses a layer of an unregistered class with an error that names the layer and the class."
    ),
    why=(
        "Otherwise a forgotten registration shows up later as another error, or the layer gets a wrong "
        "manager."
    ),
    sources=("vLLM PR 37505", "vLLM RFC 36668"),
    workload="models.unregistered",
    check=unregistered_refused,
)

LAWS = [
    Law(
        id="plan.partition",
        level=Level.SAFETY,
        statement="Every layer is in exactly one group, and no group is empty or has an unknown layer.",
        why="A layer without a group has no blocks to write to. A layer in two groups has two block tables.",
        sources=("vLLM PR 37505",),
        workload="models.plans",
        check=partition,
    ),
    Law(
        id="plan.order-free",
        level=Level.SAFETY,
        statement=(
            "Listing the layers in another order gives the same plan: for layers with the same spec the same "
            "planned spec, manager and group size, and for the whole model the same number of blocks and "
            "bytes."
        ),
        why="Otherwise two models with the same layers are served differently, or one of them is refused.",
        sources=("vLLM PR 37505",),
        workload="models.plans",
        check=order_free,
    ),
    Law(
        id="plan.one-manager",
        level=Level.SAFETY,
        statement="All layers of a group have the manager class of the group.",
        why="Otherwise the rules of one layer free blocks that another layer still needs.",
        sources=("vLLM PR 37505",),
        workload="models.plans",
        check=one_manager,
    ),
    Law(
        id="plan.page-unified",
        level=Level.SAFETY,
        statement=(
            "If layers form several groups, planning gives all groups the same page size, or refuses the "
            "model with an error that names a layer, never with a bare assert."
        ),
        why=(
            "Otherwise a block is too small for some group, or the engine fails to start without naming a "
            "layer."
        ),
        sources=("vLLM PR 37505",),
        workload="models.plans",
        check=page_unified,
    ),
    Law(
        id="plan.one-group",
        level=Level.SAFETY,
        statement=(
            "If the engine must manage all layers as full attention, they form one group with one manager or "
            "are refused deliberately; full attention, windows and chunks with one block size are never "
            "refused."
        ),
        why=(
            "Otherwise a user who turns groups off, for a connector that supports only one, gets several "
            "groups or a failed start."
        ),
        sources=("vLLM's option disable_hybrid_kv_cache_manager",),
        workload="models.one-group",
        check=one_group,
    ),
    Law(
        id="plan.inputs-unchanged",
        level=Level.SAFETY,
        statement="Planning does not change the specs that it is given, nor their order.",
        why="Otherwise a second plan of the same layers, or a comparison of workers, gives another result.",
        sources=("vLLM PR 37505",),
        workload="models.plans",
        check=inputs_unchanged,
    ),
    Law(
        id="plan.tensors-cover",
        level=Level.SAFETY,
        statement=(
            "Every layer has storage for a page of each block, no page overlaps another one that may be in "
            "use at the same time, and the total is within the memory budget."
        ),
        why=(
            "Otherwise blocks lie outside the memory or overlap those of another request, or the engine runs "
            "out of memory at start."
        ),
        sources=("vLLM PR 37505",),
        workload="models.plans",
        check=tensors_cover,
    ),
]
