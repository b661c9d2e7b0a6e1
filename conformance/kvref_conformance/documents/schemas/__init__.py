"""JSON Schemas (Draft 2020-12) for the documents that kvref reads and writes."""

from __future__ import annotations

import functools
import importlib.resources
import json
from typing import Any, Literal

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

__all__ = [
    "BASELINE",
    "BENCH",
    "DIFF",
    "FAULTS",
    "FUZZ",
    "PROVE",
    "REPORT",
    "TRACE",
    "InvalidDocument",
    "parse",
    "schema",
    "validate",
]

Name = Literal["report", "trace", "baseline", "profile", "fuzz", "faults", "prove", "diff", "bench"]

REPORT = "kvref.report/1"
TRACE = "kvref.trace/1"
BASELINE = "kvref.baseline/1"
FUZZ = "kvref.fuzz/1"
FAULTS = "kvref.faults/1"
PROVE = "kvref.prove/1"
DIFF = "kvref.diff/1"
BENCH = "kvref.bench/1"

_LONGEST = 300


class InvalidDocument(ValueError):
    """A document does not follow its schema. `path` (JSONPath) says where, and `problem` what is wrong."""

    def __init__(self, name: str, path: str, problem: str) -> None:
        super().__init__(f"invalid {name} at {path}: {problem}")
        self.name = name
        self.path = path
        self.problem = problem


@functools.cache
def schema(name: Name) -> dict[str, Any]:
    file = importlib.resources.files(__name__) / f"{name}.schema.json"
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document


def parse(text: bytes, name: Name) -> dict[str, Any]:
    """Parse a JSON document and check it against its schema. Raises `InvalidDocument`."""
    try:
        document: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise InvalidDocument(name, "$", f"not JSON: {error}") from error
    except RecursionError as error:
        raise InvalidDocument(name, "$", "nested too deeply") from error
    validate(document, name)
    return document


def validate(document: Any, name: Name) -> None:
    """Check a document against the schema called `name`.

    Raises:
        InvalidDocument: the document does not follow the schema. If there are several mistakes, the error is
            about the most relevant one.
    """
    error = best_match(Draft202012Validator(schema(name)).iter_errors(document))
    if error is not None:
        raise InvalidDocument(name, _short(error.json_path), _short(error.message))


def _short(text: str) -> str:
    """Cut out the middle of a long text. A message says what is wrong at its beginning or at its end."""
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]} ... {text[-half:]}"
