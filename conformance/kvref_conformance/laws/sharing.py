"""Laws of sharing: layers without a cache of their own use the cache of another layer."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from kvref_conformance.laws.addresses import Caches
from kvref_conformance.laws.core import Event, Law, LawBroken, Level, Runs
from kvref_conformance.laws.plan import INTERNAL_ERRORS
from kvref_conformance.laws.registry import error_line

Targets = dict[str, str]
"""The target of each layer that shares."""


def targets_of(event: Event) -> Targets:
    return dict(event["args"]["sharing"])


def path(layer: str, targets: Targets) -> list[str]:
    """The layer, its target, the target's target, and so on. A cycle is followed once."""
    names = {layer: None}
    while layer in targets and targets[layer] not in names:
        layer = targets[layer]
        names[layer] = None
    return list(names)


def in_words(names: list[str]) -> str:
    return " -> ".join(names)


def loops(targets: Targets) -> list[list[str]]:
    """The cycles among the targets, each as a list of its layers."""
    found: dict[frozenset[str], list[str]] = {}
    for layer in targets:
        names = path(layer, targets)
        if (back := targets.get(names[-1])) is not None:
            loop = names[names.index(back) :]
            found.setdefault(frozenset(loop), loop)
    return list(found.values())


def loose(targets: Targets, owners: list[str]) -> list[tuple[str, str]]:
    """The layers whose chain of targets ends at a layer without a cache, each with its target."""
    ends = {layer: path(layer, targets)[-1] for layer in targets}
    return [(layer, targets[layer]) for layer, end in ends.items() if end not in (*owners, *targets)]


def owners_in(event: Event) -> list[str]:
    return [name for group in event["args"]["groups"] for name in group]


def named(layer: str, message: str) -> bool:
    """Whether a message names this layer. A longer name that contains the layer's name does not count."""
    return re.search(rf"(?<!\w){re.escape(layer)}(?!\w)", message) is not None


def joins(runs: Runs, times: int | None = 1) -> list[Event]:
    """The calls of `sharing.join` with this `times` (None: any) that did not end the process."""
    return [
        event
        for event in runs[0]
        if event["op"] == "sharing.join"
        and "died" not in event["outcome"]
        and times in (None, event["args"]["times"])
    ]


def is_sound(event: Event) -> bool:
    """Whether all chains of targets end at owners, as in models that an engine can run."""
    targets = targets_of(event)
    return not loops(targets) and not loose(targets, owners_in(event))


def is_refused_for_its_order(event: Event) -> bool:
    """Whether the call was deliberately refused because a layer is listed before its target.

    vLLM checks each target when it builds the layer, so a model lists targets first.
    """
    if "value" in event["outcome"] or event["outcome"]["error"]["type"] in INTERNAL_ERRORS:
        return False
    targets, message = targets_of(event), event["outcome"]["error"]["message"]
    listed = list(targets)
    early = [pair for place, pair in enumerate(targets.items()) if pair[1] in listed[place:]]
    return any(named(layer, message) and named(target, message) for layer, target in early)


def sound_joins(runs: Runs, times: int | None = 1) -> list[Event]:
    """The calls of `joins` with layers that an engine can run, in an order that the target accepts."""
    return [event for event in joins(runs, times) if is_sound(event) and not is_refused_for_its_order(event)]


def same_graph(event: Event, other: Event) -> bool:
    """Whether both calls have the same groups and the same sharing layers, in any order."""
    return event["args"]["groups"] == other["args"]["groups"] and targets_of(event) == targets_of(other)


def members(event: Event) -> list[list[str]] | None:
    """The layers of each group after the call, each once; None if the call was refused."""
    answer = event["outcome"].get("value")
    return None if answer is None else [sorted(set(group)) for group in answer["groups"]]


def has_joined(event: Event) -> bool:
    """Whether any sharing layer is in a group after the call."""
    return any(layer in group for group in members(event) or () for layer in targets_of(event))


