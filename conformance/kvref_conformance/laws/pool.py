"""Laws of the pool: which blocks are free, which are referenced, which a look-up finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvref_conformance.laws.core import Event, Law, LawBroken, Level, Runs
from kvref_conformance.laws.variants import variants_agree

State = dict[str, Any]
"""The answer of a probe: `free`, `free_count`, `refs`, `keys`, `found`."""

READING = ("pool.lookup", "pool.usage")
"""Operations that change nothing, so an earlier probe stays valid."""


@dataclass
class Shape:
    """The pool that the example created: null block, reserved blocks, sizes, and declared order of reuse."""

    null: int | None
    reserved: list[int]
    num_blocks: int
    block_size: int
    enable_caching: bool
    reuse_order: dict[str, str]

    @property
    def usable(self) -> list[int]:
        """The blocks that can be allocated."""
        return [n for n in range(self.num_blocks) if n != self.null and n not in self.reserved]

    def real(self, blocks: list[int]) -> list[int]:
        return [block for block in blocks if block != self.null]

    def foreign(self, blocks: list[int]) -> list[int]:
        return [block for block in blocks if not 0 <= block < self.num_blocks]


@dataclass
class Step:
    """An operation, the probes right before and after it, and the references that each block should have."""

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
        """The exception as one line; empty if there was none."""
        error = self.outcome.get("error")
        return f"{error['type']}: {error['message']}" if error else ""


def steps(events: list[Event]) -> Iterator[Step]:
    """Each operation on a created pool, including its creation."""
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
    """What is wrong with the free list: (expected, observed, facet), or None.

    Every usable block must be either referenced or in the free list, and must not be in the list twice.
    """
    free = shape.real(state["free"])
    times = Counter(free)
    if state["free_count"] != len(state["free"]):
        return (
            f"a free counter of {len(state['free'])}, the length of the free list",
            f"{state['free_count']}",
            "counter",
        )
    for block in times:
        if times[block] > 1:
            return f"block {block} is in the free list once", f"{times[block]} times", "twice"
        if block not in shape.usable:
            what = "reserved" if block in shape.reserved else f"not one of the {shape.num_blocks} blocks"
            return "only usable blocks are in the free list", f"block {block}, which is {what}", "unusable"
    for block in shape.usable:
        refs = state["refs"][block]
        if refs > 0 and block in times:
            return (
                f"block {block}, with {refs} references, is not in the free list",
                "it is in the free list",
                "free and held",
            )
        if refs <= 0 and block not in times:
            return (
                f"block {block}, with {refs} references, is in the free list",
                "it is not in the free list",
                "lost",
            )
    return None


def partition(runs: Runs) -> int:
    """Each block is either free or referenced, and every free block can be allocated."""
    judged = 0
    for step in steps(runs[0]):
        if step.op == "pool.get_new_blocks" and step.before is not None:
            judge_allocated(step, step.before)
        if step.after is not None:
            judged += 1
            if wrong := disorder(step.shape, step.after):
                expected, observed, facet = wrong
                raise LawBroken(f"after {step.op}: {expected}", observed, (facet,))
    return judged


def judge_allocated(step: Step, before: State) -> None:
    """Raise `LawBroken` unless the call allocated as many free blocks as it asked for.

    If fewer blocks are free, the call is not judged.
    """
    number, free = step.args["num_blocks"], before["free"]
    if not 0 <= number <= min(len(free), before["free_count"]):
        return
    if not step.done:
        raise LawBroken(
            f"{number} blocks are allocated, because {len(free)} are free", step.refused, ("refused",)
        )
    allocated: list[int] = step.value
    if len(set(allocated)) != number or len(allocated) != number:
        raise LawBroken(f"{number} different blocks are allocated", f"{allocated}", ("number",))
    if held := [block for block in step.shape.real(allocated) if block not in free]:
        raise LawBroken(
            f"only free blocks are allocated, from {free}",
            f"{allocated}, and {held} were not free",
            ("not free",),
        )


def ref_model(runs: Runs) -> int:
    """A block's reference count is what the operations so far add up to: allocations, touches and frees.

    The pool must not refuse to touch or free blocks if an engine may do it.
    """
    judged = 0
    for step in steps(runs[0]):
        blocks = step.shape.real(step.args.get("blocks", []))
        if step.refused and legitimate(step, blocks):
            raise LawBroken(f"{step.op}({step.args['blocks']}) succeeds", step.refused, ("refused",))
        if step.after is None:
            continue
        judged += 1
        for block in step.shape.usable:
            refs, held = step.after["refs"][block], step.held[block]
            if refs != held:
                raise LawBroken(
                    f"after {step.op}: block {block} has {held} references, one for each holder",
                    f"it has {refs}",
                    ("negative" if refs < 0 else "too few" if refs < held else "too many",),
                )
    return judged


def legitimate(step: Step, blocks: list[int]) -> bool:
    """Whether an engine may touch or free these blocks."""
    if step.op == "pool.free":
        return Counter(blocks) <= step.held_before
    if step.op != "pool.touch" or step.before is None or step.shape.foreign(blocks):
        return False
    return all(step.before["refs"][block] > 0 or keys_of(step.before, block) for block in blocks)


def null_block(runs: Runs) -> int:
    """The null block is never allocated, free, found or counted. A pool without one keeps this law."""
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
                raise LawBroken(f"{step.op} returns no null block {null}", f"{step.value}", (facet,))
        if step.op == "pool.usage" and step.done and step.before is not None:
            judged += 1
            observed: float = step.outcome["value"]
            usable, free = len(shape.usable), step.before["free_count"]
            usage = 1 - free / usable if usable else 0.0
            if abs(observed - usage) > 1e-6:
                raise LawBroken(
                    f"a usage of {usage:.4f}: {free} of {usable} blocks are free, not counting the null "
                    "block",
                    f"{observed:.4f}",
                    ("usage",),
                )
        if step.after is not None:
            judged += 1
            judge_null(step, null, step.after)
    return judged


def judge_null(step: Step, null: int, state: State) -> None:
    usable = len(step.shape.usable)
    if null in state["free"]:
        raise LawBroken(
            f"the null block {null} is never in the free list", f"it is there after {step.op}", ("free",)
        )
    if step.op == "pool.create" and state["free_count"] > usable:
        raise LawBroken(
            f"{usable} free blocks in a new pool, not counting the null block",
            f"{state['free_count']}",
            ("counted",),
        )
    found = [key for key, blocks in state["found"].items() if null in blocks]
    if found or keys_of(state, null):
        raise LawBroken(
            f"the null block {null} has no key",
            f"{found or keys_of(state, null)} after {step.op}",
            ("key",),
        )


def bad_input_refused(runs: Runs) -> int:
    """Illegal calls are refused and change nothing."""
    judged = 0
    for step in steps(runs[0]):
        wrong = misuse_in(step)
        if not wrong or "died" in step.outcome:
            continue
        judged += 1
        call_args = ", ".join(f"{name}={value}" for name, value in step.args.items())
        changed = changes(step.before, step.after)
        if step.done:
            raise LawBroken(
                f"{step.op}({call_args}) is refused: {wrong}",
                f"it returned {step.value}" + (f", and then {changed}" if changed else ""),
                (wrong,),
            )
        if changed:
            raise LawBroken(
                f"the refused {step.op}({call_args}) changes nothing: {wrong}",
                changed,
                (f"{wrong}, changed",),
            )
    return judged


def misuse_in(step: Step) -> str:
    """What is wrong with the operation, or an empty string."""
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
    changed = [
        f"{name} changed from {before[name]} to {after[name]}"
        for name in before
        if before[name] != after[name]
    ]
    return "; ".join(changed)


def reuse_order(runs: Runs) -> int:
    """The free list changes as declared.

    If `evict` takes the keys of a free block, the block may move anywhere in the list.
    """
    judged = 0
    for step in steps(runs[0]):
        if step.before is None or step.after is None or not step.done or not step.shape.reuse_order:
            continue
        free_list, after = step.before["free"], step.after["free"]
        blocks = list(step.args.get("blocks", []))
        left_open: list[int] = []
        match step.op:
            case "pool.get_new_blocks":
                blocks = free_list[: step.args["num_blocks"]]
                if set(step.value) != set(blocks) and set(step.value) <= set(free_list):
                    raise LawBroken(
                        f"{blocks} are allocated, the first of the free list {free_list}",
                        f"{step.value}",
                        ("handed out",),
                    )
                expected = free_list[step.args["num_blocks"] :]
            case "pool.touch":
                if still_free := [block for block in step.shape.real(blocks) if block in after]:
                    raise LawBroken(
                        f"{blocks} leave the free list when they are touched",
                        f"{still_free} are still in it",
                        ("touch",),
                    )
                expected = [block for block in free_list if block not in blocks]
            case "pool.free":
                expected = free_list_after(step, blocks, free_list, after)
            case "pool.evict":
                expected, left_open = free_list, blocks
            case "pool.cache" | "pool.cache_partial":
                expected = free_list
            case _:
                continue
        judged += 1
        # pool.partition judges which blocks are free at all.
        common = set(expected).intersection(after).difference(left_open)
        expected = [block for block in expected if block in common]
        observed = [block for block in after if block in common]
        if observed != expected:
            raise LawBroken(
                f"after {step.op}({blocks}): the free list {expected}, by the declared "
                f"{step.shape.reuse_order}",
                f"{observed}",
                (step.op.partition(".")[2],),
            )
    return judged


def free_list_after(step: Step, freed: list[int], free_list: list[int], after: list[int]) -> list[int]:
    """The free list that the declared order requires after `freed` were freed."""
    order, state = step.shape.reuse_order, step.before or {}
    last = {block: place for place, block in enumerate(freed)}
    new = [
        block
        for place, block in enumerate(freed)
        if last[block] == place and block in after and block not in free_list
    ]
    ends = {block: order["keyed" if keys_of(state, block) else "unkeyed"] for block in new}
    if not step.shape.enable_caching:
        ends = {block: order.get("without_caching", end) for block, end in ends.items()}
    first = [block for block in new if ends[block] == "first"]
    return [*first, *free_list, *(block for block in new if block not in first)]


Key = tuple[tuple[int, ...], int]
"""All tokens up to the end of a block's content, and the group."""


