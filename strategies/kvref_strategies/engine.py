"""A small scheduler that calls a cache manager only as an engine does.

The scheduler keeps every rule in docs/engine-contract.md. The rules leave open which request is scheduled
next, and for how many tokens. The caller of `Engine.go_on` decides this by a number: its digits choose an
action, the request or step to act on, and how to do it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvref.target import CacheGroup, Hit
from kvref_strategies.workload import Stage

CHOICES = 1 << 32
"""A choice is a number from 0 to below this."""

STRAIGHT = 16 * 8
"""A choice that is a multiple of this takes the first possible action, on the first request or step."""

MAX_REQUESTS = 4
"""The most requests at a time."""


NEEDED = ("create", "add", "lookup", "allocate", "progress", "cache_blocks", "free", "new_step")
"""The operations of the part `cache` that every engine needs."""

GRANTED = ("cache.allocate",)
"""The operation that has to succeed before an example shows that a cache works."""

Pick = Callable[[int], int]
"""Makes a decision: called with a count, it returns a number from 0 to count - 1."""


class Digits:
    """Makes decisions by the digits of a number. Once the digits are used up, each decision is 0."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, count: int) -> int:
        self.number, digit = divmod(self.number, count)
        return digit


Action = tuple[list[Any], Callable[[Any, Pick], None]]
"""The objects that an action can be done with, and the function that does it with one of them."""


@dataclass(frozen=True)
class Setup:
    """The settings of an engine's cache manager and of its scheduler. Sizes are in tokens."""

    groups: list[CacheGroup]
    num_blocks: int
    scheduler_block_size: int
    hash_block_size: int
    max_model_len: int
    max_num_batched_tokens: int
    enable_caching: bool = True
    use_eagle: bool = False
    drafts: int = 0
    """The most draft tokens that are proposed for a request after a step."""
    max_encoder_tokens: int = 0
    max_batches: int = 1
    """The most steps in flight at a time."""
    is_async: bool = False
    """Whether a request is scheduled again before its last output is known."""
    whole: bool = False
    """Whether a request is admitted only if all of its tokens fit."""
    align: int | None = None
    """If recurrent states are cached only at the end of a step: the block size of their layers."""
    loads: bool = False
    """Whether there is a connector from which tokens can be loaded."""
    drops: bool = False
    """Whether the output of a preempted request's tokens in flight is dropped."""
    max_chunk: int | None = None
    """The most tokens of a request that are computed in a step with others."""
    priority: bool = False
    """Whether any running request may be preempted, not only the last one."""
    withdraws: bool = True
    """With `priority`: whether it may also be one that the same step has scheduled already."""
    salts: bool = True
    """Whether some requests have a salt."""
    adapters: bool = False
    """Whether some requests run with an adapter."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `cache.create`."""
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
    """The number of tokens at which it ends."""
    prompt: int = 0
    """The number of prompt tokens."""
    computed: int = 0
    """Tokens that are computed or scheduled."""
    in_flight: int = 0
    drafts: int = 0
    """Draft tokens that were proposed for its next step."""
    awaited: int = 0
    """Output and draft tokens of steps in flight, in an asynchronous engine."""
    loading: bool = False
    """Whether a connector loads tokens for it asynchronously, beside the steps."""
    found: int = 0
    """Tokens of its prefix hit. A connector may load the tokens after these."""
    junction: int = 0
    """End of a longer prefix that others may share, if the cache wants a state cached there."""
    stale: int = 0
    """Tokens in flight since before it was preempted. They no longer count as computed."""
    dropped: bool = False
    """Whether the output of the stale tokens is dropped. If not, it is output like any other."""
    encoder: int = 0
    """Encoder tokens."""

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)


@dataclass
class Scheduled:
    """The tokens of one request that a step computes."""

    request: Request
    tokens: int
    drafts: int
    """How many of them are draft tokens."""
    samples: bool = False
    """Whether the step reaches the request's last token, so that the model samples a new one."""


@dataclass
class Step:
    """A step of the engine: everything that is scheduled together."""

    scheduled: list[Scheduled] = field(default_factory=list)
    place: int = 0
    """The running requests before this index have been scheduled or skipped."""
    admitting: bool = False
    """Whether the step has come to the waiting requests."""
    full: bool = False
    """Whether no other request is admitted: one was refused or preempted."""
    loading: list[Request] = field(default_factory=list)
    """The requests whose loads begin in this step."""

    @property
    def tokens(self) -> int:
        return sum(each.tokens for each in self.scheduled)


