"""Laws of admission: what an allocation that is granted, or refused, does to everyone else."""

from __future__ import annotations

from collections import Counter

from kvref_conformance.laws.cache_steps import State, Step, steps
from kvref_conformance.laws.core import Law, LawBroken, Level, Runs


def none_changes_nothing(runs: Runs) -> int:
    """A refusal takes nothing; only blocks that the caller needs no more may have gone."""
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
                    f"after {step.in_words()}, which is refused: {name} as they were, {step.before[name]}",
                    f"{step.after[name]}",
                    (name,),
                )
        for block in step.cache.usable:
            expected = step.before["refs"][block] - given[block]
            if step.after["refs"][block] != expected:
                raise LawBroken(
                    f"after {step.in_words()}, which is refused: {expected} references of block {block}",
                    f"{step.after['refs'][block]}",
                    ("references",),
                )
        freed = {block for block in given if step.after["refs"][block] == 0}
        if Counter(step.after["free"]) != Counter([*step.before["free"], *freed]):
            raise LawBroken(
                f"after {step.in_words()}, which is refused: free blocks {step.before['free']} and {freed}",
                f"{step.after['free']}",
                ("free",),
            )
    return judged


def given_back(step: Step, before: State, after: State) -> Counter[int]:
    """The caller's blocks that are null now; all other places of all tables are as they were."""
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
                    f"after {step.in_words()}, which is refused: the table {one} of {name}",
                    f"{other}",
                    ("tables",),
                )
            given.update(gone)
    return given


def never_raises(runs: Runs) -> int:
    """Whatever an engine asks for is granted or refused."""
    judged = 0
    for step in steps(runs[0], "cache.allocate"):
        if "died" not in step.outcome:
            judged += 1
            if step.refused:
                beside = "alone" if len(step.cache.groups) == 1 else "beside others"
                raise LawBroken(f"{step.in_words()} granted or refused", step.refused, (beside,))
    return judged


def hits_pinned(runs: Runs) -> int:
    """The blocks of a hit are what the request gets, with what is in them."""
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
                        f"after {step.in_words()}: block {block} at {place}, with its keys {keys}, as found",
                        f"{table} with {then}, {step.value['taken']} taken",
                        ("replaced" if table[place] != block else "evicted",),
                    )
    return judged


def progress(runs: Runs) -> int:
    """Where nobody holds a block, whatever fits into the cache is let in."""
    judged = 0
    admitted = False
    for step in steps(runs[0], "cache.new_step", "cache.allocate"):
        if step.op == "cache.new_step":
            admitted = False
        if step.op != "cache.allocate" or not step.done or step.before is None or step.request is None:
            continue
        # Who begins with what is only being computed in this step may have to wait for the next.
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
                f"{step.in_words()} granted: nobody holds a block, and {needed} blocks of "
                f"{len(step.cache.usable)} are enough for all {tokens} tokens",
                f"refused, {step.value['needed']} needed",
            )
    return judged


def feasible_completes(runs: Runs) -> int:
    """Alone, with the memory that an engine starts with, a request is never refused."""
    judged = 0
    for step in steps(runs[0], "cache.allocate"):
        if not step.done or step.request is None:
            continue
        judged += 1
        if not step.allocated:
            raise LawBroken(
                f"{step.in_words()} granted: there is no other request, and {len(step.cache.usable)} "
                f"blocks are what specs count for one of {step.cache.arguments['max_model_len']} tokens",
                f"refused, {step.value['needed']} more needed",
            )
    return judged


def withdrawn_uncached(runs: Runs) -> int:
    """Nobody finds what was to be computed in a step, and then was not."""
    judged = 0
    places: dict[str, tuple[int, int]] = {}
    computed: dict[str, int] = {}
    """How much was, of those who have left a step that they had places in."""
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
                    f"at most {computed[name]} tokens found for {name}, since no more were ever computed: "
                    "it was taken out of the step that had places for others",
                    f"{step.value['tokens']}, in blocks {step.value['blocks']}",
                )
    return judged


LAWS = [
    Law(
        id="admission.none-changes-nothing",
        level=Level.SAFETY,
        statement=(
            "A refused allocation leaves references, free blocks, tables and keys as they were, except that "
            "blocks which the caller needs no more may have been freed."
        ),
        why="The scheduler tries again at every step: what each refusal takes is soon all there is.",
        sources=("the engine contract",),
        workload="cache.machine",
        check=none_changes_nothing,
    ),
    Law(
        id="admission.never-raises",
        level=Level.SAFETY,
        statement="An allocation that an engine may ask for is granted or refused, and never fails.",
        why="An exception in the scheduler ends the engine and every request in it.",
        sources=("the engine contract",),
        workload="cache.machine",
        check=never_raises,
    ),
    Law(
        id="admission.hits-pinned",
        level=Level.SAFETY,
        statement=(
            "An allocation gives a request the very blocks that were found for it, and evicts none of "
            "them to make room."
        ),
        why="A found block that is handed out again in the same call is read as what it no longer is.",
        sources=("vLLM issue 33775",),
        workload="cache.machine",
        check=hits_pinned,
    ),
    Law(
        id="admission.feasible-completes",
        level=Level.SAFETY,
        statement="What an engine's start accepts as enough memory is enough for one request alone.",
        why="It is preempted by itself, begins again, and never ends.",
        sources=("the engine contract",),
        workload="cache.alone",
        check=feasible_completes,
    ),
    Law(
        id="admission.withdrawn-uncached",
        level=Level.SAFETY,
        statement=(
            "What a request was to compute in a step that it is taken out of again, so that another one has "
            "room, is found by nobody."
        ),
        why="Nothing is ever written to these blocks: who finds them reads what was there before.",
        sources=("vLLM issue 57580",),
        workload="cache.withdrawn",
        check=withdrawn_uncached,
    ),
    Law(
        id="admission.progress",
        level=Level.SAFETY,
        statement="With no request holding a block, one that fits is let in.",
        why="Otherwise it waits for ever, and all behind it.",
        sources=("the engine contract",),
        workload="cache.machine",
        check=progress,
    ),
]
