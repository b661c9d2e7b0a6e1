"""Laws of the specs: identity, refusals, padding, copies and merges."""

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
"""Fields that decide the page, the block size, the heads, the dtypes or the work of the manager. Specs that
differ in one of them must not merge."""

WINDOW_FIELDS = ("sliding_window", "attention_chunk_size")
"""Specs with two different values in one of these fields must not merge. A value may merge with None."""


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """The names of the fields in which two specs differ, then class and page size if they differ."""
    fields = sorted({*first["fields"], *second["fields"]})
    absent = object()
    differing = [f for f in fields if first["fields"].get(f, absent) != second["fields"].get(f, absent)]
    return differing + [key for key in ("class", "page_size_bytes") if first[key] != second[key]]


def without_consequences(differing: list[str]) -> list[str]:
    """The differing fields, without class and page size, which may follow from the fields.

    If only class or page size differ, all names.
    """
    return [name for name in differing if name not in ("class", "page_size_bytes")] or differing


def value_of(facts: dict[str, Any], name: str) -> Any:
    return facts["fields"][name] if name in facts["fields"] else facts.get(name, "absent")


def built(events: list[Event]) -> list[dict[str, Any] | None]:
    """The facts of each built spec, in order; None if the build was refused."""
    return [event["outcome"].get("value") for event in events if event["op"] == "specs.build"]


