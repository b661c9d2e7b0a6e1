"""Have a host fork children, and let them perform operations, replay traces or run programs."""

from __future__ import annotations

import collections
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvref.target import Outcome
from kvref_conformance.documents.results import Trace
from kvref_conformance.processes.channel import Channel, Message
from kvref_conformance.processes.line_tracer import Arcs

Hosts = Mapping[str, str]
"""The address of each host, by the host's interpreter flags (joined by spaces; "" if it has none)."""


FORK_SECONDS = 5.0
"""Seconds that a host may take to fork a child, even if the time limit for an operation is shorter."""

TAIL_BYTES = 16 * 1024


class NotJudged(Exception):
    """An operation or a law could not be judged. The message says why."""


class Tail:
    """Keeps the last bytes of a stream. A thread reads the stream, and drops all earlier bytes."""

    def __init__(self, descriptor: int) -> None:
        """Start a thread that reads from the descriptor until the stream ends, and then closes it."""
        self._chunks: collections.deque[bytes] = collections.deque(maxlen=16)
        self._descriptor = descriptor
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        while chunk := os.read(self._descriptor, TAIL_BYTES):
            self._chunks.append(chunk)
        os.close(self._descriptor)

    def text(self) -> str:
        self._thread.join(timeout=0.5)
        return b"".join(self._chunks)[-TAIL_BYTES:].decode(errors="replace").strip()


def open_child(address: str, timeout: float) -> tuple[Channel, int]:
    """Have the host at `address` fork a child. Returns the channel to the child and its process id.

    Raises `NotJudged` when the host is gone or hangs.
    """
    try:
        channel = Channel.connect(Path(address))
    except EOFError as error:
        raise NotJudged("the process that loaded the target has ended") from error
    patience = max(FORK_SECONDS, timeout)
    reason = f"no process could be forked from the target within {patience:g} s"
    try:
        if channel.ready(patience):
            return channel, channel.receive()["pid"]
    except EOFError:
        reason = "a process forked from the target ended at once"
    channel.close()
    raise NotJudged(reason)


def end_of(address: Path, pid: int) -> str:
    """Say in words how a child of the host at `address` ended.

    The host writes this to a file just after the child has ended. If there is no file after two seconds, the
    child has only closed its connection, or the host has died, too. In this case, kill the child.
    """
    note = address.parent / f"{pid}.end"
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        if note.exists() and (text := note.read_text()):
            return text
        time.sleep(0.01)
    kill_group(pid)
    return "closed its connection without an answer"


def kill_group(pid: int) -> None:
    """Kill a child of a host, and every process in the child's group."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


class Session:
    """A fresh child of a host. It performs the operations that it receives, one by one."""

    def __init__(self, address: str, timeout: float, measured: bool = False, *, through: str = "") -> None:
        """Open a session in a new child.

        Args:
            address: the host's address.
            timeout: seconds that one operation may take.
            measured: whether the child records the lines that run in the target's own files.
            through: the name (see `names.py`) of a function that takes the target. The child then performs
                operations on the object that the function returns, not on the target itself.
        """
        self._address = Path(address)
        self._timeout = timeout
        self._measured = measured
        self._channel, self._pid = open_child(address, timeout)
        self._through = through
        self._opened = False

    def perform(self, operation: str, arguments: Mapping[str, Any]) -> Outcome:
        """Perform one operation. If the child dies or hangs, the outcome is `{"died": how}`.

        Raises `NotJudged` if the child replies that it cannot perform the operation or use its answer.
        """
        try:
            if not self._opened:
                self._channel.send({"kind": "session", "measured": self._measured, "through": self._through})
                self._opened = True
            self._channel.send({"op": operation, "args": dict(arguments)})
            if not self._channel.ready(self._timeout):
                kill_group(self._pid)
                return {"died": f"no answer within {self._timeout:g} s"}
            reply = self._channel.receive()
        except EOFError:
            return {"died": end_of(self._address, self._pid)}
        if "failed" in reply:
            raise NotJudged(reply["failed"])
        outcome: Outcome = reply["outcome"]
        return outcome

    def reached(self) -> Arcs:
        """The lines that ran in the target's own files since the last call. Empty if the child has died."""
        try:
            self._channel.send({"reached": True})
            reply: Message = self._channel.receive() if self._channel.ready(self._timeout) else {}
        except EOFError:
            return {}
        found: Arcs = reply.get("reached", {})
        return found

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def run_program(path: Path, target: str, address: str, timeout: float) -> int | str:
    """Run a stand-alone program in a fresh child of a host.

    Returns the program's exit code, or a text that says why there is none. Raises `NotJudged` if the host
    cannot fork a child.
    """
    channel, pid = open_child(address, timeout)
    try:
        channel.send({"kind": "program", "path": str(path), "target": target})
        if channel.ready(timeout):
            reply = channel.receive()
            return int(reply["exit_code"]) if "exit_code" in reply else str(reply["failed"])
        kill_group(pid)
        return f"no answer within {timeout:g} s"
    except EOFError:
        return end_of(Path(address), pid)
    finally:
        channel.close()


def execute(trace: Trace, hosts: Hosts, timeout: float) -> list[list[dict[str, Any]]]:
    """Perform each run of a trace in a process of its own. Returns each run's operations with their outcomes.

    If the process dies, its run ends with the operation during which it died.

    Raises `NotJudged` if no host has the interpreter flags of a run, or if an operation cannot be judged.
    """
    runs = []
    for run in trace["runs"]:
        events: list[dict[str, Any]] = []
        flags = " ".join(run["flags"])
        if flags not in hosts:
            raise NotJudged(f"the trace asks for python {flags}, which its law does not use")
        with Session(hosts[flags], timeout) as session:
            for operation in run["operations"]:
                outcome = session.perform(operation["op"], operation["args"])
                events.append({**operation, "outcome": outcome})
                if "died" in outcome:
                    break
        runs.append(events)
    return runs
