"""Who holds which block, operation by operation, as the probes of a pool or of a cache tell it.

What a target answers may be anything. What is not as the protocol has it is not drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from kvref_conformance.report.narrate import describe_outcome, narrate

PROBES = ("cache.state", "pool.state")
_CREATE = ("cache.create", "pool.create")

MOST_STEPS = 80
"""Operations that are told of one run, the last ones: the law breaks there."""
_MOST_COLUMNS = 60
_MOST_BLOCKS = 48
_MOST_LOOKED_AT = 2_000
_MOST_BARS = 600
_MOST_PLACES = 600
"""Of all tables behind the operations of a run."""
_MOST_CELLS = 32
"""Of one table."""
_MOST_TABLES = 16

COLOURS = 8
"""How many requests have colours of their own."""

_LEFT, _TOP, _COLUMN, _ROW = 44, 20, 30, 18
"""Pixels: for the numbers of blocks, and of steps, and how large a cell is."""


@dataclass(frozen=True)
class State:
    """What a probe told."""

    free: frozenset[int]
    refs: Sequence[int]
    keyed: frozenset[int]
    tables: Mapping[str, Sequence[Sequence[int]]]
    """The blocks of each group, by request."""
    of_pool: bool
    """A pool has no tables, so that its blocks are in none."""

    @cached_property
    def holders(self) -> dict[int, list[str]]:
        """The requests in whose tables a block is."""
        found: dict[int, list[str]] = {}
        for name, table in self.tables.items():
            for block in {block for group in table for block in group}:
                found.setdefault(block, []).append(name)
        return found


@dataclass(frozen=True)
class Cell:
    """A place of a table."""

    block: str
    changed: bool


@dataclass(frozen=True)
class Table:
    """The blocks of a request, by group."""

    request: str
    colour: str
    groups: Sequence[Sequence[Cell]]
    cut: bool


@dataclass(frozen=True)
class Step:
    """An operation, and what was there behind it if that is not what was there before."""

    number: int
    operation: str
    answer: str
    tables: Sequence[Table]


@dataclass(frozen=True)
class Bar:
    """A block in one state, for a number of steps."""

    x: int
    y: int
    width: int
    kind: str
    label: str
    title: str


@dataclass(frozen=True)
class Chart:
    """Blocks down, steps across."""

    width: int
    height: int
    blocks: Sequence[tuple[int, str]]
    """Height and number of each."""
    columns: Sequence[tuple[int, int]]
    """Place and number of each step."""
    bars: Sequence[Bar]
    kinds: Sequence[str]
    """Those there are, for the legend."""
    requests: Sequence[tuple[str, str]]
    """Name and colour."""
    left_out: Sequence[str]


@dataclass(frozen=True)
class Run:
    """What one process did."""

    flags: str
    steps: Sequence[Step]
    skipped: int
    """Operations in front of these that are not told."""
    without_tables: int
    """Steps up to here are told without tables, for want of room."""
    chart: Chart | None


def run_of(flags: Sequence[str], operations: Sequence[Mapping[str, Any]]) -> Run:
    """A run of a trace: its operations, or the events that came of them."""
    told = [event for event in operations if event.get("op") not in PROBES]
    lines = _lines(told)
    states = _states(operations)
    null, reserved = _kept(operations)
    colours = _colours(states)
    steps = []
    before: State | None = None
    for number, (event, line) in enumerate(zip(told, lines, strict=True), 1):
        state = states.get(number)
        changed = state is not None and (before is None or state.tables != before.tables)
        tables = _tables(state, before, null, colours) if state is not None and changed else []
        steps.append(Step(number, line, _answer(event), tables))
        before = state or before
    told_steps, without = _with_room(steps[-MOST_STEPS:])
    chart = _chart(states, null, reserved, colours)
    return Run(" ".join(flags), told_steps, max(0, len(steps) - MOST_STEPS), without, chart)


def _with_room(steps: list[Step]) -> tuple[list[Step], int]:
    """The steps, the last ones with tables, and the number of the last that has none for want of room."""
    places = 0
    for step in reversed(steps):
        places += sum(len(group) for table in step.tables for group in table.groups)
        if places > _MOST_PLACES:
            kept = [each if each.number > step.number else replace(each, tables=[]) for each in steps]
            return kept, step.number
    return steps, 0


def _lines(operations: Sequence[Mapping[str, Any]]) -> list[str]:
    bare = [{"op": each["op"], "args": each["args"]} for each in operations]
    return list(narrate([{"flags": [], "operations": bare}]))


def _answer(event: Mapping[str, Any]) -> str:
    if event.get("outcome", {"value": None}) == {"value": None}:
        return ""
    try:
        return describe_outcome(event["outcome"])
    except Exception:  # it has the keys of something that can be told in short, and is something else
        return repr(event["outcome"])


def _states(operations: Sequence[Mapping[str, Any]]) -> dict[int, State]:
    """What was probed behind an operation, by its number from 1 on; that of the last probe."""
    states: dict[int, State] = {}
    number = 0
    for event in operations:
        if event["op"] not in PROBES:
            number += 1
        elif (state := read_state(event.get("outcome"))) is not None:
            states[number] = state
    return states


def read_state(outcome: Any) -> State | None:
    """The state that a probe told, if it is one."""
    match outcome:
        case {"value": {"free": list() as free, "refs": list() as refs, "keys": dict() as keys} as value}:
            tables = value.get("tables", {})
            lists = [free, refs]
            if not isinstance(tables, dict) or not all(isinstance(table, list) for table in tables.values()):
                return None
            for table in tables.values():
                lists += table
            if not all(isinstance(each, list) and all(type(item) is int for item in each) for each in lists):
                return None
            keyed = frozenset(int(key) for key in keys if key.isascii() and key.isdigit() and len(key) < 10)
            return State(frozenset(free), refs, keyed, tables, "tables" not in value)
    return None


def _kept(operations: Sequence[Mapping[str, Any]]) -> tuple[int | None, frozenset[int]]:
    """The null block, and those that are reserved."""
    for event in operations:
        match event:
            case {"op": operation, "outcome": {"value": {"null": null, "reserved": list() as reserved}}} if (
                operation in _CREATE
            ):
                kept = frozenset(block for block in reserved if type(block) is int)
                return (null if type(null) is int else None), kept
    return None, frozenset()


def _colours(states: Mapping[int, State]) -> dict[str, str]:
    names = dict.fromkeys(name for state in states.values() for name in state.tables)
    return {name: f"h{number % COLOURS}" for number, name in enumerate(names)}


def _tables(state: State, before: State | None, null: int | None, colours: Mapping[str, str]) -> list[Table]:
    found = []
    for name, table in [*state.tables.items()][:_MOST_TABLES]:
        old = before.tables.get(name, []) if before is not None else []
        groups = []
        for number, blocks in enumerate(table[:_MOST_TABLES]):
            was = old[number] if number < len(old) else []
            groups.append(
                [
                    Cell("-" if block == null else f"{block}", place >= len(was) or was[place] != block)
                    for place, block in enumerate(blocks[:_MOST_CELLS])
                ]
            )
        cut = len(table) > _MOST_TABLES or any(len(blocks) > _MOST_CELLS for blocks in table)
        found.append(Table(name, colours[name], groups, cut))
    return found


def _chart(
    states: Mapping[int, State], null: int | None, reserved: frozenset[int], colours: Mapping[str, str]
) -> Chart | None:
    columns: list[tuple[int, State]] = []
    for number, state in states.items():
        # Behind the last step the law is broken: that all is as before may be why.
        if number > 0 and (not columns or state != columns[-1][1] or number == max(states)):
            columns.append((number, state))
    shown = columns[-_MOST_COLUMNS:]
    kept = {*reserved, null}
    blocks = [
        block
        for block in range(min(_MOST_LOOKED_AT, max((len(state.refs) for _, state in shown), default=0)))
        if block not in kept and any(_kind(state, block, colours)[0] != "free" for _, state in shown)
    ]
    if not blocks:
        return None
    more_blocks = len(blocks) - _MOST_BLOCKS
    blocks = blocks[:_MOST_BLOCKS]
    while len(
        bars := [bar for row, block in enumerate(blocks) for bar in _bars(row, block, shown, colours)]
    ) > (_MOST_BARS):
        shown = shown[(len(shown) + 1) // 2 :]
    left_out = [f"{len(columns) - len(shown)} columns in front"] if len(columns) > len(shown) else []
    left_out += [f"{more_blocks} more blocks"] if more_blocks > 0 else []
    kinds = {bar.kind for bar in bars}
    return Chart(
        width=_LEFT + _COLUMN * len(shown) + 2,
        height=_TOP + _ROW * len(blocks) + 2,
        blocks=[(_TOP + _ROW * row, f"{block}") for row, block in enumerate(blocks)],
        columns=[(_LEFT + _COLUMN * place, number) for place, (number, _) in enumerate(shown)],
        bars=bars,
        kinds=[kind for kind in KINDS if kind in kinds],
        requests=[*colours.items()][: 2 * COLOURS],
        left_out=left_out,
    )


KINDS = {
    "shared": "in tables of several requests",
    "refs": "held, as often as the number says",
    "stray": "held, and in no table",
    "cached": "free, and still has a key",
    "lost": "neither free nor held",
    "clash": "free, and held all the same",
}
"""What a block can be, other than free or in the table of one request."""


def _kind(state: State, block: int, colours: Mapping[str, str]) -> tuple[str, str]:
    """What a block is, and a word to write into it."""
    holders = state.holders.get(block, [])
    held = state.refs[block] if block < len(state.refs) else 0
    if block in state.free and (holders or held):
        return "clash", " ".join(holders) or f"{held}"
    if len(holders) > 1:
        return "shared", " ".join(holders)
    if holders:
        return colours[holders[0]], holders[0]
    if held:
        return ("refs" if state.of_pool else "stray"), f"{held}"
    if block in state.free:
        return ("cached", "key") if block in state.keyed else ("free", "")
    return "lost", ""


def _bars(
    row: int, block: int, columns: Sequence[tuple[int, State]], colours: Mapping[str, str]
) -> Iterator[Bar]:
    """The stretches in which the block is the same, but for those in which it is free."""
    start = 0
    kinds = [_kind(state, block, colours) for _, state in columns]
    for end in range(1, len(kinds) + 1):
        if end < len(kinds) and kinds[end] == kinds[start]:
            continue
        kind, label = kinds[start]
        if kind != "free":
            x, y = _LEFT + _COLUMN * start, _TOP + _ROW * row
            first, last = columns[start][0], columns[end - 1][0]
            when = f"step {first}" if first == last else f"steps {first} to {last}"
            told = f"block {block}, {when}: {KINDS.get(kind) or label}"
            yield Bar(x, y, _COLUMN * (end - start), kind, label[: 4 * (end - start)], told)
        start = end
