"""Find and read the file of a profile, and check it against the schema."""

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
"""What the name of a profile may be, where a file has several."""


class ProfileError(ValueError):
    """A profile that cannot be used. The message has a paragraph for each problem, with its line."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with the value at `path` in a profile."""

    path: tuple[str | int, ...]
    text: str


@dataclass(frozen=True)
class Source:
    """A file and the profile in it, or all its profiles. Dates are strings."""

    path: Path
    toml: Toml
    root: tuple[str, ...]
    document: dict[str, Any]

    @property
    def names(self) -> list[str]:
        """Names of the profiles, if the file has several."""
        return list(self.document.get("targets", ()))

    def named(self, name: str) -> Source:
        """One of several profiles, by its name."""
        return replace(self, root=(*self.root, "targets", name), document=self.document["targets"][name])

    def line(self, path: tuple[str | int, ...]) -> int:
        return self.toml.line((*self.root, *path))

    def place(self, *path: str | int) -> str:
        return f"{self.path}:{self.line(path)}"

    def refuse(self, problems: Iterable[Problem]) -> None:
        """Raise `ProfileError` if there is any problem. It lists them by line."""
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
    """The file in a folder that has a profile: `kvref.toml`, else `pyproject.toml`, else None."""
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
    """A hint to append to a message: the option that is most like a wrong name. "" if no option is close."""
    close = difflib.get_close_matches(name, list(options), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def problems_of(value: Any, form: dict[str, Any], path: tuple[str | int, ...]) -> Iterator[Problem]:
    """The problems of a value that does not fit a JSON Schema."""
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
    """What the schema wants instead of a value."""
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
