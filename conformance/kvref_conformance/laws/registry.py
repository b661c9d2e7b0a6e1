"""Laws of the registry: which manager and which uniform base a spec class gets."""

from __future__ import annotations

from kvref_conformance.laws.core import Event, Law, LawBroken, Runs
from kvref_conformance.results import Level


def is_registration(event: Event) -> bool:
    return event["op"] in ("registry.register", "registry.decorate")


def entry(registration: dict[str, str | None]) -> dict[str, str | None]:
    """The look-up answer that a registration asks for; no base means the class itself."""
    return {
        "manager": registration["manager"],
        "base": registration["base"] or registration["spec_class"],
    }


def nearest_base(runs: Runs) -> int:
    """Follow each process: a look-up must answer what the nearest registered ancestor was given."""
    judged = 0
    for events in runs:
        entries: dict[str, dict[str, str | None]] = {}
        mro: dict[str, list[str]] = {}
        for event in events:
            arguments, outcome = event["args"], event["outcome"]
            if event["op"] == "registry.define_spec" and "value" in outcome:
                mro[arguments["name"]] = outcome["value"]
            elif is_registration(event) and "value" in outcome:
                entries[arguments["spec_class"]] = entry(arguments)
            elif event["op"] == "registry.lookup" and "value" in outcome:
                name = arguments["spec"]["class"]
                if name not in mro:
                    # A class of the target: what it answers first is what later answers are held to.
                    entries.setdefault(name, outcome["value"])
                nearest = next((c for c in mro.get(name, [name]) if c in entries), None)
                expected = entries[nearest] if nearest else {"manager": None, "base": None}
                judged += 1
                if outcome["value"] != expected:
                    raise LawBroken(
                        f"{name} looked up as {nearest}, its nearest registered class: {expected}",
                        f"{outcome['value']}",
                    )
    return judged


def order_free(runs: Runs) -> int:
    """Compare the look-ups of two processes that made the same registrations in different orders."""
    if len(runs) < 2:
        return 0
    first, second = runs
    if any("value" not in event["outcome"] for event in first):
        return 0
    for event in second:
        if event["op"] != "registry.lookup" and "error" in event["outcome"]:
            error = event["outcome"]["error"]
            raise LawBroken(
                "registrations accepted when the built-ins come first are accepted in any order",
                f"{event['op']}: {error['type']}: {error['message']}",
                ("refused",),
            )
    built_ins_first, other_order = (
        {e["args"]["spec"]["class"]: e["outcome"] for e in events if e["op"] == "registry.lookup"}
        for events in runs
    )
    for name, outcome in built_ins_first.items():
        if (other := other_order.get(name, {})) != outcome:
            unknown = "value" in other and other["value"]["manager"] is None
            raise LawBroken(
                f"{name} looked up as {outcome}, as when the built-ins were registered first",
                f"{other} when they were not",
                ("unknown" if unknown else "different",),
            )
    return len(built_ins_first)


def conflict_refused(runs: Runs) -> int:
    """A registration that contradicts an accepted one must be refused by name, and change nothing."""
    judged = 0
    for events in runs:
        accepted: dict[str, dict[str, str | None]] = {}
        for place, event in enumerate(events):
            if not is_registration(event):
                continue
            name, outcome = event["args"]["spec_class"], event["outcome"]
            first = (
                accepted.setdefault(name, entry(event["args"])) if "value" in outcome else accepted.get(name)
            )
            if first is None or first == entry(event["args"]):
                continue
            judged += 1
            if "error" not in outcome:
                raise LawBroken(
                    f"{name}, registered as {first}, cannot be registered as {entry(event['args'])}",
                    "accepted",
                )
            if name not in outcome["error"]["message"]:
                raise LawBroken(
                    f"the refusal of a second registration of {name} names the class",
                    f"{outcome['error']['type']}: {outcome['error']['message']}",
                    ("message",),
                )
            before, after = events[place - 1], events[place + 1 : place + 2]
            lookups = [e["outcome"] for e in (before, *after) if e["op"] == "registry.lookup"]
            if len(lookups) == 2 and lookups[0] != lookups[1]:
                raise LawBroken(
                    f"a refused registration of {name} leaves {lookups[0]}", f"{lookups[1]}", ("changed",)
                )
    return judged


def refusals_survive_o(runs: Runs) -> int:
    """Compare a process that has asserts with one that has none; legal calls must pass in both."""
    if len(runs) < 2:
        return 0
    judged = 0
    legal = False
    for event, without in zip(*runs, strict=False):
        if is_registration(event) and "value" in event["outcome"] and "value" in without["outcome"]:
            legal = True
        if "error" in event["outcome"] and legal:
            judged += 1
            if "error" not in without["outcome"]:
                error = event["outcome"]["error"]
                raise LawBroken(
                    f"refused under python -O as it is without ({error['type']}: {error['message']})",
                    f"{event['op']} accepted under python -O",
                    (refusal_kind(runs[0], event),),
                )
    return judged


def refusal_kind(events: list[Event], refused: Event) -> str:
    """What was refused, in a word."""
    if refused["op"] == "registry.check":
        return "unregistered layer"
    earlier = events[: events.index(refused)]
    name = refused["args"]["spec_class"]
    known = any(is_registration(e) and e["args"]["spec_class"] == name for e in earlier)
    return "conflict" if known else "base"


LAWS = [
    Law(
        id="registry.nearest-base",
        level=Level.SAFETY,
        statement=(
            "A look-up uses the nearest registered class in the spec's MRO, and takes the manager and the "
            "uniform base from that same entry."
        ),
        why="A layer managed by an ancestor's manager is freed, grouped or restored by the wrong rules.",
        sources=("vLLM PR 37505", "vLLM RFC 36668"),
        workload="registry.machine",
        check=nearest_base,
    ),
    Law(
        id="registry.order-free",
        level=Level.SAFETY,
        statement=(
            "Any conflict-free interleaving of built-in registration, platform hook, decorator at import and "
            "direct register calls yields the same table; built-ins are always there."
        ),
        why="A plugin that is imported early makes the engine refuse, or misplace, every stock layer.",
        sources=("vLLM PR 37505",),
        workload="registry.orders",
        check=order_free,
    ),
    Law(
        id="registry.conflict-refused",
        level=Level.SAFETY,
        statement=(
            "A different manager or base for a registered class is refused by an error naming the class, and "
            "the table is as it was."
        ),
        why="Two plugins, or two versions of one, silently replace each other's manager.",
        sources=("vLLM PR 37505",),
        workload="registry.machine",
        check=conflict_refused,
    ),
    Law(
        id="registry.refusals-survive-O",
        level=Level.ROBUSTNESS,
        statement="Every refusal of the registry still happens under python -O, where asserts vanish.",
        why="A deployment with PYTHONOPTIMIZE set accepts registrations that were refused in testing.",
        sources=("vLLM PR 37505",),
        workload="registry.refusals",
        check=refusals_survive_o,
    ),
]
