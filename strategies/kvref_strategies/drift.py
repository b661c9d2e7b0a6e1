"""Examines a plugin: which methods it overrides, which names it replaces, and how it changes stock classes.

Here the *core* is the implementation without the plugin, such as stock vLLM.
"""

from __future__ import annotations

from hypothesis import strategies as st

from kvref.target import SpecClassInfo
from kvref_strategies.specs import class_info, descriptors, legal_block_sizes, minimal, missing_menu
from kvref_strategies.workload import Description, Draw, Stage, Subjects, Workload

WITHOUT_PLUGIN = "-Xkvref-no-plugin"
"""The interpreter flag with which a process loads the target without the plugin."""

_STOCK_CLASSES = 6
"""The most stock classes in one example. Its two processes cost more than the operations in them."""

_NO_PLUGIN: Subjects = {"": "there is no plugin"}


def stock_classes(description: Description) -> list[SpecClassInfo]:
    """The classes of role `layer` that do not come from a plugin and of which specs can be drawn."""
    infos = description["classes"]
    stock = [info for info in infos if info.get("origin", "stock") == "stock" and info["role"] == "layer"]
    return [info for info in stock if missing_menu(info) is None]


def stock_ancestor(description: Description, name: str) -> SpecClassInfo | None:
    """The nearest ancestor of the class `name` that is one of `stock_classes`. None if there is none."""
    stock = {info["name"]: info for info in stock_classes(description)}
    return next((stock[a] for a in class_info(description, name)["mro"] if a in stock), None)


def plugin_classes(description: Description) -> list[str]:
    return [info["name"] for info in description["classes"] if info.get("origin") == "plugin"]


def plugin_managers(description: Description) -> list[str]:
    return list(description["plugin"]["managers"]) if description["plugin"] is not None else []


def _overriding(description: Description) -> Subjects:
    names = [*plugin_classes(description), *plugin_managers(description)]
    return dict.fromkeys(names) if names else _without_classes(description)


def _without_classes(description: Description) -> Subjects:
    reason = "the plugin brings no spec class and no manager class"
    return _NO_PLUGIN if description["plugin"] is None else {"": reason}


def signatures(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """List the methods that the class `subject` overrides, then the core's calls of one of these methods."""
    answer = stage.perform("drift.overrides", name=subject)
    names = [override["name"] for override in answer.get("value", ()) if override["parameters"] is not None]
    if names:
        stage.perform("drift.calls", names=[draw(st.sampled_from(names))])


def _reachable(description: Description) -> Subjects:
    subjects = {
        name: None if stock_ancestor(description, name) else "no spec of its stock ancestor can be drawn"
        for name in plugin_classes(description)
    }
    return subjects or _without_classes(description)


def reach(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Let the core use a spec of a stock class, then one of a derived class, and see which methods it uses.

    The stock class is the nearest stock ancestor of the plugin's spec class `subject`. The methods are those
    that `subject` and the plugin's manager classes override.
    """
    ancestor = stock_ancestor(description, subject)
    if ancestor is None:
        return
    spec = draw(descriptors(ancestor))
    of_spec = _methods(stage, subject)
    managers = plugin_managers(description)
    of_manager = sorted({name for manager in managers for name in _methods(stage, manager)})
    for derived in (False, True):
        stage.fresh()
        stage.perform("drift.reached", spec=spec, of_spec=of_spec, of_manager=of_manager, derived=derived)


def _methods(stage: Stage, name: str) -> list[str]:
    answer = stage.perform("drift.overrides", name=name)
    return [override["name"] for override in answer.get("value", ()) if override["core_kind"] != "attribute"]


def _plugin(description: Description) -> Subjects:
    return _NO_PLUGIN if description["plugin"] is None else {"plugin": None}


def patches(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """List the names that the plugin replaces, and see whether they exist in a process without the plugin.

    If a name does not exist there, see whether any code reads it: the plugin may have added it on purpose.
    """
    plugin = description["plugin"]
    packages = plugin["packages"] if plugin is not None else []
    stage.perform("drift.start")
    names = [one["name"] for one in stage.perform("drift.replaced", packages=packages).get("value", ())]
    stage.fresh(WITHOUT_PLUGIN)
    present = stage.perform("drift.present", names=names).get("value", ())
    missing = [name for name, exists in zip(names, present, strict=False) if not exists]
    if missing:
        stage.fresh()
        stage.perform("drift.read", names=missing, packages=packages)


def _hook(description: Description) -> Subjects:
    plugin = description["plugin"]
    return {"platform hook": plugin.get("hook_has_run") if plugin is not None else None}


def hook(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Look up classes twice, and count the runs of the platform's hook.

    Initialise the registry before the second time, perhaps also before the first.
    """
    infos = [i for i in description["classes"] if i["role"] == "layer" and missing_menu(i) is None]
    looked_up = draw(st.lists(st.sampled_from(infos), min_size=1, max_size=3))
    initialised = draw(st.booleans())
    stage.perform("drift.watch_hook")
    stage.perform("drift.hook_calls")
    for initialise in (initialised, True):
        if initialise:
            stage.perform("registry.initialise")
            stage.perform("drift.hook_calls")
        for info in looked_up:
            stage.perform("registry.lookup", spec=minimal(info))
        stage.perform("drift.hook_calls")


def _stock(description: Description) -> Subjects:
    return _NO_PLUGIN if description["plugin"] is None else {"stock classes": None}


def stock(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Perform the same operations on specs of some stock classes, with the plugin and without it."""
    classes = st.sampled_from(stock_classes(description))
    infos = draw(st.lists(classes, min_size=1, max_size=_STOCK_CLASSES, unique_by=lambda info: info["name"]))
    drawn = [
        (
            spec := draw(descriptors(info)),
            draw(descriptors(info)),
            draw(st.sampled_from(legal_block_sizes(info, spec))),
        )
        for info in infos
    ]
    for flags in ((), (WITHOUT_PLUGIN,)):
        stage.fresh(*flags)
        stage.perform("registry.initialise")
        for spec, other, block_size in drawn:
            stage.perform("registry.lookup", spec=spec)
            stage.perform("specs.build", spec=spec)
            stage.perform("specs.copy", spec=spec, block_size=block_size)
            stage.perform("specs.merge", specs=[spec, spec])
            stage.perform("specs.merge", specs=[spec, other])


_DRIFT = ("drift",)
_ALL = ("drift", "registry", "specs")

WORKLOADS = [
    Workload(
        "drift.signatures",
        _DRIFT,
        _overriding,
        signatures,
        weight=0.5,
        unobserved="no source code of the implementation calls what the class overrides",
    ),
    Workload(
        "drift.reach",
        _ALL,
        _reachable,
        reach,
        isolated=True,
        weight=0.1,
        unobserved="the workload reaches nothing that the plugin overrides",
    ),
    Workload(
        "drift.patches",
        _DRIFT,
        _plugin,
        patches,
        isolated=True,
        flags=(WITHOUT_PLUGIN,),
        weight=0.01,
        unobserved="the plugin replaces nothing",
    ),
    Workload("drift.hook", _ALL, _hook, hook, isolated=True, weight=0.2),
    Workload("drift.stock", _ALL, _stock, stock, isolated=True, flags=(WITHOUT_PLUGIN,), weight=0.3),
]
