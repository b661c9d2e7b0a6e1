"""Rewrite a trace so that it runs without the plugin, to find out whether the law breaks there, too.

The new trace has stock classes, those of the target itself, instead of the plugin's.
"""

from __future__ import annotations

from typing import Any

from kvref_conformance.documents.results import Trace
from kvref_conformance.targets.plugins import NO_PLUGIN
from kvref_strategies.workload import Description


def stock_trace(trace: Trace, description: Description) -> Trace:
    """The trace with each class of the plugin replaced by its nearest stock ancestor.

    Fields that the ancestor lacks are left out, also in classes that the trace derives from a class of the
    plugin.
    """
    names = _stock_names(description)
    operations = [operation for run in trace["runs"] for operation in run["operations"]]
    lost = _lost_fields(names, operations, description)

    def stock(value: Any) -> Any:
        match value:
            case str():
                return names.get(value, value)
            case list():
                return [stock(item) for item in value]
            case {"class": str(name), "fields": dict() as given} if name in lost:
                kept = {f: stock(v) for f, v in given.items() if f not in lost[name]}
                return {"class": names.get(name, name), "fields": kept}
            case dict():
                return {key: stock(item) for key, item in value.items()}
        return value

    return {
        "runs": [
            {
                "flags": [*run["flags"], NO_PLUGIN],
                "operations": [{"op": o["op"], "args": stock(o["args"])} for o in run["operations"]],
            }
            for run in trace["runs"]
        ]
    }


def same_facet(facet: str, stock: str, description: Description) -> bool:
    """Whether `facet`, seen with the plugin, and `stock`, seen without it, are the same facet.

    A facet may name classes. A class of the plugin then counts as its nearest stock ancestor.
    """
    names = _stock_names(description)
    return sorted(names.get(word, word) for word in facet.split()) == sorted(stock.split())


def _lost_fields(
    names: dict[str, str], operations: list[dict[str, Any]], description: Description
) -> dict[str, set[str]]:
    """By class, the fields that come from the plugin, so that its nearest stock ancestor lacks them."""
    fields = {info["name"]: {f["name"] for f in info["fields"]} for info in description["classes"]}
    lost = {name: own - fields[names[name]] for name, own in fields.items() if name in names}
    for operation in operations:
        arguments = operation["args"]
        if operation["op"] in ("specs.derive", "registry.define_spec"):
            bases = arguments.get("bases") or [arguments["base"]]
            of_bases = set().union(*(lost.get(base, set()) for base in bases))
            lost[arguments["name"]] = of_bases - {*arguments.get("fields", ())}
    return lost


def _stock_names(description: Description) -> dict[str, str]:
    """For each class of the plugin, the name of its nearest stock ancestor."""
    infos = {info["name"]: info for info in description["classes"]}
    names = {
        name: next(a for a in info["mro"] if infos[a].get("origin", "stock") == "stock")
        for name, info in infos.items()
        if info.get("origin") == "plugin"
    }
    plugin = description["plugin"]
    own = plugin["managers"] if plugin is not None else {}
    concrete = [name for name in description["managers"] if name not in own]
    for name, ancestors in own.items():
        names[name] = next((a for a in ancestors if a in concrete), concrete[0])
    return names