def chain_resolves(runs: Runs) -> int:
    """Every sharing layer is in the group of its owner.

    This law judges only results that do not depend on the order of the layers. `sharing.order-free` judges
    the others.
    """
    judged = 0
    calls = sound_joins(runs)
    for event in calls:
        groups, targets = members(event), targets_of(event)
        if any(members(other) != groups for other in calls if same_graph(event, other)):
            continue
        judged += 1
        if groups is None:
            longest = max((path(layer, targets) for layer in targets), key=len)
            raise LawBroken(
                f"{longest[0]} joins the group of its owner {longest[-1]} ({in_words(longest)})",
                error_line(event["outcome"]),
                (event["outcome"]["error"]["type"],),
            )
        for layer in targets:
            names = path(layer, targets)
            right = [n for n, group in enumerate(event["args"]["groups"]) if names[-1] in group]
            found = [n for n, group in enumerate(groups) if layer in group]
            if found != right:
                raise LawBroken(
                    f"{layer} is in group {right[0]}, that of its owner {names[-1]} ({in_words(names)})",
                    f"it is in groups {found}" if found else "it is in no group",
                    ("another group" if found else "no group",),
                )
    return judged


def order_free(runs: Runs) -> int:
    """The same layers in two orders join the same groups, or are refused both times."""
    judged = 0
    calls = [event for event in joins(runs) if is_sound(event)]
    for place, event in enumerate(calls):
        for earlier in calls[:place]:
            if event["args"] == earlier["args"] or not same_graph(event, earlier):
                continue
            if is_refused_for_its_order(event) or is_refused_for_its_order(earlier):
                judged += 1
                continue
            groups, before = members(event), members(earlier)
            # If no layer joins, nothing can depend on the order.
            judged += groups is None or has_joined(event)
            if groups == before:
                continue
            listings = [", ".join(targets_of(each)) for each in (earlier, event)]
            if groups is None or before is None:
                refused = error_line((event if groups is None else earlier)["outcome"])
                first, second = ("groups", refused) if groups is None else (refused, "groups")
                facet = "refused"
            else:
                first, second, facet = f"{before}", f"{groups}", "groups"
            raise LawBroken(
                "the same result in any order of the layers",
                f"in the order {listings[0]}: {first}; in the order {listings[1]}: {second}",
                (facet,),
            )
    return judged


def cycle_refused(runs: Runs) -> int:
    """A cycle is deliberately refused, with an error that names a layer of it and its target."""
    judged = 0
    for event in joins(runs):
        targets, outcome = targets_of(event), event["outcome"]
        cycles = loops(targets)
        if not cycles or loose(targets, owners_in(event)):
            continue
        judged += 1
        if is_refused_for_its_order(event):
            continue
        which = " and ".join(in_words([*loop, loop[0]]) for loop in cycles)
        refuse_unmeant(outcome, f"of the cycle {which}")
        message = outcome["error"]["message"]
        links = [(layer, targets[layer]) for loop in cycles for layer in loop]
        if not any(named(layer, message) and named(target, message) for layer, target in links):
            raise LawBroken(
                f"the refusal names a layer of the cycle {which} and its target",
                error_line(outcome),
                ("unnamed",),
            )
    return judged


def refuse_unmeant(outcome: dict[str, Any], what: str) -> None:
    """Raise `LawBroken` if the layers joined groups, or if an internal error stopped them."""
    if "value" in outcome:
        raise LawBroken(f"a refusal {what}", f"the groups {outcome['value']['groups']}", ("accepted",))
    if (kind := outcome["error"]["type"]) in INTERNAL_ERRORS:
        raise LawBroken(f"a deliberate refusal {what}", error_line(outcome), (kind,))


