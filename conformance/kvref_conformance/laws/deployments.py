"""Laws of what an engine builds from a plan: plans for workers, block sizes, cache managers, reports."""

from __future__ import annotations

import re
from math import lcm
from typing import Any

from kvref_conformance.laws.core import Event, Law, LawBroken, Level, Runs
from kvref_conformance.laws.plan import INTERNAL_ERRORS, listed, made, mix, plans, refuse_uncovered
from kvref_conformance.laws.registry import error_line


def answered(runs: Runs, operation: str) -> list[Event]:
    """Every call of an operation that returned or raised an error."""
    return [e for events in runs for e in events if e["op"] == operation and "died" not in e["outcome"]]


def group_sizes(plan: dict[str, Any]) -> list[int]:
    """The block size of each group that has layers, in tokens."""
    return [g["layers"][0]["spec"]["fields"]["block_size"] for g in plan["groups"] if g["layers"]]


def has_mixed_group(plan: dict[str, Any]) -> bool:
    """Whether a layer has a manager other than that of its group."""
    return any(layer["manager"] != group["manager"] for group in plan["groups"] for layer in group["layers"])


def lcm_bounded(runs: Runs) -> int:
    """A scheduler block size above twice the least common multiple of the layers' block sizes is reported.

    The size counts as reported if it is in a warning, or in a log line that the log shows by default. Without
    prefix caching nothing depends on the size, so it need not be reported.
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
                f"a scheduler block size of at most {2 * own} tokens, twice the least common multiple of the "
                "layers' block sizes, or a warning or log line with the size",
                f"{size} tokens, and " + ("; ".join(answer["said"]) or "no warning or log line"),
                (mix(layers),),
            )
    return judged


def scheduler_block(runs: Runs) -> int:
    """The resolved block sizes fit together. A cache manager accepts them, and refuses sizes that do not fit.

    Every coordinator or manager that shows a size must show the given value. A cache manager need not refuse
    sizes if prefix caching is off, or if it never receives the scheduler block size. `plan.one-manager`
    judges groups whose layers have several managers.
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
            f"scheduler block size {scheduler}, hash block size {hashed}, and groups with block sizes {sizes}"
        )
        fits = min(scheduler, hashed) > 0 and not any(scheduler % size for size in (hashed, *sizes))
        judged += 1
        if event["op"] == "planner.block_sizes":
            if not fits:
                raise LawBroken(
                    "a scheduler block size that is a multiple of the hash block size and of every group's "
                    "block size",
                    words,
                    ("resolved",),
                )
        elif "value" in outcome:
            shown = outcome["value"]
            if not fits and arguments["enable_caching"] and shown["scheduler_block_size"] is not None:
                raise LawBroken(f"a refusal of {words}", "a cache manager was created", ("accepted",))
            for name, size in both.items():
                other = {place: found for place, found in (shown[name] or {}).items() if found != size}
                if other:
                    raise LawBroken(
                        f"{name}={size} in every coordinator and manager",
                        ", ".join(f"{found} in {place}" for place, found in other.items()),
                        (f"{name} changed",),
                    )
        elif all(resolved[name] == size for name, size in both.items()) and not has_mixed_group(resolved):
            kind = outcome["error"]["type"]
            raise LawBroken(
                f"a cache manager with the resolved {words}",
                error_line(outcome),
                (f"refused, {kind}",),
            )
    return judged


