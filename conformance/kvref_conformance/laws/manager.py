"""Laws of the managers: what a request's tables hold, for each attention kind.

Each is judged for the first group of a cache, whose class is the subject; the others are there for company.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kvref_conformance.laws.cache_steps import WINDOWS, Group, State, Step, steps
from kvref_conformance.laws.core import Law, LawBroken, Runs
from kvref_conformance.laws.variants import variants_agree
from kvref_conformance.results import Level


def granted(runs: Runs) -> Iterator[tuple[Step, Group, State]]:
    """Each allocation that was granted, with the subject's group and what is in the cache behind it.

    Those of requests that go back to what was wrong are for other laws: blocks may be gone that they needed.
    """
    for step in steps(runs[0], "cache.allocate"):
        if step.allocated and step.after is not None and step.request is not None and not step.request.failed:
            yield step, step.cache.groups[0], step.after


def confirmed(step: Step) -> int:
    """Tokens computed for certain when the call was made, those taken over by it included.

    Where that is all of them, the last one is computed again, for its output.
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
    """What a token under way, or one to be computed, may read has a block."""
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
            # The state that the step starts from, and the one that it ends with. Behind a step with drafts
            # the first may be in a block for drafts.
            known = step.start and not group.further_blocks and not computed_again(step)
            source = [(step.start - 1) // group.block_size] if known else []
            places = [*source, places[-1]]
        for place in places:
            if place >= len(table) or table[place] == null:
                have, gone = ("no block", "missing") if place >= len(table) else ("the null block", "freed")
                raise LawBroken(
                    f"after {step.in_words()}: a block for positions {place * group.block_size} to "
                    f"{(place + 1) * group.block_size - 1}, since {confirmed(step)} tokens are computed for "
                    f"certain, so that positions from {first} on are read, and {end} have places",
                    f"{have} at {place} in {table}",
                    (", ".join([gone, *only_read_by(step, group, place)]),),
                )
    return judged


def only_read_by(step: Step, group: Group, place: int) -> tuple[str, ...]:
    """Which tokens read a place that those to be scheduled do not, if they do not."""
    if (place + 1) * group.block_size > group.first_read(step.start):
        return ()
    running = step.request is not None and step.request.computed == step.start
    return ("under way" if running else "computed again",)


def window_freed(runs: Runs) -> int:
    """What no token will read again is given back."""
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
                f"after {step.in_words()}: null blocks up to position {first}, which no token reads again",
                f"blocks {kept} in {table}",
            )
    return judged


def need_exact(runs: Runs) -> int:
    """As many blocks as were predicted are taken from those that were free."""
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
                f"{step.in_words()}: {taken} blocks predicted, since {step.value['taken']} are taken and "
                f"{revived} of the hit were free",
                f"{step.value['needed']}",
                ("too few" if step.value["needed"] < taken else "too many",),
            )
    return judged


def need_shrinks(runs: Runs) -> int:
    """Who has places for all these tokens already gets none, and no refusal."""
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
                f"{step.in_words()} granted without taking a block: for {tokens} tokens, tables of lengths "
                f"{needed} are enough, and they have {lengths}",
                step.refused or (f"{step.value['taken']} taken" if step.allocated else "refused"),
                ("raised" if step.refused else "taken" if step.allocated else "refused",),
            )
    return judged


