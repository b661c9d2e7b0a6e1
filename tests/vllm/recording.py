"""Records how vLLM's own scheduler calls its cache manager. Runs in vLLM's interpreter and needs only vLLM.

    python recording.py FIRST:LAST

It prints a list with one recording for each seed: the engine that the seed drew, and the calls of its
scheduler. Calls are written as operations of kvref's protocol. `progress` means that a request's counts or
output changed. There is no model. Its output is random.
"""

from __future__ import annotations

import json
import random
import sys
from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import SupportsHMA
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils, single_type_kv_cache_manager
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

MAX_REQUESTS = 4
END = 3
"""The token that ends a request. The other tokens are 0 and 1."""

ATTENTION: dict[str, Any] = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float16}

SILENT = {
    # These only read, or make objects.
    "create_kv_cache_blocks",
    "estimate_cached_tokens",
    "get_block_ids",
    "get_block_ids_for_computed_tokens",
    "get_blocks",
    "make_prefix_cache_stats",
    "prefix_cache_lookup_enabled",
    "record_prefix_cache_stats",
    "truncate_computed_blocks",
    "take_boundary_state_offloads",
    # docs/engine-contract.md leaves these out.
    "record_blocks_for_zeroing",
    "remove_skipped_blocks",
}
"""Methods of the cache manager that are not recorded."""


