"""Checks that a fault breaks exactly its law, for the quick tests and those of tests/nightly."""

import io

from rich.console import Console

from kvref_conformance.documents.baseline import NO_BASELINE
from kvref_conformance.documents.results import Result, Row, Status
from kvref_conformance.laws import ANSWERS, LAWS
from kvref_conformance.processes.launch import Launch
from kvref_conformance.report.progress import progress
from kvref_conformance.running.checker import DEPTHS, Options
from kvref_conformance.running.fault_matrix import near
from kvref_conformance.running.loading import loaded
from kvref_conformance.targets.faults import FAULTS
from kvref_strategies.caches import UNKNOWN_KIND
from kvref_strategies.catalogue import WORKLOADS

BRIEF, ISOLATED_BRIEF = 30, 10
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
