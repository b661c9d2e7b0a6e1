"""Laws of the specs: what a layer's cache format promises to planners and allocators."""

from __future__ import annotations

from typing import Any

from kvref_conformance.laws.core import Event, Law, LawBroken, Runs
from kvref_conformance.results import Level

DECIDING_FIELDS = (
    "block_size",
    "num_kv_heads",
    "head_size",
    "head_size_v",
    "dtype",
    "shapes",
    "dtypes",
    "cache_dtype_str",
    "kv_quant_mode",
    "tokens_per_state",
    "compress_ratio",
    "page_size_padded",
    "sink_len",
    "extra_retained_tokens",
    "mamba_cache_mode",
    "num_speculative_blocks",
)
"""Fields that decide pages, block size, heads, dtypes or what the manager does."""

WINDOW_FIELDS = ("sliding_window", "attention_chunk_size")
"""Deciding fields whose absence may be reconciled with a value; two values may not."""


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Names of what differs between two specs' facts: fields, then class and page size."""
    fields = sorted({*first["fields"], *second["fields"]})
    absent = object()
    differing = [f for f in fields if first["fields"].get(f, absent) != second["fields"].get(f, absent)]
    return differing + [key for key in ("class", "page_size_bytes") if first[key] != second[key]]


def value_of(facts: dict[str, Any], name: str) -> Any:
    return facts["fields"][name] if name in facts["fields"] else facts.get(name, "absent")


def built(events: list[Event]) -> list[dict[str, Any] | None]:
    """Facts of each build in order, None where it was refused."""
    return [event["outcome"].get("value") for event in events if event["op"] == "specs.build"]


def padding_honoured(runs: Runs) -> int:
    """The page of a spec with a padded page size is that size."""
    judged = 0
    for event in runs[0]:
        padded = event["args"].get("spec", {}).get("fields", {}).get("page_size_padded")
        if event["op"] != "specs.build" or padded is None or "died" in event["outcome"]:
            continue
        judged += 1
        facts = event["outcome"].get("value")
        if facts is not None and facts["page_size_bytes"] != padded:
            raise LawBroken(
                f"page_size_bytes == {padded}, the padded page size asked for (or a refusal)",
                f"page_size_bytes == {facts['page_size_bytes']}",
            )
    return judged


def merge_identity(runs: Runs) -> int:
    """Merging a spec with itself gives that spec back, field for field."""
    facts = built(runs[0])
    merges = [event["outcome"] for event in runs[0] if event["op"] == "specs.merge"]
    if not facts or facts[0] is None or not merges or "died" in merges[0]:
        return 0
    spec, outcome = facts[0], merges[0]
    if "error" in outcome:
        raise LawBroken(
            "merging a spec with itself gives that spec",
            f"{outcome['error']['type']}: {outcome['error']['message']}",
            ("refused",),
        )
    lost = differences(spec, outcome["value"])
    if lost:
        raise LawBroken(
            "merging a spec with itself gives that spec",
            "; ".join(f"{f} is {value_of(outcome['value'], f)}, was {value_of(spec, f)}" for f in lost),
            tuple(lost),
        )
    return 1


def merge_refuses_unequal(runs: Runs) -> int:
    """Two specs that differ in what decides pages or management do not merge."""
    facts = built(runs[0])
    merges = [event["outcome"] for event in runs[0] if event["op"] == "specs.merge"]
    if len(facts) < 2 or facts[0] is None or facts[1] is None or not merges or "died" in merges[0]:
        return 0
    first, second = facts[0], facts[1]
    deciding = [
        name
        for name in differences(first, second)
        if name in DECIDING_FIELDS
        or (name in WINDOW_FIELDS and None not in (value_of(first, name), value_of(second, name)))
    ]
    if not deciding and first["page_size_bytes"] != second["page_size_bytes"]:
        deciding = ["page_size_bytes"]
    if not deciding:
        return 0
    if "value" in merges[0]:
        raise LawBroken(
            "specs that differ in "
            + ", ".join(f"{n} ({value_of(first, n)} and {value_of(second, n)})" for n in deciding)
            + " do not merge",
            "merged into " + ", ".join(f"{n} {value_of(merges[0]['value'], n)}" for n in deciding),
            tuple(deciding),
        )
    return 1


def copy_consistent(runs: Runs) -> int:
    """A copy with a new block size equals a fresh spec of that size, refusals included."""
    copies = [event for event in runs[0] if event["op"] == "specs.copy"]
    builds = [event["outcome"] for event in runs[0] if event["op"] == "specs.build"]
    if not copies or len(builds) < 2 or "value" not in builds[0] or "died" in copies[0]["outcome"]:
        return 0
    copied, fresh = copies[0]["outcome"], builds[1]
    if "value" in fresh and "error" in copied:
        raise LawBroken(
            f"a copy with block size {copies[0]['args']['block_size']}, as a fresh spec of that size exists",
            f"{copied['error']['type']}: {copied['error']['message']}",
            ("refused",),
        )
    if "value" in copied and "error" in fresh:
        raise LawBroken(
            f"no copy with block size {copies[0]['args']['block_size']}, since a fresh spec of that size is "
            f"refused ({fresh['error']['type']}: {fresh['error']['message']})",
            "copied",
            ("accepted",),
        )
    if "value" in copied and (wrong := differences(fresh["value"], copied["value"])):
        raise LawBroken(
            "the copy equals a fresh spec of that block size",
            "; ".join(
                f"{f} is {value_of(copied['value'], f)}, fresh it is {value_of(fresh['value'], f)}"
                for f in wrong
            ),
            tuple(wrong),
        )
    return 1


LAWS = [
    Law(
        id="spec.padding-honoured",
        level=Level.SAFETY,
        statement=(
            "A requested padded page size is what page_size_bytes says, in every subclass; a target that "
            "never pads refuses it."
        ),
        why="Layers that should share one pool get pages of different sizes, and views overlap.",
        sources=("vLLM PR 31635",),
        workload="specs.padding",
        check=padding_honoured,
    ),
    Law(
        id="spec.copy-consistent",
        level=Level.SAFETY,
        statement=(
            "Copying with a new block size changes nothing else, recomputes what is derived (padding from "
            "alignment), and gives the page a fresh spec of that size would have."
        ),
        why="Page unification copies specs to other block sizes; a stale page size shifts every later block.",
        sources=("vLLM PR 37505", "vLLM PR 31635"),
        workload="specs.copy",
        check=copy_consistent,
    ),
    Law(
        id="spec.merge-identity",
        level=Level.SAFETY,
        statement="merge([s]) == s and merge([s, s]) == s: no field is lost.",
        why="Planning continues with the merged spec: a lost field is a lost window, alignment or format.",
        sources=("vLLM PR 37505",),
        workload="specs.merge-equal",
        check=merge_identity,
    ),
    Law(
        id="spec.merge-refuses-unequal",
        level=Level.SAFETY,
        statement=(
            "Specs with different pages, block sizes, heads, dtypes or managers never merge (declared "
            "reconciliations, such as full attention with and without a window, excepted)."
        ),
        why="One group gets one page size: a layer that needs another reads and writes past its blocks.",
        sources=("vLLM PR 37505",),
        workload="specs.merge-unequal",
        check=merge_refuses_unequal,
    ),
]
