"""A scheduler in miniature: it asks of a cache manager what an engine asks, and nothing else.

What a scheduler owes the cache manager is written down in docs/engine-contract.md; each rule there has its
place here. What is scheduled when, and for how many tokens, is left to whoever calls `Engine.go_on`, with a
number whose digits say what to do, with which of those that it can be done with, and how.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvref.target import CacheGroup, Hit
from kvref_strategies.workload import Stage

CHOICES = 1 << 32
"""Numbers below this are choices."""

MAX_REQUESTS = 4
"""That there are at a time."""


Pick = Callable[[int], int]
"""Decides: it gets a count, and gives a number below it."""


class Digits:
    """Decides by the digits of a number, which may be too small: all that is left open is 0."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, count: int) -> int:
        self.number, digit = divmod(self.number, count)
        return digit


Action = tuple[list[Any], Callable[[Any, Pick], None]]
"""What something can be done with, and what does it."""


@dataclass(frozen=True)
class Setup:
    """An engine that starts: what its cache manager is made with, and how it schedules. Counts of tokens."""

    groups: list[CacheGroup]
    num_blocks: int
    scheduler_block_size: int
    hash_block_size: int
    max_model_len: int
    max_num_batched_tokens: int
    enable_caching: bool = True
    use_eagle: bool = False
    drafts: int = 0
    """The most drafts that are proposed after a step."""
    max_encoder_tokens: int = 0
    max_batches: int = 1
    """Steps that may be under way at a time."""
    is_async: bool = False
    """Whether a request is scheduled again before its last output is known."""
    whole: bool = False
    """Whether a request is let in only if all of its tokens fit."""
    align: int | None = None
    """Where recurrent states are kept at the end of a step alone: the length of their blocks."""
    loads: bool = False
    """Whether there is somewhere else that tokens can be loaded from."""

    @property
    def arguments(self) -> dict[str, Any]:
        """What the cache manager is made with."""
        return {
            "groups": self.groups,
            "num_blocks": self.num_blocks,
            "scheduler_block_size": self.scheduler_block_size,
            "hash_block_size": self.hash_block_size,
            "max_model_len": self.max_model_len,
            "max_in_flight_tokens": self.max_batches * self.max_num_batched_tokens,
            "enable_caching": self.enable_caching,
            "use_eagle": self.use_eagle,
            "max_encoder_tokens": self.max_encoder_tokens,
        }


@dataclass
class Request:
    """A request as the scheduler sees it."""

    name: str
    tokens: list[int]
    limit: int
    """Tokens at which it ends."""
    prompt: int = 0
    computed: int = 0
    """Scheduled ones included."""
    in_flight: int = 0
    drafts: int = 0
    """Proposed for its next step."""
    awaited: int = 0
    """Outputs and drafts of steps under way, in an engine that does not wait for them."""
    loading: bool = False
    starts: int = 0
    """How often it was preempted: what comes back of a step from before says nothing about it now."""
    encoder: int = 0

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)


@dataclass
class Scheduled:
    """What a step computes of a request."""

    request: Request
    tokens: int
    drafts: int
    starts: int
    samples: bool = False
    """Whether it ends with the last token there is, so that there will be another one."""


@dataclass
class Step:
    """What is scheduled together."""

    scheduled: list[Scheduled] = field(default_factory=list)
    place: int = 0
    """Running requests before this place are scheduled, or passed over, in this step."""
    admitting: bool = False
    preempted: bool = False

    @property
    def tokens(self) -> int:
        return sum(each.tokens for each in self.scheduled)


