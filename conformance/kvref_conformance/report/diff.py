"""Show what changed between two reports: on a terminal, or in Markdown for a pull request."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console

from kvref_conformance.documents.diff import Change, Condition, Diff, Kind
from kvref_conformance.documents.results import Status, Verdict
from kvref_conformance.laws.core import Level
from kvref_conformance.report.terminal import VERDICT_STYLES, Printer
from kvref_conformance.report.text import visible

_TITLES = {
    Kind.BROKEN: "newly broken",
    Kind.STALE: "newly stale",
    Kind.OPEN: "not judged completely",
    Kind.KNOWN: "newly known",
    Kind.UNJUDGED: "no longer judged",
    Kind.GONE: "disappeared",
    Kind.MENDED: "fixed",
    Kind.JUDGED: "judged now",
    Kind.NEW: "appeared",
}

_LONGEST_NAME = 80
_LONGEST_TEXT = 300
_MOST_LINES = 40
"""A summary lists at most this many changes of one kind: GitHub limits comments to 65,536 characters."""
_MOST_BETTER = 10
"""A terminal shows at most this many changes of one kind. It shows all changes for the worse."""


def render_diff(diff: Diff, console: Console) -> None:
    """Print how the checks differ, what changed, the counts, and the verdicts last."""
    printer = Printer(console)
    for condition in diff.conditions:
        printer.line("differs", style="yellow", after=f"  {_condition(condition)}")
    if diff.conditions:
        printer.blank()
    for worse, kind, changes in _groups(diff):
        style = "bold red" if worse else "green" if kind in (Kind.MENDED, Kind.JUDGED) else "cyan"
        printer.line(_heading(worse, kind, changes), style=style)
        most = len(changes) if worse else _MOST_BETTER
        for change in changes[:most]:
            printer.line(_title(change), indent=2, after=f"  {_became(change)}")
            for label, text in _why(change):
                printer.labelled(label, text, indent=4)
        if more := len(changes[most:]):
            printer.line(f"and {more} more: add --json", indent=2)
        printer.blank()
    for status, before, now in _totals(diff):
        printer.line(f"{status:16} {before:6} -> {now}")
    printer.blank()
    printer.line(_conclusion(diff), style="bold red" if diff.worse else "bold green")
    old, new = diff.old["verdict"], diff.new["verdict"]
    printer.line(f"verdict: {old} -> {new}", style=VERDICT_STYLES[Verdict(new)])
    if first := next((change for change in diff.changes if change.worse), None):
        printer.next(f"kvref explain {visible(first.row['id'], _LONGEST_NAME)}")


def markdown(diff: Diff) -> str:
    """A summary for a pull request, in Markdown. Texts from a target are in code spans."""
    old, new = diff.old["verdict"], diff.new["verdict"]
    target = diff.new["target"]
    name = _code(" ".join(filter(None, (target["name"], target["version"], target["plugin"]))))
    lines = [f"### kvref: {new}", "", f"{name}, before: {old}. {_conclusion(diff).capitalize()}.", ""]
    if diff.conditions:
        lines += ["The two checks differ:", ""]
        lines += [f"* {_code(_condition(condition))}" for condition in diff.conditions] + [""]
    for worse, kind, changes in _groups(diff):
        lines += [f"#### {_heading(worse, kind, changes).capitalize()}", ""]
        for change in changes[:_MOST_LINES]:
            lines.append(f"* {_code(_title(change))} {_became(change)}")
            lines += [f"  * {label}: {_code(text)}" for label, text in _why(change)]
        if more := len(changes) - _MOST_LINES:
            lines += [f"* and {more} more"] if more > 0 else []
        lines.append("")
    lines += ["| state | before | now |", "|---|--:|--:|"]
    lines += [f"| {status} | {before} | {now} |" for status, before, now in _totals(diff)]
    return "\n".join([*lines, ""])


def _groups(diff: Diff) -> Iterator[tuple[bool, Kind, list[Change]]]:
    for (worse, kind), changes in groupby(diff.changes, lambda change: (change.worse, change.kind)):
        yield worse, kind, list(changes)


def _heading(worse: bool, kind: Kind, changes: Sequence[Change]) -> str:
    held = " (held before)" if worse and kind in (Kind.KNOWN, Kind.UNJUDGED, Kind.GONE) else ""
    return f"{_TITLES[kind]}{held}: {len(changes)}"


def _title(change: Change) -> str:
    law, subject, facet = (
        visible(name, _LONGEST_NAME) for name in (change.row["id"], change.row["subject"], change.facet)
    )
    about = ": ".join(filter(None, (subject, facet)))
    return f"{law} [{about}]" if about else law


def _became(change: Change) -> str:
    level = " (robustness)" if change.row["level"] == Level.ROBUSTNESS else ""
    return f"{change.old or 'absent'} -> {change.new or 'absent'}{level}"


def _why(change: Change) -> Iterator[tuple[str, str]]:
    """Yield labels and texts that explain a change: what was expected and observed, or the reason."""
    row = change.row
    if change.new is Status.BROKEN and row["observed"]:
        yield "expected", visible(row["expected"], _LONGEST_TEXT)
        yield "observed", visible(row["observed"], _LONGEST_TEXT)
    elif change.new not in (None, Status.HOLDS) and row["message"]:
        yield "reason", visible(row["message"], _LONGEST_TEXT)


def _condition(condition: Condition) -> str:
    old, new = (
        "not given" if value is None else visible(json.dumps(value, sort_keys=True), _LONGEST_TEXT)
        for value in (condition.old, condition.new)
    )
    return f"{visible(condition.what, _LONGEST_NAME)}: {old} -> {new}"


def _totals(diff: Diff) -> Iterator[tuple[str, int, int]]:
    old, new = diff.old["totals"], diff.new["totals"]
    for status in Status:
        if status in old or status in new:
            yield status.value, old.get(status, 0), new.get(status, 0)


def _conclusion(diff: Diff) -> str:
    worse = sum(change.worse for change in diff.changes)
    others = len(diff.changes) - worse
    if not diff.changes:
        return "nothing changed"
    return f"{worse or 'nothing'} got worse, {others or 'nothing'} changed otherwise"


def _code(text: str) -> str:
    return f"`{visible(text, 3 * _LONGEST_TEXT).replace('`', chr(39))}`"
