"""Count the behaviours in an example with a cache manager, for example how many requests were preempted.

A fuzz shows the counts, so that users see what its examples reach. It counts while it runs, so counting must
be fast.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Event = Mapping[str, Any]

BEHAVIOURS = (
    "requests",
    "requests with a salt",
    "admissions",
    "hits",
    "hits with a salt",
    "hits within a block",
    "junctions",
    "chunks of prefills",
    "asynchronous steps",
    "refused allocations",
    "preemptions",
    "resumed requests",
    "requests ended in flight",
    "loads in the step",
    "loads aside",
    "loads that failed",
    "steps with drafts",
    "drafts all accepted",
    "drafts accepted in part",
    "drafts all rejected",
    "blocks given back by a window",
    "evicted keys",
    "blocks evicted on demand",
    "copies",
    "resets",
    "resets refused",
    "caches",
    "caches of several groups",
    "caches without prefix caching",
)
"""The behaviours, in the order of a report. Below them, the report lists how many groups there were of each
kind."""

GROUPS = "groups of "

SAMPLED = 4
"""A fuzz counts behaviours only in driven examples whose number is a multiple of this. Counting more often
would take as long as judging the examples."""


def behaviours_of(events: Sequence[Event]) -> Counter[str]:
    """How often each behaviour occurred. Only events of the target's part `cache` count."""
    engine = _Engine()
    for event in events:
        operation = event["op"]
        if operation not in _FOLLOWED:
            continue
        outcome = event["outcome"]
        if "value" not in outcome:
            # The state of an implementation after a failure is unknown.
            break
        if engine.freed is not None:
            engine.count_reason_of_free(operation, event["args"])
        _FOLLOWED[operation](engine, event["args"], outcome["value"])
    return engine.counted


@dataclass
class _Request:
    """The state of a request, as it follows from the operations so far."""

    prompt: int
    salted: bool
    tokens: int
    computed: int = 0
    in_flight: int = 0
    steps: deque[tuple[int, int]] = field(default_factory=deque)
    """For each step in flight, the number of its draft tokens and the most tokens that it can add."""
    held: bool = False
    loading: bool = False
    preempted: bool = False
    table: list[list[int]] = field(default_factory=list)


