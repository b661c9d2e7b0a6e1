"""Laws of the registry: which manager and which uniform base a spec class gets."""

from __future__ import annotations

from typing import Any

from kvref_conformance.laws.core import Event, Law, LawBroken, Level, Runs

Entry = dict[str, str | None]
"""What a look-up answers: manager and uniform base."""


def is_registration(event: Event) -> bool:
    return event["op"] in ("registry.register", "registry.decorate")


def entry(registration: Entry) -> Entry:
    """The look-up answer that a registration asks for; no base means the class itself."""
    return {
        "manager": registration["manager"],
        "base": registration["base"] or registration["spec_class"],
    }


def looked_up(events: list[Event]) -> dict[str, Entry]:
    """The latest answer of each class that was looked up."""
    return {
        event["args"]["spec"]["class"]: event["outcome"]["value"]
        for event in events
        if event["op"] == "registry.lookup" and "value" in event["outcome"]
    }


def before_and_after(events: list[Event], place: int) -> tuple[dict[str, Entry], dict[str, Entry]]:
    """What the look-ups right before and right after an event answered."""
    first, last = place, place + 1
    while first > 0 and events[first - 1]["op"] == "registry.lookup":
        first -= 1
    while last < len(events) and events[last]["op"] == "registry.lookup":
        last += 1
    return looked_up(events[first:place]), looked_up(events[place + 1 : last])


def defined(events: list[Event]) -> dict[str, list[str]]:
    """The MRO of each class that was defined, by name."""
    return {
        event["args"]["name"]: event["outcome"]["value"]
        for event in events
        if event["op"] == "registry.define_spec" and "value" in event["outcome"]
    }


def refuse_change(events: list[Event], place: int, what: str) -> None:
    """Raise `LawBroken` when look-ups on both sides of an event differ."""
    before, after = before_and_after(events, place)
    for name, answer in before.items():
        if after.get(name, answer) != answer:
            raise LawBroken(f"{what} leaves {name} as it was: {answer}", f"{after[name]}", ("changed",))


def told(outcome: dict[str, Any]) -> str:
    """An exception in a line."""
    return f"{outcome['error']['type']}: {outcome['error']['message']}"


def nearest_base(runs: Runs) -> int:
    """Follow each process: a look-up must answer what the nearest registered ancestor was given.

    What an override makes of an entry is for another law. Here the next look-up of the class tells, and so it
    does for classes of the target's own that may have no entry but that one.
    """
    judged = 0
    for events in runs:
        entries: dict[str, Entry | None] = {}
        mro: dict[str, list[str]] = {}
        overridden: set[str] = set()
        for event in events:
            arguments, outcome = event["args"], event["outcome"]
            if "value" not in outcome:
                continue
            if event["op"] == "registry.define_spec":
                mro[arguments["name"]] = outcome["value"]
            elif is_registration(event):
                if arguments["spec_class"] not in overridden:
                    entries[arguments["spec_class"]] = entry(arguments)
            elif event["op"] == "registry.override":
                overridden.add(arguments["spec_class"])
                replaced = entries.get(arguments["spec_class"])
                entries[arguments["spec_class"]] = None
                for name, present in entries.items():
                    if name not in mro and present == replaced:
                        entries[name] = None
            elif event["op"] == "registry.lookup":
                name = arguments["spec"]["class"]
                if (name not in mro or name in entries) and entries.get(name) is None:
                    # A class of the target, or overridden: later answers are held to the first one.
                    entries[name] = outcome["value"]
                nearest = next((c for c in mro.get(name, [name]) if c in entries), None)
                expected = entries[nearest] if nearest else {"manager": None, "base": None}
                if expected is None:
                    continue
                judged += 1
                if outcome["value"] != expected:
                    raise LawBroken(
                        f"{name} looked up as {nearest}, its nearest registered class: {expected}",
                        f"{outcome['value']}",
                    )
    return judged


