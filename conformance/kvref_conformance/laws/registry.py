"""Laws of the registry: which manager and which uniform base a spec class gets."""

from __future__ import annotations

from typing import Any

from kvref_conformance.laws.core import Event, Law, LawBroken, Level, Runs

Entry = dict[str, str | None]
"""The answer of a registry look-up: `manager` and uniform `base`."""


def is_registration(event: Event) -> bool:
    return event["op"] in ("registry.register", "registry.decorate")


def entry(registration: Entry) -> Entry:
    """What a look-up should return after this registration. Without a base, the class is its own base."""
    return {
        "manager": registration["manager"],
        "base": registration["base"] or registration["spec_class"],
    }


def looked_up(events: list[Event]) -> dict[str, Entry]:
    """The latest look-up answer for each class."""
    return {
        event["args"]["spec"]["class"]: event["outcome"]["value"]
        for event in events
        if event["op"] == "registry.lookup" and "value" in event["outcome"]
    }


def before_and_after(events: list[Event], place: int) -> tuple[dict[str, Entry], dict[str, Entry]]:
    """The answers of the look-ups right before and right after an event."""
    first, last = place, place + 1
    while first > 0 and events[first - 1]["op"] == "registry.lookup":
        first -= 1
    while last < len(events) and events[last]["op"] == "registry.lookup":
        last += 1
    return looked_up(events[first:place]), looked_up(events[place + 1 : last])


def defined(events: list[Event]) -> dict[str, list[str]]:
    """The MRO of each class that the example defined, by name."""
    return {
        event["args"]["name"]: event["outcome"]["value"]
        for event in events
        if event["op"] == "registry.define_spec" and "value" in event["outcome"]
    }


def refuse_change(events: list[Event], place: int, what: str) -> None:
    """Raise `LawBroken` if the look-ups before and after an event differ."""
    before, after = before_and_after(events, place)
    for name, answer in before.items():
        if after.get(name, answer) != answer:
            raise LawBroken(
                f"{what} leaves {name} unchanged: {answer}", f"{name} is {after[name]}", ("changed",)
            )


def error_line(outcome: dict[str, Any]) -> str:
    """An exception as one line: its type and its message."""
    return f"{outcome['error']['type']}: {outcome['error']['message']}"


def nearest_base(runs: Runs) -> int:
    """In each process, a look-up returns the entry of the nearest registered class in the MRO.

    `registry.override` judges what an override does. So after an override, this law takes the next look-up of
    the class as the class's entry. It does the same for the target's own classes: they may have no entry of
    their own.
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
                    # A class of the target, or overridden: later answers must equal the first one.
                    entries[name] = outcome["value"]
                nearest = next((c for c in mro.get(name, [name]) if c in entries), None)
                expected = entries[nearest] if nearest else {"manager": None, "base": None}
                if expected is None:
                    continue
                judged += 1
                if outcome["value"] != expected:
                    raise LawBroken(
                        f"the look-up of {name} returns the entry of {nearest}, the nearest registered "
                        f"class: {expected}",
                        f"{outcome['value']}",
                    )
    return judged


def idempotent(runs: Runs) -> int:
    """A registration that repeats an earlier one is accepted, and the look-ups before and after it agree.

    Examples do not register the target's own classes. How the target registered a class is seen from the
    look-up right before the call, unless something was overridden.
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
                        f"a repeated registration of {name} does nothing", error_line(outcome), ("refused",)
                    )
                refuse_change(events, place, f"a repeated registration of {name}")
            if "value" in outcome:
                accepted[name] = same
    return judged


def base_is_ancestor(runs: Runs) -> int:
    """A registration or override whose base is not an ancestor is refused, and changes nothing."""
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
                    f"{event['op']} accepted it",
                    ("override" if event["op"] == "registry.override" else "registration",),
                )
            refuse_change(events, place, f"the refusal of {base} as the uniform base of {name}")
    return judged


