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
    "kvref_conformance.faults.registry:second_registration_refused": "registry.idempotent",
    "kvref_conformance.faults.registry:any_base_accepted": "registry.base-is-ancestor",
    "kvref_conformance.faults.registry:override_forgets_the_base": "registry.override",
    "kvref_conformance.faults.registry:uniform_whatever_the_base": "registry.base-agrees",
    "kvref_conformance.faults.registry:early_look_ups_remembered": "registry.every-process",
    "kvref_conformance.faults.registry:hook_seen_half_way": "registry.concurrent",
    "kvref_conformance.faults.spec:hashed_by_identity": "spec.frozen-hashable",
    "kvref_conformance.faults.spec:alignment_not_pickled": "spec.pickle-round-trip",
    "kvref_conformance.faults.spec:window_not_checked": "spec.illegal-refused",
    "kvref_conformance.faults.spec:page_size_is_a_float": "spec.page-positive",
    "kvref_conformance.faults.spec:scales_not_counted": "spec.page-covers-content",
    "kvref_conformance.faults.spec:page_with_a_header": "spec.page-scaling",
    "kvref_conformance.faults.spec:memory_of_part_of_a_page": "spec.memory-monotone",
    "kvref_conformance.faults.spec:memory_of_all_behind_the_window": "spec.memory-window-flat",
    "kvref_conformance.faults.spec:window_of_the_first": "spec.merge-order-free",
    "kvref_conformance.faults.spec:merged_as_what_they_have_in_common": "spec.merge-keeps-class",
    "kvref_conformance.faults.spec:uniform_if_the_first_window_is_enough": "spec.uniform-symmetric",
    "kvref_conformance.faults.spec:windows_compared_before_kinds": "spec.uniform-total",
    "kvref_conformance.faults.spec:state_padding_ignored": "spec.padding-honoured",
    "kvref_conformance.faults.spec:padding_stored_at_copy": "spec.copy-consistent",
    "kvref_conformance.faults.spec:alignment_lost_in_merge": "spec.merge-identity",
    "kvref_conformance.faults.spec:block_size_not_compared_in_merge": "spec.merge-refuses-unequal",
    "kvref_conformance.faults.pool:found_blocks_counted_as_free": "pool.partition",
    "kvref_conformance.faults.pool:shared_blocks_counted_once": "pool.ref-model",
    "kvref_conformance.faults.pool:null_block_gets_a_key": "pool.null-block",
    "kvref_conformance.faults.pool:negative_number_is_none": "pool.bad-input-refused",
    "kvref_conformance.faults.pool:beginning_lost_before_the_end": "pool.reuse-order",
    "kvref_conformance.faults.pool:second_key_stays_in_the_index": "pool.hash-metadata",
    "kvref_conformance.faults.pool:refused_reset_clears_what_is_free": "pool.reset",
    "kvref_conformance.faults.plugin:hook_at_every_look_up": "registry.hook-once",
    "kvref_conformance.faults.plugin:stock_pages_changed": "registry.stock-untouched",
    "kvref_conformance.faults.plugin:override_not_reached": "drift.hook-reached",
    "kvref_conformance.faults.plugin:parameter_added_by_override": "drift.signature",
    "kvref_conformance.faults.plugin:patch_of_a_name_imported_before": "drift.patch-target",
    "kvref_conformance.faults.target:merge_ends_the_process": "target.answers",
}
"""Target name of each fault, and the one law that it breaks."""