class _Engine:
    """Follows the operations on a cache manager, and counts the behaviours."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()
        self.freed: str | None = None
        """The request that the last operation freed, if it freed one."""
        self._requests: dict[str, _Request] = {}
        self._unit = 1
        self._null: int | None = None

    def count_reason_of_free(self, operation: str, arguments: Mapping[str, Any]) -> None:
        """Count why the last request was freed. Only the operation after that shows the reason.

        If the request was preempted, the operation is a `cache.progress` of this request, with nothing
        computed. If the request ended, the operation is about something else.
        """
        name, self.freed = self.freed, None
        request = self._requests[name or ""]
        goes_on = operation == "cache.progress" and arguments["request"] == name
        if goes_on and not request.loading:
            self.counted["preemptions"] += 1
            request.preempted = True
            request.steps = deque((0, 0) for _ in request.steps)
        elif not goes_on and request.in_flight:
            self.counted["requests ended in flight"] += 1
        request.loading = False

    def create(self, arguments: Mapping[str, Any], shape: Any) -> None:
        self._requests.clear()
        self._unit, self._null = arguments["scheduler_block_size"], shape["null"]
        groups = arguments["groups"]
        self.counted["caches"] += 1
        self.counted["caches of several groups"] += len(groups) > 1
        self.counted["caches without prefix caching"] += not arguments["enable_caching"]
        self.counted.update(f"{GROUPS}{group.get('kind') or group['spec']['class']}" for group in groups)

    def add(self, arguments: Mapping[str, Any], _: Any) -> None:
        tokens, salted = len(arguments["tokens"]), arguments["salt"] is not None
        self._requests[arguments["request"]] = _Request(tokens, salted, tokens)
        self.counted["requests"] += 1
        self.counted["requests with a salt"] += salted

    def allocate(self, arguments: Mapping[str, Any], answer: Any) -> None:
        request = self._requests[arguments["request"]]
        if answer["added"] is None:
            self.counted["refused allocations"] += 1
            return
        if request.held:
            return
        request.held = True
        self.counted["admissions"] += 1
        self.counted["resumed requests"] += request.preempted
        hit = arguments.get("hit") or {"tokens": 0}
        if tokens := hit["tokens"]:
            self.counted["hits"] += 1
            self.counted["hits with a salt"] += request.salted
            self.counted["hits within a block"] += tokens % self._unit > 0
        if arguments.get("delay"):
            request.loading = True
            self.counted["loads aside"] += 1
        elif arguments.get("external"):
            self.counted["loads in the step"] += 1

    def lookup(self, _: Mapping[str, Any], hit: Any) -> None:
        self.counted["junctions"] += hit.get("junction", 0) > 0

    def progress(self, arguments: Mapping[str, Any], _: Any) -> None:
        request = self._requests[arguments["request"]]
        computed, in_flight = arguments["computed"], arguments["in_flight"]
        output = len(arguments["output"])
        if in_flight > request.in_flight:
            self._schedule(request, computed)
        elif in_flight < request.in_flight and request.steps:
            drafts, _ = request.steps.popleft()
            if drafts and output:
                how = (
                    "all accepted"
                    if output > drafts
                    else "accepted in part"
                    if output > 1
                    else "all rejected"
                )
                self.counted[f"drafts {how}"] += 1
        elif computed < request.computed and request.held:
            # Computed tokens must be computed again.
            self.counted["loads that failed"] += 1
        request.tokens += output
        request.computed, request.in_flight = computed, in_flight

    def _schedule(self, request: _Request, computed: int) -> None:
        if request.in_flight and request.computed >= request.tokens:
            self.counted["asynchronous steps"] += 1
        self.counted["chunks of prefills"] += computed < request.prompt
        awaited = sum(most for _, most in request.steps)
        drafts = computed - request.tokens - awaited
        if drafts > 0:
            self.counted["steps with drafts"] += 1
        request.steps.append((max(0, drafts), 1 + drafts if drafts >= 0 else 0))

    def block_ids(self, arguments: Mapping[str, Any], table: Any) -> None:
        request, null = self._requests[arguments["request"]], self._null
        for before, now in zip(request.table, table, strict=False):
            if null in now:
                pairs = zip(before, now, strict=False)
                given_back = sum(new == null != old for old, new in pairs)
                self.counted["blocks given back by a window"] += given_back
        request.table = table

    def cache_blocks(self, arguments: Mapping[str, Any], _: Any) -> None:
        self._requests[arguments["request"]].loading = False

    def free(self, arguments: Mapping[str, Any], _: Any) -> None:
        request = self._requests[arguments["request"]]
        if request.held:
            self.freed = arguments["request"]
        request.held, request.table = False, []

    def evict(self, arguments: Mapping[str, Any], _: Any) -> None:
        self.counted["blocks evicted on demand"] += len(arguments["blocks"])

    def reset(self, _: Mapping[str, Any], done: Any) -> None:
        self.counted["resets" if done else "resets refused"] += 1

    def take_copies(self, _: Mapping[str, Any], copies: Any) -> None:
        self.counted["copies"] += len(copies)

    def take_events(self, _: Mapping[str, Any], events: Any) -> None:
        for event in events:
            if event["what"] == "removed":
                self.counted["evicted keys"] += len(event["hashes"])


_FOLLOWED: dict[str, Callable[[_Engine, Mapping[str, Any], Any], None]] = {
    f"cache.{follow.__name__}": follow
    for follow in (
        _Engine.create,
        _Engine.add,
        _Engine.lookup,
        _Engine.allocate,
        _Engine.progress,
        _Engine.block_ids,
        _Engine.cache_blocks,
        _Engine.free,
        _Engine.evict,
        _Engine.reset,
        _Engine.take_copies,
        _Engine.take_events,
    )
}
