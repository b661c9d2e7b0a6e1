"""The laws of the shadow: a kernel reads what the request computed, whatever the target does inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvref_conformance.laws.core import Law, LawBroken, Level, Runs
from kvref_conformance.laws.shadow_blocks import Reading, shadow_of

ON_SLOTS = ("tensors.write_slots", "tensors.copy_slots", "tensors.compare_slots")

NOBODY = "nobody"
"""The value of `told` if all marks of a comparison are wrong on purpose, and the target must report each."""


def reads_own(runs: Runs) -> int:
    """Every position that a token attends to holds what its request computed or loaded.

    `shadow.hit-content` judges the positions of the request's prefix hit.
    """
    for event in runs[0]:
        if event["op"] == "cache.block_ids" and (error := event["outcome"].get("error")):
            raise LawBroken(
                f"the block tables of {event['args']['request']}, for the model runner",
                f"{error['type']}: {error['message']}",
                ("tables are not told",),
            )
    shadow = shadow_of(runs[0])
    _judge(shadow.wrong, lambda each: each.what != "written" and each.position >= each.stay.found)
    return shadow.readings


def hit_content(runs: Runs) -> int:
    """Every position of a prefix hit holds the content of that position when a token reads it."""
    shadow = shadow_of(runs[0])
    _judge(shadow.wrong, lambda each: each.what != "written" and each.position < each.stay.found)
    return shadow.hits


def no_foreign_write(runs: Runs) -> int:
    """A step writes to no block that another request still reads."""
    shadow = shadow_of(runs[0])
    _judge(shadow.wrong, lambda each: each.what == "written")
    return shadow.readings


def preempt_resume(runs: Runs) -> int:
    """A resumed request reads the content that it had before it was preempted."""
    shadow = shadow_of(runs[0])
    _judge(shadow.wrong, lambda each: each.what != "written" and each.stay.number > 1)
    return shadow.resumed


def memory_reads_own(runs: Runs) -> int:
    """Each slot shows what was written to it, through the views of every layer that uses the cache."""
    judged = 0
    written: dict[int, str] = {}
    for event in runs[0]:
        arguments, outcome = event["args"], event["outcome"]
        if event["op"] in ON_SLOTS and (error := outcome.get("error")):
            operation = event["op"].partition(".")[2]
            raise LawBroken(
                f"through {arguments['layer']}: {operation} succeeds for slots in its blocks",
                f"{error['type']}: {error['message']}",
                (f"{operation} fails",),
            )
        if event["op"] == "tensors.write_slots":
            written |= dict.fromkeys(arguments["marks"], arguments["layer"])
        if event["op"] == "tensors.compare_slots" and "value" in outcome:
            judged += 1
            differences = {
                place: mark for place, mark in outcome["value"] if place in range(len(arguments["slots"]))
            }
            if arguments["told"] == NOBODY:
                _require_differences(arguments, differences)
            elif differences:
                _refuse_differences(arguments, differences, written)
    return judged


def _require_differences(arguments: dict[str, Any], differences: dict[int, int]) -> None:
    """Raise `LawBroken` unless `differences` has every slot of the call.

    All marks of the call are wrong. `differences` are those that the target reported, and it must report all.
    """
    silent = [slot for place, slot in enumerate(arguments["slots"]) if place not in differences]
    if silent:
        raise LawBroken(
            f"through {arguments['layer']}, slots {silent}: a difference from marks that were never written "
            "there",
            "no difference",
            ("differences are not told",),
        )


def _refuse_differences(
    arguments: dict[str, Any], differences: dict[int, int], written: dict[int, str]
) -> None:
    """Raise `LawBroken`: it names the first slot that does not hold what was written to it."""
    layer = arguments["layer"]
    place, mark = next(iter(differences.items()))
    found = (
        f"content that {written[mark]} wrote" if mark in written else "content that no layer wrote as a whole"
    )
    if mark in written and mark in arguments["marks"]:
        found += f", for the slot {arguments['marks'].index(mark) - place:+} from there"
    writer = "another layer's" if written.get(mark, layer) != layer else "other content"
    raise LawBroken(
        f"through {layer}, slot {arguments['slots'][place]}: what was written there for {arguments['told']}",
        found,
        (f"{arguments['told'].rpartition(', ')[2]}, {writer if mark in written else 'torn'}",),
    )


def _judge(wrong: list[Reading], concerned: Callable[[Reading], bool]) -> None:
    """Raise `LawBroken` if a wrong read or write is one that the law is about.

    The error names the first one of each facet.
    """
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
    again = "" if each.stay.number == 1 else f", after its resumption {each.stay.number - 1}"
    group = f"group {each.group.number} ({each.group.name})"
    where = f"in step {each.step}{again}, {group}"
    if each.what == "written":
        return (
            f"{where}: {name} writes position {each.position} to a block that no other request reads",
            f"block {each.block}: {each.observed}",
        )
    what = "state after position" if each.group.kind == "MambaSpec" else "position"
    found = ", part of its prefix hit" if each.position < each.stay.found else ""
    block = "" if each.block is None else f"block {each.block} holds "
    return f"{where}: {name} reads its own {what} {each.position}{found}", f"{block}{each.observed}"


LAWS = [
    Law(
        id="shadow.reads-own",
        level=Level.SAFETY,
        statement=(
            "In every step, each slot that a token reads through its request's block tables holds what the "
            "request computed or loaded for that position."
        ),
        why=(
            "Otherwise a token attends to another request's content, and the output repeats its text or is "
            "nonsense."
        ),
        sources=("the engine contract", "vLLM's block tables and slot mappings"),
        workload="shadow.machine",
        check=reads_own,
    ),
    Law(
        id="shadow.hit-content",
        level=Level.SAFETY,
        statement=(
            "When a token reads a position of its request's prefix hit, the slot holds the content of that "
            "position."
        ),
        why="A request whose hit has other content, or none, answers another prompt.",
        sources=("the engine contract",),
        workload="shadow.machine",
        check=hit_content,
    ),
    Law(
        id="shadow.no-foreign-write",
        level=Level.SAFETY,
        statement="A step writes to no block that another request still reads.",
        why="Two requests that write to one block destroy each other's content.",
        sources=("the engine contract",),
        workload="shadow.machine",
        check=no_foreign_write,
    ),
    Law(
        id="shadow.memory",
        level=Level.SAFETY,
        statement=(
            "Every layer that uses a cache reads, through its own views, what was written for each token "
            "through the owner's views, until the block is freed."
        ),
        why=(
            "Kernels use tensors: with a wrong stride or owner they read wrong content, even if the block "
            "tables are right."
        ),
        sources=("vLLM PR 35045", "vLLM PR 36359", "vLLM's block tables and slot mappings"),
        workload="shadow.memory",
        check=memory_reads_own,
    ),
    Law(
        id="admission.preempt-resume",
        level=Level.SAFETY,
        statement=(
            "A request that was preempted and resumed reads the same content as a request that was never "
            "preempted."
        ),
        why="Preemption happens only under load, where users rarely notice a single wrong answer.",
        sources=("the engine contract",),
        workload="shadow.machine",
        check=preempt_resume,
    ),
]
