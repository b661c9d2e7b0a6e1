"""A scheduler's calls to a cache manager, one `Step` for each. The laws of the cache read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from kvref_conformance.laws.core import Event

State = dict[str, Any]
"""The answer of the probe `cache.state`, a `kvref.target.CacheState`."""

READING = {
    "cache.add",
    "cache.lookup",
    "cache.progress",
    "cache.new_step",
    "cache.take_new_block_ids",
    "cache.take_events",
    "cache.common_prefix",
}
"""Operations that change no block and no key, so an earlier probe stays valid."""

WINDOWS = ("SlidingWindowSpec", "SlidingWindowMLASpec")


@dataclass(frozen=True)
class Group:
    """A group of layers, with the rules of its kind of attention."""

    number: int
    name: str
    kind: str
    fields: dict[str, Any]
    eagle: bool

    @property
    def block_size(self) -> int:
        return int(self.fields["block_size"])

    @property
    def further_blocks(self) -> int:
        """How many blocks follow the block of the last token. They are for the states after draft tokens."""
        return int(self.fields.get("num_speculative_blocks", 0)) if self.kind == "MambaSpec" else 0

    def first_read(self, position: int) -> int:
        """The first position that a token at this position reads from the cache."""
        if self.kind in WINDOWS:
            return max(0, position - int(self.fields["sliding_window"]) + 1)
        if self.kind == "ChunkedLocalAttentionSpec":
            chunk = int(self.fields["attention_chunk_size"])
            return position // chunk * chunk
        if self.kind == "MambaSpec":
            return max(0, position - 1)
        return 0

    def blocks_for(self, tokens: int, encoder: int) -> int:
        """The length of the block table of a request with this many tokens and encoder tokens."""
        size = self.block_size
        if self.kind == "CrossAttentionSpec":
            return -(-encoder // size)
        return -(-tokens // size) + self.further_blocks


class Progress(NamedTuple):
    """The progress of a request, as the scheduler reports it to the cache manager."""

    tokens: list[int]
    encoder: int = 0
    computed: int = 0
    in_flight: int = 0
    loaded: int = 0
    """How many tokens at the beginning were loaded or found. The last of them may be computed again."""
    failed: bool = False
    """Whether some tokens turned out wrong, so that the request must compute them again."""
    stale: int = 0
    """How many of the tokens in flight were submitted before the request lost its blocks."""

    @property
    def confirmed(self) -> int:
        """How many tokens are certainly computed. The next token to compute may be further on, not before."""
        return max(0, self.computed - (self.in_flight - self.stale))


@dataclass(frozen=True)
class Cache:
    """A cache manager that the example created."""

    arguments: dict[str, Any]
    shape: dict[str, Any]
    groups: list[Group]

    @property
    def readable(self) -> bool:
        """Whether every block table lists its blocks in the order of tokens, each with `block_size` tokens.

        It is False if a group is of kind `own`: kvref does not know the rules of its block tables.
        """
        return all(group.kind != "own" for group in self.groups)

    @cached_property
    def usable(self) -> list[int]:
        kept = {self.shape["null"], *self.shape["reserved"]}
        return [block for block in range(self.arguments["num_blocks"]) if block not in kept]

    def real(self, blocks: list[int]) -> list[int]:
        return [block for block in blocks if block != self.shape["null"]]


class Step(NamedTuple):
    """An operation, the probes before and after it, and the request's progress before it."""

    op: str
    args: dict[str, Any]
    outcome: dict[str, Any]
    cache: Cache
    before: State | None
    after: State | None
    request: Progress | None

    @property
    def done(self) -> bool:
        return "value" in self.outcome

    @property
    def value(self) -> Any:
        return self.outcome.get("value")

    @property
    def refused(self) -> str:
        """The exception as one line; empty if there was none."""
        error = self.outcome.get("error")
        return f"{error['type']}: {error['message']}" if error else ""

    @property
    def hit(self) -> dict[str, Any]:
        """The prefix hit that was passed to an allocation; without one, a hit of no tokens."""
        return self.args.get("hit") or {"tokens": 0, "blocks": [[] for _ in self.cache.groups]}

    @property
    def allocated(self) -> bool:
        """Whether this is a granted allocation."""
        return self.op == "cache.allocate" and self.done and self.value["added"] is not None

    @property
    def start(self) -> int:
        """The position of the first token that an allocation is for."""
        computed = self.request.computed if self.request else 0
        return computed + int(self.hit["tokens"]) + int(self.args.get("external", 0))

    @property
    def end(self) -> int:
        """The position after the last token that an allocation is for."""
        return self.start + int(self.args.get("new", 0))

    def table(self, state: State, group: Group) -> list[int]:
        """The block table of the request in a group."""
        tables: list[list[int]] = state["tables"].get(self.args["request"], [[] for _ in self.cache.groups])
        return tables[group.number]

    def in_words(self) -> str:
        given = {name: value for name, value in self.args.items() if value and name != "groups"}
        return f"{self.op.partition('.')[2]}({', '.join(f'{name}={given[name]}' for name in given)})"


