"""Laws of planning: which layers share blocks, and where their pages are."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvref_conformance.laws.core import Event, Law, LawBroken, Runs
from kvref_conformance.laws.registry import error_line
from kvref_conformance.results import Level

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
"""What a program raises by mistake. A refusal that is meant has a type that says so: `ValueError`, say."""


def plans(runs: Runs) -> list[Event]:
    """Every call of the planner that came back."""
    return [
        event
        for events in runs
        for event in events
        if event["op"] in ("planner.groups", "planner.config") and "died" not in event["outcome"]
    ]


def made(runs: Runs) -> list[Event]:
    """Every call of the planner that made a plan."""
    return [event for event in plans(runs) if "value" in event["outcome"]]


def mix(layers: dict[str, Any]) -> str:
    """What kinds of layers there are: their classes."""
    return " and ".join(sorted({spec["class"] for spec in layers.values()}))


def listed(group: dict[str, Any]) -> list[str]:
    return [layer["name"] for layer in group["layers"]]


def spec_in_words(spec: dict[str, Any]) -> str:
    """A planned spec in a few words."""
    size, page = spec["fields"].get("block_size"), spec["page_size_bytes"]
    return f"{spec['class']} with blocks of {size} tokens, {page} bytes"


def partition(runs: Runs) -> int:
    """The layers of all groups are the layers that were given."""
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
                f"{', '.join(given)} in one group each",
                "; ".join(f"{facet}: {wrong[facet]}" for facet in facets),
                facets,
            )
    return len(made(runs))


def one_manager(runs: Runs) -> int:
    """Every layer's own manager is that of its group."""
    for event in made(runs):
        for group in event["outcome"]["value"]["groups"]:
            managers = {layer["name"]: layer["manager"] for layer in group["layers"]}
            if any(manager != group["manager"] for manager in managers.values()):
                classes = sorted({layer["spec"]["class"] for layer in group["layers"]})
                raise LawBroken(
                    f"a group whose layers have the manager of the group, {group['manager']}",
                    ", ".join(f"{name}: {manager}" for name, manager in managers.items()),
                    (" and ".join(classes),),
                )
    return len(made(runs))


def page_unified(runs: Runs) -> int:
    """Several groups have pages of one size, or the refusal is meant and names a layer."""
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
                    "pages of one size, or a refusal that is meant",
                    error_line(outcome),
                    (f"{kind}, {mix(layers)}",),
                )
            if not any(name in outcome["error"]["message"] for name in layers):
                raise LawBroken(
                    f"a refusal that names layers, of {', '.join(layers)}",
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
                    "pages of one size in all groups, whose blocks come from one pool",
                    ", ".join(f"{name}: {page} bytes" for name, page in pages.items()),
                    (mix(layers),),
                )
    return judged


def inputs_unchanged(runs: Runs) -> int:
    """What was handed to the planner is afterwards as it was built."""
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
            raise LawBroken(f"layers {', '.join(layers)}, still", ", ".join(given) or "none", ("layers",))
        for name, spec in layers.items():
            before = next((facts for descriptor, facts in built if descriptor == spec), None)
            if before is not None and given[name] != before:
                raise LawBroken(
                    f"{name} still {spec_in_words(before)}: {before['fields']}",
                    f"{spec_in_words(given[name])}: {given[name]['fields']}",
                    (spec["class"],),
                )
    return judged