def idempotent(runs: Runs) -> int:
    """A registration that says what is registered already is accepted, and changes no look-up beside it.

    For a class of the target's own, what it answers right before stands for its registration, unless
    something was overridden.
    """
    judged = 0
    for events in runs:
        accepted: dict[str, Entry] = {}
        own = set(defined(events))
        for place, event in enumerate(events):
            if event["op"] == "registry.override" and "value" in event["outcome"]:
                own |= looked_up(events).keys()
            if not is_registration(event) or "died" in event["outcome"]:
                continue
            name, outcome, same = event["args"]["spec_class"], event["outcome"], entry(event["args"])
            before, _ = before_and_after(events, place)
            if accepted.get(name) == same or (name not in own and before.get(name) == same):
                judged += 1
                if "error" in outcome:
                    raise LawBroken(
                        f"the same registration of {name} again does nothing", told(outcome), ("refused",)
                    )
                refuse_change(events, place, f"the same registration of {name} again")
            if "value" in outcome:
                accepted[name] = same
    return judged


def base_is_ancestor(runs: Runs) -> int:
    """A registration or an override that names a base which is no ancestor is refused and changes nothing."""
    judged = 0
    for events in runs:
        for place, event in enumerate(events):
            if not (is_registration(event) or event["op"] == "registry.override"):
                continue
            name, base, outcome = event["args"]["spec_class"], event["args"]["base"], event["outcome"]
            ancestors = defined(events[:place]).get(name)
            if ancestors is None or base is None or base in ancestors or "died" in outcome:
                continue
            judged += 1
            if "value" in outcome:
                raise LawBroken(
                    f"{base} is refused as the uniform base of {name}, which derives from "
                    f"{', '.join(ancestors[1:])}",
                    "accepted",
                    ("override" if event["op"] == "registry.override" else "registration",),
                )
            refuse_change(events, place, f"refusing {base} as the uniform base of {name}")
    return judged


def override_replaces(runs: Runs) -> int:
    """An override gives a registered class what is given, keeps the rest, and is seen by who follows it."""
    judged = 0
    for events in runs:
        registered: set[str] = set()
        for place, event in enumerate(events):
            outcome, mro = event["outcome"], defined(events[:place])
            if is_registration(event) and "value" in outcome:
                registered.add(event["args"]["spec_class"])
            if event["op"] != "registry.override" or "died" in outcome:
                continue
            name = event["args"]["spec_class"]
            given = {key: event["args"][key] for key in ("manager", "base") if event["args"][key] is not None}
            before, after = before_and_after(events, place)
            unknown = before.get(name, {"manager": ""})["manager"] is None
            if unknown or (name in mro and name not in registered):
                judged += 1
                if "value" in outcome:
                    raise LawBroken(
                        f"{name} cannot be overridden, since it is not registered itself",
                        "accepted",
                        ("unregistered",),
                    )
                refuse_change(events, place, f"a refused override of {name}")
                continue
            if name in mro and given.get("base", name) not in mro[name]:
                continue  # for another law
            if "error" in outcome:
                if name in mro:
                    raise LawBroken(f"{name} overridden with {given}", told(outcome), ("refused",))
                continue  # a class of the target's own may have no entry
            if name not in before or name not in after:
                continue
            judged += 1
            expected = {**before[name], **given}
            for key in ("manager", "base"):
                if after[name][key] != expected[key]:
                    raise LawBroken(
                        f"{name}, which was {before[name]}, is {expected} once overridden with {given}",
                        f"{after[name]}",
                        (f"{key} {'not replaced' if key in given else 'not kept'}",),
                    )
            for follower, answer in after.items():
                ancestors = mro.get(follower, [])
                nearest = next((c for c in ancestors if c in registered or c not in mro), None)
                if nearest == name and before.get(follower) == before[name] and answer != after[name]:
                    raise LawBroken(
                        f"{follower}, which follows {name}, is {after[name]} once that is overridden",
                        f"{answer}",
                        ("not seen by a subclass",),
                    )
    return judged


