"""Laws of events: what others are told of the prefix cache."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvref_conformance.laws.cache_steps import State, steps
from kvref_conformance.laws.core import Law, LawBroken, Level, Runs


def replay(runs: Runs) -> int:
    """Who follows the events, and counts, knows what can be found."""
    judged = 0
    told: Counter[str] = Counter()
    for step in steps(runs[0], "cache.create", "cache.take_events"):
        if step.op == "cache.create":
            told = Counter()
        if step.op != "cache.take_events" or not step.done:
            continue
        for event in step.value:
            count(told, event)
        state = step.after or step.before
        if state is None:
            continue
        judged += bool(state["found"])
        if told.keys() == state["found"].keys():
            continue
        # Releases that tell no group have one name for what all groups have of some content.
        with_group = all("group" in event for event in step.value if event["what"] != "cleared")
        known = set(told) if with_group else {name.partition("/")[0] for name in told}
        found = set(state["found"]) if with_group else {name.partition("/")[0] for name in state["found"]}
        if unknown := sorted(found - known):
            raise LawBroken(
                f"all that can be found known to who follows the events: {sorted(found)}",
                f"{unknown} never stored, or removed",
                ("not told",),
            )
        if gone := sorted(known - found):
            raise LawBroken(
                f"nothing known to who follows the events but what can be found: {sorted(found)}",
                f"{gone} never removed",
                ("promised",),
            )
    return judged


def count(told: Counter[str], event: dict[str, Any]) -> None:
    """Follow one event."""
    if event["what"] == "cleared":
        told.clear()
        return
    names = [f"{each}/{event.get('group', '')}" for each in event["hashes"]]
    for name in names:
        if event["what"] == "stored":
            told[name] += 1
        elif told[name] > 1:
            told[name] -= 1
        elif told[name] == 1:
            del told[name]
        else:
            raise LawBroken(f"{name} stored before it is removed", f"{event}", ("removed",))


def metadata(runs: Runs) -> int:
    """An event says of what it stores what is so."""
    judged = 0
    for step in steps(runs[0], "cache.take_events"):
        if not step.done:
            continue
        for event in step.value:
            if event["what"] != "stored":
                continue
            judged += 1
            judge_stored(event, step.cache.groups, step.after or step.before)
    return judged


def judge_stored(event: dict[str, Any], groups: list[Any], state: State | None) -> None:
    numbers = [event["group"]] if "group" in event else range(len(groups))
    sizes = {groups[number].block_size for number in numbers if number < len(groups)}
    if not sizes:
        raise LawBroken(f"a group below {len(groups)}", f"{event}", ("group",))
    hashes, size = len(event["hashes"]), event.get("block_size")
    if size is not None and size not in sizes and not (hashes == 1 and size < max(sizes)):
        raise LawBroken(f"block_size {sorted(sizes)} of the group", f"{event}", ("block size",))
    if size is not None and "tokens" in event and len(event["tokens"]) != hashes * size:
        raise LawBroken(f"{hashes * size} tokens for {hashes} blocks of {size}", f"{event}", ("tokens",))


def content(runs: Runs) -> int:
    """An event says which tokens are in its blocks, and behind which block they come."""
    judged = 0
    ends: dict[str, list[int]] = {}
    for step in steps(runs[0], "cache.create", "cache.lookup", "cache.take_events"):
        if step.op == "cache.create":
            ends = {}
        elif step.op == "cache.lookup" and step.done and step.request is not None:
            size, tokens = step.cache.arguments["hash_block_size"], step.request.tokens
            for place, name in enumerate(step.value["hashes"]):
                ends[name] = tokens[: (place + 1) * size]
        elif step.op == "cache.take_events" and step.done:
            # Blocks of several hashes have a name of their own in some releases.
            size = step.cache.arguments["hash_block_size"]
            told = [event for event in step.value if event["what"] == "stored"]
            judged += sum(judge_content(event, ends) for event in told if event.get("block_size") == size)
    return judged


def judge_content(event: dict[str, Any], ends: dict[str, list[int]]) -> int:
    """What is told of hashes that requests have; how many these are."""
    size, tokens = event["block_size"], event.get("tokens", ())
    names = event["hashes"]
    # How many tokens there are is for another law.
    if len(tokens) != len(names) * size:
        return 0
    judged = 0
    for place, name in enumerate(names):
        if name not in ends:
            continue
        judged += 1
        before, own = ends[name][:-size], ends[name][-size:]
        if (said := tokens[place * size : (place + 1) * size]) != own:
            raise LawBroken(
                f"tokens {own} in {name}, as a request with that hash has", f"{said}", ("tokens told",)
            )
        if not place and "parent" not in event:
            continue
        parent = names[place - 1] if place else event["parent"]
        if (parent is not None and parent not in ends) or ends.get(parent or "", []) != before:
            raise LawBroken(
                f"{name} behind the {len(before)} tokens that come before it",
                f"behind {parent}, which is {ends.get(parent, 'of no request') if parent else 'nothing'}",
                ("parent told",),
            )
    return judged


LAWS = [
    Law(
        id="events.replay",
        level=Level.SAFETY,
        statement=(
            "Whoever follows the events of blocks stored, removed and cleared, and counts, knows at "
            "every time exactly what can be found."
        ),
        why="Routers send requests to where their prefix is said to be.",
        sources=("vLLM's KV events",),
        workload="cache.machine",
        check=replay,
    ),
    Law(
        id="events.metadata",
        level=Level.SAFETY,
        statement="Block size, number of tokens and group in an event are those of the plan.",
        why="Who follows the events takes them for the content of other blocks.",
        sources=("vLLM's KV events",),
        workload="cache.machine",
        check=metadata,
    ),
    Law(
        id="events.content",
        level=Level.SAFETY,
        statement=(
            "An event of stored blocks tells for each hash the tokens that a request with this hash has "
            "there, and as parent the hash of the block before the first one. Judged are blocks of "
            "`hash_block_size` tokens."
        ),
        why="Routers build their trees of prefixes of it, and look for a prompt in the wrong place.",
        sources=("vLLM PR 30544", "vLLM issue 44451", "vllm-ascend issue 12002"),
        workload="cache.machine",
        check=content,
    ),
]
