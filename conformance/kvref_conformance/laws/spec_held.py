"""The law that a request never holds more memory than its spec's maximum."""

from __future__ import annotations

from kvref_conformance.laws.cache_steps import steps
from kvref_conformance.laws.core import Law, LawBroken, Level, Runs


def memory_covers_held(runs: Runs) -> int:
    """No request holds more pages of the first group than fit into the spec's maximum and the lookahead."""
    answers = {event["op"]: event["outcome"].get("value") for event in runs[0][:2]}
    built, maximum = answers.get("specs.build"), answers.get("specs.max_memory")
    if built is None or maximum is None:
        return 0
    page, judged = built["page_size_bytes"], 0
    for step in steps(runs[0], "cache.allocate"):
        if not step.allocated or step.after is None:
            continue
        group = step.cache.groups[0]
        held = len(step.cache.real(step.table(step.after, group)))
        ahead = -(-step.args.get("lookahead", 0) // group.block_size)
        judged += 1
        if held * page > maximum + ahead * page:
            raise LawBroken(
                f"after {step.in_words()}: the request holds at most {maximum} bytes, its "
                "max_memory_usage_bytes",
                f"{held} pages of {page} bytes in the block table {step.table(step.after, group)}",
            )
    return judged


LAWS = [
    Law(
        id="spec.memory-covers-held",
        level=Level.SAFETY,
        statement="A request never holds more pages than its spec's maximum memory, not counting lookahead.",
        why="Otherwise an engine starts because one request fits, but cannot finish that request.",
        sources=("the engine contract",),
        workload="cache.machine",
        check=memory_covers_held,
    ),
]
