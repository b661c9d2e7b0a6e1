"""Find the file with a profile, read it, and check it against the profile's schema."""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from kvref_conformance.documents.schemas import schema
from kvref_conformance.documents.toml_lines import Toml, TomlError

FILE = "kvref.toml"
PYPROJECT = "pyproject.toml"
TABLE = ("tool", "kvref")
"""The table of `pyproject.toml` that holds a profile."""

NAME = r"[A-Za-z0-9_][A-Za-z0-9_-]*"
"""A regular expression for the name of a profile. Profiles have names if a file has several of them."""


class ProfileError(ValueError):
    """A profile cannot be used. The message has a paragraph for each problem, with the line of the file."""


@dataclass(frozen=True)
class Problem:
    """A mistake in a profile. `path` leads to the wrong value, and `text` says what is wrong."""

    path: tuple[str | int, ...]
    text: str


@dataclass(frozen=True)
class Source:
    """A file, and the table in it that holds one profile, or several of them.

    `root` leads to the table, and `document` is its content, with dates as strings.
    """

    path: Path
    toml: Toml
    root: tuple[str, ...]
    document: dict[str, Any]

    @property
    def names(self) -> list[str]:
        """The names of the profiles, if the file has several. Otherwise, an empty list."""
        return list(self.document.get("targets", ()))

    def named(self, name: str) -> Source:
        """The source of one profile only, if the file has several."""
        return replace(self, root=(*self.root, "targets", name), document=self.document["targets"][name])

    def line(self, path: tuple[str | int, ...]) -> int:
        return self.toml.line((*self.root, *path))

    def place(self, *path: str | int) -> str:
        return f"{self.path}:{self.line(path)}"

    def refuse(self, problems: Iterable[Problem]) -> None:
        """Raise a `ProfileError` that lists the problems by line. Without any problem, do nothing."""
        found = []
        for problem in problems:
            line = self.line(problem.path)
            where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in problem.path)
            found.append(
                (line, f"{self.path}:{line}: {where[1:]}: {problem.text}\n    {self.toml.text(line)}")
            )
        if found:
            raise ProfileError("\n".join(paragraph for _, paragraph in sorted(found)))


def find(folder: Path) -> Path | None:
    """Find the file with a profile in a folder: `kvref.toml`, else a `pyproject.toml` that has a profile."""
    own, project = folder / FILE, folder / PYPROJECT
    if own.is_file():
        return own
    return project if project.is_file() and "kvref" in _parse(project).document.get("tool", {}) else None


def read(path: Path) -> Source:
    """Read the profile in a file. Raises `ProfileError` if there is none or it does not fit the schema."""
    toml = _parse(path)
    root = TABLE if path.name == PYPROJECT else ()
    document = toml.document
    for key in root:
        document = document.get(key, {})
    if root and not (isinstance(document, dict) and document):
        raise ProfileError(f"{path}: there is no table [{'.'.join(root)}], or it is empty")
    source = Source(path, toml, root, _with_dates_written(document))
    source.refuse(_misshapen(source.document))
    return source


def meant(name: str, options: Iterable[str]) -> str:
    """A hint for a message about a wrong name: the option with the closest spelling, or "" without one."""
    close = difflib.get_close_matches(name, list(options), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def problems_of(value: Any, form: dict[str, Any], path: tuple[str | int, ...]) -> Iterator[Problem]:
    """Check a value against a JSON Schema, and yield a problem for each mistake."""
    for error in Draft202012Validator(form).iter_errors(value):
        place = (*path, *error.absolute_path)
        match error.validator:
            case "additionalProperties":
                options = error.schema.get("properties", {})
                for key in error.instance:
                    if key not in options:
                        yield Problem((*place, key), f"unknown key{meant(key, options)}")
            case "required":
                # There is an error for each missing key, and only its message names the key.
                missing = [key for key in error.validator_value if error.message.startswith(repr(key))]
                yield Problem(place, f"{missing[0]!r} is missing")
            case _:
                yield Problem(place, _wanted(error))


def _misshapen(document: dict[str, Any]) -> Iterator[Problem]:
    if problems := list(problems_of(document, schema("profile"), ())):
        yield from problems
        return
    tables = document.get("targets", {})
    for key in document if tables else ():
        if key != "targets":
            yield Problem((key,), f"belongs into each of the tables [targets.NAME] ({', '.join(tables)})")
    for name, table in tables.items():
        if not re.fullmatch(NAME, name):
            yield Problem(("targets", name), "a name is made of letters, digits, '-' and '_'")
        if "targets" in table:
            yield Problem(("targets", name, "targets"), "there are no tables of targets in one of them")


_KINDS = {
    "string": "a string",
    "array": "a list",
    "object": "a table",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
}


def _wanted(error: ValidationError) -> str:
    """Say in words what the schema requires in place of the wrong value."""
    form: Any = error.schema
    match error.validator:
        case "type":
            return f"must be {_KINDS[form['type']]}, not {error.instance!r}"
        case "pattern":
            return f"must be {form['title']}, not {error.instance!r}"
        case "enum":
            return f"must be one of {', '.join(form['enum'])}, not {error.instance!r}"
        case "minLength" | "minItems" | "minProperties":
            return "must not be empty"
        case "uniqueItems":
            return "names something twice"
        case "exclusiveMinimum":
            return f"must be more than {form['exclusiveMinimum']}, not {error.instance!r}"
    return str(error.message)


def _parse(path: Path) -> Toml:
    try:
        return Toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"cannot read profile {str(path)!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ProfileError(f"{path}:{line}: not UTF-8") from error
    except TomlError as error:
        text = error.text.strip()
        raise ProfileError(f"{path}:{error.line}: not TOML: {error.problem}\n    {text}") from error


def _with_dates_written(value: Any) -> Any:
    """The value with dates as strings, since JSON has no dates."""
    match value:
        case dict():
            return {key: _with_dates_written(item) for key, item in value.items()}
        case list():
            return [_with_dates_written(item) for item in value]
        case datetime.date() | datetime.time():
            return value.isoformat()
    return value
