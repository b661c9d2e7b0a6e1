"""Perform an operation of the target, and check that the answer has the type that `kvref.target` declares."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, get_type_hints

from msgspec import ValidationError, convert

from kvref.target import (
    AdapterError,
    BenchPart,
    CachePart,
    CanonicalPart,
    ConnectorPart,
    DriftPart,
    HashingPart,
    Outcome,
    PlannerPart,
    PoolPart,
    RegistryPart,
    SharingPart,
    SpecsPart,
    TensorsPart,
)
from kvref_conformance.processes.line_tracer import Asked, ask
from kvref_conformance.processes.session import NotJudged

PARTS = {
    "specs": SpecsPart,
    "registry": RegistryPart,
    "drift": DriftPart,
    "planner": PlannerPart,
    "hashing": HashingPart,
    "pool": PoolPart,
    "cache": CachePart,
    "sharing": SharingPart,
    "tensors": TensorsPart,
    "canonical": CanonicalPart,
    "connector": ConnectorPart,
    "bench": BenchPart,
}

LONGEST_ANSWER = 16 * 1024 * 1024
"""The maximum length of an answer, in characters of JSON."""

_LONGEST_VALUE = 200

_KINDS = {
    "array": "a list",
    "object": "a mapping",
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}


def raw_answer(target: Asked, operation: str, arguments: dict[str, Any]) -> Outcome:
    """Perform an operation, and return its outcome without any check.

    If the operation raises an exception that would end the process, such as `SystemExit`, the outcome is the
    death of the process.

    Raises:
        NotJudged: there is no such operation, the adapter failed, or the exception has no text.
    """
    try:
        return ask(target, operation, arguments)
    except (LookupError, AdapterError) as error:
        raise NotJudged(str(error)) from error
    except Exception as error:
        raise NotJudged(f"{operation} raised an exception that cannot be told as text") from error
    except BaseException as error:
        return {"died": f"raised {type(error).__name__}, which ends a process"}


def answer(target: Asked, operation: str, arguments: dict[str, Any]) -> Outcome:
    """Perform an operation. Write its outcome as JSON, read that back, and return the result.

    Raises:
        NotJudged: the target has no operation of that name, the operation raised an exception that cannot be
            converted to text, or the answer does not follow the protocol of a target (`kvref.target`).
    """
    outcome = raw_answer(target, operation, arguments)
    return outcome if "died" in outcome else checked(operation, outcome)


def checked(operation: str, outcome: Outcome) -> Outcome:
    """Write an outcome as JSON, read it back, and return the result.

    Raises:
        NotJudged: the answer is not plain data, is too long, has the wrong type, or has a value that no law
            can work with.
    """
    try:
        text = json.dumps(outcome, allow_nan=False)
    except Exception as error:
        raise NotJudged(
            f"{operation} answered what is not plain data ({type(error).__name__}: {error})"
        ) from error
    if len(text) > LONGEST_ANSWER:
        raise NotJudged(f"{operation} answered {len(text)} characters of JSON; {LONGEST_ANSWER} are allowed")
    plain: Outcome = json.loads(text)
    if "value" in plain and (wrong := problem(operation, plain["value"])):
        raise NotJudged(f"{wrong} (see docs/targets.md)")
    return plain


def operations_of(part: str) -> list[str]:
    """The names of the operations that `kvref.target` defines for a part of a target, such as `pool`."""
    return [name for name in vars(PARTS[part]) if not name.startswith("_")]


def _wanted() -> dict[str, Any]:
    """For each operation whose answers kvref checks: the type that an answer must have."""
    wanted = {
        f"{part}.{name}": get_type_hints(getattr(protocol, name))["return"]
        for part, protocol in PARTS.items()
        for name in operations_of(part)
        if part != "bench"  # it answers with functions, which are never sent anywhere
    }
    # Laws judge any answer of these two operations, so it may have any type.
    del wanted["specs.uniform"], wanted["registry.uniform"]
    # No law reads the answer of an operation that should answer nothing.
    wanted = {operation: kind for operation, kind in wanted.items() if kind is not type(None)}
    # JSON has no tuples: a target answers with lists of two.
    return {**wanted, "tensors.compare_slots": list[tuple[int, int]]}


_WANTED = _wanted()


def problem(operation: str, answer: Any) -> str:
    """Check an answer that is plain data. Returns a message about the first mistake, or "" without one."""
    try:
        convert(answer, _WANTED.get(operation, Any))
    except ValidationError as error:
        return _in_words(operation, answer, str(error))
    for path, value, wanted in _unfit(operation, answer):
        return f"{operation} answered {_short(path, value)}; {wanted} wanted"
    return ""


def _in_words(operation: str, answer: Any, error: str) -> str:
    """Put an error message of msgspec into plain words, and add the wrong value."""
    what, _, path = error.partition(" - at ")
    # msgspec writes "[...]" for any key of a mapping, so we can only show the whole mapping.
    path, unnamed, rest = re.sub(r"`|\$\.?", "", path).partition("[...]")
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", path):
        answer = answer[name or int(index)]
    if expected := re.fullmatch("Expected `(.*?)`(.*?)(, got .*)?", what):
        kinds = (_KINDS.get(kind, kind) for kind in expected[1].split(" | "))
        what = f"{' or '.join(kinds)}{expected[2]} is wanted"
    elif missing := re.fullmatch("Object missing required field (.*)", what):
        what = f"{missing[1]} is missing"
    return f"{operation} answered {_short(path, answer)}; {what}{f' at {unnamed}{rest}' if unnamed else ''}"


def _short(path: str, value: Any) -> str:
    text = json.dumps(value)
    text = text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
    return f"{path}={text}" if path else text


def _unfit(operation: str, answer: Any) -> Iterator[tuple[str, Any, str]]:
    """Find values that have the right type and are wrong all the same.

    Yields for each the path to the value, the value, and what kvref wants in its place.
    """
    match operation:
        case "tensors.write" | "tensors.read" | "canonical.write" | "canonical.read":
            if not re.fullmatch("([0-9a-f]{2})+", answer):
                yield "", answer, "bytes in hexadecimal are"
        case "planner.capacity":
            if sum(answer["blocks_per_request"]) <= 0:
                yield "blocks_per_request", answer["blocks_per_request"], "at least one block is"
            if not answer["told"]:
                yield "told", answer["told"], "what at least one worker or scheduler reports is"
        case "canonical.register":
            for number, tensor in enumerate(answer["tensors"]):
                for name in ("shape", "strides"):
                    if not tensor[name]:
                        yield f"tensors[{number}].{name}", tensor[name], "a number for each axis is"
        case "tensors.allocate":
            for name, layer in answer["layers"].items():
                for number, view in enumerate(layer["views"]):
                    yield from _unfit_view(f"layers.{name}.views[{number}]", view, len(answer["buffers"]))


def _unfit_view(place: str, view: Any, buffers: int) -> Iterator[tuple[str, Any, str]]:
    if not 0 <= view["buffer"] < buffers:
        yield f"{place}.buffer", view["buffer"], f"the number of one of {buffers} buffers is"
    if view["axes"].count("B") != 1:
        yield f"{place}.axes", view["axes"], "exactly one B is"
    for name in ("shape", "strides"):
        if len(view[name]) != len(view["axes"]):
            yield f"{place}.{name}", view[name], f"a number for each of the axes {view['axes']!r} is"
