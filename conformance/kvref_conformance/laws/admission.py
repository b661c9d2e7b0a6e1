"""Laws of admission: what a granted or a refused allocation does to all requests."""

from __future__ import annotations

from collections import Counter

from kvref_conformance.laws.cache_steps import State, Step, steps
from kvref_conformance.laws.core import Law, LawBroken, Level, Runs


def none_changes_nothing(runs: Runs) -> int:
    """A refused allocation changes nothing. It may only free blocks that the request no longer needs."""
    judged = 0
    for step in steps(runs[0], "cache.allocate"):
        refused = step.done and step.value["added"] is None
        if not refused or step.before is None or step.after is None:
            continue
        judged += 1
        given = given_back(step, step.before, step.after)
        for name in ("keys", "found"):
            if step.before[name] != step.after[name]:
                raise LawBroken(
                    f"the refused {step.in_words()} leaves `{name}` as it was, {step.before[name]}",
                    f"{step.after[name]}",
                    (name,),
                )
        for block in step.cache.usable:
            expected = step.before["refs"][block] - given[block]
            if step.after["refs"][block] != expected:
                raise LawBroken(
                    f"after the refused {step.in_words()}: block {block} has {expected} references",
                    f"{step.after['refs'][block]}",
                    ("references",),
                )
        freed = {block for block in given if step.after["refs"][block] == 0}
        if Counter(step.after["free"]) != Counter([*step.before["free"], *freed]):
            raise LawBroken(
                f"after the refused {step.in_words()}: free blocks {step.before['free']} and {sorted(freed)}",
                f"{step.after['free']}",
                ("free",),
            )
    return judged


def given_back(step: Step, before: State, after: State) -> Counter[int]:
    """Count the request's own blocks that the refused allocation replaced by the null block.

    Raise `LawBroken` if it changed a block table in any other way.
    """
    given: Counter[int] = Counter()
    null, caller = step.cache.shape["null"], step.args["request"]
    for name in {**before["tables"], **after["tables"]}:
        empty: list[list[int]] = [[] for _ in step.cache.groups]
        old, new = before["tables"].get(name, empty), after["tables"].get(name, empty)
        for one, other in zip(old, new, strict=True):
            gone = [block for block, now in zip(one, other, strict=False) if block != now == null]
            kept = [
                now if name == caller and now == null else block
                for block, now in zip(one, other, strict=False)
            ]
            if kept != other or len(one) != len(other):
                raise LawBroken(
                    f"the refused {step.in_words()} leaves the block table {one} of {name}",
                    f"{other}",
                    ("tables",),
                )
            given.update(gone)
    return given


def never_raises(runs: Runs) -> int:
    """Every allocation is granted or refused; none raises an error."""
    judged = 0
    for step in steps(runs[0], "cache.allocate"):
        if "died" not in step.outcome:
            judged += 1
            if step.refused:
                beside = "alone" if len(step.cache.groups) == 1 else "beside others"
                raise LawBroken(f"{step.in_words()} is granted or refused", step.refused, (beside,))
    return judged


def hits_pinned(runs: Runs) -> int:
    """An allocation gives a request the blocks of its hit, and these blocks keep their keys."""
    judged = 0
    for step in steps(runs[0], "cache.allocate"):
        if not step.allocated or step.before is None or step.after is None or not step.hit["tokens"]:
            continue
        null = step.cache.shape["null"]
        judged += 1
        for group in step.cache.groups:
            table = step.table(step.after, group)
            found = step.hit["blocks"][group.number]
            for place, block in enumerate(found):
                whole = (place + 1) * group.block_size <= step.hit["tokens"]
                if block == null or not whole or place >= len(table) or table[place] == null:
                    continue
                keys, then = step.before["keys"].get(str(block)), step.after["keys"].get(str(block))
                if (
                    table[place] != block
                    or block in step.value["taken"]
                    or not set(keys or ()) <= set(then or ())
                ):
                    raise LawBroken(
                        f"after {step.in_words()}: block {block} of the hit at index {place}, with its keys "
                        f"{keys}",
                        f"the block table {table}, the keys {then}, and {step.value['taken']} newly "
                        "allocated",
                        ("replaced" if table[place] != block else "evicted",),
                    )
    return judged