def base_agrees(runs: Runs) -> int:
    """Classes with one registered base are uniform when their fields are equal; those with two never are.

    A planner puts uniform layers into one group, with the manager of one of them. So a yes across bases takes
    layers together that were registered as different, and a no within a base keeps apart what was registered
    as the same. The class itself must be an instance of the base that it is registered with.
    """
    judged = 0
    for events in runs:
        mro = defined(events)
        named = {event["args"].get("base") for event in events}
        for place, event in enumerate(events):
            if event["op"] != "registry.uniform":
                continue
            specs = event["args"]["specs"]
            names = [spec["class"] for spec in specs]
            before, _ = before_and_after(events, place)
            bases = [before.get(name, {}).get("base") for name in names]
            if None in bases or "value" not in event["outcome"]:
                continue
            whose = "derived" if any(name in mro for name in names) else "stock"
            if any(
                base in named and base not in mro.get(name, [base])
                for name, base in zip(names, bases, strict=True)
            ):
                continue  # for another law
            for name, base in zip(names, bases, strict=True):
                if base not in mro.get(name, [base]):
                    raise LawBroken(
                        f"{name} is an instance of its uniform base",
                        f"its base is {base}, it derives from {', '.join(mro[name][1:])}",
                        (f"{whose}, no instance",),
                    )
            uniform, apart = event["outcome"]["value"], len(set(bases)) > 1
            same_fields = all(spec["fields"] == specs[0]["fields"] for spec in specs)
            listed = ", ".join(f"{name} (base {base})" for name, base in zip(names, bases, strict=True))
            judged += apart or same_fields
            if uniform and apart:
                raise LawBroken(
                    f"{listed} are not uniform, as they are registered with different bases",
                    f"{names[0]} finds them uniform",
                    (f"{whose}, uniform across bases",),
                )
            if not uniform and not apart and same_fields:
                raise LawBroken(
                    f"{listed} are uniform, as they have one base and the same fields",
                    f"{names[0]} finds them not uniform",
                    (f"{whose}, not uniform within a base",),
                )
    return judged


def same_table(first: list[Event], second: list[Event], when: str) -> int:
    """Raise `LawBroken` unless the second process looks up what the first one does."""
    expected, answers = (
        {e["args"]["spec"]["class"]: e["outcome"] for e in events if e["op"] == "registry.lookup"}
        for events in (first, second)
    )
    for name, outcome in expected.items():
        if (other := answers.get(name, {})) != outcome:
            unknown = "value" in other and other["value"]["manager"] is None
            raise LawBroken(
                f"{name} looked up as {outcome}, as {when}",
                f"{other} otherwise",
                ("unknown" if unknown else "different",),
            )
    return len(expected)


def order_free(runs: Runs) -> int:
    """Compare the look-ups of two processes that made the same registrations in different orders.

    An override of what is not registered yet is none of those; it is to be refused.
    """
    if len(runs) < 2:
        return 0
    first, second = runs
    if any("value" not in event["outcome"] for event in first):
        return 0
    mro = defined(second)
    for place, event in enumerate(second):
        outcome = event["outcome"]
        if event["op"] == "registry.override" and (name := event["args"]["spec_class"]) in mro:
            earlier = [e["args"]["spec_class"] for e in second[:place] if is_registration(e)]
            if name not in earlier and "value" in outcome:
                raise LawBroken(
                    f"an override of {name} before it is registered is refused", "accepted", ("early",)
                )
            if name not in earlier:
                continue
        if event["op"] != "registry.lookup" and "error" in outcome:
            raise LawBroken(
                "registrations accepted when the built-ins come first are accepted in any order",
                f"{event['op']}: {told(outcome)}",
                ("refused",),
            )
    return same_table(first, second, "when the built-ins were registered first")


def total(runs: Runs) -> int:
    """Whatever is legal once the built-ins are there is done; the first process asks for little else."""
    judged, registered = 0, set()
    for event in runs[0]:
        arguments, outcome = event["args"], event["outcome"]
        if is_registration(event):
            registered.add(arguments["spec_class"])
        # Not each of the target's own classes needs to be registered.
        if event["op"] == "registry.override" and arguments["spec_class"] not in registered:
            continue
        judged += 1
        if "error" in outcome:
            asked = ", ".join(f"{name}={value}" for name, value in arguments.items())
            raise LawBroken(f"{event['op']}({asked}) done", told(outcome), (event["op"],))
    return judged


