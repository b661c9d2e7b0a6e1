"""Laws of drift: a plugin still fits the implementation that it extends."""

from __future__ import annotations

import inspect
from typing import Any

from kvref_conformance.laws.core import Event, Law, LawBroken, Level, Runs


def answers_to(runs: Runs, operation: str) -> list[Any]:
    """What the operation answered, in each of its calls that returned."""
    outcomes = [event["outcome"] for run in runs for event in run if event["op"] == operation]
    return [outcome["value"] for outcome in outcomes if "value" in outcome]


def takes(parameters: list[dict[str, Any]], call: dict[str, Any]) -> bool:
    """Whether a method with these parameters accepts the call."""
    signature = inspect.Signature(
        [
            inspect.Parameter(
                p["name"],
                getattr(inspect.Parameter, p["kind"]),
                default=inspect.Parameter.empty if p["required"] or p["kind"].startswith("VAR_") else None,
            )
            for p in parameters
        ]
    )
    bind = signature.bind_partial if call["open"] else signature.bind
    try:
        bind(*[None] * call["positional"], **dict.fromkeys(call["keywords"]))
    except TypeError:
        return False
    return True


def call_in_words(call: dict[str, Any]) -> str:
    keywords = ", ".join(call["keywords"])
    return f"{call['positional']} positional arguments" + (
        f" and the keywords {keywords}" if keywords else ""
    )


def signature(runs: Runs) -> int:
    """An override accepts every call in the implementation's own code that the overridden method accepts.

    A method must not override a property, and an instance method must not override a class method or a static
    method.
    """
    calls = [call for answer in answers_to(runs, "drift.calls") for call in answer]
    judged = 0
    wrong: dict[str, tuple[str, str]] = {}
    for override in (one for answer in answers_to(runs, "drift.overrides") for one in answer):
        name, kind, core_kind = override["name"], override["kind"], override["core_kind"]
        of = f"{override['core_class']}.{name}"
        if core_kind == "property" and kind.endswith("method"):
            judged += 1
            wrong[name] = f"the override of {of} is a property like the original", f"a {kind}"
        if core_kind in ("class method", "static method") and kind == "method":
            judged += 1
            wrong[name] = f"the override of {of} is a {core_kind} like the original", "an instance method"
        if override["parameters"] is None or override["core_parameters"] is None or name in wrong:
            continue
        for call in (call for call in calls if call["name"] == name):
            if not takes(override["core_parameters"], call):
                continue  # a call of another method with the same name
            judged += 1
            if not takes(override["parameters"], call):
                has = ", ".join(p["name"] for p in override["parameters"])
                wrong.setdefault(
                    name,
                    (
                        f"the override of {of} accepts the call in {call['place']}, {call_in_words(call)}",
                        f"{name}({has})",
                    ),
                )
    if wrong:
        raise LawBroken(
            "; ".join(expected for expected, _ in wrong.values()),
            "; ".join(observed for _, observed in wrong.values()),
            tuple(wrong),
        )
    return judged


def hook_reached(runs: Runs) -> int:
    """If an engine reaches an attribute of a stock class, it also reaches that of an unchanged subclass."""
    answers = answers_to(runs, "drift.reached")
    if len(answers) < 2:
        return 0
    on_stock, on_derived = answers
    missed = tuple(name for name in on_stock if name not in on_derived)
    if missed:
        raise LawBroken(
            f"{', '.join(missed)} reached on the subclass, as on the stock class",
            f"only {', '.join(on_derived) or 'nothing'} reached",
            missed,
        )
    return len(on_stock)


def patch_target(runs: Runs) -> int:
    """Every name that a plugin replaces exists without the plugin, and no module keeps using the original.

    A name that does not exist is no mistake if some code reads it.
    """
    replaced, present = answers_to(runs, "drift.replaced"), answers_to(runs, "drift.present")
    if not replaced or not present:
        return 0
    is_read = {
        name: answer
        for run in runs
        for event in run
        if event["op"] == "drift.read" and "value" in event["outcome"]
        for name, answer in zip(event["args"]["names"], event["outcome"]["value"], strict=True)
    }
    wrong: dict[str, tuple[str, str]] = {}
    for one, exists in zip(replaced[0], present[0], strict=False):
        if not exists and not is_read.get(one["name"], True):
            wrong[f"{one['name']} missing"] = (
                f"{one['name']}, which {one['by']} replaces, exists without the plugin",
                "it does not exist, and nothing reads it",
            )
        if exists and one["stale"]:
            wrong[f"{one['name']} stale"] = (
                f"{one['by']} replaces {one['name']} everywhere",
                f"the original is still in use as {', '.join(one['stale'])}",
            )
    if wrong:
        raise LawBroken(
            "; ".join(expected for expected, _ in wrong.values()),
            "; ".join(observed for _, observed in wrong.values()),
            tuple(wrong),
        )
    return len(replaced[0])


