"""Units of work in flight: start each in a child of a host, listen to it, notice when it dies or hangs."""

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
"""How many operation time-outs may pass between operations, while examples are drawn and judged."""


@dataclass
class Unit:
    """One workload for one subject, the laws it feeds, and what came of it.

    At the end one of `findings`, `failure` (why it could not be judged), `death` (of the target) and `cut` is
    set; of a death that an isolated example saw, findings tell, too.
    """

    workload: Workload
    subject: str
    laws: list[Law]
    known: dict[str, list[str]] = field(default_factory=dict)
    """Facets by law that are known to break, and need not be reduced again."""
    accepted: dict[str, list[str]] = field(default_factory=dict)
    """Facets by law that the profile lists, to be reduced after those that are new."""
    findings: dict[str, Any] | None = None
    failure: str = ""
    death: str = ""
    death_trace: Trace | None = None
    cut: bool = False
    seconds: float = 0.0
    reached: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    """Where that is measured, by the path of each of the target's own files the pairs of lines that its
    operations ran one after the other, as far as the unit told before its end."""

    @property
    def name(self) -> str:
        return f"{self.workload.name} [{self.subject}]"

    @property
    def over(self) -> bool:
        return bool(self.findings or self.failure or self.death or self.cut)


@dataclass(frozen=True)
class Effort:
    """How much a unit does: examples of Hypothesis before the workload's weight, and driven ones."""

    seed: int | str
    examples: int
    driven: int
    database: str = ""
    """A folder for examples that are being reduced. With one, a unit tells at once what it sees broken, and
    what its examples had an engine do."""
    reduce: bool = True
    """Whether what breaks is made smaller."""
    until: tuple[str, ...] = ()
    """Laws that end the unit when one of them breaks."""
    symbolic: int = 0
    """Examples of a backend that reasons about numbers, before the weight."""


def seed_of(root: int | str, workload: str, subject: str) -> int:
    """A unit's own seed, so that running less, or in another order, makes the same examples."""
    return int.from_bytes(hashlib.sha256(f"{root}/{workload}/{subject}".encode()).digest()[:8])


class Running:
    """A unit in its child process. Raises `NotJudged` when there can be none."""

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
            "hosts": dict(hosts),
            "timeout": timeout,
            "journal": str(self._journal),
        }
        try:
            self.channel.send(request)
        except EOFError as error:
            raise NotJudged("a process forked from the target ended at once") from error

    def listen(self) -> Message | None:
        """Take one message, of what the unit has done so far; None when it is over."""
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
        """Whether the unit hangs; it is over then.

        Isolated examples wait for their own processes, and notice themselves when those hang.
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
        """Stop the unit because time is up."""
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
    """Wait a little; what each unit that spoke, ended or hangs has to tell (see `Running.listen`)."""
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
    """Start so many units at a time; what each has to tell, and None when it is over.

    Units that are `late` are cut. Raises `NotJudged`, when those that run are over, if one could not be
    started: nor could others.
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
