"""Laws of a plugin and the implementation it plugs into, where the two are released apart."""

from __future__ import annotations

import inspect
from typing import Any

from kvref_conformance.laws.core import Event, Law, LawBroken, Level, Runs


def answers_to(runs: Runs, operation: str) -> list[Any]:
    """What the operation answered, each time that it did."""
    outcomes = [event["outcome"] for run in runs for event in run if event["op"] == operation]
    return [outcome["value"] for outcome in outcomes if "value" in outcome]


def takes(parameters: list[dict[str, Any]], call: dict[str, Any]) -> bool:
    """Whether a method with these parameters can be called this way."""
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


def told(call: dict[str, Any]) -> str:
    """A way of calling, in words."""
    keywords = ", ".join(call["keywords"])
    return f"{call['positional']} arguments by position" + (f" and {keywords} by keyword" if keywords else "")


def signature(runs: Runs) -> int:
    """Each call that an overridden method takes must be one that the override takes."""
    calls = [call for answer in answers_to(runs, "drift.calls") for call in answer]
    judged = 0
    wrong: dict[str, tuple[str, str]] = {}
    for override in (one for answer in answers_to(runs, "drift.overrides") for one in answer):
        name, kind, core_kind = override["name"], override["kind"], override["core_kind"]
        of = f"{override['core_class']}.{name}"
        if core_kind == "property" and kind.endswith("method"):
            judged += 1
            wrong[name] = f"{of} is a property, and so is what overrides it", f"a {kind}"
        if core_kind in ("class method", "static method") and kind == "method":
            judged += 1
            wrong[name] = f"{of} is a {core_kind}, and so is what overrides it", "a method of instances"
        if override["parameters"] is None or override["core_parameters"] is None or name in wrong:
            continue
        for call in (call for call in calls if call["name"] == name):
            if not takes(override["core_parameters"], call):
                continue  # a call of something else that has the same name
            judged += 1
            if not takes(override["parameters"], call):
                has = ", ".join(p["name"] for p in override["parameters"])
                wrong.setdefault(
                    name,
                    (f"{name} takes what {call['place']} calls {of} with: {told(call)}", f"{name}({has})"),
                )
    if wrong:
        raise LawBroken(
            "; ".join(expected for expected, _ in wrong.values()),
            "; ".join(observed for _, observed in wrong.values()),
            tuple(wrong),
        )
    return judged


def hook_reached(runs: Runs) -> int:
    """What is reached on a stock class is reached on a class that derives from it and changes nothing."""
    answers = answers_to(runs, "drift.reached")
    if len(answers) < 2:
        return 0
    on_stock, on_derived = answers
    missed = tuple(name for name in on_stock if name not in on_derived)
    if missed:
        raise LawBroken(
            f"{', '.join(missed)} reached on a derived class, as on the stock class",
            f"reached there: {', '.join(on_derived) or 'nothing'}",
            missed,
        )
    return len(on_stock)


def patch_target(runs: Runs) -> int:
    """What a plugin replaces must exist without the plugin, and nobody may go on with the original."""
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
                f"{one['name']}, which is replaced by {one['by']}, exists without the plugin",
                "it does not, and nothing reads it",
            )
        if exists and one["stale"]:
            wrong[f"{one['name']} stale"] = (
                f"{one['name']} is {one['by']} wherever it is used",
                f"the original is still used as {', '.join(one['stale'])}",
            )
    if wrong:
        raise LawBroken(
            "; ".join(expected for expected, _ in wrong.values()),
            "; ".join(observed for _, observed in wrong.values()),
            tuple(wrong),
        )
    return len(replaced[0])


def hook_once(runs: Runs) -> int:
    """Follow the count of hook runs through look-ups and initialisations."""
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
                        f"{name} looked up as {answers[name]} after another initialisation, as before",
                        f"{event['outcome']}",
                        ("changed",),
                    )
            if event["op"] == "registry.initialise" and "error" in event["outcome"]:
                error = event["outcome"]["error"]
                raise LawBroken(
                    "initialising again is harmless" if initialised or answers else "initialising succeeds",
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
                        "the platform's hook runs before anything asks for a spec's manager",
                        "it had not run when the first look-up was answered",
                        ("late",),
                    )
                may_run = "registry.initialise" in kinds or not initialised
                if ran > int(may_run):
                    raise LawBroken(
                        "the platform's hook runs once for an initialisation, and not for look-ups after it",
                        f"it ran {ran} times in {', '.join(e['op'] for e in since)}",
                        ("again",),
                    )
                initialised = True
            since = []
    return judged


def stock_untouched(runs: Runs) -> int:
    """Compare what two processes answered, one with the plugin and one without."""
    if len(runs) < 2:
        return 0
    judged = 0
    for event, without in zip(*runs, strict=False):
        told_with, told_without = event["outcome"], without["outcome"]
        judged += 1
        if "error" in told_with and "error" in told_without:
            continue  # the messages may name places in memory
        if told_with != told_without:
            changed, before = told_with.get("value", told_with), told_without.get("value", told_without)
            if isinstance(changed, dict) and isinstance(before, dict):
                names = [n for n in {**before, **changed} if before.get(n, "-") != changed.get(n, "-")]
                changed, before = ({n: one.get(n, "absent") for n in names} for one in (changed, before))
            raise LawBroken(
                f"{event['op']} answers {before} as it does without the plugin", f"{changed}", (event["op"],)
            )
    return judged


LAWS = [
    Law(
        id="registry.hook-once",
        level=Level.SAFETY,
        statement=(
            "The platform hook runs once per initialisation, before anything asks for a spec's manager, and "
            "initialising twice is harmless."
        ),
        why="A layer of a vendor's spec is refused, or managed by stock rules, depending on who asked first.",
        sources=("vLLM PR 37505",),
        workload="drift.hook",
        check=hook_once,
    ),
    Law(
        id="registry.stock-untouched",
        level=Level.SAFETY,
        statement=(
            "Loading a plugin leaves look-ups of stock specs, their pages, copies and merges as they were "
            "(differential: with and without it)."
        ),
        why="A model that needs nothing of the plugin is served differently because it is installed.",
        sources=("vLLM RFC 36668",),
        workload="drift.stock",
        check=stock_untouched,
    ),
    Law(
        id="drift.hook-reached",
        level=Level.SAFETY,
        statement=(
            "An attribute a plugin's class overrides is reached on a derived class wherever the workload "
            "reaches it on the stock parent."
        ),
        why="The engine goes on with stock behaviour for a vendor's layers, and nobody is told.",
        sources=("vLLM RFC 36668",),
        workload="drift.reach",
        check=hook_reached,
    ),
    Law(
        id="drift.signature",
        level=Level.SAFETY,
        statement=(
            "Overridden methods accept what the base is called with in the implementation's own code, by "
            "keyword and by position."
        ),
        why="The first request that needs the method ends the engine with a TypeError.",
        sources=("vLLM RFC 36668",),
        workload="drift.signatures",
        check=signature,
    ),
    Law(
        id="drift.patch-target",
        level=Level.SAFETY,
        statement=(
            "Every name of the implementation that a plugin replaces still exists, and its replacement is "
            "the one in use."
        ),
        why="A patch that lands nowhere leaves stock behaviour in place, and nobody is told.",
        sources=("vLLM RFC 36668",),
        workload="drift.patches",
        check=patch_target,
    ),
]
