"""The laws of the shadow: what a kernel would read is what the request computed, whatever is inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvref_conformance.laws.core import Law, LawBroken, Level, Runs
from kvref_conformance.laws.shadow_blocks import Reading, shadow_of

ON_SLOTS = ("tensors.write_slots", "tensors.copy_slots", "tensors.compare_slots")

NOBODY = "nobody"
"""Who reads where marks are wrong on purpose, to see that differences are told at all."""


def reads_own(runs: Runs) -> int:
    """What a request computed, or loaded, is still there when it is read; its tables are told at all."""
    for event in runs[0]:
        if event["op"] == "cache.block_ids" and (error := event["outcome"].get("error")):
            raise LawBroken(
                f"the tables of {event['args']['request']}, by which a model runner reads and writes",
                f"{error['type']}: {error['message']}",
                ("tables are not told",),
            )
    shadow = shadow_of(runs[0])
    _judge(shadow.wrong, lambda each: each.what != "written" and each.position >= each.stay.found)
    return shadow.readings


def hit_content(runs: Runs) -> int:
    """What was found for a request is there when it is read."""
    shadow = shadow_of(runs[0])
    _judge(shadow.wrong, lambda each: each.what != "written" and each.position < each.stay.found)
    return shadow.hits


def no_foreign_write(runs: Runs) -> int:
    """A step writes to no block that others read."""
    shadow = shadow_of(runs[0])
    _judge(shadow.wrong, lambda each: each.what == "written")
    return shadow.readings


def preempt_resume(runs: Runs) -> int:
    """Who comes back reads what it would have read without having been away."""
    shadow = shadow_of(runs[0])
    _judge(shadow.wrong, lambda each: each.what != "written" and each.stay.number > 1)
    return shadow.resumed


def memory_reads_own(runs: Runs) -> int:
    """What a layer has computed is what it sees, and those see that share its cache."""
    judged = 0
    written: dict[int, str] = {}
    for event in runs[0]:
        arguments, outcome = event["args"], event["outcome"]
        if event["op"] in ON_SLOTS and (error := outcome.get("error")):
            operation = event["op"].partition(".")[2]
            raise LawBroken(
                f"through {arguments['layer']}: {operation} of slots that are in its blocks",
                f"{error['type']}: {error['message']}",
                (f"{operation} fails",),
            )
        if event["op"] == "tensors.write_slots":
            written |= dict.fromkeys(arguments["marks"], arguments["layer"])
        if event["op"] == "tensors.compare_slots" and "value" in outcome:
            judged += 1
            told = {
                place: mark for place, mark in outcome["value"] if place in range(len(arguments["slots"]))
            }
            if arguments["told"] == NOBODY:
                _all_are_told(arguments, told)
            elif told:
                _nothing_is_told(arguments, told, written)
    return judged


def _all_are_told(arguments: dict[str, Any], told: dict[int, int]) -> None:
    silent = [slot for place, slot in enumerate(arguments["slots"]) if place not in told]
    if silent:
        raise LawBroken(
            f"through {arguments['layer']}, slots {silent}: other marks than these, which nobody wrote there",
            "no difference",
            ("differences are not told",),
        )


def _nothing_is_told(arguments: dict[str, Any], told: dict[int, int], written: dict[int, str]) -> None:
    layer = arguments["layer"]
    place, mark = next(iter(told.items()))
    there = f"what {written[mark]} had written" if mark in written else "what nobody wrote as a whole"
    if mark in written and mark in arguments["marks"]:
        there += f", for the place {arguments['marks'].index(mark) - place:+} from there"
    whose = "another layer's" if written.get(mark, layer) != layer else "other content"
    raise LawBroken(
        f"through {layer}, slot {arguments['slots'][place]}: what was written there for {arguments['told']}",
        there,
        (f"{arguments['told'].rpartition(', ')[2]}, {whose if mark in written else 'torn'}",),
    )


def _judge(wrong: list[Reading], concerned: Callable[[Reading], bool]) -> None:
    """Tell of each way of being wrong once."""
    ways: dict[str, Reading] = {}
    for each in filter(concerned, wrong):
        ways.setdefault(_facet(each), each)
    if ways:
        expected, observed = ("; ".join(texts) for texts in zip(*map(_in_words, ways.values()), strict=True))
        raise LawBroken(expected, observed, tuple(ways))


def _facet(each: Reading) -> str:
    return f"{each.group.kind}, {each.what}{' for a token that is computed again' if each.again else ''}"


def _in_words(each: Reading) -> tuple[str, str]:
    name = each.stay.request.name
    again = "" if each.stay.number == 1 else f", in its stay number {each.stay.number}"
    group = f"group {each.group.number} ({each.group.name})"
    where = f"in step {each.step}{again}, {group}"
    if each.what == "written":
        return (
            f"{where}: {name} writes position {each.position} to a block that nobody else needs",
            f"block {each.block}: {each.observed}",
        )
    what = "the state behind position" if each.group.kind == "MambaSpec" else "position"
    found = ", which was found in the cache" if each.position < each.stay.found else ""
    block = "" if each.block is None else f"block {each.block} holds "
    return f"{where}: {name} reads {what} {each.position} of its own{found}", f"{block}{each.observed}"


LAWS = [
    Law(
        id="shadow.reads-own",
        level=Level.SAFETY,
        statement=(
            "At every step, each position that a token attends to holds what that request computed or loaded "
            "there, where the tables say that it is."
        ),
        why="Attention over the content of others answers with other people's text, or with nonsense.",
        sources=("the engine contract", "vLLM's block tables and slot mappings"),
        workload="shadow.machine",
        check=reads_own,
    ),
    Law(
        id="shadow.hit-content",
        level=Level.SAFETY,
        statement="Everything that a prefix hit promises is there when it is read.",
        why="A hit on what is something else, or not there, is an answer to another prompt.",
        sources=("the engine contract",),
        workload="shadow.machine",
        check=hit_content,
    ),
    Law(
        id="shadow.no-foreign-write",
        level=Level.SAFETY,
        statement="What a step computes is written to no block that anyone else still reads.",
        why="Two requests that write to one block spoil each other's content.",
        sources=("the engine contract",),
        workload="shadow.machine",
        check=no_foreign_write,
    ),
    Law(
        id="shadow.memory",
        level=Level.SAFETY,
        statement=(
            "What a layer has written through its views for a token, where the tables say, is what every "
            "layer that uses its cache reads there through views of its own, until the block is given away."
        ),
        why="Kernels see tensors, not tables: a wrong stride or a wrong owner spoils what was counted right.",
        sources=("vLLM PR 35045", "vLLM PR 36359", "vLLM's block tables and slot mappings"),
        workload="shadow.memory",
        check=memory_reads_own,
    ),
    Law(
        id="admission.preempt-resume",
        level=Level.SAFETY,
        statement="A request that was preempted reads the same content as one that never was.",
        why="Preemption happens under load alone, where nobody looks at single answers.",
        sources=("the engine contract",),
        workload="shadow.machine",
        check=preempt_resume,
    ),
]