class Contents:
    """For each key, the blocks that certainly have it (`sure`) and the blocks that may (`possible`)."""

    def __init__(self) -> None:
        self.sure: dict[Key, set[int]] = {}
        self.possible: dict[Key, set[int]] = {}

    def store(self, key: Key, block: int) -> None:
        """Note that the block has the key.

        If the block had keys for fewer tokens, these may be gone, so they become `possible`.
        """
        for other, blocks in self.sure.items():
            if block in blocks and len(other[0]) < len(key[0]):
                blocks.remove(block)
                self.possible.setdefault(other, set()).add(block)
        self.sure.setdefault(key, set()).add(block)

    def forget(self, blocks: list[int]) -> None:
        for known in (self.sure, self.possible):
            for holding in known.values():
                holding.difference_update(blocks)

    def doubt(self) -> None:
        """Make every sure key a possible one."""
        for key, blocks in self.sure.items():
            self.possible.setdefault(key, set()).update(blocks)
        self.sure = {}


def hash_metadata(runs: Runs) -> int:
    """The keys of the blocks, the prefix-cache index and the cached content agree."""
    judged = 0
    contents = Contents()
    for step in steps(runs[0]):
        shape, blocks = step.shape, step.args.get("blocks", [])
        concerned: list[int] | None = None
        if step.refused and storable(step):
            raise LawBroken(f"{step.op} succeeds", step.refused, ("refused",))
        if step.op == "pool.create":
            contents = Contents()
        elif step.op == "pool.lookup" and step.done:
            judged += 1
            judge_found(step, contents)
        elif step.op == "pool.reset":
            # pool.reset judges this; here it is enough that index and blocks agree.
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
    """Whether this operation on keys is legal, so that the pool must not refuse it."""
    if step.op == "pool.evict":
        return not step.shape.foreign(step.args["blocks"])
    if step.op not in ("pool.cache", "pool.cache_partial"):
        return step.op == "pool.lookup"
    blocks = step.shape.real(step.args.get("blocks", [step.args.get("block")]))
    known = step.shape.enable_caching and step.before is not None and not step.shape.foreign(blocks)
    return known and all((step.before or {})["refs"][block] > 0 for block in blocks)


