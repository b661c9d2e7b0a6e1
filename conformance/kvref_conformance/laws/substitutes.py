"""The law of classes that a platform puts in the place of others."""

from __future__ import annotations

from typing import Any

from kvref_conformance.laws.core import Law, LawBroken, Level, Runs
from kvref_conformance.laws.registry import told


def substitute(runs: Runs) -> int:
    """Follow each process: layers are planned as what stands for their class, with every field they have.

    A substitute may have one in turn; which of the two a layer gets is left open.
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
                        "the plan that there was with the same substitutes before",
                        "another" if "value" in outcome else told(outcome),
                        ("not undone",),
                    )
                if "value" in outcome:
                    for spec, planned in planned_layers(arguments["layers"], outcome["value"]):
                        refuse_wrong_spec(built.get(repr(spec)), planned, chain(spec["class"], present))
                elif any("value" in other for other in plans.values()):
                    raise LawBroken("a plan, as without substitutes", told(outcome), ("refused",))
    return judged


def chain(name: str, present: dict[str, str]) -> list[str]:
    """A class, what stands for it, what stands for that, and so on."""
    names = [name]
    while (following := present.get(names[-1], names[-1])) not in names:
        names.append(following)
    return names


def refuse_wrong_answer(
    arguments: dict[str, Any], outcome: dict[str, Any], present: dict[str, str], derived: dict[str, list[str]]
) -> int:
    """Raise `LawBroken` if a loop is accepted, or what is none is refused; says whether it was judged.

    A class of the target's own may have no entry by itself, so that nothing can be put in its place.
    """
    old, new = arguments["spec_class"], arguments["substitute"]
    loop = new is not None and old in chain(new, present)
    if loop and "value" in outcome:
        raise LawBroken(f"a refusal of {new} for {old}, which closes a loop", "accepted", ("loop",))
    possible = present.get(old, old) != old if new is None else old in derived and not loop
    if possible and "error" in outcome:
        what = f"{new} in the place of {old}" if new else f"{old} itself again"
        raise LawBroken(what, told(outcome), ("not possible",))
    return int(loop or possible)


def planned_layers(layers: dict[str, Any], plan: dict[str, Any]) -> list[tuple[Any, Any]]:
    """What each layer declares, and what is planned for it."""
    return [(layers[one["name"]], one["spec"]) for group in plan["groups"] for one in group["layers"]]


def refuse_wrong_spec(declared: dict[str, Any] | None, planned: dict[str, Any], names: list[str]) -> None:
    """Raise `LawBroken` for a layer planned as another class than stands for its own, or without a field."""
    possible = names[1:] or names
    if planned["class"] not in possible:
        raise LawBroken(
            f"a layer with a {names[0]} planned as {' or '.join(possible)}", planned["class"], ("class",)
        )
    fields = declared["fields"] if declared else {}
    lost = [name for name, value in fields.items() if planned["fields"].get(name) != value]
    if lost:
        raise LawBroken(
            ", ".join(f"{name} {fields[name]}" for name in lost) + f" kept in {planned['class']}",
            ", ".join(f"{name} {planned['fields'].get(name)}" for name in lost),
            tuple(lost),
        )


SUBSTITUTE = Law(
    id="registry.substitute",
    level=Level.SAFETY,
    statement=(
        "Overriding a class itself means that layers which declare it are planned as the platform's class, "
        "every field kept; substitutes do not chain into loops, and undoing one restores the plan."
    ),
    why="A platform's layers are planned as the stock class, or lose a window on the way.",
    sources=("vLLM RFC 36668",),
    workload="registry.substitutes",
    check=substitute,
    capabilities=("override",),
)
