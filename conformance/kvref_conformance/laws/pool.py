"""Laws of the pool: which blocks are free, which are held, which are found again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvref_conformance.laws.core import Event, Law, LawBroken, Runs
from kvref_conformance.laws.variants import variants_agree
from kvref_conformance.results import Level

State = dict[str, Any]
"""What a probe answers: `free`, `free_count`, `refs`, `keys`, `found`."""

READING = ("pool.lookup", "pool.usage")
"""Operations that change nothing, so that what was probed before them is still so."""


@dataclass
class Shape:
    """What was created, and what was said of it."""

    null: int | None
    reserved: list[int]
    num_blocks: int
    block_size: int
    enable_caching: bool
    reuse_order: dict[str, str]

    @property
    def usable(self) -> list[int]:
        """The blocks that can be held."""
        return [n for n in range(self.num_blocks) if n != self.null and n not in self.reserved]

    def real(self, blocks: list[int]) -> list[int]:
        return [block for block in blocks if block != self.null]

    def foreign(self, blocks: list[int]) -> list[int]:
        return [block for block in blocks if not 0 <= block < self.num_blocks]


@dataclass
class Step:
    """An operation, the probes right before and right after it, and how often each block was held."""

    op: str
    args: dict[str, Any]
    outcome: dict[str, Any]
    shape: Shape
    before: State | None
    after: State | None
    held_before: Counter[int]
    held: Counter[int]

    @property
    def value(self) -> Any:
        return self.outcome.get("value")

    @property
    def done(self) -> bool:
        return "value" in self.outcome

    @property
    def refused(self) -> str:
        """The exception in a line, if there was one."""
        error = self.outcome.get("error")
        return f"{error['type']}: {error['message']}" if error else ""


def steps(events: list[Event]) -> Iterator[Step]:
    """Each operation on a pool that was created, the creation included."""
    shape: Shape | None = None
    before: State | None = None
    held: Counter[int] = Counter()
    for place, event in enumerate(events):
        op, arguments, outcome = event["op"], event["args"], event["outcome"]
        if op == "pool.state":
            before = outcome.get("value")
            continue
        if op == "pool.create":
            shape, before, held = shape_of(event), None, Counter()
        if shape is None:
            continue
        held_before = held
        if "value" in outcome:
            held = Counter(held)
            if op == "pool.get_new_blocks":
                held.update(outcome["value"])
            elif op == "pool.touch":
                held.update(shape.real(arguments["blocks"]))
            elif op == "pool.free":
                held.subtract(shape.real(arguments["blocks"]))
        probe = events[place + 1] if place + 1 < len(events) else event
        after = probe["outcome"].get("value") if probe["op"] == "pool.state" else None
        yield Step(op, arguments, outcome, shape, before, after, held_before, held)
        if op not in READING:
            before = None


def shape_of(event: Event) -> Shape | None:
    if "value" not in event["outcome"]:
        return None
    arguments, told = event["args"], event["outcome"]["value"]
    return Shape(
        null=told["null"],
        reserved=told["reserved"],
        num_blocks=arguments["num_blocks"],
        block_size=arguments["block_size"],
        enable_caching=arguments["enable_caching"],
        reuse_order=arguments.get("declared", {}).get("reuse_order", {}),
    )


def keys_of(state: State, block: int) -> list[str]:
    keys: list[str] = state["keys"].get(str(block), [])
    return keys


def disorder(shape: Shape, state: State) -> tuple[str, str, str] | None:
    """What was expected, what is, and a word for it, where free and held blocks are not told apart."""
    free = shape.real(state["free"])
    times = Counter(free)
    if state["free_count"] != len(state["free"]):
        return f"{len(state['free'])} free blocks counted", f"{state['free_count']}", "counter"
    for block in times:
        if times[block] > 1:
            return f"block {block} in the line once", f"{times[block]} times", "twice"
        if block not in shape.usable:
            what = "kept for good" if block in shape.reserved else f"none of {shape.num_blocks}"
            return "only usable blocks in the line", f"block {block}, which is {what}", "unusable"
    for block in shape.usable:
        refs = state["refs"][block]
        if refs > 0 and block in times:
            return f"block {block}, which has {refs} references, not in the line", "it is", "free and held"
        if refs <= 0 and block not in times:
            return f"block {block}, which has {refs} references, in the line", "it is not", "lost"
    return None


def partition(runs: Runs) -> int:
    """Every block is one thing at a time, and those that are free can be had."""
    judged = 0
    for step in steps(runs[0]):
        if step.op == "pool.get_new_blocks" and step.before is not None:
            judge_taken(step, step.before)
        if step.after is not None:
            judged += 1
            if wrong := disorder(step.shape, step.after):
                expected, observed, facet = wrong
                raise LawBroken(f"after {step.op}: {expected}", observed, (facet,))
    return judged


def judge_taken(step: Step, before: State) -> None:
    """As many as are free can be taken, and only they."""
    number, free = step.args["num_blocks"], before["free"]
    if not 0 <= number <= min(len(free), before["free_count"]):
        return
    if not step.done:
        raise LawBroken(f"{number} blocks, since {len(free)} are free", step.refused, ("refused",))
    taken: list[int] = step.value
    if len(set(taken)) != number or len(taken) != number:
        raise LawBroken(f"{number} different blocks", f"{taken}", ("number",))
    if held := [block for block in step.shape.real(taken) if block not in free]:
        raise LawBroken(f"blocks that were free: some of {free}", f"{held} among them", ("not free",))


def ref_model(runs: Runs) -> int:
    """References are what the operations so far come to."""
    judged = 0
    for step in steps(runs[0]):
        blocks = step.shape.real(step.args.get("blocks", []))
        if step.refused and legitimate(step, blocks):
            raise LawBroken(f"{step.op}({step.args['blocks']}) done", step.refused, ("refused",))
        if step.after is None:
            continue
        judged += 1
        for block in step.shape.usable:
            refs, held = step.after["refs"][block], step.held[block]
            if refs != held:
                raise LawBroken(
                    f"after {step.op}: block {block} has {held} references, as often as it is held",
                    f"it has {refs}",
                    ("negative" if refs < 0 else "too few" if refs < held else "too many",),
                )
    return judged


def legitimate(step: Step, blocks: list[int]) -> bool:
    """Whether an engine may touch, or free, these blocks."""
    if step.op == "pool.free":
        return Counter(blocks) <= step.held_before
    if step.op != "pool.touch" or step.before is None or step.shape.foreign(blocks):
        return False
    return all(step.before["refs"][block] > 0 or keys_of(step.before, block) for block in blocks)


def null_block(runs: Runs) -> int:
    """The null block takes no part. A pool that has none keeps this law, whatever it does."""
    judged = 0
    for step in steps(runs[0]):
        shape, null = step.shape, step.shape.null
        if null is None:
            judged += 1
            continue
        if step.op in ("pool.get_new_blocks", "pool.lookup") and step.value is not None:
            judged += 1
            if null in step.value:
                facet = "handed out" if step.op == "pool.get_new_blocks" else "found"
                raise LawBroken(f"blocks other than the null block {null}", f"{step.value}", (facet,))
        if step.op == "pool.usage" and step.done and step.before is not None:
            judged += 1
            told: float = step.outcome["value"]
            usable, free = len(shape.usable), step.before["free_count"]
            usage = 1 - free / usable if usable else 0.0
            if abs(told - usage) > 1e-6:
                raise LawBroken(
                    f"a usage of {usage:.4f}, with {free} of {usable} blocks free, the null block left out",
                    f"{told:.4f}",
                    ("usage",),
                )
        if step.after is not None:
            judged += 1
            judge_null(step, null, step.after)
    return judged


def judge_null(step: Step, null: int, state: State) -> None:
    usable = len(step.shape.usable)
    if null in state["free"]:
        raise LawBroken(f"the null block {null} never in the line", f"it is, after {step.op}", ("free",))
    if step.op == "pool.create" and state["free_count"] > usable:
        raise LawBroken(
            f"{usable} free blocks in a new pool, the null block left out",
            f"{state['free_count']}",
            ("counted",),
        )
    found = [key for key, blocks in state["found"].items() if null in blocks]
    if found or keys_of(state, null):
        raise LawBroken(
            f"no key for the null block {null}",
            f"{found or keys_of(state, null)}, after {step.op}",
            ("key",),
        )


def bad_input_refused(runs: Runs) -> int:
    """What no engine may ask is refused, and leaves no trace; nothing is judged behind what was accepted."""
    judged = 0
    for step in steps(runs[0]):
        wrong = misuse_in(step)
        if not wrong or "died" in step.outcome:
            continue
        judged += 1
        told = ", ".join(f"{name}={value}" for name, value in step.args.items())
        changed = changes(step.before, step.after)
        if step.done:
            raise LawBroken(
                f"{step.op}({told}) refused: {wrong}",
                f"it answers {step.value}" + (f", and then {changed}" if changed else ""),
                (wrong,),
            )
        if changed:
            raise LawBroken(
                f"nothing changed by {step.op}({told}), which is refused: {wrong}",
                changed,
                (f"{wrong}, changed",),
            )
    return judged


def misuse_in(step: Step) -> str:
    """What is wrong with the operation, if something is."""
    blocks = step.args.get("blocks", [])
    if step.op in ("pool.touch", "pool.free", "pool.evict") and (foreign := step.shape.foreign(blocks)):
        which = "a negative block" if min(foreign) < 0 else "a block beyond the last"
        return f"{step.op.partition('.')[2]} of {which}"
    if step.op == "pool.free" and not Counter(step.shape.real(blocks)) <= step.held_before:
        return "freed too often"
    if step.op == "pool.get_new_blocks":
        if step.args["num_blocks"] < 0:
            return "negative number"
        held = [block for block in step.shape.usable if step.held_before[block] > 0]
        if step.args["num_blocks"] > len(step.shape.usable) - len(held):
            return "more than are free"
    return ""


def changes(before: State | None, after: State | None) -> str:
    """What differs between two probes, in words."""
    if before is None or after is None:
        return ""
    told = [f"{name} is {after[name]}, not {before[name]}" for name in before if before[name] != after[name]]
    return "; ".join(told)


def reuse_order(runs: Runs) -> int:
    """The line moves as declared. Where a block goes whose keys were taken while it was free is left open."""
    judged = 0
    for step in steps(runs[0]):
        if step.before is None or step.after is None or not step.done or not step.shape.reuse_order:
            continue
        line, then = step.before["free"], step.after["free"]
        told = list(step.args.get("blocks", []))
        left_open: list[int] = []
        match step.op:
            case "pool.get_new_blocks":
                told = line[: step.args["num_blocks"]]
                if set(step.value) != set(told) and set(step.value) <= set(line):
                    raise LawBroken(
                        f"{told}, the first in the line {line}", f"{step.value} handed out", ("handed out",)
                    )
                expected = line[step.args["num_blocks"] :]
            case "pool.touch":
                if waiting := [block for block in step.shape.real(told) if block in then]:
                    raise LawBroken(
                        f"{told} out of the line, since they are held", f"{waiting} in it", ("touch",)
                    )
                expected = [block for block in line if block not in told]
            case "pool.free":
                expected = lined_up(step, told, line, then)
            case "pool.evict":
                expected, left_open = line, told
            case "pool.cache" | "pool.cache_partial":
                expected = line
            case _:
                continue
        judged += 1
        # Which blocks are free at all is for another law.
        common = set(expected).intersection(then).difference(left_open)
        expected = [block for block in expected if block in common]
        observed = [block for block in then if block in common]
        if observed != expected:
            raise LawBroken(
                f"after {step.op}({told}): the line {expected}, as {step.shape.reuse_order} has it",
                f"{observed}",
                (step.op.partition(".")[2],),
            )
    return judged


def lined_up(step: Step, freed: list[int], line: list[int], then: list[int]) -> list[int]:
    """The line behind an operation that frees blocks, in the declared order."""
    order, state = step.shape.reuse_order, step.before or {}
    last = {block: place for place, block in enumerate(freed)}
    new = [
        block
        for place, block in enumerate(freed)
        if last[block] == place and block in then and block not in line
    ]
    ends = {block: order["keyed" if keys_of(state, block) else "unkeyed"] for block in new}
    if not step.shape.enable_caching:
        ends = {block: order.get("without_caching", end) for block, end in ends.items()}
    first = [block for block in new if ends[block] == "first"]
    return [*first, *line, *(block for block in new if block not in first)]


Key = tuple[tuple[int, ...], int]
"""Tokens up to the end of what is in a block, and the group."""


class Contents:
    """What blocks must be found for, and what they may be found for."""

    def __init__(self) -> None:
        self.sure: dict[Key, set[int]] = {}
        self.possible: dict[Key, set[int]] = {}

    def store(self, key: Key, block: int) -> None:
        """A key for longer content may take the place of those for the beginning of the same block."""
        for other, blocks in self.sure.items():
            if block in blocks and len(other[0]) < len(key[0]):
                blocks.remove(block)
                self.possible.setdefault(other, set()).add(block)
        self.sure.setdefault(key, set()).add(block)

    def forget(self, blocks: list[int]) -> None:
        for known in (self.sure, self.possible):
            for having in known.values():
                having.difference_update(blocks)

    def doubt(self) -> None:
        """Be sure of nothing any more."""
        for key, blocks in self.sure.items():
            self.possible.setdefault(key, set()).update(blocks)
        self.sure = {}


def hash_metadata(runs: Runs) -> int:
    """Blocks, the index and what was stored tell the same."""
    judged = 0
    contents = Contents()
    for step in steps(runs[0]):
        shape, blocks = step.shape, step.args.get("blocks", [])
        concerned: list[int] | None = None
        if step.refused and storable(step):
            raise LawBroken(f"{step.op} done", step.refused, ("refused",))
        if step.op == "pool.create":
            contents = Contents()
        elif step.op == "pool.lookup" and step.done:
            judged += 1
            judge_found(step, contents)
        elif step.op == "pool.reset":
            # For another law; here it is enough that index and blocks agree.
            contents.doubt()
        elif not step.done:
            continue
        elif step.op == "pool.get_new_blocks":
            concerned = step.value
        elif step.op == "pool.evict":
            concerned = blocks
        elif step.op == "pool.cache":
            concerned = blocks[step.args["start"] :]
            for place in range(step.args["start"], len(blocks)):
                if blocks[place] != shape.null:
                    tokens = tuple(step.args["tokens"][: (place + 1) * shape.block_size])
                    contents.store((tokens, step.args["group"]), blocks[place])
        elif step.op == "pool.cache_partial":
            concerned = [step.args["block"]]
            contents.store((tuple(step.args["tokens"]), step.args["group"]), step.args["block"])
        else:
            concerned = []
        if step.op in ("pool.get_new_blocks", "pool.evict"):
            contents.forget(concerned or [])
        if step.after is not None:
            judged += bool(step.after["keys"] or step.after["found"])
            judge_keys(step, step.after, concerned)
    return judged


def storable(step: Step) -> bool:
    """Whether this is an operation on keys that an engine may ask for."""
    if step.op == "pool.evict":
        return not step.shape.foreign(step.args["blocks"])
    if step.op not in ("pool.cache", "pool.cache_partial"):
        return step.op == "pool.lookup"
    blocks = step.shape.real(step.args.get("blocks", [step.args.get("block")]))
    known = step.shape.enable_caching and step.before is not None and not step.shape.foreign(blocks)
    return known and all((step.before or {})["refs"][block] > 0 for block in blocks)


def judge_found(step: Step, contents: Contents) -> None:
    """A look-up finds what is there, and nothing else."""
    keys = [(tuple(step.args["tokens"]), group) for group in step.args["groups"]]
    having = [contents.sure.get(key, set()) for key in keys]
    asked = f"{step.args['tokens']} in the groups {step.args['groups']}"
    if step.value is None:
        if all(having):
            raise LawBroken(
                f"blocks for {asked}: of {[sorted(blocks) for blocks in having]}",
                "none found",
                ("not found",),
            )
        return
    if len(step.value) != len(keys):
        raise LawBroken(f"a block for each of {asked}", f"{step.value}", ("number",))
    for key, block in zip(keys, step.value, strict=True):
        right = contents.sure.get(key, set()) | contents.possible.get(key, set())
        if block not in right and block != step.shape.null:
            known = f"one of {sorted(right)}" if right else "none"
            raise LawBroken(f"for {asked} in group {key[1]}: {known}", f"block {block}", ("false hit",))


def judge_keys(step: Step, state: State, concerned: list[int] | None) -> None:
    """Index and blocks agree; who was handed out or evicted has no key; others keep theirs.

    With `concerned` None any block may have changed.
    """
    found: dict[str, list[str]] = {}
    for key, blocks in state["found"].items():
        for block in step.shape.real(blocks):
            found.setdefault(str(block), []).append(key)
    for name in sorted({*found, *state["keys"]}, key=int):
        if int(name) == step.shape.null:
            continue
        carried, indexed = sorted(state["keys"].get(name, [])), sorted(found.get(name, []))
        if carried != indexed:
            raise LawBroken(
                f"after {step.op}: block {name} found under each key that it carries, {carried}",
                f"under {indexed}",
                ("not in the index" if set(carried) - set(indexed) else "only in the index",),
            )
    if concerned is None:
        return
    if step.op in ("pool.get_new_blocks", "pool.evict"):
        for block in step.shape.real(concerned):
            if keys_of(state, block):
                facet = "kept by reuse" if step.op == "pool.get_new_blocks" else "kept by eviction"
                raise LawBroken(
                    f"block {block} without keys after {step.op}", f"{keys_of(state, block)}", (facet,)
                )
    for block in step.shape.usable:
        if step.before is None or block in concerned:
            continue
        earlier, now = sorted(keys_of(step.before, block)), sorted(keys_of(state, block))
        if earlier != now:
            raise LawBroken(
                f"block {block} with the keys {earlier}, since {step.op} is not about them",
                f"{now}",
                (f"changed by {step.op.partition('.')[2]}",),
            )


def reset(runs: Runs) -> int:
    """Reset is done exactly when nobody holds a block, and then leaves no key; else it changes nothing.

    Whether references tell who holds a block is for other laws, and so is whether the free are told apart.
    """
    judged = 0
    for step in steps(runs[0]):
        if step.op != "pool.reset" or step.before is None or "died" in step.outcome:
            continue
        if disorder(step.shape, step.before):
            continue
        judged += 1
        held = [block for block in step.shape.usable if step.before["refs"][block] > 0]
        done = step.value is True
        observed = step.refused or f"it answers {step.value}"
        if held and done:
            raise LawBroken(f"no reset while {held} are held", observed, ("done while held",))
        if not held and not done:
            raise LawBroken("a reset, since no block is held", observed, ("refused",))
        if step.after is None:
            continue
        if done and (step.after["keys"] or step.after["found"]):
            left = f"blocks carry {step.after['keys']}, the index has {step.after['found']}"
            raise LawBroken("no key after a reset", left, ("key left",))
        if not done and (changed := changes(step.before, step.after)):
            raise LawBroken("nothing changed by a reset that is not done", changed, ("changed",))
    return judged


LAWS = [
    Law(
        id="pool.partition",
        level=Level.SAFETY,
        statement=(
            "Every block is the null block, or reserved for good (declared), or free exactly once, or "
            "referenced; the free counter equals the free list, and as many blocks as are free can be taken."
        ),
        why=(
            "A block that is free and held, or free twice, is given to two requests, which overwrite each "
            "other's cache; one that is neither is lost until the engine restarts."
        ),
        sources=("the engine contract",),
        workload="pool.machine",
        check=partition,
    ),
    Law(
        id="pool.ref-model",
        level=Level.SAFETY,
        statement=(
            "A block's reference count equals the number of tables that hold it; it is never negative; the "
            "null block is exempt."
        ),
        why="With one too few a block is reused under who reads it; with one too many it is lost.",
        sources=("the engine contract",),
        workload="pool.machine",
        check=ref_model,
    ),
    Law(
        id="pool.null-block",
        level=Level.SAFETY,
        statement=(
            "The null block, if there is one, is never handed out, never gets a key, is never free, found, "
            "or counted."
        ),
        why="It stands for blocks that nobody reads; what is written there, or found there, is anybody's.",
        sources=("the engine contract",),
        workload="pool.machine",
        check=null_block,
    ),
    Law(
        id="pool.bad-input-refused",
        level=Level.ROBUSTNESS,
        statement=(
            "Negative and oversized numbers, blocks that are freed more often than they are held, and blocks "
            "that the pool does not have are refused with an error, and nothing changes."
        ),
        why=(
            "A mistake in a scheduler or a connector goes unnoticed, and shows later as wrong output of "
            "another request."
        ),
        sources=("the engine contract",),
        workload="pool.misuse",
        check=bad_input_refused,
    ),
    Law(
        id="pool.reuse-order",
        level=Level.SAFETY,
        statement=(
            "Free blocks are reused in the declared order; touching takes a block out of the line, and "
            "nothing else moves those that wait in it."
        ),
        why="Content that is wanted again is lost while content that nobody wants stays: the cache misses.",
        sources=("the engine contract",),
        workload="pool.machine",
        check=reuse_order,
        capabilities=("reuse_order",),
    ),
    Law(
        id="pool.hash-metadata",
        level=Level.SAFETY,
        statement=(
            "A block carries a key exactly when the index finds it under that key (a block may have several, "
            "and several blocks one); reuse and eviction clear all; blocks with one key live and die "
            "independently."
        ),
        why="A key without its content serves another request's cache; content without its key is lost.",
        sources=("the engine contract",),
        workload="pool.machine",
        check=hash_metadata,
    ),
    Law(
        id="pool.reset",
        level=Level.SAFETY,
        statement=(
            "Reset succeeds exactly when no request holds a block, and then no key survives; a reset that "
            "does not succeed changes nothing."
        ),
        why="It is called when weights have changed: a key that survives serves the cache of the old ones.",
        sources=("the engine contract",),
        workload="pool.machine",
        check=reset,
    ),
    Law(
        id="pool.variants-agree",
        level=Level.SAFETY,
        statement=(
            "Variants of a pool that are meant to be interchangeable answer the same operations alike: the "
            "same values, and errors of the same type."
        ),
        why="An engine that switches to the faster variant serves other blocks, or evicts others.",
        sources=("the engine contract",),
        workload="pool.variants",
        check=variants_agree,
        capabilities=("variants",),
    ),
]
