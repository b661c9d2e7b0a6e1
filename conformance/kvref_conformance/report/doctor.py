"""Print what kvref knows about a target, and which laws it can judge."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from kvref_conformance.documents import baseline as baselines
from kvref_conformance.documents.profile import Profile
from kvref_conformance.documents.results import Row, Status
from kvref_conformance.laws import LAWS
from kvref_conformance.processes.launch import Launch
from kvref_conformance.report.terminal import Invocation, Printer, counts_by_area, laws_by_reason
from kvref_strategies.workload import Description

_LABEL = 13
_TITLES = {
    Status.INCOMPLETE: "cannot be judged",
    Status.DECLARED_GAP: "declared gaps",
    Status.NOT_APPLICABLE: "not applicable",
}


def render_target(
    worker: Launch,
    declared: Profile,
    description: Description,
    laws: Sequence[str],
    left_out: Sequence[Row],
    console: Console,
    invocation: Invocation,
) -> None:
    """Print the target, the number of laws that can be judged, and why the others cannot."""
    printer = Printer(console)

    def item(label: str, text: str) -> None:
        printer.labelled(label, text, width=_LABEL, indent=0)

    item("target", f"{description['name']} {description['version']}")
    plugin = description["plugin"]
    if plugin:
        item("plugin", f"{plugin['name']} ({plugin['version']})")
    printer.whole(f"{'interpreter':{_LABEL}}{worker.python} (Python {description['environment']['python']})")
    item("torch", description["environment"]["torch"])
    item("parts", ", ".join(part for part in description["parts"] if "." not in part) or "none")
    known = baselines.shipped(description["name"], description["version"])
    item("baseline", known.name or "none shipped for this version")
    item("classes", ", ".join(info["name"] for info in description["classes"]) or "none")
    if description["threads"] > 1:
        forked = "a forked process keeps only one of them, and may wait for the others for ever"
        item("threads", f"{description['threads']} run after import: {forked}")
    item("profile", declared.name or "none")
    for line in declared.declarations():
        printer.line(line, indent=2)
    for note in (*(plugin["notes"] if plugin else ()), *declared.notes):
        item("note", note)
    printer.blank()
    printer.line(f"can be judged: {len(laws)} of {len(LAWS)} laws", style="bold")
    printer.line(counts_by_area(laws) or "none", indent=2)
    for status, title in _TITLES.items():
        rows = [row for row in left_out if row.status is status]
        if rows:
            printer.line(title, style="bold")
        for names, reason in laws_by_reason(rows):
            printer.line(f"{reason}: {names}", indent=2)
    printer.blank()
    unjudged = any(row.status is Status.INCOMPLETE for row in left_out)
    printer.next(invocation.command("init" if unjudged and declared.name is None else "check"))
