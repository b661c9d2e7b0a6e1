"""Where the operations of an example are performed and recorded: in this process, or in pristine ones."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from kvref.target import Outcome
from kvref_conformance.documents.results import Trace
from kvref_conformance.processes.line_tracer import Asked, Measure, ask
from kvref_conformance.processes.session import Hosts, NotJudged, Session

BLOCK_SIZES = ("scheduler_block_size", "hash_block_size")

AXES = ("shape", "strides")
REFERENCE = ("tensor", "page_size_bytes")

LONGEST_ANSWER = 16 * 1024 * 1024
"""Characters that an answer may have when written as JSON."""


class Died(Exception):
    """The target's process ended, or stopped answering, at the last operation."""


def raw_answer(target: Asked, operation: str, arguments: dict[str, Any]) -> Outcome:
    """What the operation answers.

    What would end a process, `sys.exit()` say, ends it as far as the laws are concerned.

    Raises:
        NotJudged: there is no such operation.
    """
    try:
        return ask(target, operation, arguments)
    except LookupError as error:
        raise NotJudged(str(error)) from error
    except Exception as error:
        raise NotJudged(f"{operation} raised an exception that cannot be told as text") from error
    except BaseException as error:
        return {"died": f"raised {type(error).__name__}, which ends a process"}


def answer(target: Asked, operation: str, arguments: dict[str, Any]) -> Outcome:
    """The same, as it reads after a journey through JSON.

    Raises:
        NotJudged: there is no such operation, or its answer is not what the protocol asks for.
    """
    outcome = raw_answer(target, operation, arguments)
    if "died" in outcome:
        return outcome
    try:
        text = json.dumps(outcome, allow_nan=False)
    except Exception as error:
        raise NotJudged(
            f"{operation} answered what is not plain data ({type(error).__name__}: {error})"
        ) from error
    if len(text) > LONGEST_ANSWER:
        raise NotJudged(f"{operation} answered {len(text)} characters of JSON; {LONGEST_ANSWER} are allowed")
    plain: Outcome = json.loads(text)
    if "value" in plain and not _is_answer(operation, plain["value"]):
        shown = text if len(text) <= 200 else f"{text[:200]}..."
        raise NotJudged(f"{operation} answered {shown}, which is not what docs/targets.md asks for")
    return plain


def _is_answer(operation: str, value: Any) -> bool:
    """Whether the laws and workloads can work with it."""
    match operation:
        case "specs.build" | "specs.copy" | "specs.merge":
            return _is_facts(value)
        case "planner.groups" | "planner.one_group":
            return _is_plan(value)
        case "planner.config":
            return _is_sized(value)
        case "planner.workers":
            return isinstance(value, list) and all(map(_is_sized, value))
        case "planner.block_sizes":
            return (
                isinstance(value, dict)
                and _is_plan({**value, "given": {}})
                and all(isinstance(value.get(name), int) for name in BLOCK_SIZES)
                and isinstance(value.get("said"), list)
                and all(isinstance(line, str) for line in value["said"])
            )
        case "planner.construct":
            return (
                isinstance(value, dict)
                and value.keys() >= {*BLOCK_SIZES}
                and _is_shown(value["hash_block_size"])
                and (value["scheduler_block_size"] is None or _is_shown(value["scheduler_block_size"]))
            )
        case "planner.capacity":
            return (
                isinstance(value, dict)
                and isinstance(value.get("num_blocks"), int)
                and _is_numbers(value.get("blocks_per_request"))
                and sum(value["blocks_per_request"]) > 0
                and isinstance(value.get("told"), dict)
                and bool(value["told"])
                and all(map(_is_capacity, value["told"].values()))
            )
        case "tensors.allocate":
            return (
                isinstance(value, dict)
                and isinstance(value.get("num_blocks"), int)
                and isinstance(value.get("planned"), int)
                and isinstance(value.get("zero"), bool)
                and _is_numbers(value.get("buffers"))
                and _is_lists_of(value.get("groups"), str)
                and isinstance(value.get("layers"), dict)
                and all(_is_layer(layer, len(value["buffers"])) for layer in value["layers"].values())
            )
        case "tensors.write" | "tensors.read" | "canonical.write" | "canonical.read":
            return isinstance(value, str) and re.fullmatch("([0-9a-f]{2})+", value) is not None
        case "canonical.register":
            return (
                isinstance(value, dict)
                and isinstance(value.get("tensors"), list)
                and all(map(_is_canonical_tensor, value["tensors"]))
                and _is_lists_of(value.get("groups"), dict)
                and all(_has_numbers(ref, *REFERENCE) for refs in value["groups"] for ref in refs)
            )
        case "registry.define_spec" | "hashing.block_hashes" | "hashing.keys" | "connector.finished":
            return isinstance(value, list) and all(isinstance(name, str) for name in value)
        case "registry.lookup":
            return (
                isinstance(value, dict)
                and value.keys() >= {"manager", "base"}
                and all(entry is None or isinstance(entry, str) for entry in value.values())
            )
        case "sharing.join":
            return isinstance(value, dict) and _is_lists_of(value.get("groups"), str)
        case "pool.create":
            return (
                isinstance(value, dict)
                and value.keys() >= {"null", "reserved"}
                and (value["null"] is None or isinstance(value["null"], int))
                and _is_numbers(value["reserved"])
            )
        case "pool.get_new_blocks" | "connector.take":
            return _is_numbers(value)
        case "tensors.compare_slots":
            return isinstance(value, list) and all(_is_numbers(each) and len(each) == 2 for each in value)
        case "cache.block_ids":
            return isinstance(value, list) and all(map(_is_numbers, value))
        case "pool.lookup":
            return value is None or _is_numbers(value)
        case "pool.reset":
            return isinstance(value, bool)
        case "connector.read" | "connector.write":
            return isinstance(value, str)
        case "pool.usage":
            return isinstance(value, int | float)
        case "pool.state":
            return (
                isinstance(value, dict)
                and value.keys() >= {"free", "free_count", "refs", "keys", "found"}
                and isinstance(value["free_count"], int)
                and _is_numbers(value["free"])
                and _is_numbers(value["refs"])
                and all(isinstance(value[name], dict) for name in ("keys", "found"))
                and all(isinstance(keys, list) for keys in value["keys"].values())
                and all(map(_is_numbers, value["found"].values()))
            )
    return True


