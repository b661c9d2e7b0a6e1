"""Laws of what an engine makes of a plan: workers that share it, block sizes, a cache manager, reports."""

from __future__ import annotations

import re
from math import lcm
from typing import Any

from kvref_conformance.laws.core import Event, Law, LawBroken, Runs
from kvref_conformance.laws.plan import INTERNAL_ERRORS, listed, made, mix, plans, refuse_uncovered
from kvref_conformance.laws.registry import error_line
from kvref_conformance.results import Level


def answered(runs: Runs, operation: str) -> list[Event]:
    """Every call of an operation that came back, with a value or an error."""
    return [e for events in runs for e in events if e["op"] == operation and "died" not in e["outcome"]]


def group_sizes(plan: dict[str, Any]) -> list[int]:
    """The block size of each group that has layers, in tokens."""
    return [g["layers"][0]["spec"]["fields"]["block_size"] for g in plan["groups"] if g["layers"]]


def has_mixed_group(plan: dict[str, Any]) -> bool:
    """Whether the layers of a group have another manager than the group."""
    return any(layer["manager"] != group["manager"] for group in plan["groups"] for layer in group["layers"])


def lcm_bounded(runs: Runs) -> int:
    """More than twice the least common multiple of the layers' own block sizes is told to the user.

    It is told by a warning, or by a line of the log as it is by default, in which the size occurs. Without
    prefix caching nothing depends on it, so that it need not be told.
    """
    judged = 0
    for event in answered(runs, "planner.block_sizes"):
        if "value" not in event["outcome"]:
            continue
        layers, answer = event["args"]["layers"], event["outcome"]["value"]
        own = lcm(*(spec["fields"]["block_size"] for spec in layers.values()))
        size = answer["scheduler_block_size"]
        if size > 2 * own and not event["args"]["enable_caching"]:
            continue
        judged += 1
        said = [re.sub(r"(?<=\d)[,_](?=\d{3})", "", line) for line in answer["said"]]
        if size > 2 * own and not any(re.search(rf"(?<!\d){size}(?!\d)", line) for line in said):
            raise LawBroken(
                f"a scheduler block of at most {2 * own} tokens, twice the least common multiple of the "
                "layers' own blocks, or a line that tells it",
                f"{size} tokens, and " + ("; ".join(answer["said"]) or "not a word"),
                (mix(layers),),
            )
    return judged


def scheduler_block(runs: Runs) -> int:
    """What is resolved fits, a manager can be made with it, and what does not fit is refused.

    The value has to arrive at whatever shows it. With prefix caching off, block sizes may mean nothing:
    then a manager with those that were resolved is all that is asked for. So it is where a manager is not
    told the scheduler's. A group whose layers have several managers is for another law.
    """
    judged = 0
    resolved: dict[str, Any] = {}
    for event in [e for events in runs for e in events]:
        arguments, outcome = event["args"], event["outcome"]
        if event["op"] == "planner.block_sizes":
            resolved = outcome.get("value", {})
        if (
            event["op"] not in ("planner.block_sizes", "planner.construct")
            or not resolved
            or "died" in outcome
        ):
            continue
        given = resolved if event["op"] == "planner.block_sizes" else arguments
        both = {name: given[name] for name in ("scheduler_block_size", "hash_block_size")}
        scheduler, hashed = both.values()
        sizes = group_sizes(resolved)
        words = (
            f"a scheduler block of {scheduler} tokens, hashes every {hashed}, groups with blocks of {sizes}"
        )
        fits = min(scheduler, hashed) > 0 and not any(scheduler % size for size in (hashed, *sizes))
        judged += 1
        if event["op"] == "planner.block_sizes":
            if not fits:
                raise LawBroken(
                    "a scheduler block that is a multiple of every group's, and of what is hashed at once",
                    words,
                    ("resolved",),
                )
        elif "value" in outcome:
            shown = outcome["value"]
            if not fits and arguments["enable_caching"] and shown["scheduler_block_size"] is not None:
                raise LawBroken(f"a refusal of {words}", "a cache manager", ("accepted",))
            for name, size in both.items():
                other = {place: found for place, found in (shown[name] or {}).items() if found != size}
                if other:
                    raise LawBroken(
                        f"{name} {size} everywhere",
                        ", ".join(f"{found} in {place}" for place, found in other.items()),
                        (f"{name} changed",),
                    )
        elif all(resolved[name] == size for name, size in both.items()) and not has_mixed_group(resolved):
            kind = outcome["error"]["type"]
            raise LawBroken(
                f"a cache manager with what was resolved, {words}",
                error_line(outcome),
                (f"refused, {kind}",),
            )
    return judged