def per_layer(plan: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """What a plan means for each layer: its spec, its manager and its group's, the size of its group."""
    return {
        layer["name"]: (layer["spec"], layer["manager"], group["manager"], len(group["layers"]))
        for group in plan["groups"]
        for layer in group["layers"]
    }


def plan_in_words(meaning: tuple[Any, ...]) -> str:
    spec, _, manager, size = meaning
    return f"{spec_in_words(spec)}, for {manager}, in a group of {size}"


def order_free(runs: Runs) -> int:
    """Two plans of the same layers in different orders are both refused, or mean the same for each layer.

    Which layers of one spec go together may differ, and so may the place of a layer in a group too many
    for its kind: layers are compared with those that were given the same spec.
    """
    calls = plans(runs)
    if len(calls) < 2 or list(calls[0]["args"]["layers"]) == list(calls[1]["args"]["layers"]):
        return 0
    layers = calls[0]["args"]["layers"]
    one, other = (event["outcome"] for event in calls[:2])
    if ("value" in one) != ("value" in other):
        refused = one if "error" in one else other
        raise LawBroken(
            "layers that are planned in one order are planned in any",
            f"a plan in one order, in the other {error_line(refused)}",
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
            f"one plan for layers with a {spec['class']}, in whatever order all layers are",
            " or ".join(map(plan_in_words, pairs[0])) if pairs else f"{len(mine)} or {len(others)} of them",
            (f"{what_differs(list(differing.values()))}, {classes}",),
        )
    for what in ("num_blocks", "tensors"):
        if what in one["value"] and counted(one["value"][what]) != counted(other["value"][what]):
            raise LawBroken(
                f"the same {what} in any order",
                f"{one['value'][what]} or {other['value'][what]}",
                (f"{what}, {mix(layers)}",),
            )
    return 1


def what_differs(differing: list[tuple[Any, ...]]) -> str:
    """The size of some group, else some manager, else nothing but specs."""
    for what, places in (("groups", (3,)), ("managers", (1, 2))):
        for _, mine, others in differing:
            if any(sorted(str(m[p]) for m in mine) != sorted(str(o[p]) for o in others) for p in places):
                return what
    return "specs"


def counted(value: Any) -> Any:
    return sorted(value) if isinstance(value, list) else value


def tensors_cover(runs: Runs) -> int:
    """Each layer has a page for each block, inside its tensor, that no other block's page overlaps."""
    judged = 0
    for event in made(runs):
        if event["op"] == "planner.config":
            judged += 1
            refuse_uncovered(event["outcome"]["value"], event["args"]["memory"])
    return judged


def refuse_uncovered(plan: dict[str, Any], memory: int) -> None:
    """Raise `LawBroken` for a plan that needs more memory, or in which some page has no place of its own."""
    total = sum(plan["tensors"])
    if total > memory:
        raise LawBroken(f"tensors of at most {memory} bytes", f"{total} bytes", ("budget",))
    pages = []
    for number, group in enumerate(plan["groups"]):
        for layer in group["layers"]:
            name, page = layer["name"], layer["spec"]["page_size_bytes"]
            place = plan["storage"].get(name)
            if place is None:
                raise LawBroken(f"storage for {name}", f"for {', '.join(plan['storage'])}", ("missing",))
            for block in range(plan["num_blocks"]):
                start = place["offset"] + block * place["block_stride"]
                pages.append((place["tensor"], start, start + page, block, number, name))
    for tensor, start, end, block, _, name in pages:
        size = plan["tensors"][tensor] if 0 <= tensor < len(plan["tensors"]) else 0
        if start < 0 or end > size:
            raise LawBroken(
                f"pages of {name} for {plan['num_blocks']} blocks in its tensor of {size} bytes",
                f"for block {block} bytes {start} to {end}",
                ("outside",),
            )
    refuse_overlaps(pages)


def refuse_overlaps(pages: list[tuple[int, int, int, int, int, str]]) -> None:
    """Raise `LawBroken` for pages that overlap, unless they are of one block for layers of two groups.

    Those do not get into each other's way: a block is in use by one group at a time.
    """
    reaching: list[tuple[int, int, int, int, int, str]] = []
    for page in sorted(pages):
        tensor, start, _, block, group, name = page
        reaching = [earlier for earlier in reaching if earlier[0] == tensor and earlier[2] > start]
        for _, _, end, other_block, other_group, other in reaching:
            if block != other_block or group == other_group:
                raise LawBroken(
                    f"pages of {name} for block {block} and {other} for block {other_block} apart",
                    f"one starts at byte {start} of tensor {tensor}, the other ends at {end}",
                    ("overlap",),
                )
        reaching.append(page)


LOCAL = ("FullAttentionSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec")
"""Kinds that can all be managed as full attention."""


def one_group(runs: Runs) -> int:
    """All layers are in one group, which has one manager, or it is refused where there are other kinds."""
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
                    f"one group of {', '.join(layers)}" + ("" if local else ", or a refusal that is meant"),
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
                f"the manager of the group, {groups[0]['manager']}, for each of its layers",
                ", ".join(sorted(managers)),
                (f"managers, {mix(layers)}",),
            )
    return judged


