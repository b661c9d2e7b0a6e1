"""Checks that `kvref check` reaches all of the reference, except refusals and what docs/unreached.toml lists.

It reads the report of a check with `--coverage` (`tox -e reached`). It prints the entries that the list
lacks, and the entries that it does not need. If there are any, it exits with 1.
"""

from __future__ import annotations

import ast
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kvref

LISTED = Path(__file__).parent.parent / "docs" / "unreached.toml"
FOLDER = Path(kvref.__file__).parent.parent


def refusals(tree: ast.Module) -> set[int]:
    """Lines of code blocks that end by raising an exception, and lines that raise NotImplementedError.

    A check does not reach them: it makes no call that an engine would not make, and a derived class replaces
    the others.
    """
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and "NotImplementedError" in ast.unparse(node):
            lines.add(node.lineno)
        handlers = [handler.body for handler in getattr(node, "handlers", ())]
        for block in [getattr(node, "body", []), getattr(node, "orelse", []), *handlers]:
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) or not isinstance(block, list):
                continue
            if block and isinstance(block[-1], ast.Raise):
                first = node.lineno if isinstance(node, ast.ExceptHandler) else block[0].lineno
                lines.update(range(first, (block[-1].end_lineno or first) + 1))
    return lines


def places(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines on which code in a function begins, in order, each with the innermost function's name."""
    functions: list[tuple[int, int, str]] = []

    def collect(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = f"{name}.{child.name}"
                if isinstance(child, ast.FunctionDef):
                    functions.append((child.body[0].lineno, child.end_lineno or 0, inner))
                collect(child, inner)
            else:
                collect(child, name)

    collect(tree, "")
    texts = [
        node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    left_out = {id(part) for node in texts for part in (node, node.value)}
    begun = {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt | ast.expr | ast.pattern | ast.ExceptHandler)
        and id(node) not in left_out
    }
    for line in sorted(begun):
        holders = [(first, name) for first, last, name in functions if first <= line <= last]
        if holders:
            yield line, max(holders)[1]


def unreached(coverage: dict[str, Any]) -> dict[str, list[int]]:
    """Functions with unreached lines or branches, refusals aside, and modules that were not loaded."""
    found: dict[str, list[int]] = {_module(name): [] for name in coverage["not_loaded"]}
    for file in coverage["files"]:
        tree = ast.parse((FOLDER / file["name"]).read_text())
        missing = {line for first, last in file["unreached"] for line in range(first, last + 1)}
        left = (missing - refusals(tree)) | {start for start, _ in file["unreached_branches"]}
        for line, name in places(tree):
            if line in left:
                found.setdefault(f"{_module(file['name'])}{name}", []).append(line)
    return found


def _module(file: str) -> str:
    return ".".join(Path(file).with_suffix("").parts[1:])


def main(report: str) -> int:
    found = unreached(json.loads(Path(report).read_text())["coverage"])
    listed = [each["where"] for each in tomllib.loads(LISTED.read_text())["unreached"]]
    missing = {name: lines for name, lines in found.items() if not any(is_in(name, each) for each in listed)}
    needless = [where for where in listed if not any(is_in(name, where) for name in found)]
    for name, lines in missing.items():
        print(f"{name} is not reached: lines {lines}")
    for where in needless:
        print(f"{where} is reached: take it out of {LISTED.name}")
    return 1 if missing or needless else 0


def is_in(name: str, where: str) -> bool:
    return f"{name}.".startswith(f"{where}.")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