def hook_seen(runs: Runs) -> int:
    """In the first process, which is initialised first, the hook has registered what is looked up."""
    if any("value" not in event["outcome"] for event in runs[0]):
        return 0
    judged = 0
    hooked: dict[str, Entry] = {}
    for event in runs[0]:
        arguments = event["args"]
        if event["op"] == "registry.install_hook":
            hooked = {each["spec_class"]: entry(each) for each in arguments["registrations"]}
        if event["op"] == "registry.override":
            hooked.pop(arguments["spec_class"], None)
        if event["op"] == "registry.lookup" and (name := arguments["spec"]["class"]) in hooked:
            judged += 1
            if (found := event["outcome"]["value"]) != hooked[name]:
                raise LawBroken(
                    f"{name} looked up as {hooked[name]}, as the hook has registered it",
                    f"{found}",
                    ("not seen",),
                )
    return judged


def every_process(runs: Runs) -> int:
    """Compare the look-ups of two processes that registered and initialised the same.

    A worker that is spawned imports the target anew; it is not a copy of a process that has used it. That is
    what these processes are: forked, but from one that has imported the target and asked nothing of it.
    """
    if len(runs) < 2:
        return 0
    first, second = runs
    if any("value" not in event["outcome"] for event in first):
        return 0
    for event in second:
        if event["op"] != "registry.lookup" and "error" in event["outcome"]:
            raise LawBroken(
                f"{event['op']} accepted, as in another process",
                told(event["outcome"]),
                ("refused",),
            )
    return same_table(first, second, "in a process that did nothing but register and initialise")


def concurrent(runs: Runs) -> int:
    """Whatever threads are answered side by side, some order of their steps answers, too.

    Manager and base are asked for one after the other, and are judged one by one.
    """
    judged = 0
    for events in runs:
        for event in events:
            if event["op"] != "registry.race" or "value" not in event["outcome"]:
                continue
            orders, races = event["outcome"]["value"]["orders"], event["outcome"]["value"]["races"]
            if any("died" in order for order in orders):
                continue
            for race in races:
                judged += 1
                if "died" in race:
                    raise LawBroken("every thread comes to its end", race["died"], ("hangs",))
                for number, steps in enumerate(event["args"]["threads"]):
                    for place, step in enumerate(steps):
                        answer = parts(race["answers"][number][place])
                        possible = [parts(order["answers"][number][place]) for order in orders]
                        for part, value in answer.items():
                            if all(other.get(part) != value for other in possible):
                                raise LawBroken(
                                    f"thread {number}, {subject_of(step)}: an answer that some order of the "
                                    f"threads' steps gives, {' or '.join(map(str, unique(possible)))}",
                                    f"{answer} with the threads side by side",
                                    ("half-filled" if step["op"] == "registry.lookup" else "refused",),
                                )
                if all(race["after"] != order["after"] for order in orders):
                    raise LawBroken(
                        "when all threads have ended, the table of some order of their steps, "
                        f"{' or '.join(str(order['after']) for order in orders)}",
                        f"{race['after']}",
                        ("table",),
                    )
    return judged


def parts(outcome: dict[str, Any]) -> dict[str, Any]:
    """What of an outcome is judged for itself."""
    if "error" in outcome:
        return {"error": outcome["error"]["type"]}
    return outcome["value"] if isinstance(outcome["value"], dict) else {"value": outcome["value"]}


def subject_of(step: dict[str, Any]) -> str:
    name = step["args"].get("spec", {}).get("class") or step["args"].get("spec_class", "")
    return f"{step['op']} {name}".strip()


def unique(items: list[Any]) -> list[Any]:
    return [item for place, item in enumerate(items) if item not in items[:place]]


