"""Faults: deliberate mistakes in the reference. They show that each law can break.

`FAULTS` has one fault for each law. `REPORTED` has faults that repeat bugs which were reported for other
caches. They show at which depth of a check the laws find real bugs.

Each fault is a target: `kvref check kvref_conformance.targets.faults.spec:alignment_lost_in_merge`. Loading a
fault changes the reference for the whole process. So each fault runs in processes of its own, like any
target.
"""

from __future__ import annotations

from typing import NamedTuple

PREFIX = f"{__name__}."
"""The prefix of every fault's target name."""

_FAULTS = {
    "registry:base_of_the_farthest_ancestor": "registry.nearest-base",
    "registry:built_ins_only_into_an_empty_table": "registry.order-free",
    "registry:second_registration_wins": "registry.conflict-refused",
    "registry:conflict_refused_by_assert": "registry.refusals-survive-O",
    "registry:second_registration_refused": "registry.idempotent",
    "registry:any_base_accepted": "registry.base-is-ancestor",
    "registry:override_forgets_the_base": "registry.override",
    "registry:uniform_whatever_the_base": "registry.base-agrees",
    "registry:early_look_ups_remembered": "registry.every-process",
    "registry:hook_seen_half_way": "registry.concurrent",
    "registry:second_base_refused": "registry.total",
    "registry:hook_never_run": "registry.hook-seen",
    "registry:defaults_in_a_substitute": "registry.substitute",
    "registry:manager_without_look_ahead": "registry.constructible",
    "spec:window_of_one_token_refused": "spec.build-total",
    "spec:hashed_by_identity": "spec.frozen-hashable",
    "spec:alignment_not_pickled": "spec.pickle-round-trip",
    "spec:window_not_checked": "spec.illegal-refused",
    "spec:page_size_is_a_float": "spec.page-positive",
    "spec:scales_not_counted": "spec.page-covers-content",
    "spec:state_for_each_token": "spec.page-no-waste",
    "spec:alignment_ignored": "spec.alignment-honoured",
    "spec:page_with_a_header": "spec.page-scaling",
    "spec:memory_of_part_of_a_page": "spec.memory-monotone",
    "spec:memory_of_all_behind_the_window": "spec.memory-window-flat",
    "spec:window_of_the_first": "spec.merge-order-free",
    "spec:merged_as_what_they_have_in_common": "spec.merge-keeps-class",
    "spec:uniform_if_the_first_window_is_enough": "spec.uniform-symmetric",
    "spec:windows_compared_before_kinds": "spec.uniform-total",
    "spec:chunks_not_compared": "spec.uniform-separates",
    "spec:state_padding_ignored": "spec.padding-honoured",
    "spec:padding_stored_at_copy": "spec.copy-consistent",
    "spec:alignment_lost_in_merge": "spec.merge-identity",
    "spec:block_size_not_compared_in_merge": "spec.merge-refuses-unequal",
    "plan:registration_not_checked": "registry.unregistered-refused",
    "plan:incomplete_groups_left_out": "plan.partition",
    "plan:one_type_if_the_first_is_the_largest": "plan.order-free",
    "plan:one_group_whatever_the_managers": "plan.one-manager",
    "plan:pages_that_do_not_divide_left_alone": "plan.page-unified",
    "plan:windows_not_as_full_attention": "plan.one-group",
    "plan:given_specs_replaced": "plan.inputs-unchanged",
    "plan:null_block_on_top": "plan.tensors-cover",
    "plan:coarser_hits_unmentioned": "plan.lcm-bounded",
    "plan:block_size_of_the_first_group_checked": "plan.scheduler-block",
    "plan:blocks_of_the_first_worker": "plan.workers-agree",
    "plan:concurrency_by_the_first_group": "plan.reports-agree",
    "plan:null_block_for_each_group": "plan.enough-memory",
    "pool:found_blocks_counted_as_free": "pool.partition",
    "pool:shared_blocks_counted_once": "pool.ref-model",
    "pool:null_block_gets_a_key": "pool.null-block",
    "pool:negative_number_is_none": "pool.bad-input-refused",
    "pool:beginning_lost_before_the_end": "pool.reuse-order",
    "pool:second_key_stays_in_the_index": "pool.hash-metadata",
    "pool:refused_reset_clears_what_is_free": "pool.reset",
    "pool:fast_pool_reuses_the_beginning_first": "pool.variants-agree",
    "spec:one_state_counted": "spec.memory-covers-held",
    "events:first_of_several_not_told": "events.replay",
    "events:hash_block_size_told": "events.metadata",
    "events:parent_of_the_stored_before": "events.content",
    "manager:reset_refused_by_an_error": "manager.calls-total",
    "manager:window_freed_one_block_early": "manager.window-kept",
    "manager:single_blocks_not_freed": "manager.window-freed",
    "manager:found_blocks_counted_twice": "manager.need-exact",
    "manager:refused_when_little_is_free": "manager.need-shrinks",
    "manager:cap_without_tokens_in_flight": "manager.held-bounded",
    "manager:found_blocks_held_twice": "manager.references",
    "manager:last_block_of_another_request": "manager.written-owned",
    "manager:state_written_over_the_one_found": "manager.state-owned",
    "manager:new_blocks_told_again": "manager.new-ids",
    "manager:last_new_block_not_told": "manager.zeroing-reported",
    "manager:kept_while_under_way": "manager.free-returns-all",
    "manager:hit_within_a_block_not_copied": "manager.copies-reported",
    "manager:settled_a_token_too_long": "manager.variants-agree",
    "coordinator:hashes_finer_than_blocks_refused": "coordinator.constructible",
    "coordinator:blocks_of_the_first_group_for_all": "coordinator.hit-maximal",
    "coordinator:list_not_cut_to_the_hit": "coordinator.hit-aligned",
    "coordinator:last_full_block_gets_no_key": "coordinator.resend-hits",
    "coordinator:two_units_for_reading_ahead": "coordinator.eagle-one-unit",
    "coordinator:short_prompts_not_looked_up": "coordinator.lookup-total",
    "coordinator:common_prefix_one_block_longer": "coordinator.common-prefix",
    "admission:block_taken_before_the_refusal": "admission.none-changes-nothing",
    "admission:enough_as_long_as_any_is_free": "admission.never-raises",
    "admission:found_blocks_lose_their_keys": "admission.hits-pinned",
    "admission:memory_of_the_window_alone": "admission.feasible-completes",
    "admission:keys_kept_of_what_is_not_computed": "admission.withdrawn-uncached",
    "admission:longest_request_must_fit": "admission.progress",
    "plugin:hook_at_every_look_up": "registry.hook-once",
    "plugin:stock_pages_changed": "registry.stock-untouched",
    "plugin:override_not_reached": "drift.hook-reached",
    "plugin:parameter_added_by_override": "drift.signature",
    "plugin:patch_of_a_name_imported_before": "drift.patch-target",
    "hashes:salt_taken_for_the_adapter": "hash.total",
    "hashes:items_hashed_by_name_alone": "hash.injective",
    "hashes:items_of_the_whole_prompt_hashed": "hash.shared",
    "hashes:key_of_the_first_hash_block": "hash.granularity",
    "hashes:adapter_hashed_by_python": "hash.stable-across-processes",
    "tensors:nothing_for_a_single_layer": "tensors.allocate-total",
    "tensors:layers_on_one_another": "tensors.in-bounds",
    "tensors:padding_left_out_of_strides": "tensors.block-stride",
    "tensors:two_blocks_taken_for_k_and_v": "tensors.layout-stable",
    "tensors:first_kernel_block_of_each": "tensors.kernel-split",
    "tensors:null_block_not_planned": "tensors.sum-is-plan",
    "tensors:last_byte_not_cleared": "tensors.zeroed",
    "tensors:contiguous_not_heeded": "tensors.one-buffer",
    "canonical:copied_forwards_alone": "canonical.total",
    "canonical:bytes_without_a_sign": "canonical.shape",
    "canonical:sharing_layers_referenced_too": "canonical.covers-once",
    "canonical:first_piece_copied": "canonical.round-trip",
    "canonical:a_group_more": "canonical.group-refs",
    "connector:nothing_submitted_meanwhile": "connector.total",
    "connector:stored_blocks_not_held": "connector.held-until-sent",
    "connector:keys_for_all_that_was_to_be_loaded": "connector.failed-load",
    "sharing:states_and_content_exchanged": "sharing.alias",
    "sharing:second_layer_where_the_first_is": "sharing.isolated",
    "sharing:memory_for_each_layer": "sharing.no-cost",
    "sharing:targets_without_targets": "sharing.chain-resolves",
    "sharing:targets_listed_before": "sharing.order-free",
    "sharing:targets_followed_for_ever": "sharing.cycle-refused",
    "sharing:unknown_targets_left_out": "sharing.dangling-refused",
    "sharing:joined_again": "sharing.grouped-once",
    "shadow:freed_under_a_step": "shadow.reads-own",
    "shadow:salt_not_hashed": "shadow.hit-content",
    "shadow:block_of_two_requests": "shadow.no-foreign-write",
    "shadow:sharer_bound_to_another_owner": "shadow.memory",
    "shadow:block_of_another_for_who_comes_back": "admission.preempt-resume",
    "target:merge_ends_the_process": "target.answers",
}

