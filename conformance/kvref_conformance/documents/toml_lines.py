"""Parse TOML and find the line of each value, so that an error message can name the line.

No library does this with less code. tomlkit keeps the text, but does not know positions. Also, if two
`[[known]]` tables have another table between them, tomlkit moves the two together.
"""

from __future__ import annotations

import bisect
import functools
import re
import tomllib
from collections.abc import Sequence
from typing import Any

Path = Sequence[str | int]
"""Keys and indices that lead to a value."""


class TomlError(ValueError):
    """A text is not TOML. `text` is the line with the problem, and `line` is that line's number."""

    def __init__(self, line: int, text: str, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line
        self.text = text
        self.problem = problem


class Toml:
    """A parsed TOML text that knows the line of each value.

    The parser of the standard library gives no positions. But if you cut a TOML text after a statement, the
    part before the cut is still TOML. So `line` searches for the shortest such part that has the value. The
    parser itself decides where a statement ends.
    """

    def __init__(self, text: str) -> None:
        self._lines = text.replace("\r\n", "\n").split("\n")
        try:
            self.document: dict[str, Any] = self._until(len(self._lines))
        except tomllib.TOMLDecodeError as error:
            problem, line = str(error), len(self._lines)
            if place := re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", problem):
                problem, line = problem[: place.start()], int(place[1] or line)
            raise TomlError(line, self.text(line), problem) from error

    def line(self, path: Path) -> int:
        """The number of the line where a value begins.

        If the value is missing, it is the line where the table around the value begins.
        """
        while path and not _has(self.document, path):
            path = path[:-1]
        firsts, lasts = self._statements
        place = bisect.bisect_left(lasts, True, key=lambda last: _has(self._until(last), path))
        return firsts[place]

    def text(self, line: int) -> str:
        """The line with this number, without the space at its ends."""
        return self._lines[line - 1].strip()

    @functools.cached_property
    def _statements(self) -> tuple[list[int], list[int]]:
        """The numbers of all statements' first lines and last lines. Empty lines and comments count, too."""
        firsts, lasts, first = [], [], 1
        for last in range(1, len(self._lines) + 1):
            try:
                tomllib.loads("\n".join(self._lines[first - 1 : last]))
            except tomllib.TOMLDecodeError:
                continue  # an array or a string that goes on
            firsts.append(first)
            lasts.append(last)
            first = last + 1
        return firsts, lasts

    def _until(self, line: int) -> dict[str, Any]:
        return tomllib.loads("\n".join(self._lines[:line]))


def _has(document: Any, path: Path) -> bool:
    for step in path:
        match document, step:
            case dict(), str() if step in document:
                document = document[step]
            case list(), int() if step < len(document):
                document = document[step]
            case _:
                return False
    return True