def unregistered_refused(runs: Runs) -> int:
    """A plan with a layer of an unregistered class is refused by an error that names both."""
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
            raise LawBroken(f"a refusal to plan {which}", "a plan", ("planned",))
        message = outcome["error"]["message"]
        if outcome["error"]["type"] in INTERNAL_ERRORS:
            raise LawBroken(
                f"a refusal that is meant, of {which}", error_line(outcome), (outcome["error"]["type"],)
            )
        if not any(name in message and cls in message for name, cls in unregistered.items()):
            raise LawBroken(
                f"a refusal that names layer and class of {which}", error_line(outcome), ("unnamed",)
            )
    return judged


UNREGISTERED_REFUSED = Law(
    id="registry.unregistered-refused",
    level=Level.SAFETY,
    statement=(
        "Planning refuses an unregistered spec before it groups anything, naming the layer and the class."
    ),
    why="A forgotten registration shows much later, as something else, or a layer is managed by chance.",
    sources=("vLLM PR 37505", "vLLM RFC 36668"),
    workload="models.unregistered",
    check=unregistered_refused,
)

LAWS = [
    Law(
        id="plan.partition",
        level=Level.SAFETY,
        statement="Every layer is in exactly one group; no layer is dropped or invented.",
        why="A layer without a group has no blocks to write to; one in two groups has two that disagree.",
        sources=("vLLM PR 37505",),
        workload="models.plans",
        check=partition,
    ),
    Law(
        id="plan.order-free",
        level=Level.SAFETY,
        statement=(
            "Listing the layers in another order yields the same plan: the same spec, manager and size of "
            "group for layers with the same spec, the same number of blocks, the same bytes."
        ),
        why="Two models with the same layers are served differently, or one of them is refused.",
        sources=("vLLM PR 37505",),
        workload="models.plans",
        check=order_free,
    ),
    Law(
        id="plan.one-manager",
        level=Level.SAFETY,
        statement="All layers of one group have the same manager class, and it is the group's.",
        why="Blocks that one layer still needs are freed by the rules of another.",
        sources=("vLLM PR 37505",),
        workload="models.plans",
        check=one_manager,
    ),
    Law(
        id="plan.page-unified",
        level=Level.SAFETY,
        statement=(
            "Where layers form several groups all pages are of one size, or one error that is meant as a "
            "refusal names layers; never a bare assert."
        ),
        why="A block of one group is too small for another; or a start that fails tells nobody which layer.",
        sources=("vLLM PR 37505",),
        workload="models.plans",
        check=page_unified,
    ),
    Law(
        id="plan.one-group",
        level=Level.SAFETY,
        statement=(
            "Where an engine is to manage all layers as full attention, they form one group with one "
            "manager, or the refusal is one that is meant; full attention, windows and chunks with blocks of "
            "one size are not refused."
        ),
        why="Who turns groups off, since a connector knows a single one, gets several, or no start.",
        sources=("vLLM's option disable_hybrid_kv_cache_manager",),
        workload="models.one-group",
        check=one_group,
    ),
    Law(
        id="plan.inputs-unchanged",
        level=Level.SAFETY,
        statement="Planning leaves the specs that it is given, and their order, as they were.",
        why="Who plans twice, or compares workers afterwards, gets another plan than the first.",
        sources=("vLLM PR 37505",),
        workload="models.plans",
        check=inputs_unchanged,
    ),
    Law(
        id="plan.tensors-cover",
        level=Level.SAFETY,
        statement=(
            "Every layer has storage for a page of each block, apart from that of any other block and layer "
            "that may be in use at the same time; the total is within the budget."
        ),
        why="Blocks lie outside the memory, or on those of another request, or memory runs out at start.",
        sources=("vLLM PR 37505",),
        workload="models.plans",
        check=tensors_cover,
    ),
]