def override_replaces(runs: Runs) -> int:
    """An override replaces the manager and base that it names, and keeps the rest of the entry.

    Subclasses that inherit the entry get the change, too. A class that is not registered itself cannot be
    overridden.
    """
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
                        f"the override of {name} is refused, because {name} itself is not registered",
                        "the override was accepted",
                        ("unregistered",),
                    )
                refuse_change(events, place, f"a refused override of {name}")
                continue
            if name in mro and given.get("base", name) not in mro[name]:
                continue  # registry.base-is-ancestor judges this
            if "error" in outcome:
                if name in mro:
                    raise LawBroken(
                        f"the override of {name} with {given} is accepted", error_line(outcome), ("refused",)
                    )
                continue  # a class of the target's own may have no entry
            if name not in before or name not in after:
                continue
            judged += 1
            expected = {**before[name], **given}
            for key in ("manager", "base"):
                if after[name][key] != expected[key]:
                    raise LawBroken(
                        f"the override with {given} changes {name} from {before[name]} to {expected}",
                        f"{name} is {after[name]}",
                        (f"{key} {'not replaced' if key in given else 'not kept'}",),
                    )
            for subclass, answer in after.items():
                ancestors = mro.get(subclass, [])
                nearest = next((c for c in ancestors if c in registered or c not in mro), None)
                if nearest == name and before.get(subclass) == before[name] and answer != after[name]:
                    raise LawBroken(
                        f"the override of {name} also changes {subclass}, which inherits its entry, to "
                        f"{after[name]}",
                        f"{subclass} is {answer}",
                        ("not seen by a subclass",),
                    )
    return judged


def base_agrees(runs: Runs) -> int:
    """Specs with the same base and fields are uniform; specs with different bases are not.

    A planner puts uniform layers into one group, under the manager of one of them. So "uniform" across bases
    merges layers that were registered as different, and "not uniform" within a base separates layers that
    were registered as the same. Each class must also derive from the base that it is registered with.
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
                continue  # registry.base-is-ancestor judges this
            for name, base in zip(names, bases, strict=True):
                if base not in mro.get(name, [base]):
                    raise LawBroken(
                        f"{name} derives from its uniform base",
                        f"its base is {base}, but it derives from {', '.join(mro[name][1:])}",
                        (f"{whose}, no instance",),
                    )
            uniform, apart = event["outcome"]["value"], len(set(bases)) > 1
            same_fields = all(spec["fields"] == specs[0]["fields"] for spec in specs)
            listed = ", ".join(f"{name} (base {base})" for name, base in zip(names, bases, strict=True))
            judged += apart or same_fields
            if uniform and apart:
                raise LawBroken(
                    f"{listed} are not uniform, because they are registered with different bases",
                    f"{names[0]} reports them as uniform",
                    (f"{whose}, uniform across bases",),
                )
            if not uniform and not apart and same_fields:
                raise LawBroken(
                    f"{listed} are uniform, because they have the same base and the same fields",
                    f"{names[0]} reports them as not uniform",
                    (f"{whose}, not uniform within a base",),
                )
    return judged


def same_table(first: list[Event], second: list[Event], when: str) -> int:
    """Raise `LawBroken` unless both processes return the same look-ups."""
    expected, answers = (
        {e["args"]["spec"]["class"]: e["outcome"] for e in events if e["op"] == "registry.lookup"}
        for events in (first, second)
    )
    for name, outcome in expected.items():
        if (other := answers.get(name, {})) != outcome:
            unknown = "value" in other and other["value"]["manager"] is None
            raise LawBroken(
                f"the look-up of {name} returns {outcome}, as {when}",
                f"{other}",
                ("unknown" if unknown else "different",),
            )
    return len(expected)


def order_free(runs: Runs) -> int:
    """Two processes that make the same registrations in different orders return the same look-ups.

    An override of a class that is not registered yet must be refused. It is left out of the comparison.
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
                    f"an override of {name} before its registration is refused",
                    "the override was accepted",
                    ("early",),
                )
            if name not in earlier:
                continue
        if event["op"] != "registry.lookup" and "error" in outcome:
            raise LawBroken(
                "registrations that are accepted after the built-ins are accepted in any order",
                f"{event['op']}: {error_line(outcome)}",
                ("refused",),
            )
    return same_table(first, second, "when the built-ins were registered first")


def total(runs: Runs) -> int:
    """In the first process, every operation succeeds.

    This process registers the built-ins before it registers anything else. An override is judged only if a
    call or a decorator registered the class before.
    """
    judged, registered = 0, set()
    for event in runs[0]:
        arguments, outcome = event["args"], event["outcome"]
        if is_registration(event):
            registered.add(arguments["spec_class"])
        # Some of the target's own classes may have no registration to override.
        if event["op"] == "registry.override" and arguments["spec_class"] not in registered:
            continue
        judged += 1
        if "error" in outcome:
            call_args = ", ".join(f"{name}={value}" for name, value in arguments.items())
            raise LawBroken(f"{event['op']}({call_args}) succeeds", error_line(outcome), (event["op"],))
    return judged