def hook_once(runs: Runs) -> int:
    """The platform hook runs once for each initialisation, and not again for look-ups.

    It runs before the first look-up of a manager. A second initialisation changes no look-up.
    """
    judged = 0
    for events in runs:
        count = 0
        since: list[Event] = []
        answers: dict[str, Any] = {}
        initialised = False
        for event in events:
            if event["op"] == "registry.lookup":
                name = event["args"]["spec"]["class"]
                if answers.setdefault(name, event["outcome"]) != event["outcome"]:
                    raise LawBroken(
                        f"the look-up of {name} returns {answers[name]}, as before the second initialisation",
                        f"{event['outcome']}",
                        ("changed",),
                    )
            if event["op"] == "registry.initialise" and "error" in event["outcome"]:
                error = event["outcome"]["error"]
                raise LawBroken(
                    "a second initialisation succeeds"
                    if initialised or answers
                    else "initialisation succeeds",
                    f"{error['type']}: {error['message']}",
                    ("refused",),
                )
            if event["op"] != "drift.hook_calls" or "value" not in event["outcome"]:
                since.append(event)
                continue
            ran = event["outcome"]["value"] - count
            count = event["outcome"]["value"]
            kinds = {e["op"] for e in since}
            if "registry.initialise" in kinds or "registry.lookup" in kinds:
                judged += 1
                if count == 0:
                    raise LawBroken(
                        "the platform hook runs before the first look-up of a spec's manager",
                        "it had not run when the first look-up returned",
                        ("late",),
                    )
                may_run = "registry.initialise" in kinds or not initialised
                if ran > int(may_run):
                    raise LawBroken(
                        "the platform hook runs once for each initialisation, and not for look-ups after it",
                        f"it ran {ran} times during {', '.join(e['op'] for e in since)}",
                        ("again",),
                    )
                initialised = True
            since = []
    return judged


def stock_untouched(runs: Runs) -> int:
    """Operations on stock specs return the same in a process with the plugin and in one without it."""
    if len(runs) < 2:
        return 0
    judged = 0
    for event, without in zip(*runs, strict=False):
        with_plugin, without_plugin = event["outcome"], without["outcome"]
        judged += 1
        if "error" in with_plugin and "error" in without_plugin:
            continue  # the messages may contain memory addresses
        if with_plugin != without_plugin:
            changed, before = (
                with_plugin.get("value", with_plugin),
                without_plugin.get("value", without_plugin),
            )
            if isinstance(changed, dict) and isinstance(before, dict):
                names = [n for n in {**before, **changed} if before.get(n, "-") != changed.get(n, "-")]
                changed, before = ({n: one.get(n, "absent") for n in names} for one in (changed, before))
            raise LawBroken(
                f"{event['op']} returns {before}, as without the plugin", f"{changed}", (event["op"],)
            )
    return judged


LAWS = [
    Law(
        id="registry.hook-once",
        level=Level.SAFETY,
        statement=(
            "The platform hook runs once for each initialisation, before the first look-up of a spec's "
            "manager, and a second initialisation changes nothing."
        ),
        why=(
            "Otherwise a vendor's layer is refused or gets a stock manager, depending on which look-up came "
            "first."
        ),
        sources=("vLLM PR 37505",),
        workload="drift.hook",
        check=hook_once,
    ),
    Law(
        id="registry.stock-untouched",
        level=Level.SAFETY,
        statement=("Loading a plugin does not change the look-ups, pages, copies and merges of stock specs."),
        why=(
            "Otherwise an engine serves a model differently because a plugin is installed that the model "
            "does not use."
        ),
        sources=("vLLM RFC 36668",),
        workload="drift.stock",
        check=stock_untouched,
    ),
    Law(
        id="drift.hook-reached",
        level=Level.SAFETY,
        statement=(
            "If an engine reaches an attribute of a stock class, it also reaches the override of this "
            "attribute in a plugin's subclass."
        ),
        why="Otherwise the engine keeps stock behaviour for a vendor's layers, and no error is raised.",
        sources=("vLLM RFC 36668",),
        workload="drift.reach",
        check=hook_reached,
    ),
    Law(
        id="drift.signature",
        level=Level.SAFETY,
        statement=(
            "A plugin's override accepts the positional and keyword arguments of every call to the method in "
            "the implementation's own code."
        ),
        why="Otherwise the first request that needs the method ends the engine with a TypeError.",
        sources=("vLLM RFC 36668",),
        workload="drift.signatures",
        check=signature,
    ),
    Law(
        id="drift.patch-target",
        level=Level.SAFETY,
        statement=(
            "Every name of the implementation that a plugin replaces still exists, and the replacement is in "
            "use everywhere."
        ),
        why="If a patch misses its target, stock behaviour stays and no error is raised.",
        sources=("vLLM RFC 36668",),
        workload="drift.patches",
        check=patch_target,
    ),
]
