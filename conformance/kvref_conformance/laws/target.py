"""The law that every operation of every target must keep."""

from __future__ import annotations

from kvref_conformance.laws.core import Law, LawBroken, Level, Runs


def answers(runs: Runs) -> int:
    """Every operation returns a value or raises an exception."""
    judged = 0
    for events in runs:
        for event in events:
            judged += 1
            if "died" in event["outcome"]:
                raise LawBroken(
                    "the operation returns or raises an exception",
                    f"{event['op']}: {event['outcome']['died']}",
                )
    return judged


ANSWERS = Law(
    id="target.answers",
    level=Level.SAFETY,
    statement="Every operation returns or raises an exception: none ends the process, and none hangs.",
    why="A process that dies or hangs takes every running request with it.",
    sources=("the engine contract",),
    workload="",
    check=answers,
)