class Engine:
    """Drives the part `cache` of a target, and probes it behind all that may change it."""

    def __init__(self, stage: Stage, setup: Setup, offered: list[str]) -> None:
        self.stage = stage
        self.setup = setup
        self.offered = {name.partition(".")[2] for name in offered if name.startswith("cache.")}
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.prompts: list[tuple[list[int], str | None]] = []
        self.under_way: deque[Step] = deque()
        self.step: Step | None = None
        self.number = 0
        self.broken = False
        """Whether the target has refused what it must not: what it is like then, nobody knows."""
        created = self.do("create", **setup.arguments)
        self.shape: dict[str, Any] = created or {}
        self.alignment: int = self.shape.get("alignment", setup.scheduler_block_size)

    @property
    def possible(self) -> bool:
        return bool(self.shape) and not self.broken

    def go_on(self, choice: int) -> None:
        if not self.possible:
            return
        pick = Digits(choice)
        what, which = pick(16), pick(8)
        actions = self.actions()
        these, act = actions[what % len(actions)]
        act(these[which % len(these)], pick)

    def actions(self) -> list[Action]:
        """What can be done now; what is there several times is done more often."""
        kinds: list[tuple[Callable[[], list[Any]], Callable[[Any, Pick], None]]] = [
            (self.to_admit, self.admit),
            (self.to_run, self.run),
            (self.open_steps, self.close),
            (self.steps_under_way, self.output),
            (self.room, self.arrive),
            (self.to_admit, self.admit),
            (self.to_run, self.run),
            (self.open_steps, self.close),
            (self.steps_under_way, self.output),
            (self.room, self.arrive),
            (self.to_run, self.run),
            (self.all_requests, self.abort),
            (self.loading, self.loaded),
            (self.between_steps, self.reset),
            (self.to_evict, self.evict),
            (self.to_compare, self.common_prefix),
        ]
        return [(these, act) for choices, act in kinds if (these := choices())]

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Perform an operation; what it answers, or None if it failed."""
        outcome = self.stage.perform(f"cache.{operation}", **arguments)
        if "value" not in outcome:
            self.broken = True
            return None
        return outcome["value"]

    def do(self, operation: str, **arguments: Any) -> Any:
        """The same, and probe what it has changed."""
        answer = self.ask(operation, **arguments)
        if not self.broken and "state" in self.offered:
            self.stage.perform("cache.state")
        return answer

    # What things can be done with.

    def to_run(self) -> list[Request]:
        """Running requests that come next in the step, and have something to compute."""
        if not self._may_schedule():
            return []
        step = self.step or Step()
        if step.admitting:
            return []
        return [request for request in self.running[step.place :] if self._missing(request) > 0]

    def to_admit(self) -> list[Request]:
        if not self._may_schedule() or (self.step is not None and self.step.preempted):
            return []
        return [request for request in self.waiting if not request.loading]

    def open_steps(self) -> list[Step]:
        return [self.step] if self.step is not None else []

    def steps_under_way(self) -> list[Step]:
        return [self.under_way[0]] if self.under_way and self.step is None else []

    def room(self) -> list[None]:
        return [None] if len(self.running) + len(self.waiting) < MAX_REQUESTS else []

    def all_requests(self) -> list[Request]:
        return [*self.running, *self.waiting] if self.step is None else []

    def loading(self) -> list[Request]:
        return [request for request in self.waiting if request.loading and self.step is None]

    def between_steps(self) -> list[None]:
        return [None] if self.step is None else []

    def to_evict(self) -> list[Request]:
        usable = self.setup.enable_caching and self.setup.loads and {"evict", "state"} <= self.offered
        return self.running if usable and self.step is None else []

    def to_compare(self) -> list[Request]:
        return self.running if len(self.running) > 1 and "common_prefix" in self.offered else []

    def _may_schedule(self) -> bool:
        if self.step is None:
            return len(self.under_way) < self.setup.max_batches
        return self.step.tokens < self.setup.max_num_batched_tokens

    def _missing(self, request: Request) -> int:
        """Tokens of a running request that could be computed now."""
        last = request.computed + 2 - request.awaited
        if request.awaited and last >= request.limit:
            return 0
        missing = len(request.tokens) + request.drafts + request.awaited - request.computed
        return min(missing, self.setup.max_model_len - request.computed - 1)

    # What is done with one of them.

    def arrive(self, nothing: None, pick: Pick) -> None:
        """A new request; its prompt begins like another one, or is one, unless it is the first."""
        self.number += 1
        name = f"r{self.number}"
        salts = [None, None, None, "salt"]
        length = 1 + pick(self.setup.max_model_len - 1)
        kind = pick(8)
        tokens, salt = [kind % 2] * length, salts[pick(4)]
        if self.prompts and kind > 1:
            known, salt = self.prompts[-1 - pick(len(self.prompts))]
            shared = len(known) if kind > 4 else min(length, len(known))
            tokens = known[:shared] + [1 - known[0]] * max(0, length - shared)
        limit = min(len(tokens) + 1 + pick(5), self.setup.max_model_len)
        if (tokens, salt) not in self.prompts:
            self.prompts.append((tokens, salt))
        most = self.setup.max_encoder_tokens
        self.add(name, tokens, limit - len(tokens), salt, encoder=1 + pick(most) if most else 0)

    def add(self, name: str, tokens: list[int], max_tokens: int, salt: str | None, encoder: int = 0) -> None:
        self.waiting.append(Request(name, tokens, len(tokens) + max_tokens, encoder=encoder))
        self.ask("add", request=name, tokens=tokens, max_tokens=max_tokens, salt=salt)

    def _open_step(self) -> Step:
        if self.step is None:
            self.step = Step()
            self.ask("new_step")
        return self.step

    def run(self, request: Request, pick: Pick) -> None:
        """Schedule a running request; preempt the last ones until there is room."""
        step = self._open_step()
        new = self._chunk(request, request.computed, self._missing(request), pick)
        place = self.running.index(request)
        step.place = place + 1
        if new <= 0:
            return
        while self.possible:
            answer = self.do("allocate", request=request.name, new=new, lookahead=self._lookahead())
            if answer is None:
                return
            if answer["added"] is not None:
                self._schedule(request, new)
                return
            victim = self.running[-1]
            self._preempt(victim)
            step.preempted = True
            if victim is request:
                step.place = len(self.running)
                return

    def _lookahead(self) -> int:
        return self.setup.drafts if self.setup.use_eagle else 0

    def _chunk(self, request: Request, start: int, missing: int, pick: Pick) -> int:
        """How many of the missing tokens are computed: half of the times as many as can be."""
        step = self._open_step()
        most = min(missing, self.setup.max_num_batched_tokens - step.tokens)
        new = most if most <= 0 or pick(2) == 0 else 1 + pick(most)
        return self._aligned(request, start, new)

    def _aligned(self, request: Request, start: int, new: int) -> int:
        """Let a step of a prefill end where a recurrent state is to be kept."""
        block = self.setup.align
        prefill_end = max(request.prompt, len(request.tokens) - 1)
        if block is None or start >= prefill_end:
            return new
        end = start + new
        if end < prefill_end:
            aligned = end // block * block
            if aligned > start or block <= self.setup.max_num_batched_tokens:
                end = aligned
        stops = [self._kept(len(request.tokens), block)]
        if start % block:
            stops.append((start // block + 1) * block)
        if self.alignment < block:
            tail = self._kept(request.prompt, self.setup.hash_block_size)
            if stops[0] < tail < request.prompt:
                stops.append(tail)
        return max(min([stop for stop in stops if start < stop < end], default=end) - start, 0)

    def _kept(self, tokens: int, unit: int) -> int:
        """The last place within so many tokens where a later request can begin."""
        if self.setup.use_eagle:
            return max(0, tokens // unit * unit - unit)
        return (tokens - 1) // unit * unit

    def _schedule(self, request: Request, new: int) -> None:
        step = self._open_step()
        drafts = max(0, request.computed + new - len(request.tokens) - request.awaited)
        step.scheduled.append(Scheduled(request, new, drafts, request.starts))
        request.drafts = 0

    def _preempt(self, request: Request) -> None:
        """Its blocks are taken; what it has under way comes back, and counts as in flight until then."""
        self.running.remove(request)
        self.do("free", request=request.name)
        request.computed = request.drafts = request.awaited = 0
        request.starts += 1
        self.waiting.insert(0, request)
        self._progress(request)

    def _progress(self, request: Request, output: list[int] | None = None) -> None:
        self.ask(
            "progress",
            request=request.name,
            computed=request.computed,
            in_flight=request.in_flight,
            output=output or [],
        )

    def admit(self, request: Request, pick: Pick) -> None:
        """Let a waiting request in, with what is found for it."""
        step = self._open_step()
        step.admitting = True
        hit: Hit | None = None
        external, delay = 0, False
        if request.computed == 0:
            hit = self.ask("lookup", request=request.name)
            if hit is None:
                return
            external, delay = self._external(request, hit["tokens"], pick)
        start = request.computed + (hit["tokens"] if hit else 0) + external
        missing = 0 if delay else len(request.tokens) - start
        new = self._chunk(request, start, missing, pick) if missing else 0
        if new <= 0 and not delay:
            return
        answer = self.do(
            "allocate",
            request=request.name,
            new=new,
            hit=None if hit is None else {"tokens": hit["tokens"], "blocks": hit["blocks"], "hashes": []},
            lookahead=0 if delay else self._lookahead(),
            external=external,
            delay=delay,
            encoder=request.encoder if request.computed == 0 else 0,
            whole=self.setup.whole,
        )
        if answer is None or answer["added"] is None:
            return
        request.computed = start
        if delay:
            request.loading = True
            self._progress(request)
            return
        self.waiting.remove(request)
        self.running.append(request)
        step.place = len(self.running)
        self._schedule(request, new)

    def _external(self, request: Request, found: int, pick: Pick) -> tuple[int, bool]:
        """How many tokens are loaded from elsewhere, and whether the step waits."""
        unit = self.setup.scheduler_block_size
        most = (len(request.tokens) - found) // unit
        if not self.setup.loads or found % unit or not most or (some := pick(4)) < 2:
            return 0, False
        external = (1 + pick(most)) * unit
        # What is to be computed must not be nothing, unless nothing is computed yet.
        delay = some == 3 or found + external == len(request.tokens)
        return external, delay

    def loaded(self, request: Request, pick: Pick) -> None:
        """What was loaded has arrived, or only its beginning has."""
        unit = self.setup.scheduler_block_size
        request.loading = False
        if pick(4) == 0:
            request.computed = pick(request.computed // unit) * unit
        if request.computed:
            self.do("cache_blocks", request=request.name, computed=request.computed)
            request.computed = min(request.computed, len(request.tokens) - 1)
        else:
            self.do("free", request=request.name)
        self._progress(request)

    def close(self, step: Step, pick: Pick) -> None:
        """Hand the step over to be computed."""
        self.step = None
        if "take_new_block_ids" in self.offered:
            self.ask("take_new_block_ids")
        if "take_copies" in self.offered:
            self.do("take_copies")
        step.scheduled = [
            each
            for each in step.scheduled
            if each.request in self.running and each.starts == each.request.starts
        ]
        for each in step.scheduled:
            request = each.request
            request.computed += each.tokens
            request.in_flight += each.tokens
            each.samples = request.computed >= len(request.tokens) + request.awaited
            if each.samples and self.setup.is_async:
                request.awaited += 1 + each.drafts
                request.drafts = self.setup.drafts
            self._progress(request)
        if step.scheduled:
            self.under_way.append(step)

    def output(self, step: Step, pick: Pick) -> None:
        """The step is done: drafts are accepted or not, and requests that are computed get a token."""
        self.under_way.popleft()
        for each in step.scheduled:
            request = each.request
            accepted, token, ends = pick(1 + each.drafts), pick(2), pick(8)
            request.in_flight -= each.tokens
            if request not in self.running and request not in self.waiting:
                continue
            self._settle(request, each, accepted, token, ends == 7)
        if "take_events" in self.offered:
            self.do("take_events")

    def _settle(self, request: Request, each: Scheduled, accepted: int, token: int, ends: bool) -> None:
        if each.starts != request.starts or not each.samples:
            self._progress(request)
            return
        rejected = each.drafts - accepted
        request.computed -= rejected
        output = [token] * min(1 + accepted, request.limit - len(request.tokens))
        request.tokens = request.tokens + output
        if self.setup.is_async:
            request.awaited -= rejected + 1 + accepted
        self._progress(request, output)
        if ends or len(request.tokens) >= request.limit:
            self._finish(request)
        elif self.setup.is_async:
            self.do("cache_blocks", request=request.name, computed=request.computed - request.awaited)
        else:
            request.drafts = self.setup.drafts

    def _finish(self, request: Request) -> None:
        (self.running if request in self.running else self.waiting).remove(request)
        self.do("free", request=request.name)

    def abort(self, request: Request, pick: Pick) -> None:
        """The user has had enough, whatever the request is doing."""
        if request.loading:
            # Its blocks are being written to: it is kept until the load has ended.
            self.loaded(request, lambda count: count - 1)
            if not self.possible:
                return
        self._finish(request)

    def reset(self, nothing: None, pick: Pick) -> None:
        self.do("reset")

    def evict(self, request: Request, pick: Pick) -> None:
        """What was loaded into blocks turned out to be bad."""
        state: dict[str, Any] = self.ask("state") or {"tables": {}}
        held = state["tables"].get(request.name, [])
        blocks = sorted({block for table in held for block in table} - {self.shape["null"]})
        if blocks:
            self.do("evict", blocks=blocks[: 1 + pick(len(blocks))])

    def common_prefix(self, request: Request, pick: Pick) -> None:
        self.ask("common_prefix", request=request.name)
