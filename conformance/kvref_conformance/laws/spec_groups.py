"""Laws of specs that might share a group: whether they merge, and whether they are uniform."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from kvref_conformance.laws.core import Event, Law, LawBroken, Level, Runs
from kvref_conformance.laws.spec import (
    deciding_differences,
    differences,
    facts_of,
    value_of,
    without_consequences,
)


def classes_of(specs: list[dict[str, Any]]) -> list[str]:
    return sorted({spec["class"] for spec in specs})


def facets_of(specs: list[dict[str, Any]], differing: list[str]) -> tuple[str, ...]:
    """The facets of a difference: the classes if there are several, else the differing fields."""
    classes = classes_of(specs)
    return (" and ".join(classes),) if len(classes) > 1 else tuple(differing) or ("",)


def in_words(outcome: dict[str, Any]) -> str:
    if "error" in outcome:
        return f"{outcome['error']['type']}: {outcome['error']['message']}"
    value = outcome["value"]
    return f"a {value['class']}" if isinstance(value, dict) else str(value)


def must_not_merge(facts: list[dict[str, Any]]) -> bool:
    """Whether some of these specs may not share a group."""
    return any(deciding_differences(one, other) for one, other in itertools.combinations(facts, 2))


def in_two_orders(events: list[Event]) -> Iterator[tuple[Event, Event]]:
    """The pairs of successive calls in which the second has the specs of the first in another order."""
    for one, other in zip(events[::2], events[1::2], strict=False):
        if one["args"] != other["args"]:
            yield one, other


def merge_order_free(runs: Runs) -> int:
    """Merging the same specs in two orders gives the same spec, or is refused both times."""
    merges = [event for event in runs[0] if event["op"] == "specs.merge" and "died" not in event["outcome"]]
    judged = 0
    for event, reordered in in_two_orders(merges):
        specs = event["args"]["specs"]
        judged += 1
        if len(classes_of(specs)) == 1 and must_not_merge(facts_of(runs[0], specs)):
            continue  # spec.merge-refuses-unequal judges whether they merge at all.
        one, other = event["outcome"], reordered["outcome"]
        if ("value" in one) != ("value" in other):
            raise LawBroken(
                "specs that merge in one order merge in any order",
                f"{in_words(one)} in one order, {in_words(other)} in the other",
                facets_of(specs, ["refused"]),
            )
        if "value" in one and (wrong := differences(one["value"], other["value"])):
            raise LawBroken(
                "merging in another order gives the same spec",
                "; ".join(
                    f"{f} is {value_of(one['value'], f)} or {value_of(other['value'], f)}" for f in wrong
                ),
                facets_of(specs, without_consequences(wrong)),
            )
    return judged


def merge_keeps_class(runs: Runs) -> int:
    """Merging a spec with a spec of a derived class gives the derived class, or is refused."""
    mro = {
        event["outcome"]["value"]["class"]: event["outcome"]["value"].get("mro", [])
        for event in runs[0]
        if event["op"] == "specs.build" and "value" in event["outcome"]
    }
    judged = 0
    for event in runs[0]:
        if event["op"] != "specs.merge" or "died" in event["outcome"]:
            continue
        classes = classes_of(event["args"]["specs"])
        derived = [c for c in classes if any(other in mro.get(c, []) for other in classes if other != c)]
        judged += bool(derived)
        if "value" not in event["outcome"]:
            continue
        merged = event["outcome"]["value"]
        lost = [c for c in derived if c not in merged.get("mro", [merged["class"]])]
        if lost:
            raise LawBroken(
                f"merging {', '.join(classes)} gives a {lost[0]} or is refused",
                f"a {merged['class']}",
                tuple(lost),
            )
    return judged


def uniform_answers(events: list[Event]) -> list[Event]:
    return [event for event in events if event["op"] == "specs.uniform" and "died" not in event["outcome"]]


def all_registered(events: list[Event]) -> bool:
    """Whether all classes are registered. Planning refuses unregistered ones before it checks uniformity."""
    lookups = [event["outcome"] for event in events if event["op"] == "registry.lookup"]
    return all("value" in outcome and outcome["value"]["manager"] is not None for outcome in lookups)


def differing_fields(specs: list[dict[str, Any]]) -> list[str]:
    names = sorted({name for spec in specs for name in spec["fields"]})
    return [n for n in names if any(s["fields"].get(n) != specs[0]["fields"].get(n) for s in specs)]


def uniform_symmetric(runs: Runs) -> int:
    """In any order of the specs, the answer whether they are uniform is the same."""
    judged = 0
    for event, reordered in in_two_orders(uniform_answers(runs[0])):
        judged += 1
        one, other = event["outcome"], reordered["outcome"]
        if "value" in one and "value" in other and one["value"] != other["value"]:
            specs = event["args"]["specs"]
            raise LawBroken(
                "the same answer in any order of the specs",
                f"{one['value']} in one order, {other['value']} in the other",
                facets_of(specs, differing_fields(specs)),
            )
    return judged


def uniform_total(runs: Runs) -> int:
    """Registered specs are uniform or not: the answer is true or false. Other specs may be refused."""
    answers = uniform_answers(runs[0])
    builds = [event for event in runs[0] if event["op"] == "specs.build"]
    if any("value" not in event["outcome"] for event in builds):
        return 0
    for event in answers:
        specs, outcome = event["args"]["specs"], event["outcome"]
        refused = "error" in outcome and not all_registered(runs[0])
        if not refused and not isinstance(outcome.get("value"), bool):
            raise LawBroken(
                f"true or false for the uniformity of {' and '.join(classes_of(specs))}",
                in_words(outcome),
                facets_of(specs, differing_fields(specs)),
            )
    return len(answers)


KEPT_BY = {
    "SlidingWindowSpec": "sliding_window",
    "SlidingWindowMLASpec": "sliding_window",
    "ChunkedLocalAttentionSpec": "attention_chunk_size",
    "MambaSpec": "num_speculative_blocks",
}
"""For each class, the field that decides which blocks a layer keeps, and so which block table it needs.