def dangling_refused(runs: Runs) -> int:
    """A chain of targets that ends at a layer without a cache is deliberately refused.

    The error names a layer of the chain and its target.
    """
    judged = 0
    for event in joins(runs):
        targets, outcome = targets_of(event), event["outcome"]
        pairs = loose(targets, owners_in(event))
        if not pairs or loops(targets):
            continue
        judged += 1
        if is_refused_for_its_order(event):
            continue
        longest = max((path(layer, targets) for layer, _ in pairs), key=len)
        refuse_unmeant(outcome, f"of the chain {in_words(longest)}, which ends at a layer without a cache")
        message = outcome["error"]["message"]
        if not any(named(layer, message) and named(target, message) for layer, target in pairs):
            raise LawBroken(
                f"the refusal names {' or '.join(f'{layer} and {target}' for layer, target in pairs)}",
                error_line(outcome),
                ("unnamed",),
            )
    return judged


def grouped_once(runs: Runs) -> int:
    """Every layer is listed once in its group, and joining again changes nothing.

    Other laws judge which layer is in which group.
    """
    judged = 0
    calls = sound_joins(runs, None)
    for event in calls:
        times, outcome = event["args"]["times"], event["outcome"]
        once = {**event["args"], "times": 1}
        joined = [members(other) for other in calls if other["args"] == once]
        again = times > 1
        if "error" in outcome:
            if not again or not joined or joined[0] is None:
                continue
            raise LawBroken(f"joining {times} times changes nothing", error_line(outcome), ("refused again",))
        judged += has_joined(event)
        groups = outcome["value"]["groups"]
        repeated = [name for group in groups for name, number in Counter(group).items() if number > 1]
        if repeated:
            raise LawBroken(
                f"each layer is in its group once after joining {'once' if times == 1 else f'{times} times'}",
                f"{', '.join(repeated)} several times: {groups}",
                ("again" if again else "at once",),
            )
        lost = [name for name in owners_in(event) if not any(name in group for group in groups)]
        if lost:
            raise LawBroken(f"{', '.join(lost)} stay in a group", f"{groups}", ("lost",))
        if again and joined and joined[0] not in (None, members(event)):
            raise LawBroken(
                f"joining {times} times changes nothing: {joined[0]}", f"{groups}", ("changed again",)
            )
    return judged


def difference(one: str, other: str) -> str:
    """The first difference of two byte strings in hexadecimal."""
    if len(one) != len(other):
        return f"{len(other) // 2} bytes, not {len(one) // 2}"
    place = next(n for n in range(0, len(one), 2) if one[n : n + 2] != other[n : n + 2])
    return f"byte {place // 2} is {other[place : place + 2]}, not {one[place : place + 2]}"


def alias(runs: Runs) -> int:
    """All layers that share a cache read what one of them wrote last.

    As long as none of them has written, they all read the same bytes.
    """
    judged = 0
    targets: Targets = {}
    written: tuple[str, int] | None = None
    seen: dict[tuple[str, int], tuple[str, str]] = {}
    for event in runs[0]:
        op, arguments, outcome = event["op"], event["args"], event["outcome"]
        if op == "tensors.allocate":
            targets, seen, written = targets_of(event) if "value" in outcome else {}, {}, None
        if op not in ("tensors.read", "tensors.write"):
            continue
        layer, block = arguments["layer"], arguments["block"]
        names = path(layer, targets)
        if "error" in outcome and layer in targets:
            raise LawBroken(
                f"block {block} of {layer} is readable and writable as that of {names[-1]}",
                error_line(outcome),
                ("refused",),
            )
        if op == "tensors.write":
            known = "value" in outcome
            written = (names[-1], block) if known else None
            seen = {(names[-1], block): (layer, outcome["value"])} if known else {}
        elif "value" in outcome:
            other, content = seen.setdefault((names[-1], block), (layer, outcome["value"]))
            if other == layer and written != (names[-1], block):
                continue
            judged += 1
            if content != outcome["value"]:
                ways = [way for way in (names, path(other, targets)) if len(way) > 1]
                raise LawBroken(
                    f"block {block} of {layer} reads as {other} {'wrote' if written else 'reads'} it"
                    + "".join(f" ({in_words(way)})" for way in ways),
                    difference(content, outcome["value"]),
                    ("lost" if not ways else "chain" if max(map(len, ways)) > 2 else "direct",),
                )
    return judged


