"""The reference with one deliberate fault each: evidence that a law can fail, and that only it does.

`FAULTS` has one for each law. `REPORTED` has what really went wrong in caches of others, as far as it can go
wrong in the reference: evidence that the laws find what is found by accident, and late.

A fault is a target, `kvref check kvref_conformance.faults.spec:alignment_lost_in_merge` for one. Loading it
changes the reference for the whole process, so a fault is loaded in a process of its own, as targets are.
"""

from __future__ import annotations

from typing import NamedTuple

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
    "kvref_conformance.faults.registry:second_base_refused": "registry.total",
    "kvref_conformance.faults.registry:hook_never_run": "registry.hook-seen",
    "kvref_conformance.faults.registry:defaults_in_a_substitute": "registry.substitute",
    "kvref_conformance.faults.registry:manager_without_look_ahead": "registry.constructible",
    "kvref_conformance.faults.spec:window_of_one_token_refused": "spec.build-total",
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
    "kvref_conformance.faults.plan:registration_not_checked": "registry.unregistered-refused",
    "kvref_conformance.faults.plan:incomplete_groups_left_out": "plan.partition",
    "kvref_conformance.faults.plan:one_type_if_the_first_is_the_largest": "plan.order-free",
    "kvref_conformance.faults.plan:one_group_whatever_the_managers": "plan.one-manager",
    "kvref_conformance.faults.plan:pages_that_do_not_divide_left_alone": "plan.page-unified",
    "kvref_conformance.faults.plan:windows_not_as_full_attention": "plan.one-group",
    "kvref_conformance.faults.plan:given_specs_replaced": "plan.inputs-unchanged",
    "kvref_conformance.faults.plan:null_block_on_top": "plan.tensors-cover",
    "kvref_conformance.faults.plan:coarser_hits_unmentioned": "plan.lcm-bounded",
    "kvref_conformance.faults.plan:block_size_of_the_first_group_checked": "plan.scheduler-block",
    "kvref_conformance.faults.plan:blocks_of_the_first_worker": "plan.workers-agree",
    "kvref_conformance.faults.plan:concurrency_by_the_first_group": "plan.reports-agree",
    "kvref_conformance.faults.plan:null_block_for_each_group": "plan.enough-memory",
    "kvref_conformance.faults.pool:found_blocks_counted_as_free": "pool.partition",
    "kvref_conformance.faults.pool:shared_blocks_counted_once": "pool.ref-model",
    "kvref_conformance.faults.pool:null_block_gets_a_key": "pool.null-block",
    "kvref_conformance.faults.pool:negative_number_is_none": "pool.bad-input-refused",
    "kvref_conformance.faults.pool:beginning_lost_before_the_end": "pool.reuse-order",
    "kvref_conformance.faults.pool:second_key_stays_in_the_index": "pool.hash-metadata",
    "kvref_conformance.faults.pool:refused_reset_clears_what_is_free": "pool.reset",
    "kvref_conformance.faults.pool:fast_pool_reuses_the_beginning_first": "pool.variants-agree",
    "kvref_conformance.faults.spec:one_state_counted": "spec.memory-covers-held",
    "kvref_conformance.faults.events:first_of_several_not_told": "events.replay",
    "kvref_conformance.faults.events:hash_block_size_told": "events.metadata",
    "kvref_conformance.faults.events:parent_of_the_stored_before": "events.content",
    "kvref_conformance.faults.manager:reset_refused_by_an_error": "manager.calls-total",
    "kvref_conformance.faults.manager:window_freed_one_block_early": "manager.window-kept",
    "kvref_conformance.faults.manager:single_blocks_not_freed": "manager.window-freed",
    "kvref_conformance.faults.manager:found_blocks_counted_twice": "manager.need-exact",
    "kvref_conformance.faults.manager:refused_when_little_is_free": "manager.need-shrinks",
    "kvref_conformance.faults.manager:cap_without_tokens_in_flight": "manager.held-bounded",
    "kvref_conformance.faults.manager:found_blocks_held_twice": "manager.references",
    "kvref_conformance.faults.manager:last_block_of_another_request": "manager.written-owned",
    "kvref_conformance.faults.manager:state_written_over_the_one_found": "manager.state-owned",
    "kvref_conformance.faults.manager:new_blocks_told_again": "manager.new-ids",
    "kvref_conformance.faults.manager:last_new_block_not_told": "manager.zeroing-reported",
    "kvref_conformance.faults.manager:kept_while_under_way": "manager.free-returns-all",
    "kvref_conformance.faults.manager:hit_within_a_block_not_copied": "manager.copies-reported",
    "kvref_conformance.faults.manager:settled_a_token_too_long": "manager.variants-agree",
    "kvref_conformance.faults.coordinator:hashes_finer_than_blocks_refused": "coordinator.constructible",
    "kvref_conformance.faults.coordinator:blocks_of_the_first_group_for_all": "coordinator.hit-maximal",
    "kvref_conformance.faults.coordinator:list_not_cut_to_the_hit": "coordinator.hit-aligned",
    "kvref_conformance.faults.coordinator:last_full_block_gets_no_key": "coordinator.resend-hits",
    "kvref_conformance.faults.coordinator:two_units_for_reading_ahead": "coordinator.eagle-one-unit",
    "kvref_conformance.faults.coordinator:short_prompts_not_looked_up": "coordinator.lookup-total",
    "kvref_conformance.faults.coordinator:common_prefix_one_block_longer": "coordinator.common-prefix",
    "kvref_conformance.faults.admission:block_taken_before_the_refusal": "admission.none-changes-nothing",
    "kvref_conformance.faults.admission:enough_as_long_as_any_is_free": "admission.never-raises",
    "kvref_conformance.faults.admission:found_blocks_lose_their_keys": "admission.hits-pinned",
    "kvref_conformance.faults.admission:memory_of_the_window_alone": "admission.feasible-completes",
    "kvref_conformance.faults.admission:keys_kept_of_what_is_not_computed": "admission.withdrawn-uncached",
    "kvref_conformance.faults.admission:longest_request_must_fit": "admission.progress",
    "kvref_conformance.faults.plugin:hook_at_every_look_up": "registry.hook-once",
    "kvref_conformance.faults.plugin:stock_pages_changed": "registry.stock-untouched",
    "kvref_conformance.faults.plugin:override_not_reached": "drift.hook-reached",
    "kvref_conformance.faults.plugin:parameter_added_by_override": "drift.signature",
    "kvref_conformance.faults.plugin:patch_of_a_name_imported_before": "drift.patch-target",
    "kvref_conformance.faults.hashes:salt_taken_for_the_adapter": "hash.total",
    "kvref_conformance.faults.hashes:items_hashed_by_name_alone": "hash.injective",
    "kvref_conformance.faults.hashes:items_of_the_whole_prompt_hashed": "hash.shared",
    "kvref_conformance.faults.hashes:key_of_the_first_hash_block": "hash.granularity",
    "kvref_conformance.faults.hashes:adapter_hashed_by_python": "hash.stable-across-processes",
    "kvref_conformance.faults.tensors:nothing_for_a_single_layer": "tensors.allocate-total",
    "kvref_conformance.faults.tensors:layers_on_one_another": "tensors.in-bounds",
    "kvref_conformance.faults.tensors:padding_left_out_of_strides": "tensors.block-stride",
    "kvref_conformance.faults.tensors:two_blocks_taken_for_k_and_v": "tensors.layout-stable",
    "kvref_conformance.faults.tensors:first_kernel_block_of_each": "tensors.kernel-split",
    "kvref_conformance.faults.tensors:null_block_not_planned": "tensors.sum-is-plan",
    "kvref_conformance.faults.tensors:last_byte_not_cleared": "tensors.zeroed",
    "kvref_conformance.faults.tensors:contiguous_not_heeded": "tensors.one-buffer",
    "kvref_conformance.faults.canonical:copied_forwards_alone": "canonical.total",
    "kvref_conformance.faults.canonical:bytes_without_a_sign": "canonical.shape",
    "kvref_conformance.faults.canonical:sharing_layers_referenced_too": "canonical.covers-once",
    "kvref_conformance.faults.canonical:first_piece_copied": "canonical.round-trip",
    "kvref_conformance.faults.canonical:a_group_more": "canonical.group-refs",
    "kvref_conformance.faults.connector:nothing_submitted_meanwhile": "connector.total",
    "kvref_conformance.faults.connector:stored_blocks_not_held": "connector.held-until-sent",
    "kvref_conformance.faults.connector:keys_for_all_that_was_to_be_loaded": "connector.failed-load",
    "kvref_conformance.faults.sharing:states_and_content_exchanged": "sharing.alias",
    "kvref_conformance.faults.sharing:second_layer_where_the_first_is": "sharing.isolated",
    "kvref_conformance.faults.sharing:memory_for_each_layer": "sharing.no-cost",
    "kvref_conformance.faults.sharing:targets_without_targets": "sharing.chain-resolves",
    "kvref_conformance.faults.sharing:targets_listed_before": "sharing.order-free",
    "kvref_conformance.faults.sharing:targets_followed_for_ever": "sharing.cycle-refused",
    "kvref_conformance.faults.sharing:unknown_targets_left_out": "sharing.dangling-refused",
    "kvref_conformance.faults.sharing:joined_again": "sharing.grouped-once",
    "kvref_conformance.faults.shadow:freed_under_a_step": "shadow.reads-own",
    "kvref_conformance.faults.shadow:salt_not_hashed": "shadow.hit-content",
    "kvref_conformance.faults.shadow:block_of_two_requests": "shadow.no-foreign-write",
    "kvref_conformance.faults.shadow:sharer_bound_to_another_owner": "shadow.memory",
    "kvref_conformance.faults.shadow:block_of_another_for_who_comes_back": "admission.preempt-resume",
    "kvref_conformance.faults.target:merge_ends_the_process": "target.answers",
}
"""Target name of each fault, and the one law that it breaks."""


