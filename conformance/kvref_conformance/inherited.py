"""Whether what a plugin breaks is broken without it: the same trace for the stock classes it derives from."""

from __future__ import annotations

from typing import Any

from kvref_conformance.results import Trace
from kvref_conformance.targets.plugins import NO_PLUGIN
from kvref_strategies.workload import Description


def stock_trace(trace: Trace, description: Description) -> Trace:
    """The trace with each of the plugin's classes replaced by its nearest stock ancestor, plugin left out.

    Fields that the ancestor lacks are dropped.
    """
    names = _stock_names(description)
    fields = {info["name"]: {f["name"] for f in info["fields"]} for info in description["classes"]}

    def stock(value: Any) -> Any:
        match value:
            case str():
                return names.get(value, value)
            case list():
                return [stock(item) for item in value]
            case {"class": str(name), "fields": dict() as given} if name in names:
                kept = {f: stock(v) for f, v in given.items() if f in fields[names[name]]}
                return {"class": names[name], "fields": kept}
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


def _stock_names(description: Description) -> dict[str, str]:
    """What to call each of the plugin's classes."""
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