def workers_agree(runs: Runs) -> int:
    """Workers have one number of blocks, for which all have the memory, and the same groups in one order.

    A block of a group is one number for all workers, so a group must have its place on each of them, be it
    without layers there. Ranks with the same layers have as many blocks as the one with the least memory has
    by itself. What can be grouped can be shared out to workers, unless memory does not suffice. What is wrong
    with the plan for one worker already is for other laws.
    """
    judged = 0
    for event in answered(runs, "planner.workers"):
        workers, outcome = event["args"]["workers"], event["outcome"]
        before = plans(runs)
        alike = all(worker["layers"] == workers[0]["layers"] for worker in workers)
        alone = [e["outcome"].get("value") for e in before if e["op"] == "planner.config"]
        order = list(dict.fromkeys(name for worker in workers for name in worker["layers"]))
        everything = set(order)
        grouping = next((e for e in before if set(e["args"]["layers"]) == everything), None)
        whole = grouping["outcome"].get("value") if grouping else None
        # Where the layers of all cannot be grouped either, a refusal says nothing.
        judged += "value" in outcome or whole is not None
        if "error" in outcome:
            kind = outcome["error"]["type"]
            if whole and (all(alone) if alike else kind in INTERNAL_ERRORS):
                raise LawBroken(
                    "a plan for all workers of layers that can be planned"
                    + (", as each of them can alone" if alike else ""),
                    error_line(outcome),
                    (f"refused, {kind}",),
                )
            continue
        found = outcome["value"]
        if len(found) != len(workers):
            raise LawBroken(f"{len(workers)} plans, one for each worker", f"{len(found)}", ("workers",))
        blocks = [plan["num_blocks"] for plan in found]
        if len(set(blocks)) > 1:
            raise LawBroken("one number of blocks on all workers", f"{blocks}", ("num_blocks",))
        grouped = {name for group in whole["groups"] for name in listed(group)} if whole else set()
        overdrawn = any(
            "value" in e["outcome"] and sum(e["outcome"]["value"]["tensors"]) > e["args"]["memory"]
            for e in before
            if e["op"] == "planner.config"
        )
        for worker, plan in zip(workers, found, strict=True):
            has = sorted(name for group in plan["groups"] for name in listed(group))
            if grouped == everything and has != sorted(worker["layers"]):
                raise LawBroken(
                    f"a worker's own layers, {', '.join(worker['layers']) or 'none'}",
                    ", ".join(has) or "none",
                    ("layers",),
                )
            if not overdrawn:
                refuse_uncovered(plan, worker["memory"])
        refuse_other_groups(found, whole)
        # What depends on the order of the layers is for another law.
        if whole and grouping and list(grouping["args"]["layers"]) == order:
            refuse_other_pages(found, whole)
        if alike and len(alone) == len(workers) and all(alone):
            fewest = min(plan["num_blocks"] for plan in alone if plan)
            if blocks[0] != fewest:
                raise LawBroken(
                    f"{fewest} blocks, as the worker with the least memory has alone",
                    f"{blocks[0]}",
                    ("smallest",),
                )
    return judged