class Engine:
    """Drives the part `cache` of a target, and probes its state after each operation that may change it.

    Args:
        operations: the names of the operations that the target has, such as "cache.state".
        tables_only: do not probe. Instead, ask for the block tables of the requests in each step, as a model
            runner gets them.
    """

    def __init__(
        self, stage: Stage, setup: Setup, operations: list[str], *, tables_only: bool = False
    ) -> None:
        self.stage = stage
        self.setup = setup
        self.tables_only = tables_only
        self.operations = {name.partition(".")[2] for name in operations if name.startswith("cache.")}
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.leaving: list[Request] = []
        """Requests that were aborted during a load, and keep their blocks until the load has ended."""
        self.prompts: list[tuple[list[int], str | None]] = []
        """The (tokens, salt) of earlier prompts, for new ones to begin like."""
        self.in_flight: deque[Step] = deque()
        self.step: Step | None = None
        """The step that is being scheduled."""
        self.number = 0
        self.broken = False
        """Whether the target has refused an operation. Then its state is unknown, and the engine stops."""
        created = self.do("create", **setup.arguments)
        self.shape: dict[str, Any] = created or {}
        self.alignment: int = self.shape.get("alignment", setup.scheduler_block_size)

    @property
    def possible(self) -> bool:
        """Whether the engine can take another action: it has a cache, and no operation was refused."""
        return bool(self.shape) and not self.broken

    def go_on(self, choice: int) -> None:
        """Take one possible action. The digits of `choice` decide which one, on what, and how."""
        if not self.possible:
            return
        pick = Digits(choice)
        what, which = pick(16), pick(8)
        actions = self.actions()
        these, act = actions[what % len(actions)]
        act(these[which % len(these)], pick)

    def actions(self) -> list[Action]:
        """The actions that are possible now. An action that is listed several times is chosen more often."""
        admissible = self._admissible()
        admit = ([each for each in admissible if self._may_begin(each)], self.admit)
        run = (self.to_run(), self.run)
        close, output = (self.open_steps(), self.close), (self.oldest_in_flight(), self.output)
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
        """Perform an operation, and return its answer, or None if it was refused."""
        outcome = self.stage.perform(f"cache.{operation}", **arguments)
        if "value" not in outcome:
            self.broken = True
            return None
        return outcome["value"]

    def do(self, operation: str, **arguments: Any) -> Any:
        """Perform an operation, then probe the state of the cache; return the answer of the operation."""
        answer = self.ask(operation, **arguments)
        if not self.broken and not self.tables_only and "state" in self.operations:
            self.stage.perform("cache.state")
        return answer

    def _ask_table(self, request: Request) -> None:
        if self.tables_only:
            self.ask("block_ids", request=request.name)

    # What each action can be done with.

    def to_run(self) -> list[Request]:
        """The running requests that the step has not come to yet and that have tokens to compute."""
        if not self._may_schedule():
            return []
        step = self.step or Step()
        if step.admitting:
            return []
        return [request for request in self.running[step.place :] if self._missing(request) > 0]

    def _may_begin(self, request: Request) -> bool:
        return not request.loading and (request.dropped or not request.stale)

    def _may_be_loaded(self, request: Request) -> bool:
        """Whether the load of a waiting request may end now: not in the step in which it began."""
        return request.loading and (self.step is None or request not in self.step.loading)

    def _admissible(self) -> list[Request]:
        """The waiting requests; empty if the step can admit none."""
        full = self.step is not None and self.step.full
        return self.waiting if self._may_schedule() and not full else []

    def to_open(self) -> list[None]:
        return [None] if self.step is None and self._may_schedule() else []

    def open_steps(self) -> list[Step]:
        return [self.step] if self.step is not None else []

    def oldest_in_flight(self) -> list[Step]:
        return [self.in_flight[0]] if self.in_flight and self.step is None else []

    def room(self) -> list[None]:
        requests = len(self.running) + len(self.waiting) + len(self.leaving)
        return [None] if self.step is None and requests < MAX_REQUESTS else []

    def all_requests(self) -> list[Request]:
        return [*self.running, *self.waiting] if self.step is None else []

    def loading(self) -> list[Request]:
        return [request for request in self.waiting if request.loading] if self.step is None else []

    def between_steps(self) -> list[None]:
        """A list with one choice, `None`, if the engine is between steps; else an empty list.

        An engine with one step at a time is not between steps while it waits for that step's output.
        """
        waits = self.in_flight and self.setup.max_batches == 1
        return [None] if self.step is None and not waits else []

    def to_compare(self) -> list[Request]:
        return self.running if len(self.running) > 1 and "common_prefix" in self.operations else []

    def _may_schedule(self) -> bool:
        if self.step is None:
            return len(self.in_flight) < self.setup.max_batches
        return self.step.tokens < self.setup.max_num_batched_tokens

    def _missing(self, request: Request) -> int:
        """How many tokens of a running request could be computed now."""
        last = request.computed + 2 - request.awaited
        if request.awaited and last >= request.limit:
            return 0
        missing = len(request.tokens) + request.drafts + request.awaited - request.computed
        return min(missing, self.setup.max_model_len - request.computed - 1)

    # The actions.

    def arrive(self, nothing: None, pick: Pick) -> None:
        """Add a request. Its prompt may be new, begin like an earlier prompt, or be equal to one."""
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
        """Add a request that ends after at most `more` output tokens."""
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

    def finish(self, request: Request, choices: Sequence[int] = ()) -> None:
        """Always take the first possible action, until the request has ended.

        `choices` decide how the first actions are done, for example how many tokens are computed.
        """
        for place in range(8 * self.setup.max_model_len):
            if not self.possible or request not in (*self.running, *self.waiting):
                return
            self.go_on(choices[place] * STRAIGHT if place < len(choices) else 0)

    def open(self, nothing: None, pick: Pick) -> None:
        """Begin a step, even if nothing can be scheduled in it."""
        self._open_step()

    def _open_step(self) -> Step:
        if self.step is None:
            self.step = Step()
            self.ask("new_step")
        return self.step

    def run(self, request: Request, pick: Pick) -> None:
        """Schedule a running request. If there is no room, preempt requests until there is."""
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
        """The request to preempt: the last running one or, with priorities, any."""
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
        """How many of the missing tokens to compute: half of the time as many as possible."""
        most = min(missing, self._budget())
        new = most if most <= 0 or pick(2) == 0 else 1 + pick(most)
        return self._aligned(request, start, new)

    def _aligned(self, request: Request, start: int, new: int) -> int:
        """The tokens to compute: `new`, or fewer to end a prefill step where a recurrent state is cached."""
        block = self.setup.align
        prefill_end = max(request.prompt, len(request.tokens) - 1)
        if block is None or start >= prefill_end:
            return new
        end = start + new
        if end < prefill_end:
            aligned = end // block * block
            if aligned > start or block <= (self.setup.max_chunk or self.setup.max_num_batched_tokens):
                end = aligned
        stops = [self._longest_hit(len(request.tokens), block)]
        if start % block:
            stops.append((start // block + 1) * block)
        if self.alignment < block:
            tail = self._longest_hit(request.prompt, self.setup.hash_block_size)
            if stops[0] < tail < request.prompt:
                stops.append(tail)
        if start < request.junction < end:
            stops.append(start + (request.junction - start) // block * block)
        return max(min([stop for stop in stops if start < stop < end], default=end) - start, 0)

    def _longest_hit(self, tokens: int, unit: int) -> int:
        """How many of `tokens` tokens a later request can hit at most, in multiples of `unit`."""
        if self.setup.use_eagle:
            return max(0, tokens // unit * unit - unit)
        return (tokens - 1) // unit * unit

    def _schedule(self, request: Request, new: int) -> None:
        step = self._open_step()
        drafts = max(0, request.computed + new - len(request.tokens) - request.awaited)
        step.scheduled.append(Scheduled(request, new, drafts))
        request.drafts = 0

    def _preempt(self, request: Request, drop: bool) -> None:
        """Free the blocks of a running request. Its tokens in flight remain so until their step is done."""
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
        """Admit a waiting request with its prefix hit and, perhaps, tokens that a connector loads."""
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
            hit = self._used_hit(hit, external)
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
            self._ask_table(request)
            self._progress(request)
            return
        self.waiting.remove(request)
        self.running.append(request)
        self._progress(request)
        self._schedule(request, new)

    def _first_chunk(self, request: Request, start: int, pick: Pick) -> int:
        """How many tokens to compute of a request that is being admitted."""
        missing = len(request.tokens) - start
        padded = 1 + self.setup.drafts
        fits = start + padded < self.setup.max_model_len
        if missing > 1 or not self.setup.drafts or not fits or pick(2) == 0:
            return self._chunk(request, start, missing, pick)
        # Padded by draft tokens that nobody proposed: all requests of a step have the same number of rows.
        if padded > self._budget():
            return 0
        return padded if self._aligned(request, start, padded) == padded else 1

    def _external(self, request: Request, found: int, pick: Pick) -> tuple[int, bool] | None:
        """How many tokens a connector loads, and whether asynchronously; None if it does not know yet."""
        if not self.setup.loads or len(request.tokens) == 1:
            return 0, False
        unit = self.setup.scheduler_block_size
        left = len(request.tokens) - found // unit * unit
        kind = pick(6)
        if kind == 5:
            return None
        external = left if kind == 4 else pick(left // unit + 1) * unit
        # A load that ends within the hit adds nothing.
        if kind < 2 or external <= found % unit:
            return 0, False
        # A step has to compute at least one token, so a load of all tokens is asynchronous.
        return external, kind > 2 or external == left

    def _used_hit(self, hit: Hit, external: int) -> Hit:
        """The part of a hit that the request uses: whole scheduler blocks if tokens are loaded after them."""
        tokens, blocks, unit = hit["tokens"], hit["blocks"], self.setup.scheduler_block_size
        if external and tokens % unit:
            tokens -= tokens % unit
            sizes = [group["spec"]["fields"]["block_size"] for group in self.setup.groups]
            blocks = [found[: -(-tokens // size)] for found, size in zip(blocks, sizes, strict=True)]
        return {"tokens": tokens, "blocks": blocks, "hashes": []}

    def fail(self, request: Request, pick: Pick) -> None:
        """Report that a load went wrong. With one group, the first loaded blocks may still be right."""
        unit = self.setup.scheduler_block_size
        if len(self.setup.groups) > 1:
            request.computed = 0
        else:
            first = request.found // unit
            request.computed = (first + pick(max(1, -(-request.computed // unit) - first))) * unit
        self._progress(request)

    def loaded(self, request: Request, pick: Pick) -> None:
        """End the load of a request: cache the loaded tokens, or free its blocks if none are right."""
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
        """Submit the step to the model runner."""
        self.step = None
        if "take_copies" in self.operations:
            self.do("take_copies")
        if "take_new_block_ids" in self.operations:
            self.ask("take_new_block_ids")
        for each in step.scheduled:
            self._ask_table(each.request)
        for each in step.scheduled:
            request = each.request
            request.computed += each.tokens
            request.in_flight += each.tokens
            each.samples = request.computed >= len(request.tokens) + request.awaited
            if each.samples and self.setup.is_async:
                request.awaited += 1 + each.drafts
                request.drafts = self.setup.drafts
            self._progress(request)
        self.in_flight.append(step)

    def output(self, step: Step, pick: Pick) -> None:
        """Process the output of a step: accept or reject draft tokens, and append what was sampled."""
        self.in_flight.popleft()
        bad, ends = self._bad_load(step, pick)
        for each in step.scheduled:
            request = each.request
            request.in_flight -= each.tokens
            stale = request.stale > 0
            request.stale -= each.tokens if stale else 0
            if request not in self.running and request not in self.waiting:
                continue
            if each.samples and request is not bad and not (stale and request.dropped):
                self._settle(request, each, stale, pick)
            else:
                self._progress(request)
        if bad is not None:
            self._progress(bad)
            if ends:
                self._finish(bad)
            else:
                self._propose(bad, pick)
        for request in [*self.leaving]:
            if pick(2):
                self.leaving.remove(request)
                self.do("free", request=request.name)
        if "take_events" in self.operations:
            self.do("take_events")

    def _bad_load(self, step: Step, pick: Pick) -> tuple[Request | None, bool]:
        """Perhaps report a loaded block as bad. Return its running request, and whether the request ends.

        If the request does not end, it is computed again from that block on. An engine does this only if it
        has one group.
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
        if not self.tables_only:
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
        """Propose draft tokens for the next step: as many as possible, none, or some."""
        most = self.setup.drafts
        if most and not self.setup.is_async:
            how = pick(3)
            request.drafts = most if how == 0 else 0 if how == 1 else pick(most + 1)

    def _finish(self, request: Request) -> None:
        (self.running if request in self.running else self.waiting).remove(request)
        self.do("free", request=request.name)

    def abort(self, request: Request, pick: Pick) -> None:
        """Abort a request in any state. If it is loading, it may keep its blocks until the load has ended."""
        if request.loading and pick(2) == 0:
            self.waiting.remove(request)
            self.leaving.append(request)
        else:
            self._finish(request)

    def reset(self, nothing: None, pick: Pick) -> None:
        """Reset the prefix cache, perhaps after all running requests have been preempted."""
        if pick(4) == 3:
            for request in reversed([*self.running]):
                self._preempt(request, drop=True)
        self.do("reset")

    def common_prefix(self, request: Request, pick: Pick) -> None:
        self.ask("common_prefix", request=request.name)
