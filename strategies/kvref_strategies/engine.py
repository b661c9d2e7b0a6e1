"""A small scheduler that calls a cache manager only as an engine does.

The scheduler keeps every rule in docs/engine-contract.md. The rules leave open which request is scheduled
next, and for how many tokens. The caller of `Engine.go_on` decides this with a number, the *choice*. The
digits of the choice select an action, the request or step to act on, and how to do it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvref.target import CacheGroup, Hit
from kvref_strategies.workload import Stage

CHOICES = 1 << 32
"""A choice is a number from 0 to `CHOICES` - 1."""

STRAIGHT = 16 * 8
"""A choice that is a multiple of this selects the first possible action, on the first request or step."""

MAX_REQUESTS = 4
"""The most requests at a time."""


NEEDED = ("create", "add", "lookup", "allocate", "progress", "cache_blocks", "free", "new_step")
"""The operations of the part `cache` without which no engine can run."""

GRANTED = ("cache.allocate",)
"""The operation that has to succeed before an example shows that a cache works."""

Pick = Callable[[int], int]
"""Makes a decision: if you call it with a count, it returns a number from 0 to count - 1."""


class Digits:
    """Makes decisions by the digits of a number, the lowest digit first.

    If none is left, it decides for 0.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, count: int) -> int:
        self.number, digit = divmod(self.number, count)
        return digit


Action = tuple[list[Any], Callable[[Any, Pick], None]]
"""An action: the objects that it can act on, and the function that acts on one of them."""


@dataclass(frozen=True)
class Setup:
    """The settings of a cache manager and of the engine that drives it. Sizes are in tokens."""

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
    """Whether the engine schedules a request again before the request's last output is known."""
    whole: bool = False
    """Whether the engine admits a request only if there is room for all of the request's tokens."""
    align: int | None = None
    """The block size of recurrent layers, if their states are cached only at the end of a step; else None."""
    loads: bool = False
    """Whether the engine has a connector that loads tokens."""
    drops: bool = False
    """Whether the engine drops the output of tokens that were in flight when their request was preempted."""
    max_chunk: int | None = None
    """The most tokens of one request in a step: vLLM's `long_prefill_token_threshold`. Used only with
    `align`."""
    priority: bool = False
    """Whether the engine may preempt any running request, not only the last one."""
    withdraws: bool = True
    """Whether, with `priority`, the engine may also preempt a request that the same step has scheduled."""
    salts: bool = True
    """Whether some requests have a salt."""
    adapters: bool = False
    """Whether some requests have an adapter."""

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
    """A request as the scheduler sees it. All numbers count tokens of the request."""

    name: str
    tokens: list[int]
    """All known tokens: the prompt and the output."""
    limit: int
    """The request ends when it has this many tokens."""
    prompt: int = 0
    """The number of prompt tokens."""
    computed: int = 0
    """How many tokens have been scheduled. Their output may still be in flight."""
    in_flight: int = 0
    """How many tokens have been submitted and are not yet reported as done."""
    drafts: int = 0
    """How many draft tokens were proposed for the next step of the request."""
    awaited: int = 0
    """In an asynchronous engine: how many output and draft tokens the steps in flight may add."""
    loading: bool = False
    """Whether a connector is loading tokens asynchronously, so that the request waits."""
    found: int = 0
    """The length of the prefix hit. A connector may load the tokens after it."""
    junction: int = 0
    """Where a step should end, because other requests share the tokens up to there (as in a `Hit`)."""
    stale: int = 0
    """How many tokens were submitted before a preemption and are still in flight. Not part of `computed`."""
    dropped: bool = False
    """Whether the output of the stale tokens is dropped. Otherwise it is appended like other output."""
    encoder: int = 0
    """The number of encoder tokens."""

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)


@dataclass
class Scheduled:
    """The tokens of one request that a step computes."""

    request: Request
    tokens: int
    drafts: int
    """How many of `tokens` are draft tokens."""
    samples: bool = False
    """Whether the step computes the request's last token so far. Then the model samples a new token."""


@dataclass
class Step:
    """A step of the engine: all tokens that are scheduled together."""

    scheduled: list[Scheduled] = field(default_factory=list)
    place: int = 0
    """An index in the list of running requests. The step has scheduled or skipped all requests before it."""
    admitting: bool = False
    """Whether the running requests are done, and waiting requests are being admitted."""
    full: bool = False
    """Whether the step admits no further request, because one was refused or preempted."""
    loading: list[Request] = field(default_factory=list)
    """The requests whose loads begin in this step."""

    @property
    def tokens(self) -> int:
        return sum(each.tokens for each in self.scheduled)