def facts_of(events: list[Event], specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The facts of the specs that were built, in the order of `specs`."""
    made = [
        (event["args"]["spec"], event["outcome"].get("value"))
        for event in events
        if event["op"] == "specs.build"
    ]
    found = (next((facts for built_spec, facts in made if built_spec == spec), None) for spec in specs)
    return [facts for facts in found if facts is not None]


def deciding_differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """The names of the differences that forbid two specs to share a group."""
    differing = differences(first, second)
    deciding = [
        name
        for name in differing
        if name in DECIDING_FIELDS
        or (name in WINDOW_FIELDS and None not in (value_of(first, name), value_of(second, name)))
    ]
    return deciding or [name for name in differing if name == "page_size_bytes"]


def frozen_hashable(runs: Runs) -> int:
    """Two specs with the same fields are equal and have the same hash, and no field can be changed."""
    judged = 0
    for event in runs[0] if None not in built(runs[0]) else []:
        outcome = event["outcome"]
        if event["op"] == "specs.twins" and "died" not in outcome:
            judged += 1
            expected = "two specs with the same fields are equal and have the same hash"
            if "error" in outcome:
                error = outcome["error"]
                raise LawBroken(expected, f"{error['type']}: {error['message']}", ("not hashable",))
            if not outcome["value"]["equal"]:
                raise LawBroken(expected, "they are not equal", ("not equal",))
            if not outcome["value"]["hashes_equal"]:
                raise LawBroken(expected, "they are equal, but their hashes differ", ("hash",))
        elif event["op"] == "specs.mutable_fields" and "value" in outcome:
            judged += 1
            if outcome["value"]:
                changed = outcome["value"]
                raise LawBroken(
                    "no field of a spec can be changed", f"changed {', '.join(changed)}", tuple(changed)
                )
    return judged


def pickle_round_trip(runs: Runs) -> int:
    """A spec that is pickled in one process is equal after unpickling in another."""
    facts = built(runs[0])
    if not facts or facts[0] is None:
        return 0
    events = [event for run in runs for event in run if event["op"] in ("specs.pickled", "specs.unpickled")]
    expected = "a spec equal to the pickled one"
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
            tuple(without_consequences(lost)),
        )
    if not restored["equal"]:
        raise LawBroken(
            expected, "no field differs, but it is not equal to a new spec with the same fields", ("==",)
        )
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
"""The smallest possible value of each field. A window of -1 stands for no window; -2 is impossible."""


def illegalities(fields: dict[str, Any], content: int | None) -> list[str]:
    """The fields with an impossible value. `content` is the number of bytes that the page must hold."""
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
    """A spec with an impossible field is refused."""
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
                "a refusal of " + ", ".join(f"{name}={fields[name]}" for name in wrong),
                f"a {facts['class']} with page_size_bytes={facts['page_size_bytes']}",
            )
        if facts is not None and not wrong:
            legal = {
                "fields": {**fields, "page_size_padded": None},
                "content": facts.get("unpadded_page_size_bytes") or facts["page_size_bytes"],
            }
    return judged


def padding_honoured(runs: Runs) -> int:
    """A spec with a padded page size has pages of that size, or is refused."""
    judged = 0
    for event in runs[0]:
        padded = event["args"].get("spec", {}).get("fields", {}).get("page_size_padded")
        if event["op"] != "specs.build" or padded is None or "died" in event["outcome"]:
            continue
        judged += 1
        facts = event["outcome"].get("value")
        if facts is not None and event["args"]["spec"].get("declared", {}).get("never_pads"):
            raise LawBroken(
                f"a refusal of page_size_padded={padded}, because the target declares that it never pads",
                f"a spec with page_size_bytes={facts['page_size_bytes']}",
                ("accepted",),
            )
        if facts is not None and facts["page_size_bytes"] != padded:
            raise LawBroken(
                f"page_size_bytes={padded}, the requested page_size_padded, or a refusal",
                f"page_size_bytes={facts['page_size_bytes']}",
            )
    return judged


def merge_identity(runs: Runs) -> int:
    """Merging a spec with itself gives the same spec, field for field."""
    facts = built(runs[0])
    merges = [event["outcome"] for event in runs[0] if event["op"] == "specs.merge"]
    if not facts or facts[-1] is None or not merges or "died" in merges[0]:
        return 0
    spec, outcome = facts[-1], merges[0]
    if "error" in outcome:
        raise LawBroken(
            "merging a spec with itself gives the same spec",
            f"{outcome['error']['type']}: {outcome['error']['message']}",
            ("refused",),
        )
    lost = differences(spec, outcome["value"])
    if lost:
        raise LawBroken(
            "merging a spec with itself gives the same spec",
            "; ".join(f"{f} is {value_of(outcome['value'], f)}, was {value_of(spec, f)}" for f in lost),
            tuple(lost),
        )
    return 1


def merge_refuses_unequal(runs: Runs) -> int:
    """Two specs that need different pages or different managers do not merge."""
    judged = 0
    for event in runs[0]:
        if event["op"] != "specs.merge" or "died" in event["outcome"]:
            continue
        made = facts_of(runs[0], event["args"]["specs"])
        if len(made) != 2:
            continue
        first, second = made
        deciding = deciding_differences(first, second)
        judged += bool(deciding)
        if deciding and "value" in event["outcome"]:
            merged = event["outcome"]["value"]
            raise LawBroken(
                "specs that differ in "
                + ", ".join(f"{n} ({value_of(first, n)} and {value_of(second, n)})" for n in deciding)
                + " do not merge",
                "they merged into " + ", ".join(f"{n} {value_of(merged, n)}" for n in deciding),
                tuple(deciding),
            )
    return judged


def copy_consistent(runs: Runs) -> int:
    """A copy with a new block size equals a new spec of that block size, or both are refused."""
    copies = [event for event in runs[0] if event["op"] == "specs.copy"]
    builds = [event["outcome"] for event in runs[0] if event["op"] == "specs.build"]
    # The last two builds are the spec and the new one. An earlier build may be the spec without padding.
    if not copies or len(builds) < 2 or "value" not in builds[-2] or "died" in copies[0]["outcome"]:
        return 0
    copied, fresh = copies[0]["outcome"], builds[-1]
    if "value" in fresh and "error" in copied:
        raise LawBroken(
            f"a copy with block size {copies[0]['args']['block_size']}, because a new spec of that size can "
            "be built",
            f"{copied['error']['type']}: {copied['error']['message']}",
            ("refused",),
        )
    if "value" in copied and "error" in fresh:
        raise LawBroken(
            f"no copy with block size {copies[0]['args']['block_size']}, because a new spec of that size is "
            f"refused ({fresh['error']['type']}: {fresh['error']['message']})",
            "a copy was made",
            ("accepted",),
        )
    if "value" in copied and (wrong := differences(fresh["value"], copied["value"])):
        raise LawBroken(
            "the copy equals a new spec of that block size",
            "; ".join(
                f"{f} is {value_of(copied['value'], f)}, in a new spec it is {value_of(fresh['value'], f)}"
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
            "Specs are immutable and, except for composites, hashable, and two specs with the same fields "
            "are equal and have the same hash."
        ),
        why=(
            "Otherwise planning, which uses specs as dictionary keys, may lose a layer or give it a group of "
            "its own."
        ),
        sources=("vLLM PR 37505",),
        workload="specs.identity",
        check=frozen_hashable,
    ),
    Law(
        id="spec.pickle-round-trip",
        level=Level.SAFETY,
        statement="A spec that is pickled and unpickled in another process is equal to the original.",
        why=(
            "Workers send their specs to the scheduler process. If a field is lost on the way, the scheduler "
            "plans without it."
        ),
        sources=("vLLM PR 37505",),
        workload="specs.pickling",
        check=pickle_round_trip,
    ),
    Law(
        id="spec.illegal-refused",
        level=Level.ROBUSTNESS,
        statement=(
            "A spec with impossible fields is refused at construction, for example a block size below 1 or "
            "below the tokens of one state, no heads, or padding smaller than the content."
        ),
        why="Otherwise a typo in a configuration becomes an empty page, or a division by zero in other code.",
        sources=("vLLM PR 37505",),
        workload="specs.illegal",
        check=illegal_refused,
        enough=0,
    ),
    Law(
        id="spec.padding-honoured",
        level=Level.SAFETY,
        statement=(
            "If a spec has page_size_padded, its page_size_bytes is that value, or the spec is refused; if a "
            "target declares that it never pads, it refuses every spec with padding."
        ),
        why="Otherwise layers that should share a pool get different page sizes, and their views overlap.",
        sources=("vLLM PR 31635",),
        workload="specs.padding",
        check=padding_honoured,
    ),
    Law(
        id="spec.copy-consistent",
        level=Level.SAFETY,
        statement=(
            "A copy with a new block size equals a new spec of that block size, including derived values "
            "such as padding from alignment."
        ),
        why=(
            "Planning copies specs to other block sizes. If a copy keeps the old page size, every later "
            "block is shifted."
        ),
        sources=("vLLM PR 37505", "vLLM PR 31635"),
        workload="specs.copy",
        check=copy_consistent,
    ),
    Law(
        id="spec.merge-identity",
        level=Level.SAFETY,
        statement="Merging a spec with itself gives an equal spec: merge([s]) == s and merge([s, s]) == s.",
        why="Planning uses the merged spec, so a lost field is a lost window, alignment or format.",
        sources=("vLLM PR 37505",),
        workload="specs.merge-equal",
        check=merge_identity,
    ),
    Law(
        id="spec.merge-refuses-unequal",
        level=Level.SAFETY,
        statement=(
            "Specs with different pages, block sizes, heads, dtypes or managers never merge; a spec with a "
            "window may merge with one that has none."
        ),
        why=(
            "A group has one page size, so a layer that needs a larger page reads and writes past its blocks."
        ),
        sources=("vLLM PR 37505",),
        workload="specs.merge-unequal",
        check=merge_refuses_unequal,
    ),
]