def copies(step: Step, state: State) -> bool:
    """Whether the step goes on in a block that can be found already, so that it may need one of its own."""
    places = [(step.table(state, group), step.start // group.block_size) for group in step.cache.groups]
    return any(str(block) in state["keys"] for table, place in places for block in table[place : place + 1])


def held_bounded(runs: Runs) -> int:
    """A request holds no more than it was expected to, and its table is no longer than a row."""
    judged = 0
    for step, group, state in granted(runs):
        table, shape = step.table(state, group), step.cache.shape
        held, cap = len(step.cache.real(table)), shape["caps"][group.number]
        if cap is not None:
            # Places for drafts come on top of what a request is expected to hold.
            cap += -(-step.args.get("lookahead", 0) // group.block_size)
        width = group.blocks_for(
            step.cache.arguments["max_model_len"], step.cache.arguments["max_encoder_tokens"]
        )
        judged += 1
        if cap is not None and held > cap:
            raise LawBroken(
                f"after {step.in_words()}: at most {cap} blocks held, as is expected when it is admitted",
                f"{held}: {table}",
                ("held",),
            )
        if step.cache.readable and len(table) > width:
            raise LawBroken(
                f"after {step.in_words()}: a table of at most {width} blocks, for a request of "
                f"{step.cache.arguments['max_model_len']} tokens",
                f"{len(table)}: {table}",
                ("length",),
            )
    return judged


def references(runs: Runs) -> int:
    """Who is in a table is referenced for it, and only who is."""
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
                    f"after {step.in_words()}: {held[block]} references of block {block}, as often as it is "
                    f"in tables or waits to be copied",
                    f"{state['refs'][block]}",
                    ("too few" if state["refs"][block] < held[block] else "too many",),
                )
    return judged


def written_owned(runs: Runs) -> int:
    """A block that is written to is in one table only."""
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
            # What is written there is for other laws.
            continue
        holders = Counter(block for tables in state["tables"].values() for each in tables for block in each)
        for place in places:
            block = table[place] if place < len(table) else None
            if block is None or block == step.cache.shape["null"]:
                continue
            judged += 1
            if holders[block] > 1:
                raise LawBroken(
                    f"after {step.in_words()}: block {block}, which tokens {start} to {step.end - 1} "
                    "are written to, in one table only",
                    f"in {holders[block]} places",
                )
    return judged


def state_owned(runs: Runs) -> int:
    """A recurrent layer has a state to start from and one of its own to write."""
    judged = 0
    for step, group, state in granted(runs):
        if group.kind != "MambaSpec" or step.args.get("new", 0) < 1:
            continue
        table, null, size = step.table(state, group), step.cache.shape["null"], group.block_size
        judged += 1
        last = (step.end - 1) // size
        if last >= len(table) or table[last] == null:
            raise LawBroken(
                f"after {step.in_words()}: a block at {last} for the state behind {step.end} tokens",
                f"{table}",
                ("none to write",),
            )
        holders = sum(each.count(table[last]) for tables in state["tables"].values() for each in tables)
        if holders != 1:
            raise LawBroken(
                f"after {step.in_words()}: block {table[last]}, of the state behind {step.end} "
                "tokens, in one table only",
                f"in {holders} places",
                ("shared",),
            )
        hit = step.hit["tokens"]
        if hit and not step.args.get("external"):
            source = -(-hit // size) - 1
            found = step.hit["blocks"][group.number]
            if source >= len(found) or found[source] == null:
                raise LawBroken(
                    f"{step.in_words()}: a block at {source} with the state behind the {hit} tokens found",
                    f"{found}",
                    ("none to start from",),
                )
    return judged


def new_ids(runs: Runs) -> int:
    """The report of new blocks names each that was taken for a table once, and no other."""
    judged = 0
    taken: set[int] = set()
    for step in steps(runs[0], "cache.allocate", "cache.take_new_block_ids"):
        if step.allocated:
            taken.update(step.value["taken"])
        if step.op != "cache.take_new_block_ids" or not step.done:
            continue
        told: list[int] = step.value
        judged += bool(told)
        if twice := [block for block, times in Counter(told).items() if times > 1]:
            raise LawBroken("each new block told once", f"{twice} more than once in {told}", ("repeated",))
        if others := sorted(set(told) - taken):
            raise LawBroken(
                f"only blocks told that were taken since the last time, {sorted(taken)}",
                f"{others} among {told}",
                ("not new",),
            )
        taken = set()
    return judged


def zeroing_reported(runs: Runs) -> int:
    """Whoever has to zero blocks is told of each before its first use."""
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
                    f"block {missing[0]} told, to be zeroed: it was taken by {wanted[missing[0]].in_words()}",
                    f"{step.value}",
                )
            wanted = {}
    return judged


def free_returns_all(runs: Runs) -> int:
    """Whoever is freed holds nothing, and others what they held."""
    judged = 0
    for step in steps(runs[0], "cache.free"):
        if step.before is None or step.after is None or "died" in step.outcome:
            continue
        judged += 1
        name, cache = step.args["request"], step.cache
        own = Counter(block for table in step.before["tables"].get(name, []) for block in cache.real(table))
        if name in step.after["tables"]:
            raise LawBroken(f"no table of {name}", f"{step.after['tables'][name]}", ("table",))
        for block in cache.usable:
            expected = step.before["refs"][block] - own[block]
            if step.after["refs"][block] != expected:
                raise LawBroken(
                    f"after {step.in_words()}: {expected} references of block {block}, of which it held "
                    f"{own[block]}",
                    f"{step.after['refs'][block]}",
                    ("references",),
                )
        released = sum(1 for block in own if step.before["refs"][block] == own[block])
        if step.after["free_count"] != step.before["free_count"] + released:
            raise LawBroken(
                f"after {step.in_words()}: {step.before['free_count'] + released} free blocks, "
                f"{released} more",
                f"{step.after['free_count']}",
                ("free",),
            )
    return judged


def copies_reported(runs: Runs) -> int:
    """A hit that ends within a block is copied to one of the request's own."""
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
                        f"after {step.in_words()}: another block at {place} than {own}, which was found and "
                        "has room for more tokens",
                        f"{own} itself",
                        ("shared",),
                    )
                if own != step.cache.shape["null"]:
                    pending[(found[place], own)] = step.in_words()
        if step.op == "cache.take_copies" and step.done:
            told = {(copy["source"], copy["destination"]) for copy in step.value}
            judged += len(pending) + len(told)
            if missing := sorted(set(pending) - told):
                raise LawBroken(
                    f"a copy of block {missing[0][0]} to {missing[0][1]}, because of {pending[missing[0]]}",
                    f"{step.value}",
                    ("missing",),
                )
            pending = {}
            if step.before is not None:
                for source, destination in told:
                    if step.before["refs"][source] < 1 or step.before["refs"][destination] < 1:
                        raise LawBroken(
                            f"blocks {source} and {destination} held until the copy is made",
                            f"{step.before['refs'][source]} and {step.before['refs'][destination]} "
                            "references",
                            ("not held",),
                        )
    return judged


SOURCES = ("the engine contract",)

JUDGED_ALONE = ("cache.create", "cache.lookup", "cache.allocate")
"""Operations with laws of their own about what may be refused, if anything."""


def calls_total(runs: Runs) -> int:
    """Whatever else is asked of a cache manager that was made is answered."""
    judged = 0
    for event in runs[0]:
        outcome = event["outcome"]
        if not event["op"].startswith("cache.") or event["op"] in JUDGED_ALONE or "died" in outcome:
            continue
        judged += 1
        if error := outcome.get("error"):
            name = event["op"].partition(".")[2]
            told = ", ".join(f"{key}={value}" for key, value in event["args"].items())
            raise LawBroken(f"{name}({told}) answered", f"{error['type']}: {error['message']}", (name,))
    return judged


LAWS = [
    Law(
        id="manager.calls-total",
        level=Level.SAFETY,
        statement=(
            "Whatever a scheduler tells a cache manager or asks of it, besides places and hits, is answered: "
            "progress, the end of a request or of a step, new blocks, events, a reset, and what a probe sees."
        ),
        why="An engine that has started dies at some step.",
        sources=("the engine contract",),
        workload="cache.machine",
        check=calls_total,
    ),
    Law(
        id="manager.window-kept",
        level=Level.SAFETY,
        statement=(
            "No block that holds a position which a token under way, or one to be computed, may still attend "
            "to is freed or nulled, and each such position has a block."
        ),
        why="A block freed too early is given to someone else while it is still read: wrong output.",
        sources=(*SOURCES, "vLLM 0.26.0 frees by confirmed tokens; before, by scheduled ones"),
        workload="cache.machine",
        check=window_kept,
    ),
    Law(
        id="manager.window-freed",
        level=Level.ROBUSTNESS,
        statement=(
            "Blocks wholly outside of what a request's tokens still attend to, less what the spec says is "
            "retained, are given back by its next allocation."
        ),
        why="Memory that nobody reads is lost to others; the gain of a window is gone.",
        sources=SOURCES,
        workload="cache.machine",
        check=window_freed,
    ),
    Law(
        id="manager.need-exact",
        level=Level.SAFETY,
        statement="The predicted number of blocks equals the number taken from the free ones.",
        why=(
            "Predicted too few, the allocation dies halfway; too many, requests wait or are preempted "
            "for nothing."
        ),
        sources=SOURCES,
        workload="cache.machine",
        check=need_exact,
    ),
    Law(
        id="manager.need-shrinks",
        level=Level.SAFETY,
        statement=(
            "A request that has places for all tokens asked for, as after drafts were rejected, is granted "
            "them without a block more, and without a failure."
        ),
        why="Speculative decoding shrinks what is needed at every rejection: a crash there stops the engine.",
        sources=(*SOURCES, "vLLM up to 0.22.1: recurrent layers with fewer drafts than before"),
        workload="cache.drafted",
        check=need_shrinks,
    ),
    Law(
        id="manager.held-bounded",
        level=Level.SAFETY,
        statement=(
            "A request never holds more blocks than the number that admission counts on, nor is its table "
            "longer than that of the longest request."
        ),
        why="A request that was let in because it would fit then does not; or it writes past its row.",
        sources=SOURCES,
        workload="cache.machine",
        check=held_bounded,
    ),
    Law(
        id="manager.references",
        level=Level.SAFETY,
        statement=(
            "At every step a block has as many references as there are places in tables that hold it, and "
            "copies to be made that it waits for."
        ),
        why="One too few and a block in use is handed out; one too many and it is lost until the next start.",
        sources=SOURCES,
        workload="cache.machine",
        check=references,
    ),
    Law(
        id="manager.written-owned",
        level=Level.SAFETY,
        statement="A block that a step writes to is in one place of one table.",
        why="Writing to a block that another request reads changes that one's answer.",
        sources=SOURCES,
        workload="cache.machine",
        check=written_owned,
    ),
    Law(
        id="manager.state-owned",
        level=Level.SAFETY,
        statement=(
            "A recurrent layer's step has a block of its own to write its state to, and after a hit one with "
            "the state at exactly the place where the hit ends."
        ),
        why="A state that is shared, lost or of another place makes all that follows wrong.",
        sources=SOURCES,
        workload="cache.machine",
        check=state_owned,
    ),
    Law(
        id="manager.new-ids",
        level=Level.SAFETY,
        statement=(
            "The report of new blocks names none twice, and none that was not taken since the last one."
        ),
        why="A block zeroed that was not new loses its content.",
        sources=SOURCES,
        workload="cache.machine",
        check=new_ids,
    ),
    Law(
        id="manager.zeroing-reported",
        level=Level.SAFETY,
        statement=(
            "Of a group whose new blocks are reported, each that enters a table is reported before the step "
            "that uses it."
        ),
        why="What a recycled block had in it is read as if it belonged to the request.",
        sources=SOURCES,
        workload="cache.machine",
        check=zeroing_reported,
    ),
    Law(
        id="manager.free-returns-all",
        level=Level.SAFETY,
        statement=(
            "After a request is freed it has no table, each block has exactly its references fewer, "
            "and those that nobody else holds are free; freeing one without blocks changes nothing."
        ),
        why="What is not returned is lost until the next start; what is returned twice is handed out twice.",
        sources=SOURCES,
        workload="cache.machine",
        check=free_returns_all,
    ),
    Law(
        id="manager.copies-reported",
        level=Level.SAFETY,
        statement=(
            "A request whose hit ends within a block gets a block of its own for it, the copy is "
            "asked for in the same step, and both blocks are held until then."
        ),
        why="Without the copy the new block has no content, or the shared one is written to.",
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
        why="An engine that switches to the faster variant writes to other blocks, or misses prefix hits.",
        sources=("the engine contract",),
        workload="cache.variants",
        check=variants_agree,
        capabilities=("variants",),
    ),
]