class Engine:
    """Calls the part `cache` of a target. After each call that may change the cache, it calls `cache.state`.

    Args:
        operations: the names of the operations that the target has, such as "cache.state".
        tables_only: never call `cache.state`. Instead, get the block tables of the requests in each step, as
            a model runner does.
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
        """The tokens and the salt of each earlier prompt. New prompts may begin like one of these."""
        self.in_flight: deque[Step] = deque()
        self.step: Step | None = None
        """The step that is being scheduled."""
        self.number = 0
        self.broken = False
        """Whether the target has refused an operation. Then the cache's state is unknown, and the engine
        stops."""
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
        """Perform an operation, and return its answer. Return None if the target refuses."""
        outcome = self.stage.perform(f"cache.{operation}", **arguments)
        if "value" not in outcome:
            self.broken = True
            return None
        return outcome["value"]

    def do(self, operation: str, **arguments: Any) -> Any:
        """Perform an operation, then call `cache.state`. Return the answer of the operation."""
        answer = self.ask(operation, **arguments)
        if not self.broken and not self.tables_only and "state" in self.operations:
            self.stage.perform("cache.state")
        return answer

    def _ask_table(self, request: Request) -> None:
        if self.tables_only:
            self.ask("block_ids", request=request.name)

    # The objects that each action can act on. If the list is empty, the action is not possible.

    def to_run(self) -> list[Request]:
        """The running requests that have tokens to compute and whose turn in the step has not passed."""
        if not self._may_schedule():
            return []
        step = self.step or Step()
        if step.admitting:
            return []
        return [request for request in self.running[step.place :] if self._missing(request) > 0]

    def _may_begin(self, request: Request) -> bool:
        return not request.loading and (request.dropped or not request.stale)

    def _may_be_loaded(self, request: Request) -> bool:
        """Whether a waiting request is loading, and the load began in an earlier step, so that it may end."""
        return request.loading and (self.step is None or request not in self.step.loading)

    def _admissible(self) -> list[Request]:
        """The waiting requests. The list is empty if the step can admit no request."""
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
        """`[None]` if the engine is between steps, else an empty list.

        If the engine has one step at a time, it is not between steps while it waits for the step's output.
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
        """Add a request. The prompt may be new, begin like an earlier prompt, or equal an earlier prompt."""
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
        """Take the first possible action again and again, until the request has ended.

        `choices` has a number for each of the first actions. The number decides how the action is done, for
        example how many tokens are computed.
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
        """The request to preempt: the last running request or, with priorities, one that `pick` selects."""
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
        """How many of the missing tokens to compute: half of the time, as many as the step has room for."""
        most = min(missing, self._budget())
        new = most if most <= 0 or pick(2) == 0 else 1 + pick(most)
        return self._aligned(request, start, new)

    def _aligned(self, request: Request, start: int, new: int) -> int:
        """How many tokens to compute: `new`, or fewer if a prefill step must end earlier.

        A prefill step ends where the cache can keep a recurrent state. See "Where steps end" in
        docs/engine-contract.md.
        """
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
        """How many of the first `tokens` tokens a later request can hit at most, as a multiple of `unit`."""
        if self.setup.use_eagle:
            return max(0, tokens // unit * unit - unit)
        return (tokens - 1) // unit * unit

    def _schedule(self, request: Request, new: int) -> None:
        step = self._open_step()
        drafts = max(0, request.computed + new - len(request.tokens) - request.awaited)
        step.scheduled.append(Scheduled(request, new, drafts))
        request.drafts = 0

    def _preempt(self, request: Request, drop: bool) -> None:
        """Preempt a running request. Its tokens in flight stay in flight until their step is done."""
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
        """Try to admit a waiting request, with its prefix hit and perhaps with tokens from a connector."""
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
        """How many tokens of a request to compute in the step that admits it."""
        missing = len(request.tokens) - start
        padded = 1 + self.setup.drafts
        fits = start + padded < self.setup.max_model_len
        if missing > 1 or not self.setup.drafts or not fits or pick(2) == 0:
            return self._chunk(request, start, missing, pick)
        # The engine pads the request with draft tokens that nobody proposed, because all requests of a step
        # must have the same number of rows.
        if padded > self._budget():
            return 0
        return padded if self._aligned(request, start, padded) == padded else 1

    def _external(self, request: Request, found: int, pick: Pick) -> tuple[int, bool] | None:
        """How many tokens a connector loads, and whether it does so asynchronously.

        None if the connector does not know yet.
        """
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
        """The part of the hit that the request uses.

        If tokens are loaded after the hit, the hit is cut to a multiple of the scheduler block size.
        """
        tokens, blocks, unit = hit["tokens"], hit["blocks"], self.setup.scheduler_block_size
        if external and tokens % unit:
            tokens -= tokens % unit
            sizes = [group["spec"]["fields"]["block_size"] for group in self.setup.groups]
            blocks = [found[: -(-tokens // size)] for found, size in zip(blocks, sizes, strict=True)]
        return {"tokens": tokens, "blocks": blocks, "hashes": []}

    def fail(self, request: Request, pick: Pick) -> None:
        """Let a load fail. With one group, some of the first loaded blocks may still be right."""
        unit = self.setup.scheduler_block_size
        if len(self.setup.groups) > 1:
            request.computed = 0
        else:
            first = request.found // unit
            request.computed = (first + pick(max(1, -(-request.computed // unit) - first))) * unit
        self._progress(request)

    def loaded(self, request: Request, pick: Pick) -> None:
        """End the load of a request: cache the loaded blocks, or free all blocks if the load failed."""
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
        """Process the output of a step: accept or reject draft tokens, and append the sampled tokens."""
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
        """Perhaps report that a running request has a loaded block with bad content.

        Returns the request, or None, and whether the request ends. If the request does not end, it is
        computed again from the bad block on. An engine supports this only with one group.
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
        """Abort a request. If it is loading, it may keep its blocks until the load has ended."""
        if request.loading and pick(2) == 0:
            self.waiting.remove(request)
            self.leaving.append(request)
        else:
            self._finish(request)

    def reset(self, nothing: None, pick: Pick) -> None:
        """Reset the prefix cache. Perhaps preempt all running requests first."""
        if pick(4) == 3:
            for request in reversed([*self.running]):
                self._preempt(request, drop=True)
        self.do("reset")

    def common_prefix(self, request: Request, pick: Pick) -> None:
        self.ask("common_prefix", request=request.name)
