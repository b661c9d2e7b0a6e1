"""Decides whether the mini-scheduler can issue given calls. It searches through the scheduler's decisions."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

from kvref.target import Outcome
from kvref_strategies.engine import Engine, Pick, Setup

Call = dict[str, Any]
"""One recorded call: `op` is the operation without its part, `args` its arguments, `value` the answer."""


TRIES = 300_000
"""How many decisions the search tries for one record before it gives up."""


class GivenUp(Exception):
    """The search ended too early to say whether the engine can issue the calls."""


class NotSo(Exception):
    """The engine makes a call that differs from the next one in the record."""


class OutOfCalls(Exception):
    """The engine has issued all calls of the record, and would make another one."""


class Record:
    """A `Stage` that replays a recording to kvref's `Engine`.

    It allows only the recorded calls and returns the recorded answers.

    `progress` reports a state, not an event. So the `progress` calls of different requests may come in any
    order between two other calls, and a call that repeats a request's state is ignored.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self.place = 0
        self.ahead: list[int] = []
        """Indices of calls after `place` that the engine has issued already. All of them are `progress`."""
        self.told: dict[str, tuple[int, int]] = {}
        self.tries = [0]
        """How many decisions were tried. Each try copies the record, and all copies share this counter."""

    def copy(self) -> Record:
        other = Record(self.calls)
        other.place, other.ahead, other.told = self.place, [*self.ahead], {**self.told}
        other.tries = self.tries
        self.tries[0] += 1
        return other

    def fresh(self, *flags: str) -> None:
        raise NotImplementedError

    def perform(self, operation: str, /, **arguments: Any) -> Outcome:
        name = operation.removeprefix("cache.")
        if name == "progress":
            self._progress(arguments)
            return {"value": None}
        self.skip()
        if self.place == len(self.calls):
            raise OutOfCalls
        call = self.calls[self.place]
        if call["op"] != name or canonical(name, call["args"]) != canonical(name, arguments):
            raise NotSo(f"{name} {arguments}")
        self.place += 1
        return {"value": call["value"]}

    def skip(self) -> None:
        while self.place in self.ahead:
            self.ahead.remove(self.place)
            self.place += 1

    def _progress(self, arguments: dict[str, Any]) -> None:
        request = arguments["request"]
        state = (arguments["computed"], arguments["in_flight"])
        if self.told.get(request, (0, 0)) == state and not arguments["output"]:
            return
        self.told[request] = state
        place = self.place
        while place < len(self.calls) and self.calls[place]["op"] == "progress":
            if place not in self.ahead and self.calls[place]["args"]["request"] == request:
                if self.calls[place]["args"] != arguments:
                    break
                self.ahead.append(place)
                self.skip()
                return
            place += 1
        if place == len(self.calls):
            raise OutOfCalls
        raise NotSo(f"progress {arguments}")

    @property
    def issued(self) -> int:
        return self.place + len(self.ahead)


