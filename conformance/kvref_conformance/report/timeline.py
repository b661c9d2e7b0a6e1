"""Prepare one run of a trace for the page: numbered steps, the block tables after each, and a chart.

A run is what one process performed. Here, a *step* is one of its operations, not a step of the scheduler. The
chart shows the state of each block at each step. A target may answer anything, so the chart uses only answers
that have the form that docs/targets.md describes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from kvref_conformance.report.narrate import PROBES, describe_answer, narrate

_CREATE = ("cache.create", "pool.create")

MOST_STEPS = 80
"""At most this many steps of a run are shown: the last ones, because the law breaks there."""
_MOST_COLUMNS = 60
_MOST_BLOCKS = 48
_MOST_LOOKED_AT = 2_000
_MOST_BARS = 600
_MOST_ENTRIES = 600
"""At most this many entries of block tables are shown in a run."""
_MOST_CELLS = 32
"""At most this many entries of one block table are shown."""
_MOST_TABLES = 16

COLOURS = 8
"""The number of colours for requests."""

COLUMN = 44
_LEFT, _TOP, _ROW = 44, 24, 22
"""Sizes in pixels. A cell is `COLUMN` wide and `_ROW` high. The margins for the numbers of blocks and steps
are `_LEFT` and `_TOP`."""
_LETTERS = 5
"""The number of letters that fit into a cell."""


@dataclass(frozen=True)
class State:
    """The state of a pool or a cache, as a probe returned it.

    A probe is an operation that only reads the state.
    """

    free: frozenset[int]
    refs: Sequence[int]
    keyed: frozenset[int]
    tables: Mapping[str, Sequence[Sequence[int]]]
    """By request, the blocks in each group."""
    of_pool: bool
    """Whether this is the state of a pool. A pool has no block tables."""

    @cached_property
    def holders(self) -> dict[int, list[str]]:
        """By block, the requests that have the block in a block table."""
        found: dict[int, list[str]] = {}
        for name, table in self.tables.items():
            for block in {block for group in table for block in group}:
                found.setdefault(block, []).append(name)
        return found


@dataclass(frozen=True)
class Cell:
    """An entry of a block table."""

    block: str
    changed: bool


@dataclass(frozen=True)
class Table:
    """The block tables of a request, one for each group."""

    request: str
    colour: str
    groups: Sequence[Sequence[Cell]]
    cut: bool


@dataclass(frozen=True)
class Step:
    """An operation with its answer. If the block tables changed, also the tables after it."""

    number: int
    operation: str
    answer: str
    tables: Sequence[Table]
    breaks: bool
    """Whether the law breaks at this step."""


@dataclass(frozen=True)
class Bar:
    """A bar in the chart: a block that stays in one state for some steps."""

    x: int
    y: int
    width: int
    kind: str
    label: str
    title: str


@dataclass(frozen=True)
class Chart:
    """A chart with a row for each block and a column for each step."""

    width: int
    height: int
    blocks: Sequence[tuple[int, str]]
    """The top edge and the number of each block."""
    columns: Sequence[tuple[int, int]]
    """The left edge and the number of each step."""
    broken: int | None
    """The left edge of the step at which the law breaks."""
    bars: Sequence[Bar]
    kinds: Sequence[str]
    """The states that the legend explains."""
    requests: Sequence[tuple[str, str]]
    """The name and the colour of each request."""
    left_out: Sequence[str]


@dataclass(frozen=True)
class Run:
    """What one process performed, as the page shows it."""

    flags: str
    steps: Sequence[Step]
    skipped: int
    """The number of earlier operations that are left out."""
    without_tables: int
    """The block tables are left out for all steps up to this number."""
    exact: bool
    """Whether the law names the step at which it breaks. If not, the page marks the last step."""
    chart: Chart | None


def run_of(flags: Sequence[str], operations: Sequence[Mapping[str, Any]], expected: str | None = None) -> Run:
    """Prepare one run of a trace.

    Args:
        flags: the flags of the interpreter.
        operations: operations, or events (operations with answers), in order and including probes.
        expected: what the law expected, if this run breaks it; otherwise None.
    """
    performed = [event for event in operations if event.get("op") not in PROBES]
    lines = _lines(performed)
    named = _named_step(performed, expected or "")
    breaks = (named or len(performed)) if expected is not None else 0
    states = _states(operations)
    null, reserved = _kept(operations)
    colours = _colours(states)
    steps = []
    before: State | None = None
    for number, (event, line) in enumerate(zip(performed, lines, strict=True), 1):
        state = states.get(number)
        changed = state is not None and (before is None or state.tables != before.tables)
        tables = _tables(state, before, null, colours) if state is not None and changed else []
        steps.append(Step(number, line, _answer(event), tables, number == breaks))
        before = state or before
    shown, without = _with_room(steps[-MOST_STEPS:])
    chart = _chart(states, null, reserved, colours, breaks)
    return Run(" ".join(flags), shown, len(steps) - len(shown), without, named is not None, chart)


def _named_step(performed: Sequence[Mapping[str, Any]], expected: str) -> int | None:
    """The number of the last operation that is like the one named in `expected`. None if there is none.

    A law names the operation at the beginning: `after free: ` or `allocate(request=r2, new=1): `.
    """
    named = re.match(r"(after )?(?:[a-z]+\.)?([a-z_]+)(\((?:request=([^,)]*))?)?", expected)
    if named is None or not (named[1] or named[3]):
        return None
    for number in range(len(performed), 0, -1):
        event = performed[number - 1]
        if event["op"].partition(".")[2] == named[2] and (
            named[4] is None or event["args"].get("request") == named[4]
        ):
            return number
    return None


def _with_room(steps: list[Step]) -> tuple[list[Step], int]:
    """Remove the block tables of earlier steps if all tables together have too many entries.

    Returns the steps, and the number of the last step without tables.
    """
    entries = 0
    for step in reversed(steps):
        entries += sum(len(group) for table in step.tables for group in table.groups)
        if entries > _MOST_ENTRIES:
            kept = [each if each.number > step.number else replace(each, tables=[]) for each in steps]
            return kept, step.number
    return steps, 0


def _lines(operations: Sequence[Mapping[str, Any]]) -> list[str]:
    bare = [{"op": each["op"], "args": each["args"]} for each in operations]
    return list(narrate([{"flags": [], "operations": bare}]))


def _answer(event: Mapping[str, Any]) -> str:
    if "outcome" not in event:
        return ""
    try:
        answer = describe_answer(event)
    except Exception:  # the answer has an unexpected form
        return repr(event["outcome"])
    return "" if answer == "done" else answer


def _states(operations: Sequence[Mapping[str, Any]]) -> dict[int, State]:
    """The state after each operation, by the operation's number. Numbers start at 1.

    If several probes follow an operation, the last one counts.
    """
    states: dict[int, State] = {}
    number = 0
    for event in operations:
        if event["op"] not in PROBES:
            number += 1
        elif (state := read_state(event.get("outcome"))) is not None:
            states[number] = state
    return states


def read_state(outcome: Any) -> State | None:
    """The state in the outcome of a probe. None if the outcome does not have the expected form."""
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
    """The number of the null block, and those of the reserved blocks."""
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
    states: Mapping[int, State],
    null: int | None,
    reserved: frozenset[int],
    colours: Mapping[str, str],
    breaks: int,
) -> Chart | None:
    columns: list[tuple[int, State]] = []
    for number, state in states.items():
        # Show the last step even if it changed nothing: the law may break there for this reason.
        if number > 0 and (not columns or state != columns[-1][1] or number in (breaks, max(states))):
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
    left_out = [f"{len(columns) - len(shown)} earlier steps"] if len(columns) > len(shown) else []
    left_out += [f"{more_blocks} more blocks"] if more_blocks > 0 else []
    kinds = {bar.kind for bar in bars}
    return Chart(
        width=_LEFT + COLUMN * len(shown) + 2,
        height=_TOP + _ROW * len(blocks) + 2,
        blocks=[(_TOP + _ROW * row, f"{block}") for row, block in enumerate(blocks)],
        columns=[(_LEFT + COLUMN * place, number) for place, (number, _) in enumerate(shown)],
        broken=next(
            (_LEFT + COLUMN * place for place, (number, _) in enumerate(shown) if number == breaks), None
        ),
        bars=bars,
        kinds=[kind for kind in KINDS if kind in kinds],
        requests=[*colours.items()][: 2 * COLOURS],
        left_out=left_out,
    )


KINDS = {
    "shared": "in the tables of several requests",
    "refs": "referenced, with the reference count",
    "stray": "referenced, with the reference count, and in no table",
    "cached": "free and cached",
    "lost": "neither free nor referenced",
    "clash": "free, but referenced or in a table",
}
"""The states of a block, for the legend. Two need no explanation: free, and in the table of one request."""


def _kind(state: State, block: int, colours: Mapping[str, str]) -> tuple[str, str]:
    """The state of a block, and a label that the chart shows for it."""
    holders = state.holders.get(block, [])
    references = state.refs[block] if block < len(state.refs) else 0
    if block in state.free and (holders or references):
        return "clash", f"!{' '.join(holders) or references}"
    if len(holders) > 1:
        return "shared", " ".join(holders)
    if holders:
        return colours[holders[0]], holders[0]
    if references:
        return ("refs" if state.of_pool else "stray"), f"{references}"
    if block in state.free:
        return ("cached", "key") if block in state.keyed else ("free", "")
    return "lost", "lost"


def _bars(
    row: int, block: int, columns: Sequence[tuple[int, State]], colours: Mapping[str, str]
) -> Iterator[Bar]:
    """Yield a bar for each stretch of steps in which the block keeps one state. A free block gets no bar."""
    start = 0
    kinds = [_kind(state, block, colours) for _, state in columns]
    for end in range(1, len(kinds) + 1):
        if end < len(kinds) and kinds[end] == kinds[start]:
            continue
        kind, label = kinds[start]
        if kind != "free":
            x, y = _LEFT + COLUMN * start, _TOP + _ROW * row
            first, last = columns[start][0], columns[end - 1][0]
            when = f"step {first}" if first == last else f"steps {first} to {last}"
            title = f"block {block}, {when}: {KINDS.get(kind) or label}"
            yield Bar(x, y, COLUMN * (end - start), kind, label[: _LETTERS * (end - start)], title)
        start = end