def _is_plan(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("given"), dict)
        and all(_is_facts(spec) for spec in value["given"].values())
        and isinstance(value.get("groups"), list)
        and all(isinstance(group, dict) and _is_group(group) for group in value["groups"])
    )


def _is_sized(value: Any) -> bool:
    return (
        _is_plan(value)
        and isinstance(value.get("num_blocks"), int)
        and _is_numbers(value.get("tensors"))
        and isinstance(value.get("storage"), dict)
        and all(_is_storage(place) for place in value["storage"].values())
    )


def _is_shown(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(size, int) for size in value.values())


def _is_capacity(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("max_concurrency"), int | float)
        and isinstance(value.get("num_tokens", 0), int | float)
    )


def _is_group(group: dict[str, Any]) -> bool:
    return (
        "manager" in group
        and isinstance(group.get("layers"), list)
        and all(
            isinstance(layer, dict)
            and isinstance(layer.get("name"), str)
            and "manager" in layer
            and _is_facts(layer.get("spec"))
            for layer in group["layers"]
        )
    )


def _is_facts(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("class"), str)
        and isinstance(value.get("fields"), dict)
        and isinstance(value.get("page_size_bytes"), int | float)
    )


def _is_storage(value: Any) -> bool:
    keys = ("tensor", "offset", "block_stride")
    return isinstance(value, dict) and all(isinstance(value.get(key), int) for key in keys)


def _is_layer(value: Any, buffers: int) -> bool:
    return (
        _has_numbers(value, "page_size_bytes", "content_size_bytes", "block_stride")
        and isinstance(value.get("views"), list)
        and all(_is_view(view) and 0 <= view["buffer"] < buffers for view in value["views"])
    )


def _is_view(value: Any) -> bool:
    return (
        _has_numbers(value, "buffer", "offset", "itemsize")
        and isinstance(value.get("axes"), str)
        and value["axes"].count("B") == 1
        and all(_is_numbers(value.get(name)) and len(value[name]) == len(value["axes"]) for name in AXES)
    )


def _is_canonical_tensor(value: Any) -> bool:
    return (
        _has_numbers(value, "offset", "page_size_bytes")
        and "buffer" in value
        and all(isinstance(value.get(name), str) for name in ("dtype", "device"))
        and all(_is_numbers(value.get(name)) and value[name] for name in AXES)
    )


def _has_numbers(value: Any, *names: str) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(name), int) for name in names)


def _is_lists_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(
        isinstance(items, list) and all(isinstance(item, kind) for item in items) for items in value
    )


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(number, int) for number in value)