def refuse_other_groups(found: list[dict[str, Any]], whole: dict[str, Any] | None) -> None:
    """Raise `LawBroken` unless the groups of all workers go together, place by place.

    Their managers are not compared where a group of the whole model has several.
    """
    counts = [len(plan["groups"]) for plan in found]
    if len(set(counts)) > 1:
        raise LawBroken("as many groups on each worker", f"{counts}", ("groups",))
    mixed = whole is not None and has_mixed_group(whole)
    places: dict[str, tuple[Any, ...]] = {}
    for place, groups in enumerate(zip(*(plan["groups"] for plan in found), strict=True)):
        managers = set() if mixed else {group["manager"] for group in groups}
        sizes = {layer["spec"]["fields"]["block_size"] for group in groups for layer in group["layers"]}
        if len(managers) > 1 or len(sizes) > 1:
            raise LawBroken(
                f"group {place} with one manager and one block size on all workers",
                f"{', '.join(sorted(map(str, managers)))}; {sorted(sizes)} tokens",
                ("groups",),
            )
        for layer in [layer for group in groups for layer in group["layers"]]:
            meaning = (place, layer["spec"])
            if places.setdefault(layer["name"], meaning) != meaning:
                raise LawBroken(
                    f"{layer['name']} with one spec in one group on all workers that have it",
                    f"{places[layer['name']]} and {meaning}",
                    ("groups",),
                )


def refuse_other_pages(found: list[dict[str, Any]], whole: dict[str, Any]) -> None:
    """Raise `LawBroken` if a layer has other pages on a worker than in the groups of all layers."""
    layers = [layer for group in whole["groups"] for layer in group["layers"]]
    pages = {layer["name"]: layer["spec"]["page_size_bytes"] for layer in layers}
    for layer in [layer for plan in found for group in plan["groups"] for layer in group["layers"]]:
        name, page = layer["name"], layer["spec"]["page_size_bytes"]
        if page != pages.get(name, page):
            raise LawBroken(
                f"pages of {pages[name]} bytes for {name}, as where all layers are grouped",
                f"{page} bytes",
                ("pages",),
            )


def reports_agree(runs: Runs) -> int:
    """All who are asked tell the same, with the groups in any order, and it follows from the plan.

    That is: as many requests as the plan has blocks for, with or without the null block counted, and as many
    tokens as those have. Blocks for sinks are set aside once for all requests; their plans are only compared.
    """
    judged = 0
    first: tuple[Any, ...] | None = None
    planned = [event["args"]["memory"] for event in made(runs) if event["op"] == "planner.config"]
    for event in answered(runs, "planner.capacity"):
        if "value" not in event["outcome"]:
            if event["args"]["memory"] in planned:
                kind = event["outcome"]["error"]["type"]
                raise LawBroken(
                    "a report, as there is a plan", error_line(event["outcome"]), (f"refused, {kind}",)
                )
            continue
        arguments, answer = event["args"], event["outcome"]["value"]
        reports = answer["told"]
        judged += 1
        [view, one], *others = reports.items()
        for other_view, other in others:
            if other != one:
                raise LawBroken(
                    f"{one}, as the {view} tells, from the {other_view}, too", f"{other}", ("views",)
                )
        meaning = (answer["num_blocks"], sorted(answer["blocks_per_request"]), one)
        if first is not None and meaning != first:
            raise LawBroken(f"{first[2]} with the groups in any order", f"{one} backwards", ("order",))
        first = meaning
        length, blocks = arguments["max_model_len"], answer["num_blocks"]
        needed, concurrency = sum(answer["blocks_per_request"]), one["max_concurrency"]
        tokens = one.get("num_tokens")
        if tokens is not None and abs(tokens - concurrency * length) > 1:
            raise LawBroken(
                f"{concurrency * length:g} tokens, those of {concurrency:g} requests of {length}",
                f"{tokens}",
                ("tokens",),
            )
        sinks = any(spec["fields"].get("sink_len") for spec in arguments["layers"].values())
        least, most = (blocks - 1) / needed - 1e-6, blocks / needed + 1e-6
        if not sinks and not least <= concurrency <= most:
            raise LawBroken(
                f"{least:.2f} to {most:.2f} requests, each with {needed} of {blocks} blocks",
                f"{concurrency:.2f}",
                ("concurrency",),
            )
    return judged


