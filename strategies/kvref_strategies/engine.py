"""A scheduler in miniature: it asks of a cache manager what an engine asks, and nothing else.

What a scheduler owes the cache manager is written down in docs/engine-contract.md; each rule there has its
place here. What is scheduled when, and for how many tokens, is left to whoever calls `Engine.go_on`, with a
number whose digits say what to do, with which of those that it can be done with, and how.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvref.target import CacheGroup, Hit
from kvref_strategies.workload import Stage

CHOICES = 1 << 32
"""Numbers below this are choices."""

STRAIGHT = 16 * 8
"""Multiples of this go on with what there is, one way or another."""

MAX_REQUESTS = 4
"""That there are at a time."""


ASKS = ("create", "add", "lookup", "allocate", "progress", "cache_blocks", "free", "new_step")
"""Operations of the part `cache` without which no engine does."""

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
    drops: bool = False
    """Whether what a preempted request has under way is of no use when it comes back."""
    max_chunk: int | None = None
    """The most tokens of a request that are computed in a step with others."""
    priority: bool = False
    """Whether another request than the last one may have to make room."""
    withdraws: bool = True
    """Whether it may be one that has its places in the step already."""
    salts: bool = True
    """Whether there are requests that share cached content only with those of the same salt."""
    adapters: bool = False
    """Whether there are requests for a model with an adapter, and the same ones without."""

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
    found: int = 0
    """Tokens found in the cache when it was let in, behind which others are loaded."""
    junction: int = 0
    """Where it parts from a prefix that others may share, if the cache wants a state kept there."""
    stale: int = 0
    """Those in flight since before it was preempted: that they were computed says nothing about it now."""
    dropped: bool = False
    """Whether what comes of these is dropped; if not, it is output like any other."""
    encoder: int = 0

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)


@dataclass
class Scheduled:
    """What a step computes of a request."""

    request: Request
    tokens: int
    drafts: int
    samples: bool = False
    """Whether it ends with the last token there is, so that there will be another one."""


@dataclass
class Step:
    """What is scheduled together."""

    scheduled: list[Scheduled] = field(default_factory=list)
    place: int = 0
    """Running requests before this place are scheduled, or passed over, in this step."""
    admitting: bool = False
    full: bool = False
    """Whether a request could not be let in, or was preempted: none is let in behind it."""
    loading: list[Request] = field(default_factory=list)
    """Whose loads begin in this step."""

    @property
    def tokens(self) -> int:
        return sum(each.tokens for each in self.scheduled)


class Engine:
    """Drives the part `cache` of a target, and probes it behind all that may change it.

    With `as_told` it does without the probe: it asks for what the model runner is told, the tables of
    the requests of each step.
    """

    def __init__(self, stage: Stage, setup: Setup, offered: list[str], *, as_told: bool = False) -> None:
        self.stage = stage
        self.setup = setup
        self.as_told = as_told
        self.offered = {name.partition(".")[2] for name in offered if name.startswith("cache.")}
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.leaving: list[Request] = []
        """Aborted while something is loaded for them, and kept until that has ended."""
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
        admissible = self._admissible()
        admit = ([each for each in admissible if self._may_begin(each)], self.admit)
        run = (self.to_run(), self.run)
        close, output = (self.open_steps(), self.close), (self.steps_under_way(), self.output)
        arrive = (self.room(), self.arrive)
        all_actions: list[Action] = [
            *(admit, run, close, output, arrive),
            *(admit, run, close, output, arrive),
            run,
            (self.all_requests(), self.abort),
            ([each for each in admissible if self._may_be_loaded(each)], self.loaded),
            (self.loading(), self.fail),
            (self.between_steps(), self.reset),
            (self.to_open(), self.open),
            (self.to_compare(), self.common_prefix),
        ]
        return [action for action in all_actions if action[0]]

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
        if not self.broken and not self.as_told and "state" in self.offered:
            self.stage.perform("cache.state")
        return answer

    def _tell_table(self, request: Request) -> None:
        if self.as_told:
            self.ask("block_ids", request=request.name)

    # What things can be done with.

    def to_run(self) -> list[Request]:
        """Running requests that come next in the step, and have something to compute."""
        if not self._may_schedule():
            return []
        step = self.step or Step()
        if step.admitting:
            return []
        return [request for request in self.running[step.place :] if self._missing(request) > 0]

    def _may_begin(self, request: Request) -> bool:
        return not request.loading and (request.dropped or not request.stale)

    def _may_be_loaded(self, request: Request) -> bool:
        """Whether all may be there now that a waiting request waits for."""
        return request.loading and (self.step is None or request not in self.step.loading)

    def _admissible(self) -> list[Request]:
        """Waiting requests, if any can be let in."""
        full = self.step is not None and self.step.full
        return self.waiting if self._may_schedule() and not full else []

    def to_open(self) -> list[None]:
        return [None] if self.step is None and self._may_schedule() else []

    def open_steps(self) -> list[Step]:
        return [self.step] if self.step is not None else []

    def steps_under_way(self) -> list[Step]:
        return [self.under_way[0]] if self.under_way and self.step is None else []

    def room(self) -> list[None]:
        requests = len(self.running) + len(self.waiting) + len(self.leaving)
        return [None] if self.step is None and requests < MAX_REQUESTS else []

    def all_requests(self) -> list[Request]:
        return [*self.running, *self.waiting] if self.step is None else []

    def loading(self) -> list[Request]:
        return [request for request in self.waiting if request.loading] if self.step is None else []

    def between_steps(self) -> list[None]:
        """An engine with one batch at a time waits for it, and does nothing else but note who has left."""
        waits = self.under_way and self.setup.max_batches == 1
        return [None] if self.step is None and not waits else []

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
        salts = [None, None, None, "salt" if self.setup.salts else None]
        length = 1 + pick(self.setup.max_model_len - 1)
        kind = pick(8)
        tokens, salt = [kind % 2] * length, salts[pick(4)]
        adapter = "adapter" if self.setup.adapters and pick(4) == 3 else None
        if self.prompts and kind > 1:
            known, salt = self.prompts[-1 - pick(len(self.prompts))]
            shared = len(known) if kind > 4 else min(length, len(known))
            tokens = known[:shared] + [1 - known[0]] * max(0, length - shared)
        more = [1, 2, 4, 16][pick(4)]
        if (tokens, salt) not in self.prompts:
            self.prompts.append((tokens, salt))
        most = self.setup.max_encoder_tokens
        self.submit(tokens, more, salt, adapter, encoder=1 + pick(most) if most else 0)

    def submit(
        self,
        tokens: list[int],
        more: int,
        salt: str | None = None,
        adapter: str | None = None,
        encoder: int = 0,
    ) -> Request:
        """A new request that ends after so many more tokens, if not before."""
        self.number += 1
        more = min(more, self.setup.max_model_len - len(tokens))
        return self.add(f"r{self.number}", tokens, more, salt, adapter, encoder)

    def add(
        self,
        request: str,
        tokens: list[int],
        max_tokens: int,
        salt: str | None,
        adapter: str | None = None,
        encoder: int = 0,
    ) -> Request:
        added = Request(request, tokens, len(tokens) + max_tokens, encoder=encoder)
        self.waiting.append(added)
        more = {} if adapter is None else {"adapter": adapter}
        self.ask("add", request=request, tokens=tokens, max_tokens=max_tokens, salt=salt, **more)
        return added

    def finish(self, request: Request, hows: Sequence[int] = ()) -> None:
        """Go on until the request has ended, first like this, and do nothing else."""
        for place in range(8 * self.setup.max_model_len):
            if not self.possible or request not in (*self.running, *self.waiting):
                return
            self.go_on(hows[place] * STRAIGHT if place < len(hows) else 0)

    def open(self, nothing: None, pick: Pick) -> None:
        """Begin a step, in which it may be that nothing can be done."""
        self._open_step()

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
            victim = self._victim(step, pick)
            if self.running.index(victim) < step.place:
                step.place -= 1
            self._preempt(victim, self.setup.drops)
            step.full = True
            step.scheduled = [each for each in step.scheduled if each.request is not victim]
            if victim is request:
                step.place = len(self.running)
                return

    def _victim(self, step: Step, pick: Pick) -> Request:
        """Who makes room: the last one, or any other."""
        if not self.setup.priority:
            return self.running[-1]
        scheduled = [] if self.setup.withdraws else [each.request for each in step.scheduled]
        possible = [request for request in self.running if request not in scheduled]
        return possible[pick(len(possible))]

    def _lookahead(self) -> int:
        return self.setup.drafts if self.setup.use_eagle else 0

    def _budget(self) -> int:
        return self.setup.max_num_batched_tokens - self._open_step().tokens

    def _chunk(self, request: Request, start: int, missing: int, pick: Pick) -> int:
        """How many of the missing tokens are computed: half of the times as many as can be."""
        most = min(missing, self._budget())
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
            if aligned > start or block <= (self.setup.max_chunk or self.setup.max_num_batched_tokens):
                end = aligned
        stops = [self._kept(len(request.tokens), block)]
        if start % block:
            stops.append((start // block + 1) * block)
        if self.alignment < block:
            tail = self._kept(request.prompt, self.setup.hash_block_size)
            if stops[0] < tail < request.prompt:
                stops.append(tail)
        if start < request.junction < end:
            stops.append(start + (request.junction - start) // block * block)
        return max(min([stop for stop in stops if start < stop < end], default=end) - start, 0)

    def _kept(self, tokens: int, unit: int) -> int:
        """The last place within so many tokens where a later request can begin."""
        if self.setup.use_eagle:
            return max(0, tokens // unit * unit - unit)
        return (tokens - 1) // unit * unit

    def _schedule(self, request: Request, new: int) -> None:
        step = self._open_step()
        drafts = max(0, request.computed + new - len(request.tokens) - request.awaited)
        step.scheduled.append(Scheduled(request, new, drafts))
        request.drafts = 0

    def _preempt(self, request: Request, drop: bool) -> None:
        """Its blocks are taken; what it has under way comes back, and counts as in flight until then."""
        self.running.remove(request)
        self.do("free", request=request.name)
        request.computed = request.drafts = request.awaited = 0
        request.dropped = drop or (request.dropped and request.stale > 0)
        request.stale = request.in_flight
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
            request.junction = hit.get("junction", 0)
            loads = self._external(request, hit["tokens"], pick)
            if loads is None:
                return
            external, delay = loads
            hit = self._passed_on(hit, external)
            request.found = hit["tokens"]
        start = request.computed + (hit["tokens"] if hit else 0) + external
        new = 0 if delay else self._first_chunk(request, start, pick)
        if new <= 0 and not delay:
            step.full = True
            return
        answer = self.do(
            "allocate",
            request=request.name,
            new=new,
            hit=hit,
            lookahead=0 if delay else self._lookahead(),
            external=external,
            delay=delay,
            encoder=request.encoder if request.computed == 0 else 0,
            whole=self.setup.whole,
        )
        if answer is None or answer["added"] is None:
            step.full = True
            return
        request.computed = start
        if delay:
            request.loading = True
            step.loading.append(request)
            self._tell_table(request)
            self._progress(request)
            return
        self.waiting.remove(request)
        self.running.append(request)
        self._progress(request)
        self._schedule(request, new)

    def _first_chunk(self, request: Request, start: int, pick: Pick) -> int:
        """How many tokens are computed of a request that is let in."""
        missing = len(request.tokens) - start
        padded = 1 + self.setup.drafts
        fits = start + padded < self.setup.max_model_len
        if missing > 1 or not self.setup.drafts or not fits or pick(2) == 0:
            return self._chunk(request, start, missing, pick)
        # Drafts nobody has proposed, so that all requests of the step have as many rows.
        if padded > self._budget():
            return 0
        return padded if self._aligned(request, start, padded) == padded else 1

    def _external(self, request: Request, found: int, pick: Pick) -> tuple[int, bool] | None:
        """How many tokens are loaded from elsewhere, and whether aside; None if nobody knows yet."""
        if not self.setup.loads or len(request.tokens) == 1:
            return 0, False
        unit = self.setup.scheduler_block_size
        left = len(request.tokens) - found // unit * unit
        kind = pick(6)
        if kind == 5:
            return None
        external = left if kind == 4 else pick(left // unit + 1) * unit
        # What lies within a block of which the cache has more is not loaded.
        if kind < 2 or external <= found % unit:
            return 0, False
        # What is to be computed must not be nothing, unless nothing is computed yet.
        return external, kind > 2 or external == left

    def _passed_on(self, hit: Hit, external: int) -> Hit:
        """What is used of a hit: what ends within a block is loaded as well if more is."""
        tokens, blocks, unit = hit["tokens"], hit["blocks"], self.setup.scheduler_block_size
        if external and tokens % unit:
            tokens -= tokens % unit
            sizes = [group["spec"]["fields"]["block_size"] for group in self.setup.groups]
            blocks = [found[: -(-tokens // size)] for found, size in zip(blocks, sizes, strict=True)]
        return {"tokens": tokens, "blocks": blocks, "hashes": []}

    def fail(self, request: Request, pick: Pick) -> None:
        """Not all that is loaded will be right. With one group, its beginning may be."""
        unit = self.setup.scheduler_block_size
        if len(self.setup.groups) > 1:
            request.computed = 0
        else:
            first = request.found // unit
            request.computed = (first + pick(max(1, -(-request.computed // unit) - first))) * unit
        self._progress(request)

    def loaded(self, request: Request, pick: Pick) -> None:
        """Nothing is loaded any more for a request, so that it can be let in."""
        step = self._open_step()
        step.admitting = True
        request.loading = False
        if request.computed:
            self.do("cache_blocks", request=request.name, computed=request.computed)
            request.computed = min(request.computed, len(request.tokens) - 1)
        else:
            self.do("free", request=request.name)
        self._progress(request)

    def close(self, step: Step, pick: Pick) -> None:
        """Hand the step over to be computed."""
        self.step = None
        if "take_copies" in self.offered:
            self.do("take_copies")
        if "take_new_block_ids" in self.offered:
            self.ask("take_new_block_ids")
        for each in step.scheduled:
            self._tell_table(each.request)
        for each in step.scheduled:
            request = each.request
            request.computed += each.tokens
            request.in_flight += each.tokens
            each.samples = request.computed >= len(request.tokens) + request.awaited
            if each.samples and self.setup.is_async:
                request.awaited += 1 + each.drafts
                request.drafts = self.setup.drafts
            self._progress(request)
        self.under_way.append(step)

    def output(self, step: Step, pick: Pick) -> None:
        """The step is done: drafts are accepted or not, and requests that are computed get a token."""
        self.under_way.popleft()
        spoilt, ends = self._spoilt(step, pick)
        for each in step.scheduled:
            request = each.request
            request.in_flight -= each.tokens
            stale = request.stale > 0
            request.stale -= each.tokens if stale else 0
            if request not in self.running and request not in self.waiting:
                continue
            if each.samples and request is not spoilt and not (stale and request.dropped):
                self._settle(request, each, stale, pick)
            else:
                self._progress(request)
        if spoilt is not None:
            self._progress(spoilt)
            if ends:
                self._finish(spoilt)
            else:
                self._propose(spoilt, pick)
        for request in [*self.leaving]:
            if pick(2):
                self.leaving.remove(request)
                self.do("free", request=request.name)
        if "take_events" in self.offered:
            self.do("take_events")

    def _spoilt(self, step: Step, pick: Pick) -> tuple[Request | None, bool]:
        """A running request for which something wrong was loaded, and whether it ends for that.

        If not, it is computed again from there on. Only where blocks have one number in one group.
        """
        simple = self.setup.loads and len(self.setup.groups) == self.setup.max_batches == 1
        if not simple or not self.running or pick(8) < 7:
            return None, False
        request = self.running[pick(len(self.running))]
        scheduled = sum(each.tokens for each in step.scheduled if each.request is request)
        places = -(-(request.computed - scheduled) // self.setup.scheduler_block_size)
        if places <= 0:
            return None, False
        tables = self._tables_of_the_first_group()
        others = {block for name in tables if name != request.name for block in tables[name]}
        first = pick(places)
        table = tables.get(request.name, [])[first:]
        if not table or table[0] in {self.shape["null"], *others}:
            return None, False
        request.computed = first * self.setup.scheduler_block_size
        self._progress(request)
        ends = pick(2) == 1
        if ends:
            self.do("evict", blocks=sorted(set(table)))
        return request, ends

    def _tables_of_the_first_group(self) -> dict[str, list[int]]:
        if not self.as_told:
            state: dict[str, Any] = self.ask("state") or {"tables": {}}
            return {name: groups[0] for name, groups in state["tables"].items()}
        names = [request.name for request in (*self.running, *self.waiting, *self.leaving)]
        return {name: (self.ask("block_ids", request=name) or [[]])[0] for name in names}

    def _settle(self, request: Request, each: Scheduled, stale: bool, pick: Pick) -> None:
        accepted = pick(1 + each.drafts)
        output = [pick(2) for _ in range(min(1 + accepted, request.limit - len(request.tokens)))]
        ends = pick(8) == 7
        if ends:
            output = output[: 1 + pick(len(output))]
        request.tokens = request.tokens + output
        rejected = each.drafts - accepted
        if not stale:
            request.computed -= rejected
            if self.setup.is_async:
                request.awaited -= rejected + len(output)
        self._progress(request, output)
        if self.setup.is_async and not stale:
            self.do("cache_blocks", request=request.name, computed=request.computed - request.awaited)
        if ends or len(request.tokens) >= request.limit:
            self._finish(request)
        else:
            self._propose(request, pick)

    def _propose(self, request: Request, pick: Pick) -> None:
        """Drafts for the next step: as many as can be, none, or some."""
        most = self.setup.drafts
        if most and not self.setup.is_async:
            how = pick(3)
            request.drafts = most if how == 0 else 0 if how == 1 else pick(most + 1)

    def _finish(self, request: Request) -> None:
        (self.running if request in self.running else self.waiting).remove(request)
        self.do("free", request=request.name)

    def abort(self, request: Request, pick: Pick) -> None:
        """The user has had enough, whatever the request is doing."""
        if request.loading and pick(2) == 0:
            self.waiting.remove(request)
            self.leaving.append(request)
        else:
            self._finish(request)

    def reset(self, nothing: None, pick: Pick) -> None:
        """Forget all, if no request is running, or none any more."""
        if pick(4) == 3:
            for request in reversed([*self.running]):
                self._preempt(request, drop=True)
        self.do("reset")

    def common_prefix(self, request: Request, pick: Pick) -> None:
        self.ask("common_prefix", request=request.name)
