"""Checks that a fault breaks exactly its law, for the quick tests and those of tests/nightly."""

import io

from rich.console import Console

from kvref_conformance.documents.baseline import NO_BASELINE
from kvref_conformance.documents.results import Result, Row, Status
from kvref_conformance.laws import ANSWERS, LAWS, Law
from kvref_conformance.processes.launch import Launch
from kvref_conformance.report.progress import progress
from kvref_conformance.running.checker import DEPTH, DEPTHS, Options
from kvref_conformance.running.dispatch import Unit
from kvref_conformance.running.fault_matrix import near
from kvref_conformance.running.loading import Loaded, loaded
from kvref_conformance.running.progress import Silence
from kvref_conformance.running.time_to_find import Trial, try_on
from kvref_conformance.targets.faults import FAULTS
from kvref_strategies.caches import UNKNOWN_KIND
from kvref_strategies.catalogue import WORKLOADS

BRIEF, ISOLATED_BRIEF = 50, 10
"""How many examples the laws get that a fault must not break.

Laws whose workloads need processes of their own get the smaller number, since they are much slower.
"""

CACHE_AREAS = ("manager", "coordinator", "admission", "events", "shadow")
SHOWN_BY = {
    "manager.state-owned": "MambaSpec",
    "spec.memory-covers-held": "MambaSpec",
    "manager.references": "FullAttentionSpec",
    "manager.written-owned": "FullAttentionSpec",
    "connector.failed-load": "FullAttentionSpec",
    "shadow.hit-content": "FullAttentionSpec",
    "shadow.memory": "attention",
    "shadow.no-foreign-write": "FullAttentionSpec",
    "admission.preempt-resume": "FullAttentionSpec",
    "admission.withdrawn-uncached": "FullAttentionSpec",
}
"""Laws whose faults layers with a sliding window do not show, each with a subject that shows them.

The faults of all other laws of the cache are checked with `SlidingWindowSpec` alone. With all subjects, kvref
would find, reduce and confirm most faults once for each spec class.
"""

ALSO = {
    "plan.order-free": {"plan.workers-agree", "plan.one-group"},
    "plan.tensors-cover": {"plan.enough-memory"},
    "spec.page-scaling": {"spec.page-no-waste"},
    "spec.uniform-symmetric": {"spec.uniform-separates"},
    "manager.copies-reported": {"manager.window-kept", "manager.written-owned"},
    "shadow.reads-own": {"shadow.hit-content"},
    "shadow.no-foreign-write": {"shadow.reads-own", "shadow.hit-content"},
}
"""Laws whose fault also breaks other laws of the area, each with these other laws.

If plans depend on the order of layers, two workers with different orders plan different memory. A plan that
counts the memory of its blocks wrongly also misjudges how much memory is enough. A page with bytes that
nothing needs also wastes memory. If a request writes to a block that it shares, every later reader of the
block gets wrong content, with a hit or without. If a hit within a block is not copied, the request writes to
the cached block, and a window may lack its beginning.
"""

COMPARE_HALVES = {"pool.variants-agree", "manager.variants-agree"}
"""Laws that every fault of the plain half breaks as well, because the fast half lacks the fault."""


REPORTED_SHOWN_BY = {
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
"""The subject that shows a fault soonest."""


def check(target: str, *options: Options) -> list[Result]:
    laws = tuple(law for law in LAWS if any(law in one.laws for one in options))
    with (
        progress(Console(file=io.StringIO())) as watcher,
        loaded(Launch(target), laws, watcher) as one,
    ):
        return [one.check(each, NO_BASELINE, watcher) for each in options]


def check_fault(fault: str) -> tuple[list[Row], list[Row]]:
    """The rows of the law that the fault breaks, and the rows of the other laws of its area."""
    law = LAWS[FAULTS[fault]]
    others = tuple(
        other.id
        for other in LAWS.values()
        if other is law or (other.area in near(law.id) and other.id not in COMPARE_HALVES)
    )
    in_cache = law.area in CACHE_AREAS or law.id in SHOWN_BY
    subjects = (SHOWN_BY.get(law.id, "SlidingWindowSpec"),) if in_cache else ()
    # Leave out laws whose workload runs a cache: they are slow, and the faults of the cache already try them.
    fast = [other for other in others if in_cache or not LAWS[other].workload.startswith("cache.")]
    beside = tuple(other for other in fast if other != law.id)
    if law.area in CACHE_AREAS:
        # These laws share their workload, so one check judges them all.
        rows = check(fault, Options(laws=(law.id, *beside), subjects=subjects))[0].rows
        return [row for row in rows if row.law == law.id], [row for row in rows if row.law != law.id]
    own = Options(laws=(law.id,), subjects=subjects)
    slow = tuple(other for other in beside if WORKLOADS[LAWS[other].workload].isolated)
    quick = tuple(other for other in beside if other not in slow)
    depths = {"brief": (quick, BRIEF), "briefer": (slow, ISOLATED_BRIEF)}
    DEPTHS.update({depth: examples for depth, (_, examples) in depths.items()})
    rest = [Options(laws=laws, depth=depth) for depth, (laws, _) in depths.items() if laws]
    judged, *left_alone = check(fault, own, *rest)
    return judged.rows, [row for result in left_alone for row in result.rows]


def breaks_exactly_its_law(fault: str) -> None:
    """Fails unless the fault breaks its law, with a program and a trace, and no other law of its area."""
    law = LAWS[FAULTS[fault]]
    judged, left_alone = check_fault(fault)
    broken = [row for row in judged if row.status is Status.BROKEN]
    assert {row.law for row in broken} == {law.id}
    assert all(row.program and row.trace for row in broken)
    assert {row.status for row in judged if row not in broken and not left_out(row)} <= {Status.HOLDS}
    # If the process of the target ends, the laws under check have no result.
    allowed = {Status.HOLDS, Status.INCOMPLETE} if law is ANSWERS else {Status.HOLDS}
    assert {
        row.title: row.status
        for row in left_alone
        if row.status not in allowed and row.law not in ALSO.get(law.id, ()) and not left_out(row)
    } == {}


def left_out(row: Row) -> bool:
    """Whether the law does not apply because the reference lacks what it judges, a plugin for example."""
    reasons = ["there is no plugin", UNKNOWN_KIND, "the target does not declare the capability partial_hits"]
    if row.law != ANSWERS.id:
        reasons.append(WORKLOADS[LAWS[row.law].workload].unobserved)
    return row.status is Status.NOT_APPLICABLE and row.message in reasons


def look_for(fault: str, law: str, subject: str | None, reference: Loaded, depth: str = DEPTH) -> Trial:
    """Make examples of the subject, or of all subjects, until the law finds the fault.

    Loading a host takes longer than finding a fault. So if possible, the units are forked from the host of
    the reference and load the fault themselves.
    """

    def of_the_subject(units: list[Unit]) -> list[Unit]:
        return [unit for unit in units if subject is None or unit.subject == subject]

    def try_in(host: Loaded, fault: str = "") -> Trial:
        return try_on(host, (law,), chosen=of_the_subject, until=(law,), depth=depth, fault=fault)

    if not needs_its_own_host(LAWS[law]):
        return try_in(reference, fault)
    with loaded(Launch(fault), (law,), Silence()) as host:
        return try_in(host)


def needs_its_own_host(law: Law) -> bool:
    """Whether only a host that has loaded a fault of this law shows it.

    That is so if examples run in processes forked from the host, or if the fault comes with a plugin or a
    capability.
    """
    isolated = law is ANSWERS or WORKLOADS[law.workload].isolated
    return isolated or law.area == "drift" or bool(law.capabilities)
