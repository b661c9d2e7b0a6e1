"""Laws of specs that might share a group: merging them, and telling whether they are uniform."""

from __future__ import annotations

import itertools
from typing import Any

from kvref_conformance.laws.core import Event, Law, LawBroken, Level, Runs
from kvref_conformance.laws.spec import built, deciding_differences, differences, told_apart, value_of


def classes_of(specs: list[dict[str, Any]]) -> list[str]:
    return sorted({spec["class"] for spec in specs})


def facets_of(specs: list[dict[str, Any]], differing: list[str]) -> tuple[str, ...]:
    """The classes that were mixed; among specs of one class what differs."""
    classes = classes_of(specs)
    return (" and ".join(classes),) if len(classes) > 1 else tuple(differing) or ("",)


def in_words(outcome: dict[str, Any]) -> str:
    if "error" in outcome:
        return f"{outcome['error']['type']}: {outcome['error']['message']}"
    value = outcome["value"]
    return f"a {value['class']}" if isinstance(value, dict) else str(value)


def must_not_merge(facts: list[dict[str, Any] | None]) -> bool:
    """Whether some of these specs may not share a group."""
    made = [one for one in facts if one is not None]
    return any(deciding_differences(one, other) for one, other in itertools.combinations(made, 2))


def merge_order_free(runs: Runs) -> int:
    """Two merges of the same specs in different orders are both refused, or yield the same."""
    merges = [event for event in runs[0] if event["op"] == "specs.merge" and "died" not in event["outcome"]]
    if len(merges) < 2 or merges[0]["args"] == merges[1]["args"]:
        return 0
    specs = merges[0]["args"]["specs"]
    if len(classes_of(specs)) == 1 and must_not_merge(built(runs[0])):
        return 1  # If they are merged at all, that is for another law to tell.
    one, other = (event["outcome"] for event in merges[:2])
    if ("value" in one) != ("value" in other):
        raise LawBroken(
            "specs that merge in one order merge in any",
            f"{in_words(one)} in one order, {in_words(other)} in the other",
            facets_of(specs, ["refused"]),
        )
    if "value" in one and (wrong := differences(one["value"], other["value"])):
        raise LawBroken(
            "merging in another order yields the same spec",
            "; ".join(f"{f} is {value_of(one['value'], f)} or {value_of(other['value'], f)}" for f in wrong),
            facets_of(specs, told_apart(wrong)),
        )
    return 1


def merge_keeps_class(runs: Runs) -> int:
    """Merging a spec with one of a derived class is refused, or yields one of the derived class."""
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
                f"a refusal, or a {lost[0]}, of merging {', '.join(classes)}",
                f"a {merged['class']}",
                tuple(lost),
            )
    return judged


def uniform_answers(events: list[Event]) -> list[Event]:
    return [event for event in events if event["op"] == "specs.uniform" and "died" not in event["outcome"]]


def all_registered(events: list[Event]) -> bool:
    """Whether no look-up found a spec of an unknown class, which planning refuses before it asks."""
    lookups = [event["outcome"] for event in events if event["op"] == "registry.lookup"]
    return all("value" in outcome and outcome["value"]["manager"] is not None for outcome in lookups)


def differing_fields(specs: list[dict[str, Any]]) -> list[str]:
    names = sorted({name for spec in specs for name in spec["fields"]})
    return [n for n in names if any(s["fields"].get(n) != specs[0]["fields"].get(n) for s in specs)]


def uniform_symmetric(runs: Runs) -> int:
    """Two orders of the same specs get the same answer."""
    asked = uniform_answers(runs[0])
    if len(asked) < 2 or asked[0]["args"] == asked[1]["args"]:
        return 0
    one, other = (event["outcome"] for event in asked[:2])
    if "value" in one and "value" in other and one["value"] != other["value"]:
        specs = asked[0]["args"]["specs"]
        raise LawBroken(
            "one answer, whichever spec comes first",
            f"{one['value']} in one order, {other['value']} in the other",
            facets_of(specs, differing_fields(specs)),
        )
    return 1


def uniform_total(runs: Runs) -> int:
    """Whether registered specs are uniform is answered by yes or no; others may be refused."""
    asked = uniform_answers(runs[0])
    builds = [event for event in runs[0] if event["op"] == "specs.build"]
    if any("value" not in event["outcome"] for event in builds):
        return 0
    for event in asked:
        specs, outcome = event["args"]["specs"], event["outcome"]
        refused = "error" in outcome and not all_registered(runs[0])
        if not refused and not isinstance(outcome.get("value"), bool):
            raise LawBroken(
                f"yes or no to whether specs of {' and '.join(classes_of(specs))} are uniform",
                in_words(outcome),
                facets_of(specs, differing_fields(specs)),
            )
    return len(asked)


LAWS = [
    Law(
        id="spec.merge-order-free",
        level=Level.SAFETY,
        statement="Merging accepts or refuses, and yields the same, in any order.",
        why="The plan of a model depends on the order in which its layers happen to be listed.",
        sources=("vLLM PR 37505",),
        workload="specs.merge-orders",
        check=merge_order_free,
    ),
    Law(
        id="spec.merge-keeps-class",
        level=Level.SAFETY,
        statement="A subclass instance is never absorbed into its parent's class.",
        why="A layer with a special cache is managed by the general rules: freed, grouped, restored wrongly.",
        sources=("vLLM PR 37505",),
        workload="specs.merge-orders",
        check=merge_keeps_class,
    ),
    Law(
        id="spec.uniform-symmetric",
        level=Level.SAFETY,
        statement="Uniformity is symmetric, and does not depend on the order of the collection.",
        why="Layers that need different blocks share a table, or not, by the order in which they are listed.",
        sources=("vLLM PR 37505",),
        workload="specs.uniformity",
        check=uniform_symmetric,
    ),
    Law(
        id="spec.uniform-total",
        level=Level.SAFETY,
        statement=(
            "Asking about uniformity answers yes or no for any mix of registered specs; only unregistered "
            "ones may be refused."
        ),
        why="Planning a model with an unusual mix of layers ends in an exception that nobody expects.",
        sources=("vLLM PR 37505",),
        workload="specs.uniformity",
        check=uniform_total,
    ),
]