class Loads(SupportsHMA):
    """A connector to another place, which may have the next tokens of a request."""

    supports_divergent_local_hybrid_hits = False

    def __init__(self, random_numbers: random.Random, unit: int, delivers: bool) -> None:
        self.random, self.unit, self.requires_kv_delivery = random_numbers, unit, delivers
        self.synchronous: dict[str, int] = {}

    def get_num_new_matched_tokens(self, request: Request, found: int) -> tuple[int | None, bool]:
        if request.num_tokens == 1:
            return 0, False
        left = request.num_tokens - found
        kind = self.random.randrange(6)
        if kind == 0:
            return None, False
        if kind == 1 and left:
            return left, True
        units = self.random.randint(0, left // self.unit)
        tokens = units * self.unit
        if kind < 4:
            return tokens, tokens > 0
        return (tokens, False) if tokens < left else (0, False)

    def update_state_after_alloc(self, request: Request, blocks: Any, tokens: int) -> None:
        return

    def request_finished_all_groups(self, request: Request, block_ids: Any) -> tuple[bool, None]:
        return False, None

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        return ()

    def has_pending_block_frees(self) -> bool:
        return False

    def has_pending_push_work(self) -> bool:
        return False

    def build_connector_meta(self, scheduled: Any) -> None:
        return

    def on_new_request(self, request: Request) -> None:
        return

    def update_connector_output(self, output: Any) -> None:
        return

    def get_kv_connector_stats(self) -> None:
        return

    def take_events(self) -> tuple[()]:
        return ()


class Recording:
    """Wraps the methods of a cache manager to record their calls."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.manager = scheduler.kv_cache_manager
        self.calls: list[dict[str, Any]] = []
        self.told: dict[str, tuple[int, int, int]] = {}
        self.found: dict[str, int] = {}
        """The length of each request's hit when the request was last admitted."""
        self.depth = 0
        names = [name for name, value in vars(KVCacheManager).items() if callable(value)]
        for name in names:
            if not name.startswith("_") and name not in SILENT:
                setattr(self.manager, name, self.watched(name, getattr(self.manager, name)))
        for name in ("_update_request_with_output", "_preempt_request", "_handle_invalid_blocks"):
            setattr(scheduler, name, self.noted(getattr(scheduler, name)))

    def noted(self, method: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            answer = method(*arguments, **named)
            if isinstance(arguments[0], Request):
                self.note(arguments[0])
            self.note_all()
            return answer

        return call

    def note(self, request: Request) -> None:
        """Record a request's counts and new output, if they have changed."""
        name = request.request_id
        if name not in self.told:
            return
        now = (request.num_computed_tokens, request.num_in_flight_tokens, request.num_output_tokens)
        if now == self.told[name]:
            return
        new = [token % 2 for token in list(request.output_token_ids)[self.told[name][2] :]]
        self.told[name] = now
        self.write("progress", {"request": name, "computed": now[0], "in_flight": now[1], "output": new})

    def note_all(self) -> None:
        for request in list(self.scheduler.requests.values()):
            if not request.is_finished():
                self.note(request)

    def write(self, operation: str, arguments: dict[str, Any], value: Any = None) -> None:
        self.calls.append({"op": operation, "args": arguments, "value": value})

    def watched(self, name: str, method: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if self.depth:
                return method(*arguments, **named)
            if arguments and isinstance(arguments[0], Request):
                self.note(arguments[0])
            self.note_all()
            self.depth += 1
            try:
                answer = method(*arguments, **named)
            finally:
                self.depth -= 1
            tell = getattr(self, name, None)
            if tell is None:
                self.write(name, {})
            else:
                tell(answer, *arguments, **named)
            return answer

        return call

    # The following methods write a call as an operation.

    def new_step_starts(self, answer: None) -> None:
        self.write("new_step", {})

    def get_computed_blocks(self, answer: Any, request: Request) -> None:
        blocks, tokens, junction = answer
        self.write(
            "lookup",
            {"request": request.request_id},
            {"tokens": tokens, "blocks": ids(blocks), "hashes": [], "junction": junction},
        )

    def allocate_slots(
        self,
        answer: Any,
        request: Request,
        new: int,
        *,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
        skip_zeroing_group_ids: tuple[int, ...] = (),
    ) -> None:
        found = ids(new_computed_blocks) if new_computed_blocks else []
        hit = {"tokens": num_new_computed_tokens, "blocks": found, "hashes": []}
        if new_computed_blocks is not None and not request.num_computed_tokens:
            self.found[request.request_id] = num_new_computed_tokens
        self.write(
            "allocate",
            {
                "request": request.request_id,
                "new": new,
                "hit": hit if any(found) else None,
                "lookahead": num_lookahead_tokens,
                "external": num_external_computed_tokens,
                "delay": delay_cache_blocks,
                "encoder": num_encoder_tokens,
                "whole": full_sequence_must_fit,
            },
            {"added": None if answer is None else ids(answer), "needed": 0, "taken": []},
        )

    def cache_blocks(self, answer: None, request: Request, computed: int) -> None:
        self.write("cache_blocks", {"request": request.request_id, "computed": computed})

    def free(self, answer: None, request: Request) -> None:
        self.write("free", {"request": request.request_id})
        if request.is_finished():
            self.told.pop(request.request_id, None)

    def evict_blocks(self, answer: None, blocks: set[int]) -> None:
        self.write("evict", {"blocks": sorted(blocks)})

    def tables(self) -> dict[str, list[list[int]]]:
        names = [name for name, request in self.scheduler.requests.items() if name in self.told]
        return {name: [list(table) for table in self.manager.get_block_ids(name)] for name in names}

    def reset_prefix_cache(self, answer: bool) -> None:
        self.write("reset", {}, answer)

    def take_new_block_ids(self, answer: list[int]) -> None:
        self.write("take_new_block_ids", {}, list(answer))

    def take_kv_cache_block_copies(self, answer: Any) -> None:
        self.write("take_copies", {}, [])

    def take_events(self, answer: Any) -> None:
        self.write("take_events", {}, [])

    def add(self, request: Request, max_tokens: int) -> None:
        self.told[request.request_id] = (0, 0, 0)
        tokens = list(request.prompt_token_ids or [])
        self.write(
            "add",
            {
                "request": request.request_id,
                "tokens": tokens,
                "max_tokens": max_tokens,
                "salt": request.cache_salt,
            },
        )


def ids(blocks: KVCacheBlocks) -> list[list[int]]:
    return [[block.block_id for block in group] for group in blocks.blocks]


def draw(numbers: random.Random) -> dict[str, Any]:
    """A random engine: the fields of kvref's `Setup`, and what vLLM needs in addition."""
    kinds = numbers.choice(["full", "window", "full+window", "full+chunk", "full+mamba", "mamba"])
    size = numbers.choice([2, 4])
    caching = numbers.random() < 0.85
    drafts = numbers.choice([0, 0, 1, 2])
    max_batches, is_async = numbers.choice([(1, False), (2, True), (2, False)])
    if max_batches == 2 and not is_async:
        drafts = 0
    loads = numbers.random() < 0.3
    if loads:
        # With several batches, a consumer frees later. docs/engine-contract.md leaves that out.
        max_batches, is_async = 1, False
    use_eagle = drafts > 0 and "chunk" not in kinds and numbers.random() < 0.6
    mode = "align" if caching else "none"
    max_model_len = numbers.choice([16, 24, 33])
    specs: list[dict[str, Any]] = []
    for kind in kinds.split("+"):
        other = size * numbers.choice([1, 1, 2]) if kinds == "full+window" else size
        if kind == "full":
            specs.append({"kind": kind, "block_size": size})
        elif kind == "window":
            specs.append({"kind": kind, "block_size": other, "window": numbers.choice([3, 4, 6, 9])})
        elif kind == "chunk":
            specs.append({"kind": kind, "block_size": size, "chunk": size * numbers.choice([1, 2, 3])})
        else:
            specs.append(
                {
                    "kind": kind,
                    "block_size": size if mode == "align" else max_model_len,
                    "mode": mode,
                    "drafts": drafts,
                }
            )
    sizes = [spec["block_size"] for spec in specs]
    scheduler_block_size = max(sizes) if "mamba" not in kinds or caching else lcm(sizes)
    hash_block_size = min(sizes) if caching else scheduler_block_size
    if kinds in {"full+window", "full+mamba"} and caching:
        hash_block_size //= numbers.choice([1, 1, 2])
    batch = numbers.choice([32, 8, 5])
    if "mamba" in kinds and mode == "align":
        batch = max(batch, scheduler_block_size)
    return {
        "specs": specs,
        "num_blocks": numbers.choice([8, 12, 12, 24, 40]),
        "scheduler_block_size": scheduler_block_size,
        "hash_block_size": hash_block_size,
        "max_model_len": max_model_len,
        "max_num_batched_tokens": batch,
        "enable_caching": caching,
        "use_eagle": use_eagle,
        "drafts": drafts,
        "max_batches": max_batches,
        "is_async": is_async,
        "whole": numbers.random() < 0.5,
        "align": scheduler_block_size if "mamba" in kinds and mode == "align" else None,
        "loads": loads,
        "drops": loads and numbers.random() < 0.4,
        "policy": numbers.choice(["fcfs", "fcfs", "priority"]),
        "recompute": numbers.random() < 0.5,
        "threshold": numbers.choice([0, 0, 3]),
    }


def lcm(sizes: list[int]) -> int:
    import math

    return math.lcm(*sizes)


def spec_of(spec: dict[str, Any]) -> Any:
    kind, size = spec["kind"], spec["block_size"]
    if kind == "full":
        return FullAttentionSpec(block_size=size, **ATTENTION)
    if kind == "window":
        return SlidingWindowSpec(block_size=size, sliding_window=spec["window"], **ATTENTION)
    if kind == "chunk":
        return ChunkedLocalAttentionSpec(block_size=size, attention_chunk_size=spec["chunk"], **ATTENTION)
    return MambaSpec(
        block_size=size,
        shapes=((8,),),
        dtypes=(torch.float16,),
        mamba_cache_mode=spec["mode"],
        num_speculative_blocks=spec["drafts"],
    )


def scheduler_of(engine: dict[str, Any]) -> Scheduler:
    """vLLM's scheduler, with a stand-in for the parts of the configuration that it reads."""
    groups = [
        KVCacheGroupSpec([f"layer.{place}"], spec_of(spec)) for place, spec in enumerate(engine["specs"])
    ]
    for group, spec in zip(groups, engine["specs"], strict=True):
        group.is_eagle_group = engine["use_eagle"] and spec["kind"] != "mamba"
    eagle = engine["use_eagle"]
    speculative = SimpleNamespace(
        max_num_new_slots_for_drafting=0,
        num_speculative_tokens_per_batch_size=None,
        use_eagle=lambda: eagle,
        use_eagle_block_drop=lambda: eagle,
    )
    batch = engine["max_num_batched_tokens"]
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(
            max_num_seqs=MAX_REQUESTS,
            max_num_active_seqs=None,
            max_num_scheduled_tokens=None,
            max_num_batched_tokens=batch,
            long_prefill_token_threshold=engine["threshold"],
            long_prefill_token_threshold_adaptive=False,
            enable_chunked_prefill=True,
            policy=engine["policy"],
            scheduler_reserve_full_isl=engine["whole"],
            watermark=0.0,
            async_scheduling=engine["is_async"],
            disable_chunked_mm_input=False,
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks=engine["num_blocks"],
            enable_prefix_caching=engine["enable_caching"],
            block_size=engine["align"] or engine["scheduler_block_size"],
            mamba_cache_mode=next((spec["mode"] for spec in engine["specs"] if "mode" in spec), "none"),
            enable_mamba_shared_prefix_checkpoint=False,
        ),
        model_config=SimpleNamespace(
            uses_mrope=False,
            is_encoder_decoder=False,
            is_diffusion=False,
            max_model_len=engine["max_model_len"],
            runner_type="generate",
            supports_multimodal_inputs=False,
            return_sampling_mask=False,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_index=0,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            pipeline_parallel_size=2 if engine["max_batches"] == 2 and not engine["is_async"] else 1,
        ),
        observability_config=SimpleNamespace(
            per_request_spec_decode_metrics="none", kv_cache_metrics=False, enable_mfu_metrics=False
        ),
        aux_output_config=SimpleNamespace(enabled=False),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        lora_config=None,
        kv_events_config=SimpleNamespace(enable_kv_cache_events=True, publisher="null"),
        kv_transfer_config=None,
        ec_transfer_config=None,
        speculative_config=speculative if engine["drafts"] else None,
        is_mm_encoder_only=False,
        num_speculative_tokens=engine["drafts"],
        num_lookahead_tokens=engine["drafts"] if eagle else 0,
        num_prefill_lookahead_tokens=1 if eagle else 0,
        max_in_flight_tokens=engine["max_batches"] * batch,
        max_concurrent_batches=engine["max_batches"],
        use_v2_model_runner=False,
    )
    structured = SimpleNamespace(
        accept_tokens=lambda request, tokens: True, validate_tokens=lambda request, tokens: tokens
    )
    made = (AsyncScheduler if engine["is_async"] else Scheduler)(
        config,  # type: ignore[arg-type]
        KVCacheConfig(num_blocks=engine["num_blocks"], kv_cache_tensors=[], kv_cache_groups=groups),
        structured,  # type: ignore[arg-type]
        block_size=engine["scheduler_block_size"],
        hash_block_size=engine["hash_block_size"],
    )
    return made


class Life:
    """The engine around the scheduler: requests come and go, steps run, and the output is random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.engine = draw(self.random)
        self.scheduler = scheduler_of(self.engine)
        if self.engine["loads"]:
            connector = Loads(self.random, self.engine["scheduler_block_size"], self.engine["drops"])
            self.scheduler.connector = connector  # type: ignore[assignment]
            self.scheduler.requires_kv_delivery = self.engine["drops"]
            self.scheduler.recompute_kv_load_failures = self.engine["recompute"]
        self.recording = Recording(self.scheduler)
        self.hasher = kv_cache_utils.get_request_block_hasher(self.engine["hash_block_size"], sha256)
        self.under_way: list[tuple[Any, dict[str, int]]] = []
        self.prompts: list[list[int]] = []
        self.number = 0

    def run(self, turns: int) -> dict[str, Any]:
        raised = None
        for _ in range(turns):
            try:
                self.random.choice([self.arrive, self.step, self.step, self.step, self.step, self.disturb])()
            except Exception as error:
                raised = f"{type(error).__name__}: {error}"
                break
        managers = self.scheduler.kv_cache_manager.coordinator
        alignment = getattr(managers, "_cache_hit_alignment_tokens", self.engine["scheduler_block_size"])
        calls = self.recording.calls
        return {"engine": self.engine, "alignment": alignment, "calls": calls, "raised": raised}

    def arrive(self) -> None:
        if len(self.scheduler.requests) >= MAX_REQUESTS:
            return
        self.number += 1
        longest = self.engine["max_model_len"] - 1
        tokens = [self.random.randrange(2)] * self.random.randint(1, longest)
        if self.prompts and self.random.random() < 0.7:
            known = self.random.choice(self.prompts)
            tokens = known[: len(tokens)] + [1 - known[0]] * (len(tokens) - len(known))
        self.prompts.append(tokens)
        most = min(self.random.randint(1, 6), longest + 1 - len(tokens))
        request = Request(
            request_id=f"r{self.number}",
            prompt_token_ids=tokens,
            sampling_params=SamplingParams(max_tokens=most, stop_token_ids=[END]),
            pooling_params=None,
            block_hasher=self.hasher,
            priority=self.random.randrange(3),
        )
        self.recording.add(request, most)
        self.scheduler.add_request(request)

    def step(self) -> None:
        can = len(self.under_way) < self.engine["max_batches"] and self.scheduler.has_requests()
        if can and (not self.under_way or self.random.random() < 0.6):
            scheduled = self.scheduler.schedule()
            self.recording.note_all()
            samples = {
                name: len(scheduled.scheduled_spec_decode_tokens.get(name, ()))
                for name in scheduled.num_scheduled_tokens
                if not self.scheduler.requests[name].is_prefill_chunk
            }
            self.under_way.append((scheduled, samples))
        elif self.under_way:
            self.output(*self.under_way.pop(0))

    def output(self, scheduled: Any, samples: dict[str, int]) -> None:
        names = list(scheduled.num_scheduled_tokens)
        tokens = [[] if name not in samples else self.sampled(samples[name]) for name in names]
        answer = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=tokens,
            kv_connector_output=self.loaded(scheduled.num_scheduled_tokens) if self.engine["loads"] else None,
        )
        self.scheduler.update_from_output(scheduled, answer)
        if self.engine["drafts"] and not self.engine["is_async"] and names:
            proposed = [name for name in names if name in samples]
            drafts = [[0] * self.random.randint(0, self.engine["drafts"]) for _ in proposed]
            self.scheduler.update_draft_token_ids(DraftTokenIds(proposed, drafts))
        self.recording.note_all()

    def sampled(self, drafts: int) -> list[int]:
        return [self.random.choice([0, 1] * 3 + [END]) for _ in range(1 + self.random.randint(0, drafts))]

    def loaded(self, scheduled: dict[str, int]) -> KVConnectorOutput:
        """End some loads, and let some of these fail."""
        output = KVConnectorOutput(finished_recving=set())
        for request in self.scheduler.requests.values():
            waits = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
            known = request.request_id in self.scheduler.finished_recving_kv_req_ids
            left = request.is_finished()
            if not ((waits and not known) or left) or self.random.random() < 0.5:
                continue
            output.finished_recving.add(request.request_id)  # type: ignore[union-attr]
            if waits and self.random.random() < 0.3:
                self.failed(request, output, 0)
        if self.scheduler.running and self.random.random() < 0.1 and not output.invalid_block_ids:
            request = self.random.choice(self.scheduler.running)
            self.failed(request, output, scheduled.get(request.request_id, 0))
            if output.invalid_block_ids:
                # The mini-scheduler does not know the blocks. It must read the block tables to find this one.
                self.recording.write("state", {}, {"tables": self.recording.tables()})
        return output

    def failed(self, request: Request, output: KVConnectorOutput, scheduled: int) -> None:
        """Report a failed load for a request, in a block that no other request holds."""
        waits = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        tables = self.recording.tables()
        if len(self.engine["specs"]) > 1:
            if waits:
                output.failed_recving.add(request.request_id)
        elif self.engine["recompute"] or not waits:
            others = {block for name in tables if name != request.request_id for block in tables[name][0]}
            places = -(-(request.num_computed_tokens - scheduled) // self.engine["scheduler_block_size"])
            first = self.recording.found[request.request_id] // self.engine["scheduler_block_size"]
            held = tables[request.request_id][0][first:places]
            own = [block for block in held if block and block not in others]
            if own:
                output.invalid_block_ids.add(self.random.choice(own))

    def disturb(self) -> None:
        # While its only batch runs, an engine only ends requests that leave.
        waits = self.under_way and self.engine["max_batches"] == 1
        kind = self.random.randrange(2 if waits else 4)
        names = list(self.scheduler.requests)
        if kind < 2 and names and self.random.random() < 0.5:
            self.scheduler.finish_requests(self.random.choice(names), RequestStatus.FINISHED_ABORTED)
        elif kind == 2:
            self.scheduler.reset_prefix_cache()
        elif kind == 3 and self.random.random() < 0.5:
            leaving = any(request.is_finished() for request in self.scheduler.requests.values())
            if not leaving and not self.scheduler.kv_holding_waiting:
                self.scheduler.reset_prefix_cache(reset_running_requests=True)
        self.recording.note_all()


def main() -> None:
    single_type_kv_cache_manager.register_all_kvcache_specs(None)  # type: ignore[arg-type]
    kv_cache_utils.init_none_hash(sha256)
    first, last = (int(number) for number in sys.argv[1].split(":"))
    print(json.dumps([{"seed": seed, **Life(seed).run(120)} for seed in range(first, last)]))


if __name__ == "__main__":
    main()
