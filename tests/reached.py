"""Whether `kvref check` reaches all of the reference, but for refusals and what docs/unreached.toml lists.

Run it on what `coverage json` made of a check (`tox -e reached`): it tells what is missing there, and what is
there without need, and exits with 1 if there is either.
"""

from __future__ import annotations

import ast
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LISTED = Path(__file__).parent.parent / "docs" / "unreached.toml"


def refusals(source: str) -> set[int]:
    """Lines of blocks that end by raising an exception: a check asks nothing that an engine does not ask."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        handlers = [handler.body for handler in getattr(node, "handlers", ())]
        for block in [getattr(node, "body", []), getattr(node, "orelse", []), *handlers]:
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) or not isinstance(block, list):
                continue
            if block and isinstance(block[-1], ast.Raise):
                first = node.lineno if isinstance(node, ast.ExceptHandler) else block[0].lineno
                lines.update(range(first, (block[-1].end_lineno or first) + 1))
    return lines


def unreached(measured: dict[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """Functions with lines, or branches, that were not reached and are no refusal."""
    for path, file in measured["files"].items():
        parts = Path(path).with_suffix("").parts
        module = ".".join(parts[len(parts) - parts[::-1].index("kvref") :])
        allowed = refusals(Path(path).read_text())
        for name, function in file["functions"].items():
            missing = set(function["missing_lines"])
            skipped = {start for start, end in function["missing_branches"] if end not in missing}
            if left := sorted((missing - allowed) | skipped):
                yield f"{module}.{name}".rstrip("."), left


def main(measured: str) -> int:
    found = dict(unreached(json.loads(Path(measured).read_text())))
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