def isolated(runs: Runs) -> int:
    """Writes through layers with other memory do not change what a layer reads.

    Layers of different groups may use the same memory in turn, block by block. The law takes a write as known
    content only if the layer has read back an earlier write. `sharing.alias` judges layers that have not.
    """
    judged = 0
    targets: Targets = {}
    group_of: dict[str, int] = {}
    written: tuple[str, int, str] | None = None
    read_back: set[str] = set()
    known: dict[tuple[str, int], tuple[str, list[tuple[str, int]]]] = {}
    for event in runs[0]:
        op, arguments, outcome = event["op"], event["args"], event["outcome"]
        if op == "tensors.allocate":
            answer = outcome.get("value", {"groups": []})
            targets, known, written, read_back = targets_of(event), {}, None, set()
            group_of = {name: n for n, group in enumerate(answer["groups"]) for name in group}
        if op not in ("tensors.read", "tensors.write") or not group_of:
            continue
        layer, block = arguments["layer"], arguments["block"]
        owner = path(layer, targets)[-1]
        if op == "tensors.write":
            left = {}
            for (other, elsewhere), (content, writes) in known.items():
                theirs = path(other, targets)[-1]
                together = group_of.get(owner) == group_of.get(theirs)
                if "value" in outcome and theirs != owner and (together or elsewhere != block):
                    left[other, elsewhere] = (content, [*writes, (layer, block)])
            written = (layer, block, outcome["value"]) if "value" in outcome else None
            if written and layer in read_back:
                left[layer, block] = (outcome["value"], [])
            known = left
        elif "value" in outcome:
            if written == (layer, block, outcome["value"]):
                read_back.add(layer)
            content, writes = known.get((layer, block), (outcome["value"], []))
            judged += bool(writes)
            if content != outcome["value"] and written != (layer, block, content):
                done = ", ".join(f"block {number} through {writer}" for writer, number in writes)
                same = any(number == block for _, number in writes)
                raise LawBroken(
                    f"block {block} of {layer} is unchanged, because only {done} was written",
                    difference(content, outcome["value"]),
                    ("same block" if same else "another block",),
                )
            known[layer, block] = (outcome["value"], [])
    return judged


def no_cost(runs: Runs) -> int:
    """With sharing layers, memory, groups and pages are the same as without them.

    If each sharing layer uses an owner's cache directly, the layers must not be refused.
    `sharing.chain-resolves` judges longer chains.
    """
    judged = 0
    calls = [e for e in runs[0] if e["op"] == "tensors.allocate" and "died" not in e["outcome"]]
    for event in [each for each in calls if each["args"]["sharing"]]:
        without = {**event["args"], "sharing": []}
        for other in [each for each in calls if each["args"] == without and is_allocated(each)]:
            if "error" in event["outcome"]:
                if set(targets_of(event).values()) <= set(event["args"]["layers"]):
                    raise LawBroken(
                        f"{', '.join(map(in_words, event['args']['sharing']))} are allocated, because the "
                        "layers need no memory of their own",
                        error_line(event["outcome"]),
                        (f"refused, {event['outcome']['error']['type']}",),
                    )
                continue
            if not is_allocated(event):
                continue
            judged += 1
            before, after = costs(other), costs(event)
            facets = tuple(what for what in before if before[what] != after[what])
            if facets:
                sharing = ", ".join(in_words(pair) for pair in event["args"]["sharing"])
                raise LawBroken(
                    f"the same as without the sharing layers ({sharing}): "
                    + "; ".join(f"{what} {before[what]}" for what in facets),
                    "; ".join(f"{what} {after[what]}" for what in facets),
                    facets,
                )
    return judged


def is_allocated(event: Event) -> bool:
    """Whether the call allocated a cache in which every layer has a view."""
    return "value" in event["outcome"] and Caches(event).is_complete


