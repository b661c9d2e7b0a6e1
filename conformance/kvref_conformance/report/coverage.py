"""Show which lines of the target's own files no law reached, as data and as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvref_conformance.documents.results import FileReached, Reached, Result
from kvref_conformance.report.text import visible
from kvref_conformance.running.line_coverage import ranges

_FEW = 3


def coverage_document(reached: Reached) -> dict[str, Any]:
    """The value of `coverage` in report.json."""
    return {
        "modules": reached.modules,
        "without": reached.without,
        "lines": reached.lines,
        "reached": reached.reached,
        "files": [
            {
                "name": file.name,
                "lines": len(file.lines),
                "reached": file.reached,
                "unreached": ranges(file.unreached, file.lines),
                "unreached_branches": file.branches,
                "laws": {law: ranges(lines, file.lines) for law, lines in file.laws.items()},
            }
            for file in reached.files
        ],
        "not_loaded": reached.not_loaded,
        "unread": reached.unread,
        "ended_early": reached.ended_early,
    }


def heading(result: Result, reached: Reached) -> str:
    whose = "lines of your plugin" if result.target.get("plugin") else "lines"
    without = f" without {', '.join(reached.without)}" if reached.without else ""
    return f"{whose} no law reached: {', '.join(reached.modules)}{without}"


def percent(lines: int, reached: int) -> str:
    """The percentage of lines that were reached, rounded down. So 100% means all lines."""
    return f"{100 * reached // lines}%" if lines else "-"


def places(file: FileReached) -> list[str]:
    """The unreached lines, such as `12-14`, and the unreached branches, such as `20->25`, in order."""
    found = [(first, _range((first, last))) for first, last in ranges(file.unreached, file.lines)]
    found += [(start, f"{start}->{end if end > 0 else 'exit'}") for start, end in file.branches]
    return [text for _, text in sorted(found)]


def remarks(reached: Reached) -> list[str]:
    """Sentences on the files that the table leaves out, and on units that ended early."""
    groups = {
        "never loaded, so not reached and not counted": (reached.not_loaded, "files"),
        "not readable as Python here, so not counted": (reached.unread, "files"),
        "ended early, so some lines that they reached may be missing": (reached.ended_early, "units of work"),
    }
    found = [] if reached.files else ["no file with Python functions was loaded"]
    return found + [
        f"{what}: {', '.join(names) if len(names) <= _FEW else f'{len(names)} {kind}'}"
        for what, (names, kind) in groups.items()
        if names
    ]


def coverage_page(result: Result, reached: Reached) -> str:
    """The page, in Markdown: which lines of each file no law reached, and which law reached which lines."""
    target = result.target
    title = heading(result, reached)
    lines = [
        f"# {title[0].upper()}{visible(title[1:])}",
        "",
        visible(f"{target['name']} {target['version']}, depth {result.depth}, seed {result.seed}"),
        "",
        "| file | lines | reached | % | unreached |",
        "|---|--:|--:|--:|---|",
        *(_row(file) for file in reached.files),
        f"| all | {reached.lines} | {reached.reached} | {percent(reached.lines, reached.reached)} | |",
        "",
    ]
    for remark in remarks(reached):
        lines += [f"{visible(remark[0].upper() + remark[1:])}.", ""]
    if reached.not_loaded:
        lines += ["## Never loaded", "", *(f"* {_code(name)}" for name in reached.not_loaded), ""]
    lines += ["## Which law reached what", ""]
    for file in reached.files:
        lines += [f"### {_code(file.name)}", "", *_by_law(file), ""]
    return "\n".join(lines)


def _row(file: FileReached) -> str:
    numbers = f"{len(file.lines)} | {file.reached} | {percent(len(file.lines), file.reached)}"
    return f"| {_code(file.name)} | {numbers} | {', '.join(places(file))} |"


def _by_law(file: FileReached) -> list[str]:
    """A list item for each set of lines, with the laws that reached exactly these.

    Laws often share an item, because one unit feeds several laws.
    """
    laws: dict[frozenset[int], list[str]] = {}
    for law, lines in file.laws.items():
        laws.setdefault(lines, []).append(law)
    return [
        f"* {', '.join(names)}: {', '.join(map(_range, ranges(lines, file.lines)))}"
        for lines, names in laws.items()
    ] or ["None."]


def _range(ends: tuple[int, int]) -> str:
    first, last = ends
    return f"{first}-{last}" if last > first else f"{first}"


def _code(name: str) -> str:
    return f"`{visible(name).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def by_area(reached: Reached, areas: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """For each area of laws, how many lines it reached, and how many of these no other area reached."""
    found: dict[str, set[tuple[str, int]]] = {}
    for file in reached.files:
        for law, lines in file.laws.items():
            found.setdefault(areas[law], set()).update((file.name, line) for line in lines)
    counts = {}
    for area, own in found.items():
        others = set().union(*(found[other] for other in found if other != area))
        counts[area] = (len(own), len(own - others))
    return counts