A class derived from one of these may have a rule of its own: vLLM's `KpoolTailSpec` keeps one block.
"""


def keeps_differently(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The fields in which two specs differ so that their layers cannot share a block table."""
    fields = ["block_size"]
    for name, field in KEPT_BY.items():
        both_derive = all(name in facts.get("mro", ()) for facts in (one, other))
        if both_derive and name in (one["class"], other["class"]):
            fields.append(field)
    return [name for name in dict.fromkeys(fields) if one["fields"].get(name) != other["fields"].get(name)]


def uniform_separates(runs: Runs) -> int:
    """Specs that differ in their block size, or in the blocks that they keep, are not uniform."""
    judged = 0
    for event in uniform_answers(runs[0]):
        asked = event["args"]["specs"]
        made = facts_of(runs[0], asked)
        differing = sorted(
            {name for pair in itertools.combinations(made, 2) for name in keeps_differently(*pair)}
        )
        judged += bool(differing)
        if differing and event["outcome"].get("value") is True:
            values = [f"{n} ({', '.join(str(value_of(facts, n)) for facts in made)})" for n in differing]
            raise LawBroken(
                f"specs that differ in {', '.join(values)} are not uniform",
                "they are uniform",
                facets_of(asked, differing),
            )
    return judged


LAWS = [
    Law(
        id="spec.merge-order-free",
        level=Level.SAFETY,
        statement="Merging specs gives the same result, or is refused, in any order.",
        why="Otherwise the plan of a model depends on the order of its layers.",
        sources=("vLLM PR 37505",),
        workload="specs.merge-orders",
        check=merge_order_free,
    ),
    Law(
        id="spec.merge-keeps-class",
        level=Level.SAFETY,
        statement="Merging a spec with a spec of a subclass gives a spec of the subclass, or is refused.",
        why=(
            "Otherwise a layer with a special cache is freed, grouped and restored by the rules of its "
            "parent class."
        ),
        sources=("vLLM PR 37505",),
        workload="specs.merge-orders",
        check=merge_keeps_class,
    ),
    Law(
        id="spec.uniform-symmetric",
        level=Level.SAFETY,
        statement="Whether specs are uniform does not depend on their order.",
        why=(
            "Otherwise the order of the layers decides whether layers with different needs share a block "
            "table."
        ),
        sources=("vLLM PR 37505",),
        workload="specs.uniformity",
        check=uniform_symmetric,
    ),
    Law(
        id="spec.uniform-total",
        level=Level.SAFETY,
        statement=(
            "Whether specs are uniform is answered with true or false for any mix of registered specs; only "
            "unregistered specs may be refused."
        ),
        why="Otherwise planning a model with an unusual mix of layers ends in an unexpected exception.",
        sources=("vLLM PR 37505",),
        workload="specs.uniformity",
        check=uniform_total,
    ),
    Law(
        id="spec.uniform-separates",
        level=Level.SAFETY,
        statement=(
            "Specs with different block sizes are not uniform. Neither are specs of one kind with different "
            "windows, chunks or numbers of speculative blocks."
        ),
        why="Uniform layers share a block table, so one of them would lose blocks that it still reads.",
        sources=("vLLM PR 37505",),
        workload="specs.uniformity",
        check=uniform_separates,
    ),
]
