"""The law that managers can be made the way an engine makes them."""

from __future__ import annotations

from kvref_conformance.laws.core import Law, LawBroken, Runs
from kvref_conformance.results import Level


def constructible(runs: Runs) -> int:
    """A cache manager can be made for layers that an engine may have."""
    for event in runs[0]:
        if event["op"] == "cache.create" and "died" not in event["outcome"]:
            if error := event["outcome"].get("error"):
                groups = [group["spec"]["class"] for group in event["args"]["groups"]]
                raise LawBroken(
                    f"a cache manager for groups of {', '.join(groups)}",
                    f"{error['type']}: {error['message']}",
                )
            return 1
    return 0


LAWS = [
    Law(
        id="registry.constructible",
        level=Level.SAFETY,
        statement=(
            "The manager that is registered for a class of specs can be made through the cache manager, with "
            "all that it passes, for each set of groups and sizes that an engine may start with."
        ),
        why="A model with such layers cannot be served at all.",
        sources=("vLLM RFC 36668",),
        workload="cache.machine",
        check=constructible,
    )
]
