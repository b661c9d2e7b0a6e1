"""Laws of sizes: what a page holds, how it scales, and how much memory a request may need."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

from kvref_conformance.laws.core import Event, Law, LawBroken, Level, Runs
from kvref_conformance.laws.plan import INTERNAL_ERRORS

SCALE_BYTES = 4

LATENT = ("MLAAttentionSpec", "SlidingWindowMLASpec")
"""Kinds that store no V unless their fields say so."""

WINDOWED = ("SlidingWindowSpec", "ChunkedLocalAttentionSpec")
"""Kinds whose layers free the blocks that their window or chunk has left."""


def builds(events: list[Event]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The descriptor and facts of each built spec."""
    made = [event for event in events if event["op"] == "specs.build" and "value" in event["outcome"]]
    return [(event["args"]["spec"], event["outcome"]["value"]) for event in made]


def is_kind(facts: dict[str, Any], *kinds: str) -> bool:
    return any(kind in facts.get("mro", [facts["class"]]) for kind in kinds)


def item_bytes(dtype: str) -> int:
    """The bytes of one element of a dtype written like `torch.float16`."""
    bits = re.search(r"\d+", dtype)
    return max(1, int(bits.group()) // 8) if bits else 1


def number_of_states(fields: dict[str, Any]) -> int:
    """How many states a page stores: one per token, one per several tokens, or several per token."""
    tokens = fields.get("tokens_per_state", fields.get("compress_ratio")) or 1
    numerator, denominator = tokens["fraction"] if isinstance(tokens, dict) else (tokens, 1)
    return int(fields["block_size"] * denominator // numerator)


def content_bytes(facts: dict[str, Any]) -> int | None:
    """The bytes that a page must hold according to the spec's fields; None if the fields do not say."""
    fields = facts["fields"]
    if "shapes" in fields and "dtypes" in fields:
        states = zip(fields["shapes"], fields["dtypes"], strict=False)
        return sum(int(math.prod(shape)) * item_bytes(dtype) for shape, dtype in states)
    if not {"block_size", "num_kv_heads", "head_size", "dtype"} <= fields.keys():
        return None
    if fields.get("model_version") is not None:
        return None  # The model has a packed format of its own.
    cells = (fields.get("num_head_slots") or fields["num_kv_heads"]) * number_of_states(fields)
    packed = fields.get("state_content_bytes") or fields.get("tq_slot_size")
    if packed:
        return int(cells * packed)
    k = fields["head_size"]
    v = fields.get("head_size_v", k)
    v = k if v is None else v
    if is_kind(facts, *LATENT) and v == k:
        v = 0  # One vector serves as K and V, though the class inherits the field of full attention.
    values = (k + v) * item_bytes(fields["dtype"])
    match fields.get("kv_quant_mode"):
        case None | {"name": "NONE" | "FP8_PER_TENSOR"}:
            return int(cells * values)
        case {"name": "INT8_PER_TOKEN_HEAD" | "FP8_PER_TOKEN_HEAD"}:
            return int(cells * (values + SCALE_BYTES * (2 if v else 1)))
    return None


def page_positive(runs: Runs) -> int:
    """The page size of every built spec is a positive int."""
    made = builds(runs[0])
    for _, facts in made:
        page = facts["page_size_bytes"]
        if type(page) is not int or page < 1:
            raise LawBroken("page_size_bytes is a positive int", f"it is {page!r}")
    return len(made)


def page_covers_content(runs: Runs) -> int:
    """A page is at least as large as its content, and at least as large as its unpadded size."""
    judged = 0
    for spec, facts in builds(runs[0]):
        page, unpadded = facts["page_size_bytes"], facts.get("unpadded_page_size_bytes")
        dense = spec.get("declared", {}).get("page_scaling", "linear") == "linear"
        content = content_bytes(facts) if dense else None
        judged += content is not None or unpadded is not None
        if content is not None and page < content:
            raise LawBroken(
                f"page_size_bytes of at least {content}, the bytes of its K, V, scales or states",
                f"page_size_bytes={page}",
                ("content",),
            )
        if unpadded is not None and page < unpadded:
            raise LawBroken(
                f"page_size_bytes of at least {unpadded}, its unpadded size",
                f"page_size_bytes={page}",
                ("unpadded",),
            )
    return judged


def page_no_waste(runs: Runs) -> int:
    """A page of one of vLLM's classes holds its content only, unless it is padded or aligned."""
    judged = 0
    for spec, facts in builds(runs[0]):
        fields = facts["fields"]
        padded = any(fields.get(name) is not None for name in ("page_size_padded", "alignment"))
        content = content_bytes(facts) if spec["class"] in VLLM and not padded else None
        judged += content is not None
        if content is not None and facts["page_size_bytes"] > content:
            raise LawBroken(
                f"page_size_bytes of at most {content}, the bytes of its K, V, scales or states",
                f"page_size_bytes={facts['page_size_bytes']}",
            )
    return judged


def alignment_honoured(runs: Runs) -> int:
    """The page size of a spec with an alignment is a multiple of the alignment."""
    judged = 0
    for spec, facts in builds(runs[0]):
        alignment = spec["fields"].get("alignment")
        judged += alignment is not None
        if alignment is not None and facts["page_size_bytes"] % alignment:
            raise LawBroken(
                f"page_size_bytes as a multiple of {alignment}, the requested alignment, or a refusal",
                f"page_size_bytes={facts['page_size_bytes']}",
            )
    return judged


def scaling_of(spec: dict[str, Any], facts: dict[str, Any]) -> str:
    """How the page size scales with the block size: as declared, else by the kind."""
    declared = spec.get("declared", {}).get("page_scaling")
    if declared:
        return str(declared)
    if is_kind(facts, "MambaSpec"):
        return "constant"
    return "linear" if is_kind(facts, "AttentionSpec") else "monotone"


def scaled_bytes(facts: dict[str, Any]) -> int | None:
    """The page size without padding and alignment; None if the spec does not report it."""
    fields = facts["fields"]
    padded = fields.get("page_size_padded") is not None or fields.get("alignment") is not None
    size: int | None = facts.get("unpadded_page_size_bytes") if padded else facts["page_size_bytes"]
    return size


def page_scaling(runs: Runs) -> int:
    """The page sizes of specs that differ only in block size follow the declared scaling."""
    judged = 0
    made = builds(runs[0])
    for spec, facts in made[1:]:
        if {**spec["fields"], "block_size": 0} != {**made[0][0]["fields"], "block_size": 0}:
            continue
        small, large = sorted((made[0][1], facts), key=lambda spec: int(spec["fields"]["block_size"]))
        sizes = small["fields"]["block_size"], large["fields"]["block_size"]
        small_page, large_page = scaled_bytes(small), scaled_bytes(large)
        if sizes[0] == sizes[1] or small_page is None or large_page is None:
            continue
        judged += 1
        scaling = scaling_of(spec, facts)
        expected, as_expected = {
            "constant": ("equal", large_page == small_page),
            "linear": ("proportional to the block sizes", large_page * sizes[0] == small_page * sizes[1]),
            "packed": ("proportional to the block sizes", large_page * sizes[0] == small_page * sizes[1]),
            "compressed": (
                "not smaller for the larger block size, and not larger per token",
                small_page <= large_page
                and (sizes[1] % sizes[0] != 0 or large_page * sizes[0] <= small_page * sizes[1]),
            ),
        }.get(scaling, ("not smaller for the larger block size", small_page <= large_page))
        if not as_expected:
            raise LawBroken(
                f"page sizes for block sizes {sizes[0]} and {sizes[1]} are {expected} ({scaling} scaling)",
                f"{small_page} and {large_page} bytes",
                (scaling,),
            )
    return judged


def answers_of_memory(events: list[Event]) -> list[tuple[dict[str, Any], Any]]:
    """The limits and the maximum memory of each call that returned, sorted by `max_model_len`."""
    calls = [e for e in events if e["op"] == "specs.max_memory" and "value" in e["outcome"]]
    calls.sort(key=lambda event: int(event["args"]["max_model_len"]))
    return [(event["args"], event["outcome"]["value"]) for event in calls]


def memory_monotone(runs: Runs) -> int:
    """The maximum memory never falls with a longer request, and is a whole number of pages."""
    made, answers = builds(runs[0]), answers_of_memory(runs[0])
    if not made:
        return 0
    page = made[0][1]["page_size_bytes"]
    for limits, memory in answers:
        if memory < 0 or memory % page:
            raise LawBroken(
                f"a whole number of pages of {page} bytes for max_model_len={limits['max_model_len']}",
                f"{memory} bytes",
                ("pages",),
            )
    for (limits, memory), (longer, more) in itertools.pairwise(answers):
        if more < memory:
            raise LawBroken(
                f"at least {memory} bytes for max_model_len={longer['max_model_len']}, as for "
                f"max_model_len={limits['max_model_len']}",
                f"{more} bytes",
                ("falls",),
            )
    return len(answers) if len(answers) > 1 else 0


def memory_window_flat(runs: Runs) -> int:
    """Beyond its window and the tokens in flight, a windowed layer's maximum memory stays constant.

    It is at most one page more than that of full attention.
    """
    made, answers = builds(runs[0]), answers_of_memory(runs[0])
    if not made or not is_kind(made[0][1], *WINDOWED):
        return 0
    facts = made[0][1]
    fields, page = facts["fields"], facts["page_size_bytes"]
    window = fields.get("sliding_window") or fields.get("attention_chunk_size")
    beyond: list[tuple[int, int]] = []
    for limits, memory in answers:
        length = limits["max_model_len"]
        full = -(-length // fields["block_size"]) * page
        if memory > full + page:
            raise LawBroken(
                f"at most one page more than the {full} bytes of full attention for {length} tokens",
                f"{memory} bytes",
                ("full",),
            )
        # A window may start within a block.
        held = window + fields.get("extra_retained_tokens", 0) + limits["max_in_flight_tokens"]
        if length >= held + fields["block_size"]:
            beyond.append((length, memory))
    for length, memory in beyond[1:]:
        if memory != beyond[0][1]:
            raise LawBroken(
                f"{beyond[0][1]} bytes for {length} tokens, as for {beyond[0][0]}, because both are longer "
                "than the window and the tokens in flight",
                f"{memory} bytes",
                ("flat",),
            )
    return len(answers)


VLLM = (
    "FullAttentionSpec",
    "SinkFullAttentionSpec",
    "TQFullAttentionSpec",
    "MLAAttentionSpec",
    "SlidingWindowSpec",
    "SlidingWindowMLASpec",
    "ChunkedLocalAttentionSpec",
    "CrossAttentionSpec",
    "EncoderOnlyAttentionSpec",
    "HiddenStateCacheSpec",
    "MambaSpec",
    "RSWASpec",
    "CircularBufferSpec",
    "HiSparseHotSpec",
    "HiSparseResidentSpec",
)
"""vLLM's classes. kvref knows the legal values of their fields."""


def build_total(runs: Runs) -> int:
    """A spec with legal field values can be built.

    A vendor's class may refuse what its device cannot do, by a deliberate error. Specs with padding are left
    out, because every class may refuse padding.
    """
    judged = 0
    for event in runs[0]:
        spec, outcome = event["args"].get("spec"), event["outcome"]
        if event["op"] != "specs.build" or "page_size_padded" in spec["fields"] or "died" in outcome:
            continue
        if error := outcome.get("error"):
            kind = error["type"]
            known = spec["class"] in VLLM
            if not known and (kind == "AssertionError" or kind not in INTERNAL_ERRORS):
                continue
            fields = ", ".join(f"{name}={value}" for name, value in spec["fields"].items())
            more = ", or a profile that says which values it takes" if known else ", or a deliberate refusal"
            raise LawBroken(f"a {spec['class']} with {fields}{more}", f"{kind}: {error['message']}", (kind,))
        judged += 1
    return judged


LAWS = [
    Law(
        id="spec.build-total",
        level=Level.SAFETY,
        statement=(
            "A spec can be built with every legal value of its fields; a vendor's class may refuse some by a "
            "deliberate error."
        ),
        why="Otherwise an ordinary model does not start.",
        sources=("vLLM PR 37505",),
        workload="specs.pages",
        check=build_total,
    ),
    Law(
        id="spec.page-positive",
        level=Level.SAFETY,
        statement="page_size_bytes is a positive int for every legal spec.",
        why="The engine divides memory by it to count blocks, and multiplies by it to address them.",
        sources=("vLLM PR 37505",),
        workload="specs.pages",
        check=page_positive,
    ),
    Law(
        id="spec.page-covers-content",
        level=Level.SAFETY,
        statement=(
            "The page holds every component that the spec declares (K, V, scales, states, or their packed "
            "form) and is not smaller than its unpadded size."
        ),
        why=(
            "What does not fit into the page is written into the next block, which belongs to another "
            "request."
        ),
        sources=("vLLM PR 37505",),
        workload="specs.pages",
        check=page_covers_content,
    ),
    Law(
        id="spec.page-no-waste",
        level=Level.ROBUSTNESS,
        statement=(
            "The page of a built-in class that is neither padded nor aligned holds nothing besides what the "
            "spec declares; compressed tokens take no more than their states."
        ),
        why="Each page that is larger than its content is memory that holds no tokens.",
        sources=("vLLM PR 37505",),
        workload="specs.pages",
        check=page_no_waste,
    ),
    Law(
        id="spec.alignment-honoured",
        level=Level.SAFETY,
        statement=(
            "The page_size_bytes of a spec with an alignment is a multiple of the alignment, or the spec is "
            "refused."
        ),
        why="Otherwise a kernel that expects aligned pages reads the second block from the wrong address.",
        sources=("vLLM PR 31635",),
        workload="specs.pages",
        check=alignment_honoured,
    ),
    Law(
        id="spec.page-scaling",
        level=Level.SAFETY,
        statement=(
            "The page size without padding scales with the block size as declared (linear, packed, "
            "compressed or constant), or else as usual for the spec's kind."
        ),
        why=(
            "Planning computes block sizes from page sizes. If these scale in another way, the pages do not "
            "become equal."
        ),
        sources=("vLLM PR 31635",),
        workload="specs.pages",
        check=page_scaling,
    ),
    Law(
        id="spec.memory-monotone",
        level=Level.SAFETY,
        statement=(
            "The maximum memory of a spec never falls as max_model_len grows, and is a whole number of pages."
        ),
        why=(
            "The engine finds the longest length that fits by bisection. If the memory fell, it would admit "
            "requests that do not fit."
        ),
        sources=("vLLM PR 37505",),
        workload="specs.memory",
        check=memory_monotone,
    ),
    Law(
        id="spec.memory-window-flat",
        level=Level.SAFETY,
        statement=(
            "The maximum memory of a windowed spec is the same for all lengths that exceed the window, the "
            "tokens in flight and one block together, and at most one page above that of full attention."
        ),
        why="Otherwise a long context is refused at start for lack of memory that its layers never use.",
        sources=("vLLM PR 37505",),
        workload="specs.window-memory",
        check=memory_window_flat,
    ),
]
