"""Find out which lines of the target's own files were reached, by which laws, and which were not.

Only lines inside functions count. All other lines run when their file is imported, whatever the laws do.
coverage.py decides what counts as a line or a branch.
"""

from __future__ import annotations

import ast
import json
import tempfile
import tokenize
import warnings
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvref_conformance.documents.results import FileReached, Reached
from kvref_conformance.processes.channel import Message

Pairs = dict[str, set[tuple[int, int]]]
"""By file path, pairs of lines that ran one after the other.

If a function begins at line N, -N stands for a line outside of it: before the call, or after the return.
"""


class CannotMeasure(Exception):
    """coverage.py is not installed."""


def needs_library() -> None:
    """Raise `CannotMeasure` if coverage.py is missing."""
    try:
        import coverage  # noqa: F401
    except ImportError as error:
        raise CannotMeasure(
            f"--coverage needs the package coverage, which cannot be imported here ({error}): "
            "pip install 'kvref[coverage]'"
        ) from error


def add_up(
    own: Message, run: Iterable[tuple[Sequence[str], Pairs]], ended_early: Sequence[str] = ()
) -> Reached:
    """Add up which lines of the target's own files ran for which laws.

    `own` is the list of the target's files, which a host made. `run` has, for each unit, its laws and the
    lines that it reached. `ended_early` names the units that did not run to their end.
    """
    by_law: dict[str, Pairs] = {}
    for laws, arcs in run:
        for law in laws:
            _add(by_law.setdefault(law, {}), arcs)
    every: Pairs = {}
    for arcs in by_law.values():
        _add(every, arcs)
    names = {path: file["name"] for path, file in own["files"].items()}
    loaded = [path for path, file in own["files"].items() if file["loaded"] or path in every]
    analysed = _analyse(loaded, every)
    files = [
        file
        for path, analysis in analysed.items()
        if (file := _file(names[path], path, analysis, {law: arcs.get(path) for law, arcs in by_law.items()}))
    ]
    return Reached(
        modules=own["own"]["modules"],
        without=own["own"]["without"],
        files=sorted(files, key=lambda file: (-len(file.unreached), -len(file.branches), file.name)),
        not_loaded=sorted(names[path] for path in names.keys() - {*loaded}),
        unread=sorted(names[path] for path in {*loaded} - analysed.keys()),
        ended_early=ended_early,
    )


def _add(to: Pairs, arcs: Pairs) -> None:
    for path, pairs in arcs.items():
        to.setdefault(path, set()).update(pairs)


def _analyse(paths: Sequence[str], arcs: Pairs) -> dict[str, dict[str, Any]]:
    """By path, what coverage.py reports on each file that it can read."""
    import coverage

    if not paths:
        return {}
    library = coverage.Coverage(data_file=None, config_file=False, branch=True)
    library.get_data().add_arcs(arcs)
    with tempfile.TemporaryDirectory(prefix="kvref-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about files that it cannot read
        output = Path(folder) / "coverage.json"
        library.json_report(paths, outfile=str(output), ignore_errors=True)
        report: dict[str, dict[str, Any]] = json.loads(output.read_text(encoding="utf-8"))["files"]
    return {str(Path(name).resolve()): file for name, file in report.items()}


def _file(
    name: str, path: str, analysis: Mapping[str, Any], laws: Mapping[str, set[tuple[int, int]] | None]
) -> FileReached | None:
    inside = _inside_functions(path)
    run, missing = (
        inside.intersection(analysis["executed_lines"]),
        inside.intersection(analysis["missing_lines"]),
    )
    lines = sorted(run | missing)
    if not lines:
        return None
    statements = sorted(
        {*analysis["executed_lines"], *analysis["missing_lines"], *analysis["excluded_lines"]}
    )
    by_law = {
        law: frozenset(run.intersection(_first_lines(arcs, statements))) for law, arcs in laws.items() if arcs
    }
    return FileReached(
        name,
        lines,
        frozenset(missing),
        [(start, end) for start, end in analysis["missing_branches"] if start in run and end not in missing],
        {law: reached for law, reached in by_law.items() if reached},
    )


def _inside_functions(path: str) -> set[int]:
    with tokenize.open(path) as file:
        tree = ast.parse(file.read())
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for line in range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
    }


def _first_lines(arcs: Iterable[tuple[int, int]], statements: Sequence[int]) -> set[int]:
    """The first lines of all statements that ran, in part or in full."""
    run = {line for pair in arcs for line in pair if line > 0}
    places = (bisect_right(statements, line) for line in run)
    return {statements[place - 1] for place in places if place}


def ranges(lines: Collection[int], among: Sequence[int]) -> list[tuple[int, int]]:
    """Join lines to ranges (first, last). Two lines that are neighbours in `among` share a range."""
    found: list[tuple[int, int]] = []
    before = None
    for line in among:
        if line in lines:
            if before in lines and found:
                found[-1] = (found[-1][0], line)
            else:
                found.append((line, line))
        before = line
    return found
