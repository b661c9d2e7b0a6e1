"""Where the operations of an example are performed and recorded: in this process, or in pristine ones."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from kvref.target import Outcome, Target, perform
from kvref_conformance.results import Trace
from kvref_conformance.session import Hosts, Session


class Died(Exception):
    """The target's process ended, or stopped answering, at the last operation."""


class Stage:
    """Performs the operations of one example and keeps what happened, run by run."""

    def __init__(self) -> None:
        self.runs: list[list[dict[str, Any]]] = [[]]
        self.flags: list[list[str]] = [[]]

    def perform(self, operation: str, /, **arguments: Any) -> Outcome:
        # Results are compared with traces that went through JSON, so they do here too.
        event: dict[str, Any] = {"op": operation, "args": json.loads(json.dumps(arguments))}
        event["outcome"] = self._perform(operation, event["args"])
        self.runs[-1].append(event)
        if "died" in event["outcome"]:
            raise Died
        outcome: Outcome = event["outcome"]
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

    def trace(self) -> Trace:
        return {
            "runs": [
                {"flags": flags, "operations": [{"op": e["op"], "args": e["args"]} for e in events]}
                for flags, events in zip(self.flags, self.runs, strict=True)
            ]
        }

    def close(self) -> None:
        """End the example."""

    def _perform(self, operation: str, arguments: dict[str, Any]) -> Outcome:
        raise NotImplementedError


class Journal:
    """The operations of the current example, on disk before each is performed.

    What is in it when the process dies is what killed it.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def clear(self) -> None:
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)

    def note(self, operation: str, arguments: dict[str, Any]) -> None:
        os.write(self._file, json.dumps({"op": operation, "args": arguments}).encode() + b"\n")

    @staticmethod
    def read(path: Path) -> Trace | None:
        """The trace of a dead process, or None when it had performed nothing."""
        if not path.exists():
            return None
        operations = [json.loads(line) for line in path.read_bytes().splitlines()]
        return {"runs": [{"flags": [], "operations": operations}]} if operations else None


class LocalStage(Stage):
    """Performs in this process, journalling each operation first."""

    def __init__(self, target: Target, journal: Journal) -> None:
        super().__init__()
        self._target = target
        self._journal = journal
        journal.clear()

    def _perform(self, operation: str, arguments: dict[str, Any]) -> Outcome:
        self._journal.note(operation, arguments)
        outcome: Outcome = json.loads(json.dumps(perform(self._target, operation, arguments)))
        return outcome


class IsolatedStage(Stage):
    """Performs in pristine processes forked from the hosts."""

    def __init__(self, hosts: Hosts, timeout: float) -> None:
        super().__init__()
        self._hosts = hosts
        self._timeout = timeout
        self._session: Session | None = None

    def fresh(self, *flags: str) -> None:
        super().fresh(*flags)
        self.close()

    def _perform(self, operation: str, arguments: dict[str, Any]) -> Outcome:
        if self._session is None:
            self._session = Session(self._hosts[" ".join(self.flags[-1])], self._timeout)
        return self._session.perform(operation, arguments)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
