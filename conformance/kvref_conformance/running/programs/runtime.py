"""The part of a stand-alone program that performs the operations and judges the outcomes.

`writer.py` copies functions of this module, and all that they use, into each program. So they may need only
the standard library. A program calls `main_in_process` if it can perform its operations in its own process.
It calls `main_in_children` if there are several runs, if a run needs interpreter flags, or if an operation
may end the process.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NoReturn

from kvref_conformance.laws.core import LawBroken
from kvref_conformance.processes.exit_codes import how_it_ended

Function = Callable[..., Any]
Operations = Sequence[tuple[str, dict[str, Any]]]
"""The operations of one run, in order. Each has its name and its arguments."""

Runs = Sequence[tuple[Sequence[str], Operations]]
"""For each run, the interpreter flags and the operations. A run is what one process performs."""

START_SECONDS = 600  # for a child to start and import the target


def perform_operation(function: Function, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Call the function, and return its value or its exception as plain data."""
    try:
        outcome = {"value": function(**deepcopy(dict(arguments)))}
    except Exception as error:
        outcome = {"error": {"type": type(error).__name__, "message": str(error)}}
    plain: dict[str, Any] = json.loads(json.dumps(outcome))
    return plain


def conclude(
    law: str,
    statement: str,
    check: Callable[[list[list[dict[str, Any]]]], int],
    observe: Callable[[], list[list[dict[str, Any]]]],
) -> NoReturn:
    """Perform the operations with `observe`, print them, judge them with `check`, and exit.

    The exit code is 1 if the law is broken, 0 if it holds, and 2 if an error prevents the judgement.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        runs = observe()
        for number, run in enumerate(runs):
            print(f"\nrun {number}:" if len(runs) > 1 else "")
            for event in run:
                arguments = ", ".join(f"{name}={value!r}" for name, value in event["args"].items())
                print(f"  {event['op']}({in_short(arguments)})\n    -> {in_short(repr(event['outcome']))}")
        try:
            judgements = check(runs)
        except LawBroken as broken:
            print(f"\nBROKEN {law}: {statement}")
            print(f"  expected: {printable(broken.expected)}\n  observed: {printable(broken.observed)}")
            status = 1
        else:
            print(f"\nHOLDS {law}: {statement}\n  judgements made: {judgements}")
            status = 0
    except BaseException:  # SystemExit, too: the target's exit code is not the program's
        for line in traceback.format_exc().splitlines():
            print(printable(line), file=sys.stderr)
        status = 2
    sys.stdout.flush()
    sys.stderr.flush()
    atexit.register(os._exit, status)  # exit handlers of the target must not change the exit code
    sys.exit(status)


def printable(text: str) -> str:
    """The text with escapes for control characters and line breaks. It may come from the target."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def in_short(text: str, width: int = 300) -> str:
    return text if len(text) <= width else f"{text[:width]}... ({len(text)} characters)"


def main_in_process(
    law: str,
    statement: str,
    check: Callable[[list[list[dict[str, Any]]]], int],
    functions: Mapping[str, Function],
    run: Operations,
) -> NoReturn:
    def observe() -> list[list[dict[str, Any]]]:
        return [
            [
                {"op": name, "args": arguments, "outcome": perform_operation(functions[name], arguments)}
                for name, arguments in run
            ]
        ]

    conclude(law, statement, check, observe)


def main_in_children(
    law: str,
    statement: str,
    check: Callable[[list[list[dict[str, Any]]]], int],
    runs: Runs,
    timeout: float,
) -> NoReturn:
    """Perform each run in a process of its own, then judge them all.

    Each process runs this file, the program, from the start, and calls `run_as_child`.
    """

    def observe() -> list[list[dict[str, Any]]]:
        return [observe_child(number, flags, run, timeout) for number, (flags, run) in enumerate(runs)]

    conclude(law, statement, check, observe)


def run_as_child(functions: Mapping[str, Function], runs: Runs) -> NoReturn:
    """Perform one run. The command line gives its number and the path of a journal.

    The journal gets a line before each operation and a line after it. So if the process dies, the journal
    shows during which operation.
    """
    number, journal_path = sys.argv[2:]
    _, run = runs[int(number)]
    with open(journal_path, "a", encoding="ascii") as journal:
        for name, arguments in run:
            print(json.dumps({"op": name}), file=journal, flush=True)
            try:
                after = {"outcome": perform_operation(functions[name], arguments)}
            except Exception as error:  # for example, not plain data
                after = {"failed": {"message": repr(error)}}
            print(json.dumps(after), file=journal, flush=True)
    os._exit(0)


def observe_child(number: int, flags: Sequence[str], run: Operations, timeout: float) -> list[dict[str, Any]]:
    """Perform a run in a new process, and return its events: the operations with their outcomes.

    If the process dies or hangs in an operation, the outcome is `died`. Raises `RuntimeError` if the process
    dies outside an operation, or if an outcome is not plain data.
    """
    lines: list[bytes] = []
    rest = b""
    how = ""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "events.jsonl")
        with open(path, "w+b") as journal:
            command = [sys.executable, *flags, os.path.abspath(__file__), "--run", str(number), path]
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            try:
                deadline = time.monotonic() + START_SECONDS
                while True:
                    code = child.poll()  # before reading, so that no line is missed
                    *complete, rest = (rest + journal.read()).split(b"\n")
                    if complete:
                        lines += complete
                        deadline = time.monotonic() + timeout
                    if len(lines) >= 2 * len(run):
                        break
                    if code is not None:
                        how = how_it_ended(code)
                        break
                    if time.monotonic() > deadline:
                        how = f"no answer within {timeout if lines else START_SECONDS:g} s"
                        break
                    time.sleep(0.02)
            finally:
                child.kill()
                child.wait()
    events = []
    for (name, arguments), line in zip(run, lines[1::2], strict=False):
        after = json.loads(line)
        if "failed" in after:
            raise RuntimeError(f"{name} in run {number}: {after['failed']['message']}")
        events.append({"op": name, "args": arguments, "outcome": after["outcome"]})
    if len(lines) % 2:
        name, arguments = run[len(events)]
        events.append({"op": name, "args": arguments, "outcome": {"died": how}})
    elif how:
        raise RuntimeError(f"run {number} ended outside an operation: {how}")
    return events
