"""The law of substitutes: a platform may have layers of a stock class planned as layers of its own class."""

from __future__ import annotations

from typing import Any

from kvref_conformance.laws.core import Law, LawBroken, Level, Runs
from kvref_conformance.laws.registry import error_line


def substitute(runs: Runs) -> int:
    """In each process, layers are planned as the substitute of their class, with all of their fields.

    A substitute may have a substitute itself. Then a layer may be planned as any class in this chain but the
    first.
    """
    judged = 0
    for events in runs:
        present: dict[str, str] = {}
        derived: dict[str, list[str]] = {}
        built: dict[str, dict[str, Any]] = {}
        plans: dict[str, Any] = {}
        for event in events:
            arguments, outcome = event["args"], event["outcome"]
            if event["op"] == "specs.derive" and "value" in outcome:
                derived[arguments["name"]] = outcome["value"]
            elif event["op"] == "specs.build" and "value" in outcome:
                built[repr(arguments["spec"])] = outcome["value"]
            elif event["op"] == "registry.substitute" and "died" not in outcome:
                judged += refuse_wrong_answer(arguments, outcome, present, derived)
                if "value" in outcome:
                    present[arguments["spec_class"]] = arguments["substitute"] or arguments["spec_class"]
            elif event["op"] == "planner.groups" and "died" not in outcome:
                state = repr(sorted((old, new) for old, new in present.items() if old != new))
                same = plans.setdefault(state, outcome)
                judged += 1
                if same != outcome:
                    raise LawBroken(
                        "the same plan as before, with the same substitutes",
                        "another plan" if "value" in outcome else error_line(outcome),
                        ("not undone",),
                    )
                if "value" in outcome:
                    for spec, planned in planned_layers(arguments["layers"], outcome["value"]):
                        refuse_wrong_spec(built.get(repr(spec)), planned, chain(spec["class"], present))
                elif any("value" in other for other in plans.values()):
                    raise LawBroken("a plan, as without substitutes", error_line(outcome), ("refused",))
    return judged


def chain(name: str, present: dict[str, str]) -> list[str]:
    """A class, its substitute, the substitute's substitute, and so on."""
    names = [name]
    while (following := present.get(names[-1], names[-1])) not in names:
        names.append(following)
    return names


def refuse_wrong_answer(
    arguments: dict[str, Any], outcome: dict[str, Any], present: dict[str, str], derived: dict[str, list[str]]
) -> int:
    """Raise `LawBroken` if a loop is accepted or a legal substitute refused.

    Return 1 if there was something to judge, else 0. A target's own class may have no entry in the registry.
    Then it cannot have a substitute, and a refusal is right.
    """
    old, new = arguments["spec_class"], arguments["substitute"]
    loop = new is not None and old in chain(new, present)
    if loop and "value" in outcome:
        raise LawBroken(
            f"{new} is refused as the substitute of {old}, because it closes a loop",
            "the substitute was accepted",
            ("loop",),
        )
    possible = present.get(old, old) != old if new is None else old in derived and not loop
    if possible and "error" in outcome:
        what = f"{new} is accepted as the substitute of {old}" if new else f"{old} is restored"
        raise LawBroken(what, error_line(outcome), ("not possible",))
    return int(loop or possible)


def planned_layers(layers: dict[str, Any], plan: dict[str, Any]) -> list[tuple[Any, Any]]:
    """The declared spec and the planned spec of each layer."""
    return [(layers[one["name"]], one["spec"]) for group in plan["groups"] for one in group["layers"]]


def refuse_wrong_spec(declared: dict[str, Any] | None, planned: dict[str, Any], names: list[str]) -> None:
    """Raise `LawBroken` if a layer is planned as a class other than its substitute, or loses a field."""
    possible = names[1:] or names
    if planned["class"] not in possible:
        raise LawBroken(
            f"a layer that declares {names[0]} is planned as {' or '.join(possible)}",
            planned["class"],
            ("class",),
        )
    fields = declared["fields"] if declared else {}
    lost = [name for name, value in fields.items() if planned["fields"].get(name) != value]
    if lost:
        raise LawBroken(
            f"{planned['class']} keeps " + ", ".join(f"{name}={fields[name]}" for name in lost),
            ", ".join(f"{name}={planned['fields'].get(name)}" for name in lost),
            tuple(lost),
        )


SUBSTITUTE = Law(
    id="registry.substitute",
    level=Level.SAFETY,
    statement=(
        "If a platform has a substitute for a class, layers of the class are planned as the substitute with "
        "every field kept; a loop of substitutes is refused, and undoing a substitute restores the plan."
    ),
    why="Otherwise a platform's layers are planned as the stock class, or lose a window.",
    sources=("vLLM RFC 36668",),
    workload="registry.substitutes",
    check=substitute,
    capabilities=("override",),
)