def canonical(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with all defaults filled in. An empty hit counts as no hit."""
    if name != "allocate":
        return arguments
    full = {"hit": None, "lookahead": 0, "external": 0, "delay": False, "encoder": 0, "whole": False}
    hit = arguments.get("hit")
    found = hit is not None and (any(hit["blocks"]) or hit["tokens"])
    return {**full, **arguments, "hit": hit if found else None}


class Trial:
    """Makes the engine's decisions: first the given ones, then 0. `after` returns those to try next."""

    def __init__(self, given: list[int]) -> None:
        self.given = given
        self.made: list[tuple[int, int]] = []

    def __call__(self, count: int) -> int:
        place = len(self.made)
        made = self.given[place] if place < len(self.given) else 0
        self.made.append((made, count))
        return made

    def after(self) -> list[int] | None:
        made = [*self.made]
        while made:
            last, count = made.pop()
            if last + 1 < count:
                return [*(each for each, _ in made), last + 1]
        return None


def news(calls: Sequence[Call]) -> list[Call]:
    """The calls without each `progress` that repeats a request's state."""
    told: dict[str, tuple[int, int]] = {}
    kept = []
    for call in calls:
        arguments = call["args"]
        if call["op"] == "progress":
            state = (arguments["computed"], arguments["in_flight"])
            if told.get(arguments["request"], (0, 0)) == state and not arguments["output"]:
                continue
            told[arguments["request"]] = state
        kept.append(call)
    return kept


def follow(setup: Setup, shape: dict[str, Any], calls: Sequence[Call]) -> tuple[int, int]:
    """Returns how many of the calls the engine can issue, and how many there are.

    `progress` calls that repeat a state do not count.

    Raises:
        GivenUp: the search tried `TRIES` decisions and did not finish.
    """
    calls = news(calls)
    created: Call = {"op": "create", "args": setup.arguments, "value": shape}
    record = Record([created, *calls])
    operations = [f"cache.{name}" for name in ("take_new_block_ids", "take_copies", "take_events")]
    furthest = 0
    seen: set[tuple[bytes, int, tuple[int, ...]]] = set()
    stack = [Ways(Engine(record, setup, operations), record).ways()]
    while stack:
        way = next(stack[-1], None)
        if way is None:
            stack.pop()
            continue
        furthest = max(furthest, way.record.place - 1)
        if way.record.tries[0] > TRIES:
            raise GivenUp(f"the best of {TRIES} tries issued {furthest} calls of {len(calls)}")
        if furthest == len(calls):
            break
        if way.identity not in seen:
            seen.add(way.identity)
            stack.append(way.ways())
    return furthest, len(calls)


SHARED = ("stage", "setup", "operations", "prompts", "shape", "alignment")
"""Attributes that all copies of an engine share, because none of them influences the search.

`prompts` does change, but the engine reads it only to make up a prompt. The search adds recorded requests.
"""


class Ways:
    """An engine at some point of the record, with everything that it can do next."""

    def __init__(self, engine: Engine, record: Record) -> None:
        self.shared = {name: value for name, value in vars(engine).items() if name in SHARED}
        self.own = pickle.dumps({name: value for name, value in vars(engine).items() if name not in SHARED})
        self.record = record

    @property
    def identity(self) -> tuple[bytes, int, tuple[int, ...]]:
        return self.own, self.record.place, tuple(self.record.ahead)

    def twin(self) -> Engine:
        engine = Engine.__new__(Engine)
        vars(engine).update(self.shared, stage=self.record.copy(), **pickle.loads(self.own))
        return engine

    def ways(self) -> Iterator[Ways]:
        """Yields an engine for each action, and each decision within it, that fits the next recorded calls.

        Actions that issue no call come last.
        """
        call = self.record.calls[self.record.place]
        if call["op"] == "add":
            yield from self._try(lambda engine, pick: engine.add(**call["args"]) if engine.room() else None)
            return
        silent: list[Ways] = []
        things = {act.__name__: len(these) for these, act in self.twin().actions()}
        for name, count in things.items():
            for item in range(count if name != "arrive" else 0):
                for way in self._try(partial(act, name, item)):
                    if way.record.issued > self.record.issued:
                        yield way
                    else:
                        silent.append(way)
        yield from silent

    def _try(self, doing: Callable[[Engine, Pick], None]) -> Iterator[Ways]:
        given: list[int] | None = []
        while given is not None:
            engine, trial = self.twin(), Trial(given)
            record = cast("Record", engine.stage)
            try:
                doing(engine, trial)
            except NotSo:
                pass
            except OutOfCalls:
                record.place = len(record.calls)
                yield Ways(engine, record)
            else:
                record.skip()
                yield Ways(engine, record)
            given = trial.after()


def act(name: str, item: int, engine: Engine, pick: Pick) -> None:
    these, doing = next(action for action in engine.actions() if action[1].__name__ == name)
    doing(these[item], pick)
