"""Laws of the managers: what a request's block tables hold, for each kind of attention.

Most laws judge only the first group of a cache, whose class is the subject. The other groups share the pool
with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kvref_conformance.laws.cache_steps import WINDOWS, Group, State, Step, steps
from kvref_conformance.laws.core import Law, LawBroken, Level, Runs
from kvref_conformance.laws.variants import variants_agree


def granted(runs: Runs) -> Iterator[tuple[Step, Group, State]]:
    """Each granted allocation, with the subject's group and the probe after it.

    Requests that recompute wrong tokens are left out: the blocks that they need may be freed already.
    """
    for step in steps(runs[0], "cache.allocate"):
        if step.allocated and step.after is not None and step.request is not None and not step.request.failed:
            yield step, step.cache.groups[0], step.after


def confirmed(step: Step) -> int:
    """How many tokens were certainly computed when the allocation was called, including those of its hit.

    If a hit or load covers all tokens, the last one does not count: it is computed again for its output.
    """
    request = step.request
    if request is None:
        return step.start
    if request.computed != step.start:
        return min(step.start, len(request.tokens) - 1)
    return request.confirmed


def computed_again(step: Step) -> bool:
    """Whether the last token is computed a second time, because all of them were loaded."""
    return step.request is not None and step.request.loaded > step.start


def window_kept(runs: Runs) -> int:
    """Every position that a token in flight or a scheduled token may read has a block."""
    judged = 0
    for step, group, state in granted(runs):
        if group.kind == "CrossAttentionSpec" or not step.cache.readable:
            continue
        table, null = step.table(state, group), step.cache.shape["null"]
        first, end = group.first_read(confirmed(step)), step.end
        if end == 0:
            continue
        judged += 1
        places = list(range(first // group.block_size, -(-end // group.block_size)))
        if group.kind == "MambaSpec":
            # The state that the step starts from, and the state that it writes. After a step with drafts, the
            # former may be in a block for drafts.
            known = step.start and not group.further_blocks and not computed_again(step)
            source = [(step.start - 1) // group.block_size] if known else []
            places = [*source, places[-1]]
        for place in places:
            if place >= len(table) or table[place] == null:
                have, gone = ("no block", "missing") if place >= len(table) else ("the null block", "freed")
                raise LawBroken(
                    f"after {step.in_words()}: a block for positions {place * group.block_size} to "
                    f"{(place + 1) * group.block_size - 1}, because {confirmed(step)} tokens are confirmed, "
                    f"the next token reads from position {first}, and slots for {end} tokens are allocated",
                    f"{have} at index {place} of {table}",
                    (", ".join([gone, *only_read_by(step, group, place)]),),
                )
    return judged


def only_read_by(step: Step, group: Group, place: int) -> tuple[str, ...]:
    """A facet to add if only tokens before the scheduled ones read the block; else empty."""
    if (place + 1) * group.block_size > group.first_read(step.start):
        return ()
    running = step.request is not None and step.request.computed == step.start
    return ("under way" if running else "computed again",)


def window_freed(runs: Runs) -> int:
    """An allocation frees the blocks that no token of its request will read again."""
    judged = 0
    for step, group, state in granted(runs):
        if group.kind not in (*WINDOWS, "ChunkedLocalAttentionSpec"):
            continue
        table = step.table(state, group)
        first = group.first_read(confirmed(step)) - int(group.fields.get("extra_retained_tokens", 0))
        if first < group.block_size:
            continue
        judged += 1
        if kept := step.cache.real(table[: first // group.block_size]):
            raise LawBroken(
                f"after {step.in_words()}: null blocks for all positions before {first}, because no token "
                "reads them again",
                f"blocks {kept} in {table}",
            )
    return judged


def need_exact(runs: Runs) -> int:
    """An allocation takes as many free blocks as the manager predicted."""
    judged = 0
    for step in steps(runs[0], "cache.allocate"):
        if not step.allocated or step.before is None or step.after is None:
            continue
        judged += 1
        found = {block for group in step.hit["blocks"] for block in step.cache.real(group)}
        found -= set(step.value["taken"])
        revived = [b for b in found if step.before["refs"][b] == 0 and step.after["refs"][b] > 0]
        taken = len(step.value["taken"]) + len(revived)
        if step.value["needed"] != taken:
            raise LawBroken(
                f"{step.in_words()}: a prediction of {taken} blocks, because blocks {step.value['taken']} "
                f"were allocated and blocks {revived} of the hit were free",
                f"{step.value['needed']}",
                ("too few" if step.value["needed"] < taken else "too many",),
            )
    return judged


def need_shrinks(runs: Runs) -> int:
    """If a request already has slots for all tokens of an allocation, it gets no new block and no refusal."""
    judged = 0
    for step in steps(runs[0], "cache.allocate"):
        if step.before is None or step.request is None:
            continue
        if not any(step.before["tables"].get(step.args["request"], [])) or "died" in step.outcome:
            continue
        if not step.cache.readable:
            continue
        limit = step.cache.arguments["max_model_len"]
        tokens = step.end + step.args.get("lookahead", 0)
        if step.args.get("whole"):
            tokens = max(tokens, len(step.request.tokens))
        tokens = min(tokens, limit)
        lengths = [len(step.table(step.before, group)) for group in step.cache.groups]
        needed = [group.blocks_for(tokens, step.request.encoder) for group in step.cache.groups]
        if any(length < need for length, need in zip(lengths, needed, strict=True)) or copies(
            step, step.before
        ):
            continue
        judged += 1
        if not step.allocated or step.value["taken"]:
            raise LawBroken(
                f"{step.in_words()} is granted without a new block: {tokens} tokens need block tables of "
                f"lengths {needed}, and the request has {lengths}",
                step.refused
                or (f"it allocated blocks {step.value['taken']}" if step.allocated else "it is refused"),
                ("raised" if step.refused else "taken" if step.allocated else "refused",),
            )
    return judged


def copies(step: Step, state: State) -> bool:
    """Whether the step starts in a cached block, so that the request may need its own copy of the block."""
    places = [(step.table(state, group), step.start // group.block_size) for group in step.cache.groups]
    return any(str(block) in state["keys"] for table, place in places for block in table[place : place + 1])


def held_bounded(runs: Runs) -> int:
    """A request never holds more blocks than admission counts on.

    Its block table is never longer than that of the longest possible request.
    """
    judged = 0
    for step, group, state in granted(runs):
        table, shape = step.table(state, group), step.cache.shape
        held, cap = len(step.cache.real(table)), shape["caps"][group.number]
        if cap is not None:
            # Slots for drafts come on top of the blocks that admission counts on.
            cap += -(-step.args.get("lookahead", 0) // group.block_size)
        width = group.blocks_for(
            step.cache.arguments["max_model_len"], step.cache.arguments["max_encoder_tokens"]
        )
        judged += 1
        if cap is not None and held > cap:
            raise LawBroken(
                f"after {step.in_words()}: the request holds at most {cap} blocks, the number that admission "
                "counts on",
                f"{held}: {table}",
                ("held",),
            )
        if step.cache.readable and len(table) > width:
            raise LawBroken(
                f"after {step.in_words()}: a block table of at most {width} blocks, enough for the longest "
                f"request of {step.cache.arguments['max_model_len']} tokens",
                f"{len(table)}: {table}",
                ("length",),
            )
    return judged


def references(runs: Runs) -> int:
    """A block's reference count is the number of times it occurs in block tables and pending copies."""
    judged = 0
    for step in steps(runs[0]):
        if step.after is None:
            continue
        judged += 1
        state, cache = step.after, step.cache
        held: Counter[int] = Counter(state["pins"])
        for tables in state["tables"].values():
            for table in tables:
                held.update(table)
        for block in cache.usable:
            if state["refs"][block] != held[block]:
                raise LawBroken(
                    f"after {step.in_words()}: block {block} has {held[block]} references, one for each "
                    "place in a block table and each pending copy",
                    f"{state['refs'][block]}",
                    ("too few" if state["refs"][block] < held[block] else "too many",),
                )
    return judged