def judge_found(step: Step, contents: Contents) -> None:
    """Raise `LawBroken` unless a look-up finds cached blocks of its content, and no others."""
    keys = [(tuple(step.args["tokens"]), group) for group in step.args["groups"]]
    cached = [contents.sure.get(key, set()) for key in keys]
    query = f"tokens {step.args['tokens']} in groups {step.args['groups']}"
    if step.value is None:
        if all(cached):
            raise LawBroken(
                f"a look-up of {query} finds blocks, one of each of {[sorted(blocks) for blocks in cached]}",
                "it finds none",
                ("not found",),
            )
        return
    if len(step.value) != len(keys):
        raise LawBroken(f"a look-up of {query} finds one block for each group", f"{step.value}", ("number",))
    for key, block in zip(keys, step.value, strict=True):
        right = contents.sure.get(key, set()) | contents.possible.get(key, set())
        if block not in right and block != step.shape.null:
            known = f"one of {sorted(right)}" if right else "no block"
            raise LawBroken(
                f"a look-up of {query} finds {known} for group {key[1]}", f"block {block}", ("false hit",)
            )


def judge_keys(step: Step, state: State, concerned: list[int] | None) -> None:
    """Raise `LawBroken` if index and blocks disagree, or if the operation left wrong keys.

    Allocated and evicted blocks must have no key. Blocks that are not among the `concerned` must keep their
    keys. If `concerned` is None, the keys of any block may have changed.
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
                f"after {step.op}: the index finds block {name} under the keys it carries, {carried}",
                f"it finds the block under {indexed}",
                ("not in the index" if set(carried) - set(indexed) else "only in the index",),
            )
    if concerned is None:
        return
    if step.op in ("pool.get_new_blocks", "pool.evict"):
        for block in step.shape.real(concerned):
            if keys_of(state, block):
                facet = "kept by reuse" if step.op == "pool.get_new_blocks" else "kept by eviction"
                raise LawBroken(
                    f"block {block} has no keys after {step.op}", f"{keys_of(state, block)}", (facet,)
                )
    for block in step.shape.usable:
        if step.before is None or block in concerned:
            continue
        earlier, now = sorted(keys_of(step.before, block)), sorted(keys_of(state, block))
        if earlier != now:
            raise LawBroken(
                f"{step.op}, which does not concern block {block}, leaves the block's keys {earlier}",
                f"{now}",
                (f"changed by {step.op.partition('.')[2]}",),
            )


def reset(runs: Runs) -> int:
    """A reset succeeds exactly when no block is referenced, and leaves no key; otherwise it changes nothing.

    Other laws judge the reference counts and the free list.
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
        observed = step.refused or f"it returns {step.value}"
        if held and done:
            raise LawBroken(
                f"the reset is refused while blocks {held} are referenced", observed, ("done while held",)
            )
        if not held and not done:
            raise LawBroken("the reset succeeds, because no block is referenced", observed, ("refused",))
        if step.after is None:
            continue
        if done and (step.after["keys"] or step.after["found"]):
            left = f"blocks have the keys {step.after['keys']}, the index has {step.after['found']}"
            raise LawBroken("no key is left after a reset", left, ("key left",))
        if not done and (changed := changes(step.before, step.after)):
            raise LawBroken("a refused reset changes nothing", changed, ("changed",))
    return judged


