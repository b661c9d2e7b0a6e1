"""Each reported fault is found by its law, with a trace in which several operations interact."""

import importlib
import io

import pytest
from rich.console import Console

from kvref_conformance.documents.baseline import NO_BASELINE
from kvref_conformance.documents.results import Row, Status, Trace
from kvref_conformance.laws import LAWS
from kvref_conformance.processes.launch import Launch
from kvref_conformance.report.progress import progress
from kvref_conformance.running.checker import DEPTHS, Options
from kvref_conformance.running.loading import loaded
from kvref_conformance.targets.faults import FAULTS, REPORTED

SHOWN_BY = {
    "start_forgets_what_was_registered": "registry",
    "evicted_block_knows_its_key": "pool",
    "bad_blocks_found_while_held": "FullAttentionSpec",
    "line_outlives_a_reset": "pool",
    "found_again_and_still_the_oldest": "pool",
    "cached_counts_as_used": "pool",
    "removal_told_of_each_copy": "SlidingWindowSpec",
    "tokens_of_skipped_blocks_told": "SlidingWindowSpec",
    "left_behind_and_not_new_again": "SlidingWindowSpec",
    "given_up_twice_while_under_way": "FullAttentionSpec",
    "reference_left_on_the_copy": "SlidingWindowSpec",
    "room_for_drafts_behind_the_longest": "HiddenStateCacheSpec",
    "loaded_state_not_counted": "MambaSpec",
    "fewer_than_before_asserted_away": "MambaSpec",
    "state_found_before_it_is_written": "MambaSpec",
    "state_remembered_over_preemption": "MambaSpec",
    "window_shorter_by_what_is_read_ahead": "SlidingWindowSpec",
    "block_read_ahead_gets_no_key": "SlidingWindowMLASpec",
    "each_look_drops_a_block": "SlidingWindowSpec",
    "one_list_cut_to_the_hit": "MambaSpec",
    "common_if_held_often_enough": "FullAttentionSpec",
    "nothing_left_to_compute": "MLAAttentionSpec",
    "found_once_for_all": "MLAAttentionSpec",
    "later_hashes_begin_anew": "FullAttentionSpec",
    "held_although_refused": "SlidingWindowSpec",
    "one_group_after_the_other": "FullAttentionSpec",
    "found_blocks_cost_nothing": "SlidingWindowSpec",
    "next_in_line_for_the_one_found": "SlidingWindowSpec",
    "table_goes_on_from_before_preemption": "FullAttentionSpec",
    "kept_if_the_request_left_first": "blocks of a pool",
    "given_up_twice_when_done": "blocks of a pool",
    "first_kernel_block_moved": "blocks of a pool",
    "pages_of_the_first_layer_moved": "other heads",
    "chain_ends_at_the_first_layer": "attention",
    "each_stage_plans_alone": "windows",
}
"""The subject that shows each fault soonest."""

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


def short(fault: str) -> str:
    return fault.partition(":")[2]


def meeting(trace: Trace) -> list[str]:
    """The operations of all processes in a trace, without those that only create or report something.

    What is left allocates, frees, looks up, stores, moves, writes, reads, registers or plans something.
    """
    operations = [each["op"] for run in trace["runs"] for each in run["operations"]]
    return [op for op in operations if op not in MAKING | TELLING]


def check_fault(fault: str) -> list[Row]:
    law, _, depth = REPORTED[fault]
    options = Options(laws=(law,), subjects=(SHOWN_BY[short(fault)],), depth=depth)
    with (
        progress(Console(file=io.StringIO())) as watcher,
        loaded(Launch(fault), options.laws, watcher) as one,
    ):
        return one.check(options, NO_BASELINE, watcher).rows


@pytest.mark.parametrize("fault", REPORTED)
def test_reported_fault_is_found(fault: str) -> None:
    rows = check_fault(fault)
    assert {row.status for row in rows} == {Status.BROKEN}
    for row in rows:
        assert row.law == REPORTED[fault].law
        assert row.program
        assert row.trace
        assert len(meeting(row.trace)) >= 3, meeting(row.trace)


def test_every_reported_fault_is_named_once_and_shown_by_something() -> None:
    names = [short(fault) for fault in (*FAULTS, *REPORTED)]
    assert len(set(names)) == len(names)
    assert set(SHOWN_BY) == {short(fault) for fault in REPORTED}


@pytest.mark.parametrize("fault", REPORTED)
def test_where_a_fault_was_reported_is_told_where_it_is(fault: str) -> None:
    law, source, depth = REPORTED[fault]
    module, _, name = fault.partition(":")
    told = getattr(importlib.import_module(module), name).__doc__
    assert source.rpartition(" ")[2].isdigit()
    assert f"({source})." in told
    assert law in LAWS
    assert depth in DEPTHS


def test_operations_that_meet_are_those_that_do_something() -> None:
    made = ["cache.create", "cache.add", "cache.new_step", "cache.lookup", "cache.allocate", "cache.state"]
    runs = [{"operations": [{"op": op} for op in made]}, {"operations": [{"op": "cache.free"}]}]
    assert meeting({"runs": runs}) == ["cache.lookup", "cache.allocate", "cache.free"]
