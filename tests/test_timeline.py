"""Which request holds which block, as the page of a report draws it."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from kvref_conformance.report.narrate import PROBES
from kvref_conformance.report.timeline import COLUMN, MOST_STEPS, Run, read_state, run_of

CREATE = {
    "op": "cache.create",
    "args": {"num_blocks": 6},
    "outcome": {"value": {"null": 0, "reserved": [5]}},
}


def op(name: str, outcome: Any = None, **args: Any) -> dict[str, Any]:
    return {"op": name, "args": args, "outcome": {"value": outcome}}


def probe(
    free: list[int],
    refs: list[int],
    tables: dict[str, list[list[int]]] | None = None,
    keys: dict[str, list[str]] | None = None,
) -> dict[str, Any]:
    told = {"free": free, "refs": refs, "keys": keys or {}, "free_count": len(free), "found": {}}
    if tables is None:
        return op("pool.state", told)
    return op("cache.state", {**told, "tables": tables, "pins": []})


def cache(*events: dict[str, Any]) -> Run:
    return run_of([], [CREATE, *events])


def drawn(run: Run) -> dict[str, list[tuple[str, str, int]]]:
    """The bars of each block: kind, label, and width in columns."""
    assert run.chart is not None
    return {
        block: [(bar.kind, bar.label, bar.width // COLUMN) for bar in run.chart.bars if bar.y == y]
        for y, block in run.chart.blocks
    }


def test_blocks_are_followed_through_the_steps() -> None:
    run = cache(
        probe([1, 2, 3, 4], [0, 0, 0, 0, 0, 1], {}),
        op("cache.allocate", {"added": [[1, 2]]}, request="r1"),
        probe([3, 4], [0, 1, 1, 0, 0, 1], {"r1": [[1, 2]]}),
        op("cache.new_step"),
        probe([3, 4], [0, 1, 1, 0, 0, 1], {"r1": [[1, 2]]}),
        op("cache.allocate", {"added": [[1]]}, request="r2"),
        probe([3, 4], [0, 2, 1, 0, 0, 1], {"r1": [[1, 2]], "r2": [[1]]}),
        op("cache.free", request="r1"),
        probe([2, 3, 4], [0, 1, 0, 0, 0, 1], {"r2": [[1]]}, {"2": ["k"]}),
    )
    # The chart leaves out the null block, the reserved block and blocks that were free all the time.
    assert drawn(run) == {
        "1": [("h0", "r1", 1), ("shared", "r1 r2", 1), ("h1", "r2", 1)],
        "2": [("h0", "r1", 2), ("cached", "key", 1)],
    }
    assert run.chart is not None
    # A step that changes nothing has no column, unless it is the last one.
    assert [number for _, number in run.chart.columns] == [1, 2, 4, 5]
    assert run.chart.requests == [("r1", "h0"), ("r2", "h1")]
    assert run.chart.kinds == ["shared", "cached"]
    assert [step.number for step in run.steps] == [1, 2, 3, 4, 5]
    told = {
        step.number: [
            (table.request, [[(cell.block, cell.changed) for cell in group] for group in table.groups])
            for table in step.tables
        ]
        for step in run.steps
    }
    assert told == {
        1: [],
        2: [("r1", [[("1", True), ("2", True)]])],
        3: [],
        4: [("r1", [[("1", False), ("2", False)]]), ("r2", [[("1", True)]])],
        5: [("r2", [[("1", False)]])],
    }


def test_the_last_step_is_drawn_though_it_changed_nothing() -> None:
    held = probe([2, 3, 4], [0, 1, 0, 0, 0, 1], {"r1": [[1]]})
    run = cache(op("cache.allocate"), held, op("cache.new_step"), held, op("cache.free"), held)
    assert run.chart is not None
    assert [number for _, number in run.chart.columns] == [2, 4]
    assert drawn(run) == {"1": [("h0", "r1", 2)]}


def test_null_blocks_and_groups_in_tables() -> None:
    run = cache(
        op("cache.allocate"),
        probe([3], [0, 1, 1, 0, 0, 1], {"r1": [[0, 1], [2, 2]]}),
        op("cache.allocate"),
        probe([3], [0, 1, 1, 0, 0, 1], {"r1": [[0, 0], [2, 2]]}),
    )
    groups = run.steps[-1].tables[0].groups
    assert [[cell.block for cell in group] for group in groups] == [["-", "-"], ["2", "2"]]
    assert [[cell.changed for cell in group] for group in groups] == [[False, True], [False, False]]


def test_what_should_not_be_is_told_apart() -> None:
    run = cache(op("cache.free"), probe([1, 2], [0, 1, 0, 1, 0, 1], {"r1": [[1]]}))
    assert drawn(run) == {"1": [("clash", "!r1", 1)], "3": [("stray", "1", 1)], "4": [("lost", "lost", 1)]}
    # A block that is still referenced after all requests have ended is drawn in the same way.
    run = cache(op("cache.free"), probe([2, 3, 4], [0, 1, 0, 0, 0, 1], {}))
    assert drawn(run) == {"1": [("stray", "1", 1)]}
    run = run_of([], [op("pool.touch"), probe([], [2, 1])])
    assert drawn(run) == {"0": [("refs", "2", 1)], "1": [("refs", "1", 1)]}


def test_operations_without_answers_are_told_and_nothing_is_drawn() -> None:
    run = run_of(["-O"], [{"op": "pool.usage", "args": {}}, {"op": "pool.state", "args": {}}])
    assert (run.flags, run.chart) == ("-O", None)
    assert [(step.operation, step.answer) for step in run.steps] == [("read the usage", "")]
    run = run_of([], [{"op": "pool.usage", "args": {}, "outcome": {"died": "signal 6"}}])
    assert run.steps[0].answer == "the process died: signal 6"


def test_the_step_at_which_the_law_breaks() -> None:
    steps = [
        op("cache.allocate", request="r1"),
        op("cache.allocate", request="r2"),
        op("cache.free", request="r1"),
        op("cache.new_step"),
    ]
    for expected, number, exact in (
        ("after allocate(request=r1, new=1): one block", 1, True),
        ("allocate(request=r2): one block", 2, True),
        ("after free: nothing", 3, True),
        ("after cache.free: nothing", 3, True),
        ("free blocks", 4, False),
        ("after reset: nothing", 4, False),
        ("", 4, False),
    ):
        run = run_of([], steps, expected)
        assert ([step.number for step in run.steps if step.breaks], run.exact) == ([number], exact)
    assert not any(step.breaks for step in run_of([], steps).steps)


def test_much_is_cut_at_its_beginning_and_said_so() -> None:
    events = []
    for number in range(100):
        refs = [int(block <= number) for block in range(100)]
        events += [op("pool.get_new_blocks", num_blocks=1), probe([], refs)]
    run = run_of([], events)
    assert (len(run.steps), run.skipped, run.steps[-1].number) == (MOST_STEPS, 100 - MOST_STEPS, 100)
    assert run.chart is not None
    assert run.chart.columns[-1][1] == 100
    assert run.chart.left_out == ["40 earlier steps", "52 more blocks"]


def test_tables_are_told_where_there_is_room_from_the_end_on() -> None:
    events = []
    for number in range(1, 61):
        table = [1 + (number + place) % 30 for place in range(25)]
        events += [op("cache.allocate"), probe([], [1] * 32, {"r1": [table]})]
    run = cache(*events)
    assert run.without_tables == 61 - 24
    assert [bool(step.tables) for step in run.steps] == [False] * 37 + [True] * 24


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=10,
)
numbers = st.lists(st.integers() | st.booleans(), max_size=5)
state_like = st.fixed_dictionaries(
    {"free": numbers | json_like, "refs": numbers | json_like},
    optional={
        "keys": st.dictionaries(st.text(max_size=3), json_like, max_size=3) | json_like,
        "tables": st.dictionaries(st.text(max_size=3), st.lists(numbers | json_like, max_size=3), max_size=3)
        | json_like,
    },
)
outcomes = st.one_of(
    st.fixed_dictionaries({"value": state_like | json_like}),
    st.fixed_dictionaries({"value": st.fixed_dictionaries({"null": json_like, "reserved": json_like})}),
    st.fixed_dictionaries(
        {"value": st.fixed_dictionaries({"groups": st.lists(st.dictionaries(st.text(), json_like))})}
    ),
    st.just({"died": "signal 6"}),
)


@given(st.lists(st.tuples(st.sampled_from([*PROBES, "cache.create", "pool.usage"]), outcomes), max_size=8))
def test_whatever_a_target_answers_can_be_told(answers: list[tuple[str, Any]]) -> None:
    events = [{"op": operation, "args": {}, "outcome": outcome} for operation, outcome in answers]
    run = run_of([], events)
    assert len(run.steps) == sum(operation not in PROBES for operation, _ in answers)


@given(outcomes)
def test_a_state_is_numbers_and_nothing_else(outcome: Any) -> None:
    state = read_state(outcome)
    if state is not None:
        lists = [[*state.free], state.refs, *(group for table in state.tables.values() for group in table)]
        assert all(type(item) is int for each in lists for item in each)