def hook_seen(runs: Runs) -> int:
    """Look-ups return what the platform hook registered.

    This is judged in the first process, which runs the hook before it registers anything else.
    """
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
                    f"the look-up of {name} returns {hooked[name]}, as the platform hook registered it",
                    f"{found}",
                    ("not seen",),
                )
    return judged


def every_process(runs: Runs) -> int:
    """Two processes that register and initialise in the same way return the same look-ups.

    Each process is forked from one that has imported the target and called nothing. So it is like a spawned
    worker, which imports the target afresh.
    """
    if len(runs) < 2:
        return 0
    first, second = runs
    if any("value" not in event["outcome"] for event in first):
        return 0
    for event in second:
        if event["op"] != "registry.lookup" and "error" in event["outcome"]:
            raise LawBroken(
                f"{event['op']} is accepted, as in another process",
                error_line(event["outcome"]),
                ("refused",),
            )
    return same_table(first, second, "in a process that did nothing but register and initialise")


def concurrent(runs: Runs) -> int:
    """Threads that run at the same time get the answers of some sequential order of their steps.

    A thread reads the manager first and then the base, so the law judges each of the two on its own.
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
                    raise LawBroken("every thread finishes", race["died"], ("hangs",))
                for number, steps in enumerate(event["args"]["threads"]):
                    for place, step in enumerate(steps):
                        answer = parts(race["answers"][number][place])
                        possible = [parts(order["answers"][number][place]) for order in orders]
                        for part, value in answer.items():
                            if all(other.get(part) != value for other in possible):
                                raise LawBroken(
                                    f"thread {number}, {subject_of(step)}: the answer of some sequential "
                                    f"order of the threads' steps, {' or '.join(map(str, unique(possible)))}",
                                    f"{answer} when the threads run concurrently",
                                    ("half-filled" if step["op"] == "registry.lookup" else "refused",),
                                )
                if all(race["after"] != order["after"] for order in orders):
                    raise LawBroken(
                        "after all threads have finished, the table of some sequential order of their steps, "
                        f"{' or '.join(str(order['after']) for order in orders)}",
                        f"{race['after']}",
                        ("table",),
                    )
    return judged


def parts(outcome: dict[str, Any]) -> dict[str, Any]:
    """The parts of an outcome that `concurrent` judges one by one."""
    if "error" in outcome:
        return {"error": outcome["error"]["type"]}
    return outcome["value"] if isinstance(outcome["value"], dict) else {"value": outcome["value"]}


def subject_of(step: dict[str, Any]) -> str:
    name = step["args"].get("spec", {}).get("class") or step["args"].get("spec_class", "")
    return f"{step['op']} {name}".strip()


def unique(items: list[Any]) -> list[Any]:
    return [item for place, item in enumerate(items) if item not in items[:place]]


def conflict_refused(runs: Runs) -> int:
    """A registration that contradicts an accepted one is refused, and changes nothing.

    The error names the class.
    """
    judged = 0
    for events in runs:
        accepted: dict[str, list[Entry]] = {}
        for place, event in enumerate(events):
            outcome = event["outcome"]
            if event["op"] == "registry.override" and "value" in outcome:
                # A registration that repeats an overridden entry may be accepted or refused.
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
                    f"{name}, registered as {accepted[name][0]}, cannot be registered as {wanted}",
                    "the second registration was accepted",
                )
            if name not in outcome["error"]["message"]:
                raise LawBroken(
                    f"the refusal of a second registration of {name} names the class",
                    error_line(outcome),
                    ("message",),
                )
            refuse_change(events, place, f"a refused registration of {name}")
    return judged


def refusals_survive_o(runs: Runs) -> int:
    """A process without asserts (`python -O`) refuses what a process with asserts refuses."""
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
                    f"{event['op']} is refused under python -O, as without it ({error['type']}: "
                    f"{error['message']})",
                    f"{event['op']} was accepted under python -O",
                    (refusal_kind(runs[0], event),),
                )
    return judged


def refusal_kind(events: list[Event], refused: Event) -> str:
    """The kind of the refusal, for the facet."""
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
            "After the built-ins are registered, a plugin can register classes by a call, a decorator or a "
            "platform hook, override a class that was registered by a call (if the registry supports it), "
            "and look up every class."
        ),
        why="Otherwise an engine with a plugin does not start.",
        sources=("vLLM PR 37505", "vLLM RFC 36668"),
        workload="registry.orders",
        check=total,
    ),
    Law(
        id="registry.hook-seen",
        level=Level.SAFETY,
        statement="A look-up returns what the platform hook registered.",
        why="Otherwise a plugin's layers are managed and grouped like the stock class they derive from.",
        sources=("vLLM PR 37505",),
        workload="registry.orders",
        check=hook_seen,
    ),
    Law(
        id="registry.nearest-base",
        level=Level.SAFETY,
        statement=(
            "A look-up takes both the manager and the uniform base from the nearest registered class in the "
            "spec's MRO."
        ),
        why=(
            "Otherwise a more distant ancestor's manager frees, groups or restores the layer's blocks by the "
            "wrong rules."
        ),
        sources=("vLLM PR 37505", "vLLM RFC 36668"),
        workload="registry.machine",
        check=nearest_base,
    ),
    Law(
        id="registry.order-free",
        level=Level.SAFETY,
        statement=(
            "If registrations do not conflict, the table does not depend on the order of built-in "
            "registration, platform hook, decorators at import and `register` calls, and always has the "
            "built-ins; `override` wins after `register` and is refused before it."
        ),
        why=(
            "Otherwise a plugin that is imported early makes the engine refuse or misplace every stock layer."
        ),
        sources=("vLLM PR 37505",),
        workload="registry.orders",
        check=order_free,
    ),
    Law(
        id="registry.idempotent",
        level=Level.SAFETY,
        statement="A repeated registration does nothing and raises no error.",
        why=(
            "Otherwise a module that is imported twice, or an engine that is started twice, fails to start "
            "or changes the table."
        ),
        sources=("vLLM PR 37505",),
        workload="registry.machine",
        check=idempotent,
    ),
    Law(
        id="registry.conflict-refused",
        level=Level.SAFETY,
        statement=(
            "Registering a class again with another manager or base is refused with an error that names the "
            "class, and the table stays as it was."
        ),
        why="Otherwise two plugins, or two versions of one, silently replace each other's manager.",
        sources=("vLLM PR 37505",),
        workload="registry.machine",
        check=conflict_refused,
    ),
    Law(
        id="registry.base-is-ancestor",
        level=Level.SAFETY,
        statement="A uniform base that is neither the class itself nor one of its ancestors is refused.",
        why="Otherwise layers are grouped with a kind of attention whose rules they do not follow.",
        sources=("vLLM PR 37505",),
        workload="registry.machine",
        check=base_is_ancestor,
    ),
    Law(
        id="registry.override",
        level=Level.SAFETY,
        statement=(
            "`override` replaces the given manager and base of a registered class and keeps the rest; later "
            "look-ups of subclasses see the change, and an unregistered class is refused."
        ),
        why=(
            "Otherwise a platform that replaces a built-in manager still gets the built-in one for some "
            "layers."
        ),
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
        why="Otherwise layers that were registered as different share a group, and so a manager.",
        sources=("vLLM PR 37505",),
        workload="registry.agreement",
        check=base_agrees,
    ),
    Law(
        id="registry.every-process",
        level=Level.SAFETY,
        statement=(
            "Processes that register and initialise in the same way, such as an engine and its spawned "
            "workers, have the same table."
        ),
        why="If scheduler and workers disagree about groups or managers, workers read the wrong blocks.",
        sources=("vLLM PR 37505",),
        workload="registry.processes",
        check=every_process,
    ),
    Law(
        id="registry.concurrent",
        level=Level.ROBUSTNESS,
        statement=(
            "Registrations and first look-ups from several threads give the table of some sequential order, "
            "and no thread ever sees a half-filled table."
        ),
        why=(
            "Otherwise, if two threads start together, one of them may sometimes see stock classes as "
            "unknown."
        ),
        sources=("vLLM PR 37505",),
        workload="registry.races",
        check=concurrent,
    ),
    Law(
        id="registry.refusals-survive-O",
        level=Level.ROBUSTNESS,
        statement="The registry refuses the same calls under `python -O`, which removes asserts.",
        why="Otherwise a deployment with PYTHONOPTIMIZE accepts registrations that were refused in testing.",
        sources=("vLLM PR 37505",),
        workload="registry.refusals",
        check=refusals_survive_o,
    ),
]