def progress(runs: Runs) -> int:
    """If no request holds a block, a request that fits into the cache is admitted."""
    judged = 0
    admitted = False
    for step in steps(runs[0], "cache.new_step", "cache.allocate"):
        if step.op == "cache.new_step":
            admitted = False
        if step.op != "cache.allocate" or not step.done or step.before is None or step.request is None:
            continue
        # If another request of this step computes the same prefix, this one may have to wait for a step.
        alone = not step.before["tables"] and not admitted
        admitted = True
        tokens = max(step.end + step.args.get("lookahead", 0), len(step.request.tokens))
        tokens = min(tokens, step.cache.arguments["max_model_len"])
        needed = sum(group.blocks_for(tokens, step.args.get("encoder", 0)) for group in step.cache.groups)
        if not alone or not step.cache.readable or needed > len(step.cache.usable):
            continue
        judged += 1
        if not step.allocated:
            raise LawBroken(
                f"{step.in_words()} is granted, because no request holds a block and all {tokens} tokens "
                f"need {needed} of {len(step.cache.usable)} blocks",
                f"refused: {step.value['needed']} blocks needed",
            )
    return judged


def feasible_completes(runs: Runs) -> int:
    """With the least memory that an engine can start with, a request that runs alone is never refused."""
    judged = 0
    for step in steps(runs[0], "cache.allocate"):
        if not step.done or step.request is None:
            continue
        judged += 1
        if not step.allocated:
            raise LawBroken(
                f"{step.in_words()} is granted, because there is no other request and the pool has the "
                f"{len(step.cache.usable)} blocks that the specs count for a request of "
                f"{step.cache.arguments['max_model_len']} tokens",
                f"refused: {step.value['needed']} more blocks needed",
            )
    return judged


def withdrawn_uncached(runs: Runs) -> int:
    """A look-up for a withdrawn request finds no tokens from the step that the request left.

    It may find tokens that were computed in earlier steps.
    """
    judged = 0
    places: dict[str, tuple[int, int]] = {}
    computed: dict[str, int] = {}
    """For each withdrawn request, how many of its tokens were computed in earlier steps."""
    for step in steps(runs[0]):
        name = step.args.get("request", "")
        if step.allocated:
            places[name] = (step.start, step.end)
        elif step.op == "cache.progress" and step.args["computed"] >= places.get(name, (0, 0))[1]:
            places.pop(name, None)
        elif step.op == "cache.free" and name in places:
            computed[name] = places.pop(name)[0]
        elif step.op == "cache.lookup" and step.done and name in computed:
            judged += 1
            if step.value["tokens"] > computed[name]:
                raise LawBroken(
                    f"a hit of at most {computed[name]} tokens for {name}, because it was withdrawn from "
                    "its step before more were computed",
                    f"{step.value['tokens']} tokens, in blocks {step.value['blocks']}",
                )
    return judged


LAWS = [
    Law(
        id="admission.none-changes-nothing",
        level=Level.SAFETY,
        statement=(
            "A refused allocation leaves reference counts, free blocks, block tables and keys as they were; "
            "it may only free blocks that the request no longer needs."
        ),
        why="The scheduler tries again at every step, so a refusal that leaks blocks soon empties the pool.",
        sources=("the engine contract",),
        workload="cache.machine",
        check=none_changes_nothing,
    ),
    Law(
        id="admission.never-raises",
        level=Level.SAFETY,
        statement="Every legal allocation is either granted or refused, and never raises an error.",
        why="An exception in the scheduler ends the engine and every request in it.",
        sources=("the engine contract",),
        workload="cache.machine",
        check=never_raises,
    ),
    Law(
        id="admission.hits-pinned",
        level=Level.SAFETY,
        statement=(
            "An allocation gives a request exactly the blocks of its hit, and evicts none of them to make "
            "room."
        ),
        why=(
            "Otherwise the pool allocates a block of the hit again in the same call, and the request reads "
            "other content in it."
        ),
        sources=("vLLM issue 33775",),
        workload="cache.machine",
        check=hits_pinned,
    ),
    Law(
        id="admission.feasible-completes",
        level=Level.SAFETY,
        statement="If an engine has enough memory to start, every request that runs alone has enough memory.",
        why="Otherwise a long request is preempted, starts again, and never finishes.",
        sources=("the engine contract",),
        workload="cache.alone",
        check=feasible_completes,
    ),
    Law(
        id="admission.withdrawn-uncached",
        level=Level.SAFETY,
        statement=(
            "If a request is withdrawn from a step to make room for another request, no look-up finds the "
            "tokens that it should have computed in that step."
        ),
        why=(
            "Nothing was computed for these tokens, so a request that hits them reads what was in the blocks "
            "before."
        ),
        sources=("vLLM issue 57580",),
        workload="cache.withdrawn",
        check=withdrawn_uncached,
    ),
    Law(
        id="admission.progress",
        level=Level.SAFETY,
        statement="If no request holds a block, a request that fits into the cache is admitted.",
        why="Otherwise this request waits forever, and so does every request after it.",
        sources=("the engine contract",),
        workload="cache.machine",
        check=progress,
    ),
]
