"""The check of `pool.variants-agree` and `manager.variants-agree`."""

from __future__ import annotations

from typing import Any

from kvref_conformance.laws.core import Event, LawBroken, Runs


def variants_agree(runs: Runs) -> int:
    """Each variant answers the same operations like the first variant.

    The comparison ends at the first operation that the variants do not have in common.
    """
    judged = 0
    first, *others = histories(runs[0]).items() or [("", [])]
    for name, history in others:
        acted = ""
        for place, (expected, observed) in enumerate(zip(first[1], history, strict=False), 1):
            if question(expected) != question(observed) or "died" in expected["outcome"]:
                break
            operation = expected["op"].partition(".")[2]
            acted = acted if operation == "state" else operation
            judged += 1
            if (right := answer(expected)) != (wrong := answer(observed)):
                raise LawBroken(
                    f"of {name!r}, in operation {place} ({expected['op']}), what {first[0]!r} answers: "
                    f"{difference(right, wrong)}",
                    difference(wrong, right),
                    (acted,),
                )
    return judged


def histories(events: list[Event]) -> dict[str, list[Event]]:
    """The events of each variant, from its creation to the creation of the next variant."""
    found: dict[str, list[Event]] = {}
    history: list[Event] = []
    for event in events:
        if variant := event["args"].get("variant"):
            history = found.setdefault(variant, [])
        history.append(event)
    return found


def question(event: Event) -> tuple[str, dict[str, Any]]:
    arguments = {name: value for name, value in event["args"].items() if name != "variant"}
    return event["op"], arguments


def answer(event: Event) -> Any:
    """The value, or the type of the error. Error messages may differ between variants."""
    outcome = event["outcome"]
    return outcome["value"] if "value" in outcome else outcome.get("error", {}).get("type", outcome)


def difference(one: Any, other: Any) -> str:
    """What `one` answers and `other` does not, in words."""
    if isinstance(one, dict) and isinstance(other, dict):
        differing = [f"{name} {one[name]}" for name in one if one[name] != other.get(name)]
        return ", ".join(differing) or "nothing else"
    return f"{one}"