def workers_agree(runs: Runs) -> int:
    """All workers have the same number of blocks and the same groups in the same order.

    The scheduler allocates a block for one group on all workers at once. So each group exists on every
    worker, even if the worker has none of its layers. The blocks fit into the memory of each worker. If all
    workers have the same layers, the worker with the least memory decides how many blocks there are.

    If the planner can group the layers of all workers, it must also plan them for the workers, unless memory
    is short. Other laws judge the plan for a single worker, so this law skips what is already wrong there.
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
        # If the layers of all workers cannot be grouped either, a refusal proves nothing.
        judged += "value" in outcome or whole is not None
        if "error" in outcome:
            kind = outcome["error"]["type"]
            if whole and (all(alone) if alike else kind in INTERNAL_ERRORS):
                raise LawBroken(
                    "a plan for all workers, because their layers can be planned"
                    + (" and each worker can be planned alone" if alike else ""),
                    error_line(outcome),
                    (f"refused, {kind}",),
                )
            continue
        found = outcome["value"]
        if len(found) != len(workers):
            raise LawBroken(f"{len(workers)} plans, one for each worker", f"{len(found)}", ("workers",))
        blocks = [plan["num_blocks"] for plan in found]
        if len(set(blocks)) > 1:
            raise LawBroken("the same number of blocks on all workers", f"{blocks}", ("num_blocks",))
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
                    f"a plan with the worker's own layers, {', '.join(worker['layers']) or 'none'}",
                    ", ".join(has) or "none",
                    ("layers",),
                )
            if not overdrawn:
                refuse_uncovered(plan, worker["memory"])
        refuse_other_groups(found, whole)
        # plan.order-free judges what depends on the order of the layers.
        if whole and grouping and list(grouping["args"]["layers"]) == order:
            refuse_other_pages(found, whole)
        if alike and len(alone) == len(workers) and all(alone):
            fewest = min(plan["num_blocks"] for plan in alone if plan)
            if blocks[0] != fewest:
                raise LawBroken(
                    f"{fewest} blocks, as many as the worker with the least memory has alone",
                    f"{blocks[0]}",
                    ("smallest",),
                )
    return judged


def refuse_other_groups(found: list[dict[str, Any]], whole: dict[str, Any] | None) -> None:
    """Raise `LawBroken` unless each group is the same on all workers.

    If a group of the whole model has several managers, managers are not compared.
    """
    counts = [len(plan["groups"]) for plan in found]
    if len(set(counts)) > 1:
        raise LawBroken("the same number of groups on all workers", f"{counts}", ("groups",))
    mixed = whole is not None and has_mixed_group(whole)
    places: dict[str, tuple[Any, ...]] = {}
    for place, groups in enumerate(zip(*(plan["groups"] for plan in found), strict=True)):
        managers = set() if mixed else {group["manager"] for group in groups}
        sizes = {layer["spec"]["fields"]["block_size"] for group in groups for layer in group["layers"]}
        if len(managers) > 1 or len(sizes) > 1:
            raise LawBroken(
                f"group {place} has the same manager and block size on all workers",
                f"managers {', '.join(sorted(map(str, managers)))} and block sizes {sorted(sizes)}",
                ("groups",),
            )
        for layer in [layer for group in groups for layer in group["layers"]]:
            meaning = (place, layer["spec"])
            if places.setdefault(layer["name"], meaning) != meaning:
                raise LawBroken(
                    f"{layer['name']} has the same spec and group on all workers that have it",
                    f"{places[layer['name']]} and {meaning}",
                    ("groups",),
                )


def refuse_other_pages(found: list[dict[str, Any]], whole: dict[str, Any]) -> None:
    """Raise `LawBroken` if the page size of a layer on a worker differs from that in the whole model."""
    layers = [layer for group in whole["groups"] for layer in group["layers"]]
    pages = {layer["name"]: layer["spec"]["page_size_bytes"] for layer in layers}
    for layer in [layer for plan in found for group in plan["groups"] for layer in group["layers"]]:
        name, page = layer["name"], layer["spec"]["page_size_bytes"]
        if page != pages.get(name, page):
            raise LawBroken(
                f"a page size of {pages[name]} bytes for {name}, as in the plan of the whole model",
                f"{page} bytes",
                ("pages",),
            )


def reports_agree(runs: Runs) -> int:
    """All reports of capacity agree, in any order of the groups, and follow from the plan.

    The concurrency is the number of the longest requests for which the plan has blocks; the null block may
    count or not. The token capacity is the number of tokens of these requests. Blocks for sinks are reserved
    once for all requests, so for plans with sinks the law does not compute the concurrency. It only compares
    the reports.
    """
    judged = 0
    first: tuple[Any, ...] | None = None
    planned = [event["args"]["memory"] for event in made(runs) if event["op"] == "planner.config"]
    for event in answered(runs, "planner.capacity"):
        if "value" not in event["outcome"]:
            if event["args"]["memory"] in planned:
                kind = event["outcome"]["error"]["type"]
                raise LawBroken(
                    "a report of the capacity, because there is a plan",
                    error_line(event["outcome"]),
                    (f"refused, {kind}",),
                )
            continue
        arguments, answer = event["args"], event["outcome"]["value"]
        reports = answer["told"]
        judged += 1
        [view, one], *others = reports.items()
        for other_view, other in others:
            if other != one:
                raise LawBroken(f"the {other_view} reports {one}, like the {view}", f"{other}", ("views",))
        meaning = (answer["num_blocks"], sorted(answer["blocks_per_request"]), one)
        if first is not None and meaning != first:
            raise LawBroken(f"{first[2]} in any order of the groups", f"{one} in reverse order", ("order",))
        first = meaning
        length, blocks = arguments["max_model_len"], answer["num_blocks"]
        needed, concurrency = sum(answer["blocks_per_request"]), one["max_concurrency"]
        tokens = one.get("num_tokens")
        if tokens is not None and abs(tokens - concurrency * length) > 1:
            raise LawBroken(
                f"a capacity of {concurrency * length:g} tokens, for {concurrency:g} requests of {length} "
                "tokens",
                f"{tokens}",
                ("tokens",),
            )
        sinks = any(spec["fields"].get("sink_len") for spec in arguments["layers"].values())
        least, most = (blocks - 1) / needed - 1e-6, blocks / needed + 1e-6
        if not sinks and not least <= concurrency <= most:
            raise LawBroken(
                f"a concurrency of {least:.2f} to {most:.2f}, with {needed} of {blocks} blocks for each "
                "request",
                f"{concurrency:.2f}",
                ("concurrency",),
            )
    return judged


def enough_memory(runs: Runs) -> int:
    """Memory for the blocks of one request and the null block is enough for a plan.

    The law computes the bytes of a block from a plan for more memory: that memory divided by its number of
    blocks.
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
                f"a plan, because {given} bytes hold {needed} blocks: those of one request and the null "
                "block",
                error_line(event["outcome"]),
                (mix(event["args"]["layers"]),),
            )
    return judged


