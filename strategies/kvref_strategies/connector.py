"""An engine that drives a connector. The connector copies blocks to the host and back.

For the rules that an engine keeps when it calls a connector, see docs/engine-contract.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from kvref_strategies.workload import Description, Machine, Stage, Subjects, Workload

MAX_BLOCKS = 6
"""The most blocks of the pool, the null block included."""

MAX_HOST_BLOCKS = 4

PATIENCE = 20
"""How often in a row the engine asks which jobs have finished before it gives up."""

CHOICE = st.integers(0, 2**12 - 1)
"""The number that decides an action: which one, on what, and how. Hypothesis reduces single numbers best."""


@dataclass
class Table:
    """The blocks of a request."""

    blocks: list[int]
    written: bool = False
    """Whether the engine has written content to the blocks, or loaded it."""
    loading: bool = False
    """Whether a load in flight will fill the blocks."""


@dataclass
class Job:
    """A store or a load."""

    blocks: list[int]
    places: list[int]
    """The host blocks, in the order of `blocks`."""
    table: Table | None = None
    """The table whose blocks the load fills. None for a store."""


@dataclass
class Engine:
    """Calls the part `connector` of a target as an engine does.

    In each step, the engine first calls `start_transfers`, then writes new blocks. It stores only written
    blocks, and may free them while the store runs. It loads only into new blocks, and does not free or read
    them before the load has finished.
    """

    stage: Stage
    num_blocks: int
    host_blocks: int
    device: str
    tables: list[Table] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    """The jobs in flight, by name."""
    stored: set[int] = field(default_factory=set)
    """Host blocks with content that can be loaded."""
    number: int = 0
    seed: int = 0
    broken: bool = False
    """Whether the target has refused an operation, or allocated a block twice. Then the engine stops."""

    def __post_init__(self) -> None:
        self.ask("create", num_blocks=self.num_blocks, host_blocks=self.host_blocks, device=self.device)
        self.kinds: list[tuple[Callable[[], list[Any]], Callable[[Any, int], None]]] = [
            (self.room, self.take),
            (self.step_to_begin, self.step),
            (self.tables_to_store, self.store),
            (self.tables_to_free, self.free),
            (self.room, self.take),
            (self.host_blocks_to_load, self.load),
            (self.step_to_begin, self.step),
            (self.tables_to_store, self.store),
            (self.jobs_in_flight, self.finished),
            (self.host_blocks_to_load, self.load),
            (self.anything_open, self.settle),
        ]

    def go_on(self, choice: int) -> None:
        """Take one possible action. The digits of `choice` decide which one, on what, and how."""
        if self.broken:
            return
        what, which, how = choice % len(self.kinds), choice // 16 % 8, choice // 128
        # If the action is not possible, the next one in the list is taken. So if Hypothesis leaves out an
        # earlier choice, most later choices still mean the same action.
        for choices, act in self.kinds[what:] + self.kinds[:what]:
            if these := choices():
                act(these[-1 - which % len(these)], how)
                return

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Perform an operation, and return its answer. None if the target has refused an operation."""
        if self.broken:
            return None
        outcome = self.stage.perform(f"connector.{operation}", **arguments)
        self.broken = self.broken or "value" not in outcome
        return outcome.get("value")

    # What each action can act on. If the list is empty, the action is not possible.

    @property
    def free_count(self) -> int:
        """The number of free blocks. A block that a running store reads is not free."""
        held = {block for table in self.tables for block in table.blocks}
        held.update(block for job in self.jobs.values() for block in job.blocks)
        return self.num_blocks - 1 - len(held)

    def step_to_begin(self) -> list[None]:
        new = any(not table.written and not table.loading for table in self.tables)
        return [None] if new or self.jobs else []

    def anything_open(self) -> list[None]:
        return [None] if self.tables or self.jobs else []

    def room(self) -> list[int]:
        return [self.free_count] if self.free_count > 0 else []

    def tables_to_store(self) -> list[Table]:
        return [table for table in self.tables if table.written] if self.host_blocks_to_fill() else []

    def tables_to_free(self) -> list[Table]:
        return [table for table in self.tables if not table.loading]

    def jobs_in_flight(self) -> list[None]:
        return [None] if self.jobs else []

    def host_blocks_to_load(self) -> list[int]:
        return sorted(self.stored) if self.free_count > 0 else []

    def host_blocks_to_fill(self) -> list[int]:
        """The host blocks that no job in flight reads or fills. Those without content come first."""
        busy = {place for job in self.jobs.values() for place in job.places}
        places = [place for place in range(self.host_blocks) if place not in busy]
        return sorted(places, key=lambda place: place in self.stored)

    # The actions.

    def take(self, most: int, how: int) -> None:
        """Add a request, and allocate some of the free blocks to it."""
        self.tables += self.new_tables(1 + how % most)

    def new_tables(self, num_blocks: int) -> list[Table]:
        """Allocate blocks, and return a list with one new table. Return an empty list if that fails."""
        taken = self.ask("take", num_blocks=num_blocks)
        held = {block for table in self.tables for block in table.blocks}
        self.broken = self.broken or not taken or bool(held.intersection(taken))
        return [] if self.broken else [Table(taken)]

    def step(self, nothing: None, how: int) -> None:
        """Start the transfers, write the new blocks, and perhaps ask which jobs have finished."""
        self.ask("start_transfers")
        for table in self.tables:
            if not table.written and not table.loading:
                table.written = True
                for block in table.blocks:
                    self.seed += 1
                    self.ask("write", block=block, seed=self.seed)
        if how % 2 and self.jobs:
            self.finished(None, how)

    def store(self, table: Table, how: int) -> None:
        """Store some of the last blocks of a request on the host."""
        places = self.host_blocks_to_fill()
        blocks = table.blocks[-1 - how % len(places) :]
        places = places[: len(blocks)]
        self.stored.difference_update(places)
        self.submit("store", Job(blocks, places))

    def load(self, first: int, how: int) -> None:
        """Add a request, and load its blocks from the host."""
        places = [place for place in sorted(self.stored) if place >= first]
        for table in self.new_tables(1 + how % min(self.free_count, len(places))):
            table.loading = True
            self.tables.append(table)
            self.submit("load", Job(table.blocks, places[: len(table.blocks)], table))

    def submit(self, operation: str, job: Job) -> None:
        self.number += 1
        self.jobs[f"j{self.number}"] = job
        pairs = [[block, place] for block, place in zip(job.blocks, job.places, strict=True)]
        self.ask(operation, job=f"j{self.number}", pairs=pairs)

    def free(self, table: Table, how: int) -> None:
        """Free the blocks of a request that ends or is preempted."""
        self.tables.remove(table)
        self.ask("free", blocks=table.blocks[::-1])

    def finished(self, nothing: None, how: int) -> None:
        """Ask which jobs have finished, and read the loaded blocks."""
        for name in self.ask("finished") or ():
            job = self.jobs.pop(name, None)
            if job is None:
                continue
            if job.table is None:
                self.stored.update(job.places)
                continue
            job.table.loading, job.table.written = False, True
            for block in job.table.blocks:
                self.ask("read", block=block)

    def settle(self, nothing: None, how: int) -> None:
        """Wait for all jobs, free all requests, then allocate every free block."""
        self.step(None, how)
        for _ in range(PATIENCE):
            if self.jobs and not self.broken:
                self.finished(None, how)
        while not self.broken and (ending := self.tables_to_free()):
            self.free(ending[-1], how)
        if not self.broken and self.free_count > 0:
            self.take(self.free_count, self.free_count - 1)


class ConnectorMachine(Machine):
    """Runs an engine. Each call of the rule makes the engine take one of the possible actions."""

    @initialize(num_blocks=st.integers(2, MAX_BLOCKS), host_blocks=st.integers(1, MAX_HOST_BLOCKS))
    def start(self, num_blocks: int, host_blocks: int) -> None:
        self.engine = Engine(self.stage, num_blocks, host_blocks, self.description["device"])

    @rule(choice=CHOICE)
    def go_on(self, choice: int) -> None:
        self.engine.go_on(choice)


def _one_subject(description: Description) -> Subjects:
    return {"blocks of a pool": None}


_OPERATIONS = ("create", "take", "free", "write", "read", "store", "load", "start_transfers", "finished")
WORKLOADS = [
    Workload(
        "connector.machine",
        ("connector", *(f"connector.{name}" for name in _OPERATIONS)),
        _one_subject,
        ConnectorMachine,
        weight=2.0,
    ),
]