def written_owned(runs: Runs) -> int:
    """A block that a step writes to is in one block table only."""
    judged = 0
    for step, group, state in granted(runs):
        if step.args.get("new", 0) < 1 or step.request is None or not step.cache.readable:
            continue
        table, size = step.table(state, group), group.block_size
        start = max(step.start, step.request.loaded)
        places = range(start // size, -(-step.end // size))
        if group.kind == "CrossAttentionSpec":
            places = range(len(table))
        elif group.kind == "MambaSpec" or step.hit["tokens"] % size:
            # Other laws judge these writes.
            continue
        holders = Counter(block for tables in state["tables"].values() for each in tables for block in each)
        for place in places:
            block = table[place] if place < len(table) else None
            if block is None or block == step.cache.shape["null"]:
                continue
            judged += 1
            if holders[block] > 1:
                raise LawBroken(
                    f"after {step.in_words()}: block {block}, to which tokens {start} to {step.end - 1} are "
                    "written, is in one place of one block table",
                    f"it is in {holders[block]} places",
                )
    return judged


def state_owned(runs: Runs) -> int:
    """A recurrent layer has a block with the state to start from, and its own block to write its state to."""
    judged = 0
    for step, group, state in granted(runs):
        if group.kind != "MambaSpec" or step.args.get("new", 0) < 1:
            continue
        table, null, size = step.table(state, group), step.cache.shape["null"], group.block_size
        judged += 1
        last = (step.end - 1) // size
        if last >= len(table) or table[last] == null:
            raise LawBroken(
                f"after {step.in_words()}: a block at index {last} for the state after {step.end} tokens",
                f"{table}",
                ("none to write",),
            )
        holders = sum(each.count(table[last]) for tables in state["tables"].values() for each in tables)
        if holders != 1:
            raise LawBroken(
                f"after {step.in_words()}: block {table[last]}, for the state after {step.end} tokens, is "
                "in one place of one block table",
                f"it is in {holders} places",
                ("shared",),
            )
        hit = step.hit["tokens"]
        if hit and not step.args.get("external"):
            source = -(-hit // size) - 1
            found = step.hit["blocks"][group.number]
            if source >= len(found) or found[source] == null:
                raise LawBroken(
                    f"{step.in_words()}: a block at index {source} with the state after the {hit} tokens of "
                    "the hit",
                    f"{found}",
                    ("none to start from",),
                )
    return judged


def new_ids(runs: Runs) -> int:
    """The report of new blocks names no block twice, and only blocks allocated since the last report."""
    judged = 0
    taken: set[int] = set()
    for step in steps(runs[0], "cache.allocate", "cache.take_new_block_ids"):
        if step.allocated:
            taken.update(step.value["taken"])
        if step.op != "cache.take_new_block_ids" or not step.done:
            continue
        reported: list[int] = step.value
        judged += bool(reported)
        if twice := [block for block, times in Counter(reported).items() if times > 1]:
            raise LawBroken(
                "each new block is reported once", f"{twice} more than once in {reported}", ("repeated",)
            )
        if others := sorted(set(reported) - taken):
            raise LawBroken(
                f"only blocks allocated since the last report are reported, {sorted(taken)}",
                f"{others} among {reported}",
                ("not new",),
            )
        taken = set()
    return judged


def zeroing_reported(runs: Runs) -> int:
    """Every new block that must be zeroed is reported before its first use."""
    judged = 0
    wanted: dict[int, Step] = {}
    for step in steps(runs[0], "cache.create", "cache.allocate", "cache.free", "cache.take_new_block_ids"):
        if step.allocated and step.after is not None:
            for group in step.cache.groups[:1]:
                if step.cache.shape["reports_new"][group.number]:
                    fresh = set(step.value["taken"]).intersection(step.table(step.after, group))
                    wanted.update(dict.fromkeys(fresh, step))
        if step.op in ("cache.create", "cache.free"):
            held = step.after["tables"].values() if step.after else ()
            still = {block for tables in held for table in tables for block in table}
            wanted = {block: why for block, why in wanted.items() if block in still}
        if step.op == "cache.take_new_block_ids" and step.done:
            judged += bool(wanted)
            if missing := sorted(set(wanted) - set(step.value)):
                raise LawBroken(
                    f"block {missing[0]} is reported, to be zeroed: {wanted[missing[0]].in_words()} "
                    "allocated it",
                    f"a report of {step.value}",
                )
            wanted = {}
    return judged


def free_returns_all(runs: Runs) -> int:
    """A freed request holds nothing, and all others keep what they held."""
    judged = 0
    for step in steps(runs[0], "cache.free"):
        if step.before is None or step.after is None or "died" in step.outcome:
            continue
        judged += 1
        name, cache = step.args["request"], step.cache
        own = Counter(block for table in step.before["tables"].get(name, []) for block in cache.real(table))
        if name in step.after["tables"]:
            raise LawBroken(
                f"after {step.in_words()}: {name} has no block table",
                f"{step.after['tables'][name]}",
                ("table",),
            )
        for block in cache.usable:
            expected = step.before["refs"][block] - own[block]
            if step.after["refs"][block] != expected:
                raise LawBroken(
                    f"after {step.in_words()}: block {block} has {expected} references, because {name} gave "
                    f"{own[block]} back",
                    f"{step.after['refs'][block]}",
                    ("references",),
                )
        released = sum(1 for block in own if step.before["refs"][block] == own[block])
        if step.after["free_count"] != step.before["free_count"] + released:
            raise LawBroken(
                f"after {step.in_words()}: {step.before['free_count'] + released} free blocks, {released} "
                "more than before",
                f"{step.after['free_count']}",
                ("free",),
            )
    return judged


def copies_reported(runs: Runs) -> int:
    """If a hit ends within a block, this block is copied to a block of the request's own.

    Both blocks stay referenced until the engine takes the copies.
    """
    judged = 0
    pending: dict[tuple[int, int], str] = {}
    for step in steps(runs[0], "cache.allocate", "cache.take_copies"):
        if step.allocated and step.after is not None:
            group, hit = step.cache.groups[0], step.hit
            size, found = group.block_size, hit["blocks"][group.number]
            if hit["tokens"] % size and len(found) > hit["tokens"] // size and step.args.get("new", 0):
                place = hit["tokens"] // size
                own = step.table(step.after, group)[place]
                if own == found[place]:
                    raise LawBroken(
                        f"after {step.in_words()}: a block of the request's own at index {place}, because "
                        f"the hit ends within block {own}",
                        f"block {own} itself",
                        ("shared",),
                    )
                if own != step.cache.shape["null"]:
                    pending[(found[place], own)] = step.in_words()
        if step.op == "cache.take_copies" and step.done:
            reported = {(copy["source"], copy["destination"]) for copy in step.value}
            judged += len(pending) + len(reported)
            if missing := sorted(set(pending) - reported):
                raise LawBroken(
                    f"a copy of block {missing[0][0]} to block {missing[0][1]}, because of "
                    f"{pending[missing[0]]}",
                    f"{step.value}",
                    ("missing",),
                )
            pending = {}
            if step.before is not None:
                for source, destination in reported:
                    if step.before["refs"][source] < 1 or step.before["refs"][destination] < 1:
                        raise LawBroken(
                            f"blocks {source} and {destination} stay referenced until the copy is made",
                            f"{step.before['refs'][source]} and {step.before['refs'][destination]} "
                            "references",
                            ("not held",),
                        )
    return judged


SOURCES = ("the engine contract",)

JUDGED_ALONE = ("cache.create", "cache.lookup", "cache.allocate")
"""Operations whose refusals other laws judge."""


def calls_total(runs: Runs) -> int:
    """Every call of a cache manager succeeds. Other laws judge creation, look-ups and allocations."""
    judged = 0
    for event in runs[0]:
        outcome = event["outcome"]
        if not event["op"].startswith("cache.") or event["op"] in JUDGED_ALONE or "died" in outcome:
            continue
        judged += 1
        if error := outcome.get("error"):
            name = event["op"].partition(".")[2]
            call_args = ", ".join(f"{key}={value}" for key, value in event["args"].items())
            raise LawBroken(f"{name}({call_args}) succeeds", f"{error['type']}: {error['message']}", (name,))
    return judged


LAWS = [
    Law(
        id="manager.calls-total",
        level=Level.SAFETY,
        statement=(
            "Every scheduler call to a cache manager other than look-up and allocation succeeds: progress, "
            "freeing a request, the end of a step, new blocks, copies, events, a reset, and probes."
        ),
        why="An exception in one of these calls ends a running engine in the middle of a step.",
        sources=("the engine contract",),
        workload="cache.machine",
        check=calls_total,
    ),
    Law(
        id="manager.window-kept",
        level=Level.SAFETY,
        statement=(
            "Every position that a token in flight or a scheduled token may still attend to has a block, "
            "which is neither freed nor replaced by the null block."
        ),
        why=(
            "A block that is freed too early is allocated to another request while its first owner still "
            "reads it: wrong output."
        ),
        sources=(*SOURCES, "vLLM 0.26.0 frees by confirmed tokens; earlier releases by scheduled tokens"),
        workload="cache.machine",
        check=window_kept,
    ),
    Law(
        id="manager.window-freed",
        level=Level.ROBUSTNESS,
        statement=(
            "Each allocation for a request frees the blocks that none of the request's tokens can attend to "
            "any more, except blocks that the spec retains."
        ),
        why="Otherwise the memory that a window saves stays occupied by blocks that no token reads.",
        sources=SOURCES,
        workload="cache.machine",
        check=window_freed,
    ),
    Law(
        id="manager.need-exact",
        level=Level.SAFETY,
        statement="An allocation takes exactly as many blocks from the free list as the manager predicts.",
        why=(
            "If the prediction is too low, the allocation fails halfway. If it is too high, requests wait or "
            "are preempted for nothing."
        ),
        sources=SOURCES,
        workload="cache.machine",
        check=need_exact,
    ),
    Law(
        id="manager.need-shrinks",
        level=Level.SAFETY,
        statement=(
            "If a request already has slots for all tokens of an allocation, for example after drafts were "
            "rejected, the allocation is granted without a new block and without an error."
        ),
        why=(
            "After rejected drafts, a request has more slots than it needs. If the allocation then raises an "
            "error, the engine stops."
        ),
        sources=(*SOURCES, "vLLM up to 0.22.1: recurrent layers with fewer drafts than before"),
        workload="cache.drafted",
        check=need_shrinks,
    ),
    Law(
        id="manager.held-bounded",
        level=Level.SAFETY,
        statement=(
            "A request never holds more blocks than admission counts on, and its block table is never "
            "longer than that of the longest possible request."
        ),
        why=(
            "Otherwise an admitted request does not fit after all, or writes past the end of its block table."
        ),
        sources=SOURCES,
        workload="cache.machine",
        check=held_bounded,
    ),
    Law(
        id="manager.references",
        level=Level.SAFETY,
        statement=(
            "At every step, a block has one reference for each time that it occurs in a block table or in a "
            "pending copy."
        ),
        why=(
            "With a reference too few, a block in use is allocated again. With one too many, the block is "
            "lost until a restart."
        ),
        sources=SOURCES,
        workload="cache.machine",
        check=references,
    ),
    Law(
        id="manager.written-owned",
        level=Level.SAFETY,
        statement="A block that a step writes to occurs only once in all block tables.",
        why="Writing to a block that another request reads changes the other request's output.",
        sources=SOURCES,
        workload="cache.machine",
        check=written_owned,
    ),
    Law(
        id="manager.state-owned",
        level=Level.SAFETY,
        statement=(
            "A step of a recurrent layer has a block of its own to write its state to, and after a hit "
            "also a block with the state at the end of the hit."
        ),
        why="If the state is shared, lost or from another position, all further output is wrong.",
        sources=SOURCES,
        workload="cache.machine",
        check=state_owned,
    ),
    Law(
        id="manager.new-ids",
        level=Level.SAFETY,
        statement=(
            "The report of new blocks names no block twice, and only blocks allocated since the last report."
        ),
        why="The engine zeroes reported blocks, so a block that is not new loses its content.",
        sources=SOURCES,
        workload="cache.machine",
        check=new_ids,
    ),
    Law(
        id="manager.zeroing-reported",
        level=Level.SAFETY,
        statement=(
            "If a group reports its new blocks, each new block in a block table is reported before the "
            "step that uses it."
        ),
        why="Otherwise a request reads what the previous owner of the block left in it.",
        sources=SOURCES,
        workload="cache.machine",
        check=zeroing_reported,
    ),
    Law(
        id="manager.free-returns-all",
        level=Level.SAFETY,
        statement=(
            "Freeing a request removes its block tables, drops exactly the request's references, and frees "
            "the blocks that no one else holds; freeing a request without blocks changes nothing."
        ),
        why=(
            "If a reference is not given back, a block is lost until a restart. If it is given back twice, "
            "two requests get the block."
        ),
        sources=SOURCES,
        workload="cache.machine",
        check=free_returns_all,
    ),
    Law(
        id="manager.copies-reported",
        level=Level.SAFETY,
        statement=(
            "If a hit ends within a block, the request gets its own copy of the block, the copy is reported "
            "in the same step, and both blocks stay referenced until then."
        ),
        why="Without the copy, the new block has no content, or the request writes to a shared block.",
        sources=SOURCES,
        workload="cache.machine",
        check=copies_reported,
        capabilities=("partial_hits",),
    ),
    Law(
        id="manager.variants-agree",
        level=Level.SAFETY,
        statement=(
            "Variants of a cache manager that are meant to be interchangeable answer the same operations "
            "alike: the same values, events and block tables, and errors of the same type."
        ),
        why=(
            "Otherwise an engine that switches to the faster variant writes to other blocks, or misses "
            "prefix hits."
        ),
        sources=("the engine contract",),
        workload="cache.variants",
        check=variants_agree,
        capabilities=("variants",),
    ),
]
