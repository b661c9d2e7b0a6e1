"""The reference with one deliberate fault each: evidence that a law can fail, and that only it does.

A fault is a target, `kvref check kvref_conformance.faults.spec:alignment_lost_in_merge` for one. Loading it
changes the reference for the whole process, so a fault is loaded in a process of its own, as targets are.
"""

from __future__ import annotations

FAULTS: dict[str, str] = {
    "kvref_conformance.faults.registry:base_of_the_farthest_ancestor": "registry.nearest-base",
    "kvref_conformance.faults.registry:built_ins_only_into_an_empty_table": "registry.order-free",
    "kvref_conformance.faults.registry:second_registration_wins": "registry.conflict-refused",
    "kvref_conformance.faults.registry:conflict_refused_by_assert": "registry.refusals-survive-O",
    "kvref_conformance.faults.spec:state_padding_ignored": "spec.padding-honoured",
    "kvref_conformance.faults.spec:padding_stored_at_copy": "spec.copy-consistent",
    "kvref_conformance.faults.spec:alignment_lost_in_merge": "spec.merge-identity",
    "kvref_conformance.faults.spec:block_size_not_compared_in_merge": "spec.merge-refuses-unequal",
    "kvref_conformance.faults.target:merge_ends_the_process": "target.answers",
}
"""Target name of each fault, and the one law that it breaks."""
