"""Perform and record the operations of an example, in this process or in fresh ones."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from kvref.target import Outcome
from kvref_conformance.documents.results import Trace
from kvref_conformance.processes.answers import answer, raw_answer
from kvref_conformance.processes.line_tracer import Asked, Measure
from kvref_conformance.processes.session import Hosts, Session


class Died(Exception):
    """The target's process ended, or stopped answering, during the last operation."""


class Stage:
    """Performs the operations of one example and records their outcomes, run by run.

    A run is what one process performs.
    """

    def __init__(self) -> None:
        self.runs: list[list[dict[str, Any]]] = [[]]
        self.flags: list[list[str]] = [[]]

    def perform(self, operation: str, /, **arguments: Any) -> Outcome:
        # A replay reads the arguments from a JSON trace. So they go through JSON here, too.
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
        """How the target's process ended during the last operation, or "" if it lives."""
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
        """Perform an operation. `arguments` is JSON."""
        raise NotImplementedError


class Journal:
    """A file with the operations of the current example. Each is written before it is performed.

    If the process dies, the file has the operations that led to this. After an operation that returned, there
    is an empty line.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def clear(self) -> None:
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)

    def note(self, operation: str, arguments: str) -> None:
        """Write an operation that is about to be performed, with its arguments as JSON."""
        os.write(self._file, f'{{"op": {json.dumps(operation)}, "args": {arguments}}}\n'.encode())

    def came_back(self) -> None:
        os.write(self._file, b"\n")

    @staticmethod
    def state(path: Path) -> tuple[bool, object]:
        """Whether an operation is running, and a value that changes whenever the journal changes."""
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
        """The operations that a dead process performed, as a trace. None if it performed none."""
        if not path.exists():
            return None
        operations = [json.loads(line) for line in path.read_bytes().splitlines() if line]
        return {"runs": [{"flags": [], "operations": operations}]} if operations else None


class LocalStage(Stage):
    """Performs in this process. It writes each operation to the journal first."""

    def __init__(self, target: Asked, journal: Journal) -> None:
        super().__init__()
        self._target = target
        self._journal = journal
        journal.clear()

    def _perform(self, operation: str, arguments: str) -> Outcome:
        self._journal.note(operation, arguments)
        # The target gets its own copy, so that it cannot change the trace.
        outcome = answer(self._target, operation, json.loads(arguments))
        self._journal.came_back()
        return outcome


class SwiftStage(Stage):
    """Performs in this process, fast: it records arguments and answers without a copy, and has no journal.

    If the target changes an argument or an answer later, the record changes, too. So a failure that shows
    here must be confirmed on another stage.
    """

    def __init__(self, target: Asked) -> None:
        super().__init__()
        self._target = target

    def perform(self, operation: str, /, **arguments: Any) -> Outcome:
        return self._note(operation, arguments, raw_answer(self._target, operation, arguments))


class IsolatedStage(Stage):
    """Performs in fresh processes forked from the hosts.

    The journal contains no operations here. It only changes at each operation, which shows that the unit is
    alive.
    """

    def __init__(
        self, hosts: Hosts, timeout: float, journal: Journal, measure: Measure | None = None
    ) -> None:
        """`measure`, if given, collects the lines that the operations reach."""
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