class Stage:
    """Performs the operations of one example and keeps what happened, run by run."""

    def __init__(self) -> None:
        self.runs: list[list[dict[str, Any]]] = [[]]
        self.flags: list[list[str]] = [[]]

    def perform(self, operation: str, /, **arguments: Any) -> Outcome:
        # Results are compared with traces that went through JSON, so they do here too.
        text = json.dumps(arguments)
        return self._note(operation, json.loads(text), self._perform(operation, text))

    def _note(self, operation: str, arguments: dict[str, Any], outcome: Outcome) -> Outcome:
        self.runs[-1].append({"op": operation, "args": arguments, "outcome": outcome})
        if "died" in outcome:
            raise Died
        return outcome

    def fresh(self, *flags: str) -> None:
        if self.runs[-1]:
            self.runs.append([])
            self.flags.append(list(flags))
        else:
            self.flags[-1] = list(flags)

    @property
    def steps(self) -> int:
        return sum(len(events) for events in self.runs)

    @property
    def died(self) -> str:
        """How the target's process ended at the last operation, if it did."""
        last = self.runs[-1][-1]["outcome"] if self.runs[-1] else {}
        return str(last.get("died", ""))

    def trace(self) -> Trace:
        return {
            "runs": [
                {"flags": flags, "operations": [{"op": e["op"], "args": e["args"]} for e in events]}
                for flags, events in zip(self.flags, self.runs, strict=True)
            ]
        }

    def close(self) -> None:
        """End the example."""

    def _perform(self, operation: str, arguments: str) -> Outcome:
        """The arguments as JSON."""
        raise NotImplementedError


class Journal:
    """The operations of the current example, on disk before each is performed.

    What is in it when the process dies is what killed it. An empty line follows an operation that came back.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def clear(self) -> None:
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)

    def note(self, operation: str, arguments: str) -> None:
        """An operation that is about to be performed, with its arguments as JSON."""
        os.write(self._file, f'{{"op": {json.dumps(operation)}, "args": {arguments}}}\n'.encode())

    def came_back(self) -> None:
        os.write(self._file, b"\n")

    @staticmethod
    def state(path: Path) -> tuple[bool, object]:
        """Whether an operation is being performed, and something that differs after each."""
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 2))
                end = file.read(2)
                return end.endswith(b"\n") and end != b"\n\n", (size, os.fstat(file.fileno()).st_mtime_ns)
        except OSError:
            return False, None

    @staticmethod
    def read(path: Path) -> Trace | None:
        """The trace of a dead process, or None when it had performed nothing."""
        if not path.exists():
            return None
        operations = [json.loads(line) for line in path.read_bytes().splitlines() if line]
        return {"runs": [{"flags": [], "operations": operations}]} if operations else None


class LocalStage(Stage):
    """Performs in this process, journalling each operation first."""

    def __init__(self, target: Asked, journal: Journal) -> None:
        super().__init__()
        self._target = target
        self._journal = journal
        journal.clear()

    def _perform(self, operation: str, arguments: str) -> Outcome:
        self._journal.note(operation, arguments)
        # Its own copy: what a target does to its arguments does not change the trace.
        outcome = answer(self._target, operation, json.loads(arguments))
        self._journal.came_back()
        return outcome


class SwiftStage(Stage):
    """Performs in this process, and keeps what goes in and comes out as it is; for many operations a second.

    What a target does later to its arguments or answers shows in what was kept: whoever finds something here
    looks again on another stage.
    """

    def __init__(self, target: Asked) -> None:
        super().__init__()
        self._target = target

    def perform(self, operation: str, /, **arguments: Any) -> Outcome:
        return self._note(operation, arguments, raw_answer(self._target, operation, arguments))


class IsolatedStage(Stage):
    """Performs in pristine processes forked from the hosts. Its journal only tells that it is alive."""

    def __init__(
        self, hosts: Hosts, timeout: float, journal: Journal, measure: Measure | None = None
    ) -> None:
        """With `measure`, which collects what the operations reach."""
        super().__init__()
        self._measure = measure
        self._journal = journal
        self._hosts = hosts
        self._timeout = timeout
        self._session: Session | None = None

    def fresh(self, *flags: str) -> None:
        super().fresh(*flags)
        self.close()

    def _perform(self, operation: str, arguments: str) -> Outcome:
        self._journal.came_back()
        if self._session is None:
            measured = self._measure is not None and self._measure.on
            self._session = Session(self._hosts[" ".join(self.flags[-1])], self._timeout, measured)
        return self._session.perform(operation, json.loads(arguments))

    def close(self) -> None:
        if self._session is not None:
            if self._measure is not None and self._measure.on:
                self._measure.add(self._session.reached())
            self._session.close()
            self._session = None
