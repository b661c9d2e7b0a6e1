"""Run units in child processes: start them, read their messages, notice when one dies or hangs.

A host forks the child processes. A host is a process that has imported the target and performs no operation
itself.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from kvref_conformance.documents.results import Trace
from kvref_conformance.laws import Law
from kvref_conformance.processes.channel import Message
from kvref_conformance.processes.names import name_of
from kvref_conformance.processes.session import Hosts, NotJudged, end_of, kill_group, open_child
from kvref_conformance.running.exploring.driver import in_full
from kvref_conformance.running.exploring.stage import IsolatedStage, Journal
from kvref_conformance.running.exploring.unit import run_unit
from kvref_strategies.workload import Description, Workload

_POLL_SECONDS = 0.5

THINKING_PATIENCE = 10
"""A unit hangs if it draws or judges for longer than this many times the time-out of one operation."""


@dataclass
class Unit:
    """One workload for one subject, the laws that judge its examples, and the outcome.

    When the unit is over, one of these fields is set: `findings`; `failure` (why the unit could not be
    judged); `death` (how the target's process ended); `cut` (the time was up). If the target died in an
    isolated example, which performs its operations in other processes, both `death` and `findings` are set.
    """

    workload: Workload
    subject: str
    laws: list[Law]
    known: dict[str, list[str]] = field(default_factory=dict)
    """By law, the facets that are already known to break. The unit does not reduce them."""
    accepted: dict[str, list[str]] = field(default_factory=dict)
    """By law, the facets that the profile lists as known failures. The unit reduces them after the new
    ones."""
    findings: dict[str, Any] | None = None
    failure: str = ""
    death: str = ""
    death_trace: Trace | None = None
    cut: bool = False
    seconds: float = 0.0
    reached: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    """If coverage is measured: by file path, pairs of lines that ran one after the other. If the unit ended
    early, the lines that ran after its last message are missing."""

    @property
    def name(self) -> str:
        return f"{self.workload.name} [{self.subject}]"

    @property
    def over(self) -> bool:
        return bool(self.findings or self.failure or self.death or self.cut)


@dataclass(frozen=True)
class Effort:
    """How much a unit does, and how it deals with failures.

    `examples` is the number of examples that Hypothesis draws; the workload's weight multiplies it. `driven`
    is the number of driven examples.
    """

    seed: int | str
    examples: int
    driven: int
    database: str = ""
    """A folder in which Hypothesis keeps the examples that it is reducing. A fuzz gives this folder. If it is
    given, the unit also reports each failure at once, and counts the behaviours that its examples reach."""
    reduce: bool = True
    """Whether the unit reduces the failures that it finds."""
    until: tuple[str, ...] = ()
    """Laws. The unit ends as soon as one of them breaks."""
    inputs: bool = False
    """Whether the unit reports which inputs its examples had (see `exploring/inputs.py`)."""
    symbolic: int = 0
    """The number of examples that CrossHair makes. The workload's weight multiplies it."""
    target: str = ""
    """The name of a fault of the host's target. If it is given, the unit loads the fault in its own process
    and tests the fault instead of the host's target."""


def seed_of(root: int | str, workload: str, subject: str) -> int:
    """The seed of one unit. It does not depend on which other units run, or in which order."""
    return int.from_bytes(hashlib.sha256(f"{root}/{workload}/{subject}".encode()).digest()[:8])


class Running:
    """A unit in its child process. The process starts when the object is created.

    Raises `NotJudged` if the host cannot fork the process.
    """

    def __init__(
        self,
        unit: Unit,
        *,
        hosts: Hosts,
        description: Description,
        effort: Effort,
        timeout: float,
    ) -> None:
        self.unit = unit
        seed = seed_of(effort.seed, unit.workload.name, unit.subject)
        self._address = Path(hosts[""])
        self._journal = self._address.parent / f"{seed:x}.journal"
        self._started = self._heard = time.monotonic()
        self._timeout = timeout
        self._state: object = None
        self._hosts, self._description = hosts, description
        self.channel, self._pid = open_child(hosts[""], timeout)
        request = {
            "kind": "call",
            "function": name_of(run_unit),
            "workload": unit.workload.name,
            "subject": unit.subject,
            "laws": [law.id for law in unit.laws],
            "known": unit.known,
            "accepted": unit.accepted,
            "description": description,
            "seed": seed,
            "examples": max(1, round(effort.examples * unit.workload.weight)),
            "driven": effort.driven,
            "symbolic": round(effort.symbolic * unit.workload.weight),
            "database": effort.database,
            "reduce": effort.reduce,
            "until": list(effort.until),
            "target": effort.target,
            "inputs": effort.inputs,
            "hosts": dict(hosts),
            "timeout": timeout,
            "journal": str(self._journal),
        }
        try:
            self.channel.send(request)
        except EOFError as error:
            raise NotJudged("a process forked from the target ended at once") from error

    def listen(self) -> Message | None:
        """Receive one message from the unit and return it. Returns None when the unit is over.

        The reached lines and the unit's outcome go into `unit`.
        """
        self._heard = time.monotonic()
        try:
            message = self.channel.receive()
        except EOFError:
            self._die(end_of(self._address, self._pid))
            return None
        for path, pairs in message.get("reached", {}).items():
            self.unit.reached.setdefault(path, set()).update((start, end) for start, end in pairs)
        if "failed" not in message and "findings" not in message:
            return message
        if "failed" in message:
            self.unit.failure = message["failed"]
        else:
            self.unit.findings = message["findings"]
            if died := message["findings"]["died"]:
                self.unit.death, self.unit.death_trace = died["how"], died["trace"]
        self._end()
        return None

    def silent(self) -> bool:
        """Whether the unit hangs. If the unit hangs, this method kills its process.

        Isolated examples perform their operations in other processes. The unit itself notices if one of those
        processes hangs.
        """
        performing, state = Journal.state(self._journal)
        if state != self._state:
            self._heard, self._state = time.monotonic(), state
        patience = self._timeout * (1 if performing else THINKING_PATIENCE)
        if time.monotonic() - self._heard < patience:
            return False
        kill_group(self._pid)
        self._die(f"no answer within {patience:g} s")
        return True

    def cut(self) -> None:
        """Kill the unit's process because the time is up."""
        kill_group(self._pid)
        self.unit.cut = True
        self._end()

    def _die(self, how: str) -> None:
        self.unit.death = how
        if trace := Journal.read(self._journal):
            stage = IsolatedStage(self._hosts, self._timeout, Journal(self._journal))
            trace = in_full(trace, self.unit.workload, stage, self._description)
        self.unit.death_trace = trace
        self._end()

    def _end(self) -> None:
        self.unit.seconds = time.monotonic() - self._started
        self.channel.close()


def listen_all(running: Sequence[Running]) -> Iterator[tuple[Running, Message | None]]:
    """Yield each unit that sent a message, with the message. If a unit ended or hangs, the message is None.

    This waits for messages for half a second at most.
    """
    speaking = wait([unit.channel.connection for unit in running], _POLL_SECONDS)
    spoke = [unit for unit in running if unit.channel.connection in speaking]
    for unit in spoke:
        yield unit, unit.listen()
    for unit in running:
        if unit not in spoke and unit.silent():
            yield unit, None


def work_off(
    starts: Iterable[Running], jobs: int, late: Callable[[Unit], bool]
) -> Iterator[tuple[Running, Message | None]]:
    """Run units, `jobs` at a time. Yields each unit with each of its messages, and with None when it is over.

    A unit for which `late` is true is killed. If a unit cannot be started, no other unit is started. The
    units that already run still finish, and then `NotJudged` is raised.
    """
    waiting = iter(starts)
    running: list[Running] = []
    lost: NotJudged | None = None
    try:
        while True:
            while lost is None and len(running) < jobs:
                try:
                    started = next(waiting, None)
                except NotJudged as error:
                    lost = error
                    break
                if started is None:
                    break
                running.append(started)
            if not running:
                break
            for one in [one for one in running if late(one.unit)]:
                running.remove(one)
                one.cut()
                yield one, None
            for one, message in listen_all([*running]):
                if message is None:
                    running.remove(one)
                yield one, message
    finally:
        for one in running:
            one.cut()
    if lost is not None:
        raise lost