def enough_memory(runs: Runs) -> int:
    """With memory for as many blocks as one request holds, and the null block, a plan is made.

    How large a block is in all layers follows from how many there are in other memory.
    """
    capacities = [event for event in answered(runs, "planner.capacity") if "value" in event["outcome"]]
    judged = 0
    for event in answered(runs, "planner.config") if capacities else []:
        memory, plan = capacities[0]["args"]["memory"], capacities[0]["outcome"]["value"]
        needed = sum(plan["blocks_per_request"]) + 1
        given = event["args"]["memory"]
        if given < -(-memory // plan["num_blocks"]) * needed:
            continue
        judged += 1
        if "error" in event["outcome"]:
            raise LawBroken(
                f"a plan, as {given} bytes hold the {needed} blocks of one request and the null block",
                error_line(event["outcome"]),
                (mix(event["args"]["layers"]),),
            )
    return judged


def constructible(runs: Runs) -> int:
    """A model with one layer of a registered class gets its manager, with caching or at least without."""
    attempts = [
        event
        for events in runs
        for event in events
        if event["op"] in ("planner.block_sizes", "planner.construct") and "died" not in event["outcome"]
    ]
    refused = [event for event in attempts if "error" in event["outcome"]]
    if attempts and not any(e["op"] == "planner.construct" and "value" in e["outcome"] for e in attempts):
        outcome = refused[-1]["outcome"]
        raise LawBroken(
            f"a cache manager for a layer with a {mix(refused[-1]['args']['layers'])}, which is registered",
            error_line(outcome),
            (outcome["error"]["type"],),
        )
    return min(1, len(attempts))


CONSTRUCTIBLE = Law(
    id="registry.constructible",
    level=Level.SAFETY,
    statement=(
        "Every registered pair of spec and manager can be built the way an engine builds it, with every "
        "keyword it passes and the block sizes that are resolved for it: with prefix caching on, or at "
        "least off."
    ),
    why="A model with such a layer does not start.",
    sources=("vLLM PR 37505", "vLLM RFC 36668"),
    workload="deployments.managers",
    check=constructible,
)

LAWS = [
    Law(
        id="plan.lcm-bounded",
        level=Level.ROBUSTNESS,
        statement=(
            "Making pages equal does not raise the scheduler block size beyond twice the least common "
            "multiple of the layers' own block sizes without saying so: a warning, or a line of the log that "
            "is shown by default, tells the size."
        ),
        why="Cache hits become so coarse that there are none, and nobody knows why.",
        sources=("vLLM issue 54458",),
        workload="deployments.sizes",
        check=lcm_bounded,
    ),
    Law(
        id="plan.scheduler-block",
        level=Level.SAFETY,
        statement=(
            "The scheduler block size that is resolved is a multiple of the hash block size and of every "
            "group's block size; with prefix caching, anything else is refused at construction; the value "
            "reaches every coordinator and manager unchanged."
        ),
        why="Hits end within a block of some group, the rest of which holds something else.",
        sources=("vLLM PR 37505",),
        workload="deployments.sizes",
        check=scheduler_block,
    ),
    Law(
        id="plan.workers-agree",
        level=Level.SAFETY,
        statement=(
            "Plans for several workers (stages of a pipeline, ranks with other memory) have one number of "
            "blocks, the smallest, and the same groups in the same order; each has room for its layers."
        ),
        why="A block that the scheduler hands out lies outside some worker's memory, or means another group.",
        sources=("vLLM PR 37505",),
        workload="deployments.workers",
        check=workers_agree,
    ),
    Law(
        id="plan.reports-agree",
        level=Level.SAFETY,
        statement=(
            "Concurrency and token capacity are reported of each plan, follow from its blocks, do not depend "
            "on the order of the groups, and are the same whoever is asked."
        ),
        why="Whoever sizes a deployment by them gets one that holds fewer requests, or pays for too much.",
        sources=("vLLM PR 48317", "vLLM issue 40691"),
        workload="deployments.capacity",
        check=reports_agree,
    ),
    Law(
        id="plan.enough-memory",
        level=Level.SAFETY,
        statement=(
            "Memory for all blocks that one request of the longest length holds, and for the null block, is "
            "enough for a plan."
        ),
        why="An engine does not start although what it is asked for fits.",
        sources=("the engine contract",),
        workload="deployments.capacity",
        check=enough_memory,
    ),
]