FAULTS = {f"{PREFIX}{name}": law for name, law in _FAULTS.items()}
"""The law that must find each fault, by the fault's name as a target."""


class Reported(NamedTuple):
    """A reported fault: it puts a bug that was reported for another cache into the reference."""

    law: str
    """The law that must find the fault."""
    source: str
    """Where the bug was reported. The fault takes the idea from there, and no code."""
    depth: str = "quick"
    """The smallest depth of a check at which the law finds the fault."""


_REPORTED = {
    "reported_registry:start_forgets_what_was_registered": Reported(
        "registry.every-process", "vLLM issue 18740"
    ),
    "reported_pool:evicted_block_knows_its_key": Reported("pool.hash-metadata", "kvcached issue 362"),
    "reported_pool:bad_blocks_found_while_held": Reported("connector.failed-load", "vLLM PR 26813"),
    "reported_pool:line_outlives_a_reset": Reported("pool.partition", "SGLang PR 26009"),
    "reported_pool:found_again_and_still_the_oldest": Reported("pool.reuse-order", "antonellof/ferrox PR 14"),
    "reported_pool:cached_counts_as_used": Reported("pool.null-block", "xLLM-AI/xllm PR 829"),
    "reported_pool:removal_told_of_each_copy": Reported("events.replay", "vLLM PR 55092"),
    "reported_pool:tokens_of_skipped_blocks_told": Reported("events.metadata", "vLLM issue 44451"),
    "reported_managers:left_behind_and_not_new_again": Reported("manager.zeroing-reported", "vLLM PR 47574"),
    "reported_managers:given_up_twice_while_under_way": Reported(
        "manager.free-returns-all", "sgl-project/sglang-jax PR 994"
    ),
    "reported_managers:reference_left_on_the_copy": Reported(
        "manager.references", "Avarok-Cybersecurity/atlas PR 373"
    ),
    "reported_managers:room_for_drafts_behind_the_longest": Reported(
        "manager.held-bounded", "vLLM PR 53812", "standard"
    ),
    "reported_managers:loaded_state_not_counted": Reported(
        "admission.never-raises", "vLLM PR 46892", "standard"
    ),
    "reported_managers:fewer_than_before_asserted_away": Reported(
        "manager.need-shrinks", "weicj/vLLM-2080Ti-Definitive PR 137"
    ),
    "reported_managers:state_found_before_it_is_written": Reported("shadow.hit-content", "kvcached PR 363"),
    "reported_managers:state_remembered_over_preemption": Reported(
        "admission.preempt-resume", "vLLM PR 35157"
    ),
    "reported_hits:window_shorter_by_what_is_read_ahead": Reported(
        "coordinator.hit-maximal", "vLLM PR 17398"
    ),
    "reported_hits:block_read_ahead_gets_no_key": Reported(
        "coordinator.eagle-one-unit", "vLLM PR 44082", "standard"
    ),
    "reported_hits:each_look_drops_a_block": Reported("coordinator.eagle-one-unit", "vLLM issue 32802"),
    "reported_hits:one_list_cut_to_the_hit": Reported(
        "coordinator.hit-aligned", "vllm-ascend PR 14810", "standard"
    ),
    "reported_hits:common_if_held_often_enough": Reported(
        "coordinator.common-prefix", "vLLM issue 23130", "standard"
    ),
    "reported_hits:nothing_left_to_compute": Reported("coordinator.hit-aligned", "vLLM PR 3239"),
    "reported_hits:found_once_for_all": Reported("coordinator.hit-maximal", "vLLM PR 17305"),
    "reported_hits:later_hashes_begin_anew": Reported(
        "shadow.hit-content", "inference-sim/inference-sim issue 209"
    ),
    "reported_admission:held_although_refused": Reported("admission.none-changes-nothing", "vLLM PR 11565"),
    "reported_admission:one_group_after_the_other": Reported("shadow.hit-content", "vLLM PR 44409"),
    "reported_admission:found_blocks_cost_nothing": Reported("admission.never-raises", "vLLM PR 6849"),
    "reported_admission:next_in_line_for_the_one_found": Reported(
        "admission.hits-pinned", "TensorRT-LLM PR 8830"
    ),
    "reported_admission:table_goes_on_from_before_preemption": Reported(
        "admission.preempt-resume", "LMCache PR 2069"
    ),
    "reported_memory:kept_if_the_request_left_first": Reported(
        "connector.held-until-sent", "LMCache issue 1130"
    ),
    "reported_memory:given_up_twice_when_done": Reported(
        "connector.held-until-sent", "LMCache issue 5090", "standard"
    ),
    "reported_memory:first_kernel_block_moved": Reported("connector.held-until-sent", "vLLM PR 30692"),
    "reported_memory:pages_of_the_first_layer_moved": Reported("canonical.round-trip", "vLLM PR 38554"),
    "reported_memory:chain_ends_at_the_first_layer": Reported("sharing.alias", "vLLM PR 43185"),
    "reported_memory:each_stage_plans_alone": Reported("plan.workers-agree", "vLLM issue 51752"),
}

REPORTED = {f"{PREFIX}{name}": reported for name, reported in _REPORTED.items()}
"""The reported faults, by their names as targets. An example needs several operations to show one of them."""