def conflict_refused(runs: Runs) -> int:
    """A registration that contradicts an accepted one must be refused by name, and change nothing."""
    judged = 0
    for events in runs:
        accepted: dict[str, list[Entry]] = {}
        for place, event in enumerate(events):
            outcome = event["outcome"]
            if event["op"] == "registry.override" and "value" in outcome:
                # Whether one may also register what an override has made of an entry is left open.
                _, after = before_and_after(events, place)
                for name, known in accepted.items():
                    known += [after[name]] if name in after else []
            if not is_registration(event) or "died" in outcome:
                continue
            name, wanted = event["args"]["spec_class"], entry(event["args"])
            if "value" in outcome:
                accepted.setdefault(name, [wanted])
            if wanted in accepted.get(name, [wanted]):
                continue
            judged += 1
            if "error" not in outcome:
                raise LawBroken(
                    f"{name}, registered as {accepted[name][0]}, cannot be registered as {wanted}", "accepted"
                )
            if name not in outcome["error"]["message"]:
                raise LawBroken(
                    f"the refusal of a second registration of {name} names the class",
                    told(outcome),
                    ("message",),
                )
            refuse_change(events, place, f"a refused registration of {name}")
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
        id="registry.total",
        level=Level.SAFETY,
        statement=(
            "Once the built-ins are there, classes can be registered by a call, a decorator or the hook of a "
            "platform, what was registered by a call can be overridden where the registry can do that, and "
            "all classes can be looked up."
        ),
        why="An engine with a plugin does not start.",
        sources=("vLLM PR 37505", "vLLM RFC 36668"),
        workload="registry.orders",
        check=total,
    ),
    Law(
        id="registry.hook-seen",
        level=Level.SAFETY,
        statement="What the hook of a platform registers is looked up as it has registered it.",
        why="A plugin's layers are managed and grouped like those of the class that they derive from.",
        sources=("vLLM PR 37505",),
        workload="registry.orders",
        check=hook_seen,
    ),
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
            "direct register calls yields the same table; built-ins are always there. (`override` after "
            "`register` wins; before it, it is refused.)"
        ),
        why="A plugin that is imported early makes the engine refuse, or misplace, every stock layer.",
        sources=("vLLM PR 37505",),
        workload="registry.orders",
        check=order_free,
    ),
    Law(
        id="registry.idempotent",
        level=Level.SAFETY,
        statement="The same registration twice is a no-op.",
        why="A module imported twice, or an engine started twice, dies at start or changes the table.",
        sources=("vLLM PR 37505",),
        workload="registry.machine",
        check=idempotent,
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
        id="registry.base-is-ancestor",
        level=Level.SAFETY,
        statement="A uniform base that is not an ancestor (or the class itself) is refused.",
        why="Layers are grouped with a kind of attention whose rules they do not follow.",
        sources=("vLLM PR 37505",),
        workload="registry.machine",
        check=base_is_ancestor,
    ),
    Law(
        id="registry.override",
        level=Level.SAFETY,
        statement=(
            "`override` replaces the manager (and base, when given) of a registered class, keeps what is not "
            "given, refuses an unregistered one, and later look-ups of subclasses see it."
        ),
        why="A platform that replaces a built-in's manager gets the built-in one for some layers.",
        sources=("vLLM RFC 36668",),
        workload="registry.machine",
        check=override_replaces,
        capabilities=("override",),
    ),
    Law(
        id="registry.base-agrees",
        level=Level.SAFETY,
        statement=(
            "`is_uniform_with_collection`, the registered base and `isinstance` never contradict each other."
        ),
        why="Layers end in one group, and so under one manager, that were registered to be kept apart.",
        sources=("vLLM PR 37505",),
        workload="registry.agreement",
        check=base_agrees,
    ),
    Law(
        id="registry.every-process",
        level=Level.SAFETY,
        statement="A spawned worker that initialises the same way has the same table.",
        why="Scheduler and workers disagree about groups or managers, and read each other's blocks wrongly.",
        sources=("vLLM PR 37505",),
        workload="registry.processes",
        check=every_process,
    ),
    Law(
        id="registry.concurrent",
        level=Level.ROBUSTNESS,
        statement=(
            "Registrations and first look-ups from several threads yield the table of some sequential order; "
            "no thread ever sees a half-filled one."
        ),
        why="Two threads that start together: one of them finds stock classes unknown, once in a long while.",
        sources=("vLLM PR 37505",),
        workload="registry.races",
        check=concurrent,
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
