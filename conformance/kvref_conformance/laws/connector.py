"""Laws of connectors: blocks stay untouched during transfers, and only loaded tokens have keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvref_conformance.laws.cache_steps import State, Step, steps
from kvref_conformance.laws.core import Event, Law, LawBroken, Level, Runs


@dataclass
class Transfer:
    """A store or load that the connector has not reported as done yet."""

    is_store: bool
    pairs: list[tuple[int, int]]
    """Pairs of a block and a host block."""
    contents: list[str | None]
    """The content of each pair that is copied; None if it is not known."""


@dataclass
class Ledger:
    """Which blocks requests hold, which transfers are running, and what blocks and host blocks contain."""

    num_blocks: int
    host_blocks: int
    owned: set[int] = field(default_factory=set)
    """The blocks that requests hold."""
    contents: dict[int, str | None] = field(default_factory=dict)
    """The content of each written block; None if it is not known."""
    loaded: set[int] = field(default_factory=set)
    """The blocks whose content came from a load."""
    on_host: dict[int, str | None] = field(default_factory=dict)
    """The content of each host block that a finished store wrote."""
    jobs: dict[str, Transfer] = field(default_factory=dict)
    any_done: bool = False

    def read_by_stores(self) -> dict[int, str]:
        """The blocks that a store still reads, each with the name of the store."""
        stores = [(name, job) for name, job in self.jobs.items() if job.is_store]
        return {block: name for name, job in stores for block, _ in job.pairs}

    def may(self, op: str, arguments: dict[str, Any]) -> bool:
        """Whether the call is legal now.

        In a replayed trace it may be illegal: the calls fit the answers of an earlier target, and the current
        target may answer differently.
        """
        if op in ("connector.store", "connector.load"):
            return self.may_move(arguments["job"], arguments["pairs"], op == "connector.store")
        blocks = arguments.get("blocks", [arguments["block"]] if "block" in arguments else [])
        still_read = op == "connector.write" and any(block in self.read_by_stores() for block in blocks)
        return not still_read and self.may_use(blocks)

    def may_use(self, blocks: list[int]) -> bool:
        """Whether the blocks are all different, requests hold them, and no load is still filling them."""
        loads = [job for job in self.jobs.values() if not job.is_store]
        filled = {block for job in loads for block, _ in job.pairs}
        return len({*blocks}) == len(blocks) and {*blocks} <= self.owned - filled

    def may_move(self, name: str, pairs: list[list[int]], is_store: bool) -> bool:
        blocks, places = [block for block, _ in pairs], [place for _, place in pairs]
        if name in self.jobs or len({*places}) < len(places) or not self.may_use(blocks):
            return False
        filling = {place for job in self.jobs.values() if job.is_store for _, place in job.pairs}
        if is_store:
            read = {place for job in self.jobs.values() for _, place in job.pairs}
            return {*places} <= {*range(self.host_blocks)} - filling - read
        return {*places} <= self.on_host.keys() - filling and not self.read_by_stores().keys() & {*blocks}

    def enter(self, op: str, arguments: dict[str, Any], value: Any) -> None:
        """Record a successful call."""
        match op:
            case "connector.take":
                self.owned.update(value)
            case "connector.free":
                self.owned.difference_update(arguments["blocks"])
                self.forget(arguments["blocks"])
            case "connector.write":
                self.forget([arguments["block"]])
                self.contents[arguments["block"]] = value
            case "connector.store":
                pairs = [(block, place) for block, place in arguments["pairs"]]
                for _, place in pairs:
                    self.on_host.pop(place, None)
                contents = [self.contents.get(block) for block, _ in pairs]
                self.jobs[arguments["job"]] = Transfer(True, pairs, contents)
            case "connector.load":
                pairs = [(block, place) for block, place in arguments["pairs"]]
                self.forget([block for block, _ in pairs])
                contents = [self.on_host[place] for _, place in pairs]
                self.jobs[arguments["job"]] = Transfer(False, pairs, contents)
            case "connector.finished":
                for name in value:
                    if job := self.jobs.pop(name, None):
                        self.end(job)

    def end(self, job: Transfer) -> None:
        self.any_done = True
        for (block, place), content in zip(job.pairs, job.contents, strict=True):
            if job.is_store:
                self.on_host[place] = content
            else:
                self.contents[block] = content
                self.loaded.add(block)

    def forget(self, blocks: list[int]) -> None:
        for block in blocks:
            self.contents.pop(block, None)
            self.loaded.discard(block)


def connector_calls(run: Sequence[Event]) -> Iterator[tuple[Ledger, Event]]:
    """Each connector call with the ledger before it, up to the first illegal or failed call."""
    ledger: Ledger | None = None
    for event in run:
        op, arguments, outcome = event["op"], event["args"], event["outcome"]
        if op == "connector.create":
            made = "value" in outcome
            ledger = Ledger(arguments["num_blocks"], arguments["host_blocks"]) if made else None
            continue
        if ledger is None:
            continue
        if not ledger.may(op, arguments):
            return
        yield ledger, event
        if "value" not in outcome or (op == "connector.take" and ledger.owned.intersection(outcome["value"])):
            return
        ledger.enter(op, arguments, outcome["value"])


def held_until_sent(runs: Runs) -> int:
    """No block that a store reads is allocated, and a load brings stored content back.

    When all transfers are done, all freed blocks can be allocated.
    """
    judged = 0
    for ledger, event in connector_calls(runs[0]):
        op, arguments, outcome = event["op"], event["args"], event["outcome"]
        if op == "connector.take":
            judged += judge_allocated(ledger, event)
        if op == "connector.read" and arguments["block"] in ledger.loaded and "value" in outcome:
            judged += judge_loaded(arguments["block"], ledger.contents[arguments["block"]], outcome["value"])
    return judged


def judge_allocated(ledger: Ledger, event: Event) -> int:
    """Raise `LawBroken` if a block was allocated too early, or if free blocks were not allocated.

    Return the number of judgements.
    """
    number, outcome = event["args"]["num_blocks"], event["outcome"]
    free, reading = ledger.num_blocks - 1 - len(ledger.owned), ledger.read_by_stores()
    if error := outcome.get("error"):
        if ledger.any_done and not ledger.jobs and 0 <= number <= free:
            raise LawBroken(
                f"{number} blocks are allocated, because all jobs are done and requests hold "
                f"{len(ledger.owned)} of {ledger.num_blocks - 1} blocks",
                f"{error['type']}: {error['message']}",
                ("kept",),
            )
        return 0
    for block in outcome.get("value", ()):
        if block in reading:
            raise LawBroken(
                f"block {block} is not allocated before store {reading[block]!r}, which reads it, is done",
                f"blocks {outcome['value']} were allocated",
                ("reused",),
            )
    return int(bool(reading.keys() - ledger.owned)) + int(ledger.any_done and not ledger.jobs)


def judge_loaded(block: int, expected: str | None, read: str) -> int:
    if expected not in (None, read):
        raise LawBroken(
            f"block {block} has the stored content after it was loaded back, {expected}", read, ("content",)
        )
    return int(expected is not None)


def failed_load(runs: Runs) -> int:
    """A block that is being loaded has no key, and after the load it has keys for loaded tokens only.

    A block that the engine evicts because its content is wrong has no key. If no block of an example ever has
    a key, the example is not judged.
    """
    judged, any_keys = 0, False
    awaited: dict[str, set[int]] = {}
    hashes: dict[str, list[str]] = {}
    for step in steps(runs[0]):
        if step.op == "cache.create":
            awaited, hashes = {}, {}
        if not step.cache.arguments["enable_caching"]:
            continue
        name = step.args.get("request", "")
        if step.op == "cache.lookup" and step.done:
            hashes[name] = step.value["hashes"]
        if step.allocated and step.args.get("delay"):
            awaited[name] = set(step.value["taken"])
            judged += 1
        if step.op == "cache.cache_blocks" and name in awaited:
            judged += 1
            judge_cached(step, hashes.get(name, []))
            awaited.pop(name)
        if step.op == "cache.evict":
            judged += 1
            judge_evicted(step)
        if step.after is not None:
            judge_awaited(step, step.after, awaited)
            any_keys = any_keys or any(step.after["found"].values())
        if step.op == "cache.free":
            awaited.pop(name, None)
    return judged if any_keys else 0


def judge_awaited(step: Step, state: State, awaited: dict[str, set[int]]) -> None:
    """Raise `LawBroken` if a block that is being loaded has a key, even if the load was given up."""
    for name, blocks in awaited.items():
        if keyed := [block for block in sorted(blocks) if named(state, block)]:
            raise LawBroken(
                f"after {step.in_words()}: no key for block {keyed[0]}, which is still being loaded for "
                f"{name}",
                f"{named(state, keyed[0])}",
                ("being loaded",),
            )


def judge_cached(step: Step, hashes: list[str]) -> None:
    """Raise `LawBroken` if a block gets a key for tokens that were not loaded."""
    if step.before is None or step.after is None:
        return
    arrived, size = step.args["computed"], step.cache.arguments["hash_block_size"]
    beyond = {
        f"{each}/{group.number}": (place + 1) * size
        for place, each in enumerate(hashes)
        for group in step.cache.groups
        if (place + 1) * size > arrived
    }
    for block in step.cache.usable:
        new = [key for key in named(step.after, block) if key not in named(step.before, block)]
        if wrong := [key for key in new if key in beyond]:
            raise LawBroken(
                f"after {step.in_words()}: keys for at most the first {arrived} tokens, because no more were "
                "loaded",
                f"block {block} has key {wrong[0]} for {beyond[wrong[0]]} tokens",
                ("not loaded",),
            )


def judge_evicted(step: Step) -> None:
    """Raise `LawBroken` if an evicted block has a key."""
    if step.refused:
        raise LawBroken(f"{step.in_words()} succeeds", step.refused, ("refused",))
    for block in step.cache.real(step.args["blocks"]):
        if step.after is not None and (keys := named(step.after, block)):
            raise LawBroken(
                f"after {step.in_words()}: no key for block {block}", f"{keys}", ("kept by eviction",)
            )


def named(state: State, block: int) -> list[str]:
    """The keys that a block carries, or under which the index finds it."""
    found = [key for key, blocks in state["found"].items() if block in blocks]
    return list(dict.fromkeys([*state["keys"].get(str(block), ()), *found]))


def total(runs: Runs) -> int:
    """Every call of a connector succeeds. `connector.held-until-sent` judges the allocation of blocks.

    An example in which no load ever ends is not judged, because there is no limit on how long a load takes.
    """
    judged, any_loaded = 0, False
    for ledger, event in connector_calls(runs[0]):
        operation, outcome = event["op"].partition(".")[2], event["outcome"]
        if operation == "take" or "died" in outcome:
            continue
        judged += 1
        if error := outcome.get("error"):
            call_args = ", ".join(f"{name}={value}" for name, value in event["args"].items())
            raise LawBroken(
                f"{operation}({call_args}) succeeds", f"{error['type']}: {error['message']}", (operation,)
            )
        if operation == "finished":
            ended = [ledger.jobs[name] for name in outcome["value"] if name in ledger.jobs]
            any_loaded = any_loaded or not all(job.is_store for job in ended)
    return judged if any_loaded else 0


LAWS = [
    Law(
        id="connector.total",
        level=Level.SAFETY,
        statement=(
            "Every legal call of a connector succeeds: storing blocks of requests to free host blocks, "
            "loading them back, and reporting finished transfers."
        ),
        why="An exception in a transfer ends a running engine.",
        sources=("vLLM PR 37853", "the engine contract"),
        workload="connector.machine",
        check=total,
    ),
    Law(
        id="connector.held-until-sent",
        level=Level.SAFETY,
        statement=(
            "A block that a store reads is not allocated before the store is reported as done; a load brings "
            "the stored content back; and when all transfers are done, all freed blocks can be allocated."
        ),
        why=(
            "Otherwise a store saves another request's cache under this request's key, or a block is lost "
            "until a restart."
        ),
        sources=("`request_finished` of vLLM's KVConnectorBase_V1", "vLLM PR 37853", "the engine contract"),
        workload="connector.machine",
        check=held_until_sent,
        capabilities=("holds_stored_blocks",),
    ),
    Law(
        id="connector.failed-load",
        level=Level.SAFETY,
        statement=(
            "A block that is being loaded has no key; after the load only the loaded tokens have keys; and "
            "blocks with wrong content that the engine evicts have none, whether referenced or free."
        ),
        why=(
            "Otherwise the next request hits a key without its content, and reads tokens that were never "
            "loaded."
        ),
        sources=(
            "the engine contract",
            "`_update_waiting_for_remote_kv` and `_handle_invalid_blocks` in vLLM's scheduler",
        ),
        workload="cache.loads",
        check=failed_load,
    ),
]