class Reported(NamedTuple):
    """What is known of a fault that others have reported of a cache of theirs."""

    law: str
    """The law that is meant to find it."""
    source: str
    """Where it was reported. The fault has the idea of it, and nothing else."""
    depth: str = "quick"
    """From which depth on the law finds it."""


REPORTED: dict[str, Reported] = {
    "kvref_conformance.faults.reported_registry:start_forgets_what_was_registered": Reported(
        "registry.every-process", "vLLM issue 18740"
    ),
    "kvref_conformance.faults.reported_pool:evicted_block_knows_its_key": Reported(
        "pool.hash-metadata", "kvcached issue 362"
    ),
    "kvref_conformance.faults.reported_pool:bad_blocks_found_while_held": Reported(
        "connector.failed-load", "vLLM PR 26813"
    ),
    "kvref_conformance.faults.reported_pool:line_outlives_a_reset": Reported(
        "pool.partition", "SGLang PR 26009"
    ),
    "kvref_conformance.faults.reported_pool:found_again_and_still_the_oldest": Reported(
        "pool.reuse-order", "antonellof/ferrox PR 14"
    ),
    "kvref_conformance.faults.reported_pool:cached_counts_as_used": Reported(
        "pool.null-block", "xLLM-AI/xllm PR 829"
    ),
    "kvref_conformance.faults.reported_pool:removal_told_of_each_copy": Reported(
        "events.replay", "vLLM PR 55092"
    ),
    "kvref_conformance.faults.reported_pool:tokens_of_skipped_blocks_told": Reported(
        "events.metadata", "vLLM issue 44451"
    ),
    "kvref_conformance.faults.reported_managers:left_behind_and_not_new_again": Reported(
        "manager.zeroing-reported", "vLLM PR 47574"
    ),
    "kvref_conformance.faults.reported_managers:given_up_twice_while_under_way": Reported(
        "manager.free-returns-all", "sgl-project/sglang-jax PR 994"
    ),
    "kvref_conformance.faults.reported_managers:reference_left_on_the_copy": Reported(
        "manager.references", "Avarok-Cybersecurity/atlas PR 373"
    ),
    "kvref_conformance.faults.reported_managers:room_for_drafts_behind_the_longest": Reported(
        "manager.held-bounded", "vLLM PR 53812", "standard"
    ),
    "kvref_conformance.faults.reported_managers:loaded_state_not_counted": Reported(
        "admission.never-raises", "vLLM PR 46892", "standard"
    ),
    "kvref_conformance.faults.reported_managers:fewer_than_before_asserted_away": Reported(
        "manager.need-shrinks", "weicj/vLLM-2080Ti-Definitive PR 137"
    ),
    "kvref_conformance.faults.reported_managers:state_found_before_it_is_written": Reported(
        "shadow.hit-content", "kvcached PR 363"
    ),
    "kvref_conformance.faults.reported_managers:state_remembered_over_preemption": Reported(
        "admission.preempt-resume", "vLLM PR 35157"
    ),
    "kvref_conformance.faults.reported_hits:window_shorter_by_what_is_read_ahead": Reported(
        "coordinator.hit-maximal", "vLLM PR 17398"
    ),
    "kvref_conformance.faults.reported_hits:block_read_ahead_gets_no_key": Reported(
        "coordinator.eagle-one-unit", "vLLM PR 44082", "standard"
    ),
    "kvref_conformance.faults.reported_hits:each_look_drops_a_block": Reported(
        "coordinator.eagle-one-unit", "vLLM issue 32802"
    ),
    "kvref_conformance.faults.reported_hits:one_list_cut_to_the_hit": Reported(
        "coordinator.hit-aligned", "vllm-ascend PR 14810", "standard"
    ),
    "kvref_conformance.faults.reported_hits:common_if_held_often_enough": Reported(
        "coordinator.common-prefix", "vLLM issue 23130", "standard"
    ),
    "kvref_conformance.faults.reported_hits:nothing_left_to_compute": Reported(
        "coordinator.hit-aligned", "vLLM PR 3239"
    ),
    "kvref_conformance.faults.reported_hits:found_once_for_all": Reported(
        "coordinator.hit-maximal", "vLLM PR 17305"
    ),
    "kvref_conformance.faults.reported_hits:later_hashes_begin_anew": Reported(
        "shadow.hit-content", "inference-sim/inference-sim issue 209"
    ),
    "kvref_conformance.faults.reported_admission:held_although_refused": Reported(
        "admission.none-changes-nothing", "vLLM PR 11565"
    ),
    "kvref_conformance.faults.reported_admission:one_group_after_the_other": Reported(
        "shadow.hit-content", "vLLM PR 44409"
    ),
    "kvref_conformance.faults.reported_admission:found_blocks_cost_nothing": Reported(
        "admission.never-raises", "vLLM PR 6849"
    ),
    "kvref_conformance.faults.reported_admission:next_in_line_for_the_one_found": Reported(
        "admission.hits-pinned", "TensorRT-LLM PR 8830"
    ),
    "kvref_conformance.faults.reported_admission:table_goes_on_from_before_preemption": Reported(
        "admission.preempt-resume", "LMCache PR 2069"
    ),
    "kvref_conformance.faults.reported_memory:kept_if_the_request_left_first": Reported(
        "connector.held-until-sent", "LMCache issue 1130"
    ),
    "kvref_conformance.faults.reported_memory:given_up_twice_when_done": Reported(
        "connector.held-until-sent", "LMCache issue 5090", "standard"
    ),
    "kvref_conformance.faults.reported_memory:first_kernel_block_moved": Reported(
        "connector.held-until-sent", "vLLM PR 30692"
    ),
    "kvref_conformance.faults.reported_memory:pages_of_the_first_layer_moved": Reported(
        "canonical.round-trip", "vLLM PR 38554"
    ),
    "kvref_conformance.faults.reported_memory:chain_ends_at_the_first_layer": Reported(
        "sharing.alias", "vLLM PR 43185"
    ),
    "kvref_conformance.faults.reported_memory:each_stage_plans_alone": Reported(
        "plan.workers-agree", "vLLM issue 51752"
    ),
}
"""Target name of each fault that was reported somewhere, and shows when several operations meet."""
