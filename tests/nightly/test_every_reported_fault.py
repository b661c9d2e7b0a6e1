"""Each reported fault is found, reduced and confirmed, with a trace in which several operations meet."""

import pytest
from faulty import REPORTED_SHOWN_BY, check

from kvref_conformance.documents.results import Row, Status, Trace
from kvref_conformance.running.checker import Options
from kvref_conformance.targets.faults import REPORTED

MAKING = {
    *("registry.initialise", "registry.define_spec", "registry.define_manager"),
    *("specs.build", "specs.derive", "specs.max_memory"),
    *(
        "pool.create",
        "cache.create",
        "cache.add",
        "tensors.allocate",
        "canonical.register",
        "connector.create",
    ),
}
"""Operations that only create the things under test."""

TELLING = {
    *("pool.state", "cache.state", "cache.new_step", "cache.progress", "cache.block_ids"),
    *("cache.take_copies", "cache.take_new_block_ids", "cache.take_events"),
}
"""Operations that only report something, or that every step contains."""


def meeting(trace: Trace) -> list[str]:
    """The operations of a trace that do more than create or report something."""
    operations = [each["op"] for run in trace["runs"] for each in run["operations"]]
    return [op for op in operations if op not in MAKING | TELLING]


def check_fault(fault: str) -> list[Row]:
    law, _, depth = REPORTED[fault]
    options = Options(laws=(law,), subjects=(REPORTED_SHOWN_BY[fault.partition(":")[2]],), depth=depth)
    return check(fault, options)[0].rows


@pytest.mark.parametrize("fault", REPORTED)
def test_reported_fault_is_found(fault: str) -> None:
    rows = check_fault(fault)
    assert {row.status for row in rows} == {Status.BROKEN}
    for row in rows:
        assert row.law == REPORTED[fault].law
        assert row.program
        assert row.trace
        assert len(meeting(row.trace)) >= 3, meeting(row.trace)


def test_operations_that_meet_are_those_that_do_something() -> None:
    made = ["cache.create", "cache.add", "cache.new_step", "cache.lookup", "cache.allocate", "cache.state"]
    runs = [{"operations": [{"op": op} for op in made]}, {"operations": [{"op": "cache.free"}]}]
    assert meeting({"runs": runs}) == ["cache.lookup", "cache.allocate", "cache.free"]