def cache_of(event: Event) -> Cache | None:
    if "value" not in event["outcome"]:
        return None
    groups = [
        Group(
            place,
            group["spec"]["class"],
            group.get("kind", ""),
            group["spec"]["fields"],
            bool(group["eagle"]),
        )
        for place, group in enumerate(event["args"]["groups"])
    ]
    return Cache(event["args"], event["outcome"]["value"], groups)


_LAST: dict[Any, Any] = {}
"""The steps of the last example, kept because several laws judge the same example in turn."""


def steps(events: list[Event], *operations: str) -> list[Step]:
    """All operations on a created cache, including its creation, or only those with the given names."""
    if _LAST.get("events") is not events or _LAST["number"] != len(events):
        _LAST.clear()
        _LAST.update(events=events, number=len(events))
        _LAST[()] = list(_read(events))
    if operations not in _LAST:
        _LAST[operations] = [step for step in _LAST[()] if step.op in operations]
    read: list[Step] = _LAST[operations]
    return read


def _read(events: list[Event]) -> Iterator[Step]:
    cache: Cache | None = None
    requests: dict[str, Progress] = {}
    before: State | None = None
    for place, event in enumerate(events):
        op, arguments, outcome = event["op"], event["args"], event["outcome"]
        if op == "cache.state":
            before = outcome.get("value")
            continue
        if op == "cache.create":
            cache, requests, before = cache_of(event), {}, None
        if cache is None or not op.startswith("cache."):
            continue
        probe = events[place + 1] if place + 1 < len(events) else event
        after = probe["outcome"].get("value") if probe["op"] == "cache.state" else None
        name = arguments.get("request", "")
        step = Step(op, arguments, outcome, cache, before, after, requests.get(name))
        yield step
        if op == "cache.add":
            requests[name] = Progress(list(arguments["tokens"]))
        elif step.request is not None:
            requests[name] = progress_after(step, step.request)
        if op not in READING:
            before = None


def progress_after(step: Step, request: Progress) -> Progress:
    arguments = step.args
    if step.op == "cache.progress":
        computed, in_flight = arguments["computed"], arguments["in_flight"]
        stale = max(0, request.stale - max(0, request.in_flight - in_flight))
        tokens = request.tokens + arguments["output"]
        progressed = Progress(
            tokens, request.encoder, computed, in_flight, request.loaded, request.failed, stale
        )
        if not progressed.failed and progressed.confirmed < (
            before := request._replace(stale=stale).confirmed
        ):
            # The last loaded token may be computed again.
            again = before == request.loaded and progressed.confirmed == before - 1
            return progressed._replace(failed=not again)
        return progressed
    if step.op == "cache.free":
        return request._replace(stale=request.in_flight, computed=0, loaded=0, failed=False)
    if step.allocated:
        return request._replace(
            encoder=max(request.encoder, arguments.get("encoder", 0)),
            loaded=max(request.loaded, step.start if arguments.get("hit") else 0),
            computed=step.start,
        )
    return request
