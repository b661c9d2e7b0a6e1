"""Find and read the file of a profile, and see that it has the shape of one."""

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
"""Where a profile is in `pyproject.toml`."""

NAME = r"[A-Za-z0-9_][A-Za-z0-9_-]*"
"""Of one of several profiles in a file."""


class ProfileError(ValueError):
    """A profile that cannot be used; a paragraph for each problem, with its place in the file."""


@dataclass(frozen=True)
class Problem:
    """Something wrong with what is at `path` in a profile."""

    path: tuple[str | int, ...]
    text: str


@dataclass(frozen=True)
class Source:
    """A file and a profile in it, or all that are, dates written as strings."""

    path: Path
    toml: Toml
    root: tuple[str, ...]
    document: dict[str, Any]

    @property
    def names(self) -> list[str]:
        """Names of the profiles, if there are several in the file."""
        return list(self.document.get("targets", ()))

    def named(self, name: str) -> Source:
        """One of several."""
        return replace(self, root=(*self.root, "targets", name), document=self.document["targets"][name])

    def line(self, path: tuple[str | int, ...]) -> int:
        return self.toml.line((*self.root, *path))

    def place(self, *path: str | int) -> str:
        return f"{self.path}:{self.line(path)}"

    def refuse(self, problems: Iterable[Problem]) -> None:
        """Raise `ProfileError` if there is any problem; tell them in the order of the lines."""
        told = []
        for problem in problems:
            line = self.line(problem.path)
            where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in problem.path)
            told.append(
                (line, f"{self.path}:{line}: {where[1:]}: {problem.text}\n    {self.toml.text(line)}")
            )
        if told:
            raise ProfileError("\n".join(paragraph for _, paragraph in sorted(told)))


def find(folder: Path) -> Path | None:
    """The file in a folder that has its profile, if any: `kvref.toml`, or else `pyproject.toml`."""
    own, project = folder / FILE, folder / PYPROJECT
    if own.is_file():
        return own
    return project if project.is_file() and "kvref" in _parse(project).document.get("tool", {}) else None


def read(path: Path) -> Source:
    """Read the profile in a file. Raises `ProfileError` if there is none, or its shape is wrong."""
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
    """What may have been meant by a name that is none of the options, to be put behind a message."""
    close = difflib.get_close_matches(name, list(options), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def problems_of(value: Any, form: dict[str, Any], path: tuple[str | int, ...]) -> Iterator[Problem]:
    """What keeps a value from following a JSON Schema."""
    for error in Draft202012Validator(form).iter_errors(value):
        place = (*path, *error.absolute_path)
        match error.validator:
            case "additionalProperties":
                options = error.schema.get("properties", {})
                for key in error.instance:
                    if key not in options:
                        yield Problem((*place, key), f"unknown key{meant(key, options)}")
            case "required":
                # One error for each, which names it in its message alone.
                missing = [key for key in error.validator_value if error.message.startswith(repr(key))]
                yield Problem(place, f"{missing[0]!r} is missing")
            case _:
                yield Problem(place, _asked(error))


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


def _asked(error: ValidationError) -> str:
    """What a value that has the wrong shape should be."""
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
    """JSON has no dates."""
    match value:
        case dict():
            return {key: _with_dates_written(item) for key, item in value.items()}
        case list():
            return [_with_dates_written(item) for item in value]
        case datetime.date() | datetime.time():
            return value.isoformat()
    return value