def costs(event: Event) -> dict[str, Any]:
    """What sharing layers must not change: the memory, the groups, and the pages.

    The pages of a sharing layer are listed only if they differ from its owner's.
    """
    answer, targets = event["outcome"]["value"], targets_of(event)
    owners = event["args"]["layers"]
    pages = {
        name: (layer["page_size_bytes"], layer["content_size_bytes"], layer["block_stride"])
        for name, layer in answer["layers"].items()
    }
    return {
        "memory": {"allocated": sum(answer["buffers"]), "planned": answer["planned"]},
        "groups": sorted(sorted(name for name in group if name in owners) for group in answer["groups"]),
        "specs": {
            name: page
            for name, page in pages.items()
            if name in owners or page != pages.get(path(name, targets)[-1])
        },
    }


LAWS = [
    Law(
        id="sharing.alias",
        level=Level.SAFETY,
        statement="A sharing layer and its owner have the same cache: each reads what the other wrote.",
        why="Otherwise the layer attends to bytes that no layer wrote: wrong output, and no error.",
        sources=("vLLM PR 35045",),
        workload="sharing.tensors",
        check=alias,
    ),
    Law(
        id="sharing.isolated",
        level=Level.SAFETY,
        statement=(
            "Layers that neither share a cache nor are planned onto the same memory never see each other's "
            "writes."
        ),
        why=(
            "Otherwise layers with similar names, or next to each other in a list, overwrite each other's "
            "cache."
        ),
        sources=("vLLM PR 35045",),
        workload="sharing.tensors",
        check=isolated,
    ),
    Law(
        id="sharing.no-cost",
        level=Level.SAFETY,
        statement="Sharing layers add no memory, no group and no spec of their own.",
        why="Otherwise memory goes to caches that no layer uses, and fewer requests run at once.",
        sources=("vLLM PR 35045",),
        workload="sharing.tensors",
        check=no_cost,
    ),
    Law(
        id="sharing.chain-resolves",
        level=Level.SAFETY,
        statement=(
            "In a chain of sharing layers, of any length, all layers are in the group of the owner at its "
            "end."
        ),
        why=(
            "Otherwise a model with a chain of sharing layers does not start, or its layers read the wrong "
            "blocks."
        ),
        sources=("vLLM PR 35045",),
        workload="sharing.graphs",
        check=chain_resolves,
    ),
    Law(
        id="sharing.order-free",
        level=Level.SAFETY,
        statement="The cache that a layer shares does not depend on the order of the layers.",
        why=(
            "Otherwise the names or the load order of the layers decide whether a model runs and what it "
            "reads."
        ),
        sources=("vLLM PR 35045",),
        workload="sharing.graphs",
        check=order_free,
        enough=0,
    ),
    Law(
        id="sharing.cycle-refused",
        level=Level.ROBUSTNESS,
        statement=(
            "A cycle of sharing layers, even of a single layer, is refused with an error that names a layer "
            "of it and its target."
        ),
        why="No layer of a cycle has a cache, so the engine hangs at start or fails without saying why.",
        sources=("vLLM PR 35045",),
        workload="sharing.cycles",
        check=cycle_refused,
        enough=0,
    ),
    Law(
        id="sharing.dangling-refused",
        level=Level.ROBUSTNESS,
        statement=(
            "A target that does not exist, or that leads to no cache, is refused with an error that names "
            "the layer and its target."
        ),
        why="Otherwise a mistyped name shows up as a bare KeyError, or only at the first request.",
        sources=("vLLM PR 35045",),
        workload="sharing.dangling",
        check=dangling_refused,
        enough=0,
    ),
    Law(
        id="sharing.grouped-once",
        level=Level.SAFETY,
        statement="Sharing layers join their owner's group exactly once, however often initialisation runs.",
        why=(
            "Otherwise, with a draft model, layers are listed twice, and code that counts or visits them "
            "goes wrong."
        ),
        sources=("vLLM PR 35045",),
        workload="sharing.graphs",
        check=grouped_once,
    ),
]
