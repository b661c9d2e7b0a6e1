"""What a user sees of a broken law: a small example, and a message that says what is wrong.

`pytest tests/test_counterexamples.py --snapshot-update` updates the messages. Read what has changed.
"""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from kvref_conformance.documents.baseline import NO_BASELINE
from kvref_conformance.documents.results import Result, Row, Status
from kvref_conformance.processes.launch import Launch
from kvref_conformance.report.progress import progress
from kvref_conformance.report.terminal import render
from kvref_conformance.running.checker import Options
from kvref_conformance.running.loading import loaded
from kvref_conformance.targets.faults import FAULTS

SMALLEST = [
    ("registry:second_registration_wins", "registry", 7),
    ("spec:alignment_lost_in_merge", "FullAttentionSpec", 2),
    ("plan:blocks_of_the_first_worker", "windows", 6),
    ("pool:null_block_gets_a_key", "pool", 11),
    ("manager:window_freed_one_block_early", "SlidingWindowSpec", 41),
    ("coordinator:short_prompts_not_looked_up", "FullAttentionSpec", 6),
    ("admission:keys_kept_of_what_is_not_computed", "FullAttentionSpec", 34),
    ("events:first_of_several_not_told", "FullAttentionSpec", 14),
    ("sharing:targets_followed_for_ever", "cycles", 1),
    ("tensors:padding_left_out_of_strides", "padded pages", 6),
    ("shadow:salt_not_hashed", "FullAttentionSpec", 48),
]
"""Faults, each with a subject that shows it and the largest number of operations that the example may have.

Operations that only show the state do not count: nobody has to perform them to get the fault.
"""


def check(fault: str, subject: str) -> Result:
    target = f"kvref_conformance.targets.faults.{fault}"
    law = FAULTS[target]
    with progress(Console(file=io.StringIO())) as watcher, loaded(Launch(target), (law,), watcher) as one:
        return one.check(Options(laws=(law,), subjects=(subject,)), NO_BASELINE, watcher)


def size(row: Row) -> int:
    assert row.trace is not None
    operations = [operation["op"] for run in row.trace["runs"] for operation in run["operations"]]
    return sum(not operation.endswith(".state") for operation in operations)


def shown(result: Result, row: Row) -> str:
    """The message without the times."""
    timeless = replace(row, seconds=0.0, exploring_seconds=0.0, driven_seconds=0.0)
    console = Console(file=io.StringIO(), width=100)
    render(replace(result, rows=[timeless], elapsed_seconds=0.0), console, verbose=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(("fault", "subject", "most"), SMALLEST)
def test_smallest_example(fault: str, subject: str, most: int, snapshot: SnapshotAssertion) -> None:
    result = check(fault, subject)
    broken = [row for row in result.rows if row.status is Status.BROKEN]
    smallest = min(broken, key=size)
    assert size(smallest) <= most
    assert shown(result, smallest) == snapshot
