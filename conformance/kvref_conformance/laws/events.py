"""Laws of KV events: what a router learns from them about the prefix cache."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvref_conformance.laws.cache_steps import State, steps
from kvref_conformance.laws.core import Law, LawBroken, Level, Runs


def replay(runs: Runs) -> int:
    """If you count the stored, removed and cleared events, you get exactly the keys in the index."""
    judged = 0
    counts: Counter[str] = Counter()
    for step in steps(runs[0], "cache.create", "cache.take_events"):
        if step.op == "cache.create":
            counts = Counter()
        if step.op != "cache.take_events" or not step.done:
            continue
        for event in step.value:
            count(counts, event)
        state = step.after or step.before
        if state is None:
            continue
        judged += bool(state["found"])
        if counts.keys() == state["found"].keys():
            continue
        # In releases whose events have no group, the same content has one name in all groups.
        with_group = all("group" in event for event in step.value if event["what"] != "cleared")
        known = set(counts) if with_group else {name.partition("/")[0] for name in counts}
        found = set(state["found"]) if with_group else {name.partition("/")[0] for name in state["found"]}
        if unknown := sorted(found - known):
            raise LawBroken(
                f"the events leave all keys of the index stored: {sorted(found)}",
                f"{unknown} were never stored, or removed",
                ("not told",),
            )
        if gone := sorted(known - found):
            raise LawBroken(
                f"the events leave only keys of the index stored: {sorted(found)}",
                f"{gone} were never removed",
                ("promised",),
            )
    return judged


def count(counts: Counter[str], event: dict[str, Any]) -> None:
    """Apply one event to the counts. Raise `LawBroken` if it removes a key that is not stored."""
    if event["what"] == "cleared":
        counts.clear()
        return
    names = [f"{each}/{event.get('group', '')}" for each in event["hashes"]]
    for name in names:
        if event["what"] == "stored":
            counts[name] += 1
        elif counts[name] > 1:
            counts[name] -= 1
        elif counts[name] == 1:
            del counts[name]
        else:
            raise LawBroken(f"{name} is stored before it is removed", f"{event}", ("removed",))


def metadata(runs: Runs) -> int:
    """A stored event names a group of the plan and the block size of that group.

    An event about a single hash may name a smaller block size: its block may be partly filled. A stored event
    has `block_size` tokens for each of its hashes.
    """
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
        raise LawBroken(f"the group's block_size, one of {sorted(sizes)}", f"{event}", ("block size",))
    if size is not None and "tokens" in event and len(event["tokens"]) != hashes * size:
        raise LawBroken(f"{hashes * size} tokens for {hashes} blocks of {size}", f"{event}", ("tokens",))


def content(runs: Runs) -> int:
    """A stored event has the tokens of its blocks, and as parent the block before the first one."""
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
            # Larger blocks are left out: in some releases they have a hash of their own.
            size = step.cache.arguments["hash_block_size"]
            stored = [event for event in step.value if event["what"] == "stored"]
            judged += sum(judge_content(event, ends) for event in stored if event.get("block_size") == size)
    return judged


def judge_content(event: dict[str, Any], ends: dict[str, list[int]]) -> int:
    """Judge the hashes in the event that belong to some request. Return how many there are."""
    size, tokens = event["block_size"], event.get("tokens", ())
    names = event["hashes"]
    # events.metadata judges the number of tokens.
    if len(tokens) != len(names) * size:
        return 0
    judged = 0
    for place, name in enumerate(names):
        if name not in ends:
            continue
        judged += 1
        before, own = ends[name][:-size], ends[name][-size:]
        if (reported := tokens[place * size : (place + 1) * size]) != own:
            raise LawBroken(
                f"tokens {own} in block {name}, as in the request with that hash",
                f"{reported}",
                ("tokens told",),
            )
        if not place and "parent" not in event:
            continue
        parent = names[place - 1] if place else event["parent"]
        if (parent is not None and parent not in ends) or ends.get(parent or "", []) != before:
            raise LawBroken(
                f"the parent of block {name} is the block of the {len(before)} tokens before it",
                f"{parent}, with the tokens {ends.get(parent, 'of no request') if parent else 'of no block'}",
                ("parent told",),
            )
    return judged


LAWS = [
    Law(
        id="events.replay",
        level=Level.SAFETY,
        statement=(
            "If you count the stored, removed and cleared events, you get exactly the keys that a look-up "
            "can find, at any time."
        ),
        why=(
            "A router learns from these events which engine has a request's prefix. With wrong events it "
            "chooses a wrong engine."
        ),
        sources=("vLLM's KV events",),
        workload="cache.machine",
        check=replay,
    ),
    Law(
        id="events.metadata",
        level=Level.SAFETY,
        statement=(
            "A stored event names a group of the plan and the block size of that group, or a smaller size if "
            "it is about one partly filled block. It has `block_size` tokens for each of its hashes."
        ),
        why="Otherwise a router takes the tokens for the content of other blocks.",
        sources=("vLLM's KV events",),
        workload="cache.machine",
        check=metadata,
    ),
    Law(
        id="events.content",
        level=Level.SAFETY,
        statement=(
            "For each block of `hash_block_size` tokens, a stored event has the tokens of the request with "
            "this block hash; the event's parent is the hash of the block before its first one."
        ),
        why=(
            "Routers build their prefix trees from these events. With wrong ones they look for a prompt in "
            "the wrong place."
        ),
        sources=("vLLM PR 30544", "vLLM issue 44451", "vllm-ascend issue 12002"),
        workload="cache.machine",
        check=content,
    ),
]