LAWS = [
    Law(
        id="pool.partition",
        level=Level.SAFETY,
        statement=(
            "Every block is exactly one of these: null, reserved, free (in the free list once) or "
            "referenced; the free counter equals the length of the free list, and every free block can be "
            "allocated."
        ),
        why=(
            "A block that is free and referenced, or free twice, is allocated to two requests, which "
            "overwrite each other's cache. A block that is neither is lost until the engine restarts."
        ),
        sources=("the engine contract",),
        workload="pool.machine",
        check=partition,
    ),
    Law(
        id="pool.ref-model",
        level=Level.SAFETY,
        statement=(
            "The reference count of every block except the null block equals the number of its holders, "
            "and is never negative."
        ),
        why=(
            "With a reference too few, a block is reused while a request still reads it. With one too many, "
            "the block is never free again."
        ),
        sources=("the engine contract",),
        workload="pool.machine",
        check=ref_model,
    ),
    Law(
        id="pool.null-block",
        level=Level.SAFETY,
        statement=(
            "The null block, if there is one, is never allocated, cached, found by a look-up, in the free "
            "list, or counted in the usage."
        ),
        why=(
            "Many block tables contain the null block. If a request stored content in it, others would read "
            "or overwrite that content."
        ),
        sources=("the engine contract",),
        workload="pool.machine",
        check=null_block,
    ),
    Law(
        id="pool.bad-input-refused",
        level=Level.ROBUSTNESS,
        statement=(
            "The pool refuses negative and oversized numbers of blocks, unknown blocks, and freeing a block "
            "more often than it is referenced; it raises an error and changes nothing."
        ),
        why=(
            "Otherwise a mistake in a scheduler or connector goes unnoticed, and shows up later as wrong "
            "output of another request."
        ),
        sources=("the engine contract",),
        workload="pool.misuse",
        check=bad_input_refused,
    ),
    Law(
        id="pool.reuse-order",
        level=Level.SAFETY,
        statement=(
            "Free blocks are allocated in the declared order; touching a block takes it out of the free "
            "list, and nothing else reorders the list."
        ),
        why="Otherwise the pool evicts content that is needed again and keeps content that is not.",
        sources=("the engine contract",),
        workload="pool.machine",
        check=reuse_order,
        capabilities=("reuse_order",),
    ),
    Law(
        id="pool.hash-metadata",
        level=Level.SAFETY,
        statement=(
            "A block carries a key exactly when the index finds the block under that key; allocating or "
            "evicting a block clears all of its keys and leaves the keys of other blocks, even of blocks "
            "with the same key."
        ),
        why=(
            "A key that outlives its content makes requests read another request's cache. Content without "
            "its key is never found again."
        ),
        sources=("the engine contract",),
        workload="pool.machine",
        check=hash_metadata,
    ),
    Law(
        id="pool.reset",
        level=Level.SAFETY,
        statement=(
            "A reset succeeds exactly when no block is referenced, and then leaves no key; a refused reset "
            "changes nothing."
        ),
        why=(
            "The prefix cache is reset when the weights change. A key that survives serves the cache of "
            "the old weights."
        ),
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
        why=(
            "Otherwise an engine that switches to the faster variant uses other blocks, or evicts other "
            "content."
        ),
        sources=("the engine contract",),
        workload="pool.variants",
        check=variants_agree,
        capabilities=("variants",),
    ),
]
