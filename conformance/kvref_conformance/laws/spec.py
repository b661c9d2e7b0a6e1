"""Laws of the specs: what a layer's cache format promises to planners and allocators."""

from __future__ import annotations

from typing import Any

from kvref_conformance.laws.core import Event, Law, LawBroken, Level, Runs

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


def told_apart(differing: list[str]) -> list[str]:
    """What differs, without what follows from it: the page where fields differ."""
    return [name for name in differing if name not in ("class", "page_size_bytes")] or differing


def value_of(facts: dict[str, Any], name: str) -> Any:
    return facts["fields"][name] if name in facts["fields"] else facts.get(name, "absent")


def built(events: list[Event]) -> list[dict[str, Any] | None]:
    """Facts of each build in order, None where it was refused."""
    return [event["outcome"].get("value") for event in events if event["op"] == "specs.build"]


def deciding_differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Names of what differs between two specs' facts so that they must not share a group."""
    differing = differences(first, second)
    deciding = [
        name
        for name in differing
        if name in DECIDING_FIELDS
        or (name in WINDOW_FIELDS and None not in (value_of(first, name), value_of(second, name)))
    ]
    return deciding or [name for name in differing if name == "page_size_bytes"]


def frozen_hashable(runs: Runs) -> int:
    """Specs built alike are equal and hash equal, and no field of one can be changed."""
    judged = 0
    for event in runs[0] if None not in built(runs[0]) else []:
        outcome = event["outcome"]
        if event["op"] == "specs.twins" and "died" not in outcome:
            judged += 1
            expected = "two specs built alike are equal and hash equal"
            if "error" in outcome:
                error = outcome["error"]
                raise LawBroken(expected, f"{error['type']}: {error['message']}", ("not hashable",))
            if not outcome["value"]["equal"]:
                raise LawBroken(expected, "they are not equal", ("not equal",))
            if not outcome["value"]["hashes_equal"]:
                raise LawBroken(expected, "they are equal, their hashes are not", ("hash",))
        elif event["op"] == "specs.mutable_fields" and "value" in outcome:
            judged += 1
            if outcome["value"]:
                changed = outcome["value"]
                raise LawBroken("no field of a spec can be changed", ", ".join(changed), tuple(changed))
    return judged


def pickle_round_trip(runs: Runs) -> int:
    """What comes out of a pickle in another process is the spec that went in."""
    facts = built(runs[0])
    if not facts or facts[0] is None:
        return 0
    events = [event for run in runs for event in run if event["op"] in ("specs.pickled", "specs.unpickled")]
    expected = "a spec equal to the one that was pickled"
    for event in events:
        if "error" in event["outcome"]:
            error = event["outcome"]["error"]
            raise LawBroken(expected, f"{error['type']}: {error['message']}", ("refused",))
    if len(events) < 2 or "value" not in events[1]["outcome"]:
        return 0
    restored = events[1]["outcome"]["value"]
    if lost := differences(facts[0], restored["facts"]):
        raise LawBroken(
            expected,
            "; ".join(f"{f} is {value_of(restored['facts'], f)}, was {value_of(facts[0], f)}" for f in lost),
            tuple(told_apart(lost)),
        )
    if not restored["equal"]:
        raise LawBroken(expected, "no field differs, and yet it does not equal one built anew", ("==",))
    return 1


LEAST = {
    "block_size": 1,
    "num_kv_heads": 1,
    "head_size": 0,
    "head_size_v": 0,
    "page_size_padded": 1,
    "alignment": 1,
    "sliding_window": -1,
    "attention_chunk_size": -1,
    "sink_len": 0,
    "extra_retained_tokens": 0,
    "num_speculative_blocks": 0,
}
"""The least that a field can mean, by any reading: a window of -1 is none, of -2 nonsense."""


def illegalities(fields: dict[str, Any], content: int | None) -> list[str]:
    """Names of fields that no spec can have like that; `content` is what its page has to hold, in bytes."""
    found = [name for name, least in LEAST.items() if type(fields.get(name)) is int and fields[name] < least]
    padded = fields.get("page_size_padded")
    if content is not None and padded is not None and 0 < padded < content:
        found.append("page_size_padded")
    for name in ("tokens_per_state", "compress_ratio"):
        if type(fields.get(name)) is int and 0 < fields["block_size"] < fields[name]:
            found.append(name)
    if any(size < 0 for shape in fields.get("shapes", []) for size in shape):
        found.append("shapes")
    if len(fields.get("shapes", [])) != len(fields.get("dtypes", [])):
        found.append("dtypes")
    return found


def illegal_refused(runs: Runs) -> int:
    """A spec that nobody can mean is not built, while the one it was made from is."""
    judged = 0
    legal: dict[str, Any] | None = None
    for event in runs[0]:
        if event["op"] != "specs.build" or "died" in event["outcome"]:
            continue
        fields, facts = event["args"]["spec"]["fields"], event["outcome"].get("value")
        same = legal is not None and legal["fields"] == {**fields, "page_size_padded": None}
        wrong = illegalities(fields, legal["content"] if legal and same else None)
        judged += bool(wrong)
        if wrong and facts is not None:
            raise LawBroken(
                "a refusal, because of " + ", ".join(f"{name} {fields[name]}" for name in wrong),
                f"a {facts['class']} with pages of {facts['page_size_bytes']} bytes",
            )
        if facts is not None and not wrong:
            legal = {
                "fields": {**fields, "page_size_padded": None},
                "content": facts.get("unpadded_page_size_bytes") or facts["page_size_bytes"],
            }
    return judged


def padding_honoured(runs: Runs) -> int:
    """The page of a spec with a padded page size is that size."""
    judged = 0
    for event in runs[0]:
        padded = event["args"].get("spec", {}).get("fields", {}).get("page_size_padded")
        if event["op"] != "specs.build" or padded is None or "died" in event["outcome"]:
            continue
        judged += 1
        facts = event["outcome"].get("value")
        if facts is not None and event["args"]["spec"].get("declared", {}).get("never_pads"):
            raise LawBroken(
                f"a refusal of page_size_padded == {padded}, as pages are declared to be never padded",
                f"a spec with page_size_bytes == {facts['page_size_bytes']}",
                ("accepted",),
            )
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
    deciding = deciding_differences(first, second)
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
        id="spec.frozen-hashable",
        level=Level.SAFETY,
        statement=(
            "Instances are immutable and (composites aside) hashable; specs built alike are equal and hash "
            "equal."
        ),
        why="Planning uses specs as keys: a layer gets lost, or is put in a group of its own.",
        sources=("vLLM PR 37505",),
        workload="specs.identity",
        check=frozen_hashable,
    ),
    Law(
        id="spec.pickle-round-trip",
        level=Level.SAFETY,
        statement="A spec survives pickling into another process, equal.",
        why="Workers send their specs to the scheduler's process: what gets lost there, it plans without.",
        sources=("vLLM PR 37505",),
        workload="specs.pickling",
        check=pickle_round_trip,
    ),
    Law(
        id="spec.illegal-refused",
        level=Level.ROBUSTNESS,
        statement=(
            "Specs that nobody can mean (block size 0 or negative, smaller than its compression, no heads, "
            "padding smaller than the content) are refused at construction."
        ),
        why="A slip in a configuration becomes an empty page, or a division by zero far from its cause.",
        sources=("vLLM PR 37505",),
        workload="specs.illegal",
        check=illegal_refused,
    ),
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