def constructible(runs: Runs) -> int:
    """A model with one layer of a registered class gets a cache manager, at least without prefix caching."""
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
            f"a cache manager for a layer with the registered {mix(refused[-1]['args']['layers'])}",
            error_line(outcome),
            (outcome["error"]["type"],),
        )
    return min(1, len(attempts))


CONSTRUCTIBLE = Law(
    id="registry.constructible",
    level=Level.SAFETY,
    statement=(
        "The manager of every registered spec can be built as an engine builds it, with all keyword "
        "arguments of the engine and the resolved block sizes, at least with prefix caching off."
    ),
    why="Otherwise a model with a layer of this spec does not start.",
    sources=("vLLM PR 37505", "vLLM RFC 36668"),
    workload="deployments.managers",
    check=constructible,
)

LAWS = [
    Law(
        id="plan.lcm-bounded",
        level=Level.ROBUSTNESS,
        statement=(
            "If equal page sizes raise the scheduler block size above twice the least common multiple of the "
            "layers' block sizes, a warning or a log line at the default level contains that size."
        ),
        why=(
            "Otherwise there are hardly any prefix hits, because each is a multiple of that size, and users "
            "do not see why."
        ),
        sources=("vLLM issue 54458",),
        workload="deployments.sizes",
        check=lcm_bounded,
    ),
    Law(
        id="plan.scheduler-block",
        level=Level.SAFETY,
        statement=(
            "The resolved scheduler block size is a multiple of the hash block size and of every group's "
            "block size, and reaches every coordinator and manager unchanged; with prefix caching, a cache "
            "manager refuses a size that does not fit."
        ),
        why=(
            "Otherwise a hit ends within a block of some group, and the rest of the block holds other tokens."
        ),
        sources=("vLLM PR 37505",),
        workload="deployments.sizes",
        check=scheduler_block,
    ),
    Law(
        id="plan.workers-agree",
        level=Level.SAFETY,
        statement=(
            "All workers of an engine, for example pipeline stages or ranks with different memory, have the "
            "same groups in the same order and the same number of blocks, and the plan of each worker fits "
            "into its memory."
        ),
        why=(
            "Otherwise an allocated block lies outside the memory of some worker, or belongs to another "
            "group there."
        ),
        sources=("vLLM PR 37505",),
        workload="deployments.workers",
        check=workers_agree,
    ),
    Law(
        id="plan.reports-agree",
        level=Level.SAFETY,
        statement=(
            "The concurrency and token capacity of each plan are reported, and all reports have the same "
            "numbers, which follow from the plan's blocks and do not depend on the order of the groups."
        ),
        why="A deployment that is sized by a wrong report holds fewer requests, or costs too much.",
        sources=("vLLM PR 48317", "vLLM issue 40691"),
        workload="deployments.capacity",
        check=reports_agree,
    ),
    Law(
        id="plan.enough-memory",
        level=Level.SAFETY,
        statement=(
            "Memory for the blocks of one request of the maximum length, and for the null block, is enough "
            "for a plan."
        ),
        why="Otherwise an engine refuses to start although the longest request fits.",
        sources=("the engine contract",),
        workload="deployments.capacity",
        check=enough_memory,
    ),
]
