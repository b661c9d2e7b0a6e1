"""The near side of a host: sessions, and running a trace in them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvref.target import Outcome
from kvref_conformance.channel import Channel
from kvref_conformance.results import Trace

Hosts = Mapping[str, str]
"""Address of the host for each set of interpreter flags (flags joined by spaces; "" = none)."""


def end_of(address: Path, pid: int) -> str:
    """How a child of the host at `address` ended, in words; the host writes it just after."""
    note = address.parent / f"{pid}.end"
    for _ in range(100):
        if note.exists() and (text := note.read_text()):
            return text
        time.sleep(0.01)
    return "ended without a word"


def kill_group(pid: int) -> None:
    """Kill a child that is not going to answer, with all it started."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


class Session:
    """A pristine process of the target that performs operations one by one."""

    def __init__(self, address: str, timeout: float) -> None:
        self._address = Path(address)
        self._timeout = timeout
        self._channel = Channel.connect(self._address)
        self._pid: int = self._channel.receive()["pid"]
        self._channel.send({"kind": "session"})

    def perform(self, operation: str, arguments: Mapping[str, Any]) -> Outcome:
        """Run one operation. Death or silence of the process is an outcome, `{"died": how}`."""
        try:
            self._channel.send({"op": operation, "args": dict(arguments)})
            if not self._channel.ready(self._timeout):
                kill_group(self._pid)
                return {"died": f"no answer within {self._timeout:g} s"}
            reply = self._channel.receive()
        except EOFError:
            return {"died": end_of(self._address, self._pid)}
        if "failed" in reply:
            raise RuntimeError(f"session failed at {operation}: {reply['failed']}")
        outcome: Outcome = reply["outcome"]
        return outcome

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def run_program(path: Path, target: str, address: str, timeout: float) -> int | str:
    """Run a stand-alone program in a pristine child of a host: its exit code, or why it has none."""
    channel = Channel.connect(Path(address))
    pid: int = channel.receive()["pid"]
    try:
        channel.send({"kind": "program", "path": str(path), "target": target})
        if channel.ready(timeout):
            return int(channel.receive()["exit_code"])
        kill_group(pid)
        return f"no answer within {timeout:g} s"
    except EOFError:
        return end_of(Path(address), pid)
    finally:
        channel.close()


def execute(trace: Trace, hosts: Hosts, timeout: float) -> list[list[dict[str, Any]]]:
    """Run every run of a trace in a process of its own; a run ends where its process dies."""
    runs = []
    for run in trace["runs"]:
        events: list[dict[str, Any]] = []
        with Session(hosts[" ".join(run["flags"])], timeout) as session:
            for operation in run["operations"]:
                outcome = session.perform(operation["op"], operation["args"])
                events.append({**operation, "outcome": outcome})
                if "died" in outcome:
                    break
        runs.append(events)
    return runs
