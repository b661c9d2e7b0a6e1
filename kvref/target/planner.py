"""The part `planner`: groups of layers, their memory, and the sizes that an engine works with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NotRequired, Protocol, TypedDict

from kvref.target.specs import SpecDescriptor, SpecFacts


class PlannedLayer(TypedDict):
    """A layer in a plan, with the spec that the plan gives it and the manager registered for that spec."""

    name: str
    spec: SpecFacts
    manager: str | None


class PlannedGroup(TypedDict):
    """Layers that share a block table, and the manager that runs the tables of the group."""

    layers: list[PlannedLayer]
    manager: str | None


class Plan(TypedDict):
    """How the planner grouped the layers.

    `given` has the specs that the planner was given, by layer, as they are after it has run.
    """

    groups: list[PlannedGroup]
    given: dict[str, SpecFacts]


class Storage(TypedDict):
    """Where a layer's pages are: the page of block b starts at byte offset + b * block_stride of a tensor."""

    tensor: int
    offset: int
    block_stride: int


class SizedPlan(Plan):
    """A plan with memory: the number of blocks, the size of each tensor, and where each layer's pages are.

    `num_blocks` includes the null block; `tensors` are sizes in bytes; `storage` is by layer.
    """

    num_blocks: int
    tensors: list[int]
    storage: dict[str, Storage]


class WorkerLayers(TypedDict):
    """One worker of an engine: the layers that run on it, and its memory for them in bytes."""

    layers: dict[str, SpecDescriptor]
    memory: int


class BlockSizes(TypedDict):
    """The groups of a plan, and the block sizes in tokens that an engine derives from them."""

    groups: list[PlannedGroup]
    scheduler_block_size: int
    """Prefix hits are multiples of it."""
    hash_block_size: int
    """Tokens from one block hash of a request to the next."""
    said: list[str]
    """What the user saw meanwhile: warnings, and log lines at a level that is shown by default."""


class Constructed(TypedDict):
    """The block sizes that a cache manager works with, by the name of the object that shows them.

    Leave out an object that does not show its size.
    """

    scheduler_block_size: dict[str, int] | None
    """None if cache managers of this implementation do not take it."""
    hash_block_size: dict[str, int]


class Capacity(TypedDict):
    """What an implementation reports to its user about a plan."""

    max_concurrency: float
    """How many requests of `max_model_len` tokens can run at once."""
    num_tokens: NotRequired[int | float]
    """The tokens of that many requests."""


class CapacityReport(TypedDict):
    """The capacity of a plan, as each worker and the scheduler reports it. They may see different groups."""

    num_blocks: int
    """Blocks of the plan, the null block included."""
    blocks_per_request: list[int]
    """For each group, the most blocks that a request of `max_model_len` tokens holds, as its spec says."""
    told: dict[str, Capacity]
    """The reported capacity, by the name of the worker or scheduler that reports it."""


class PlannerPart(Protocol):
    """Decides which layers share blocks, and how many blocks there are.

    In every function `layers` maps the name of each layer to its spec, in the order of the model. Lengths are
    in tokens, memory is in bytes.
    """

    def groups(self, layers: Mapping[str, SpecDescriptor]) -> Plan:
        """Put the layers into groups, and make their pages equal in size where groups share memory."""
        ...

    def one_group(self, layers: Mapping[str, SpecDescriptor]) -> Plan:
        """Put all layers into a single group, for an engine that manages them all as full attention."""
        ...

    def config(
        self,
        layers: Mapping[str, SpecDescriptor],
        memory: int,
        max_model_len: int,
        max_in_flight_tokens: int,
    ) -> SizedPlan:
        """Plan the cache of one worker with `memory` bytes, as an engine does at start."""
        ...

    def workers(
        self, workers: Sequence[WorkerLayers], max_model_len: int, max_in_flight_tokens: int
    ) -> list[SizedPlan]:
        """Plan the caches of several workers of one engine, as it does at start.

        A layer name that several workers have means the same layer: they are ranks that share it. A worker
        without layers is a pipeline stage in which no layer has a cache.
        """
        ...

    def block_sizes(self, layers: Mapping[str, SpecDescriptor], enable_caching: bool) -> BlockSizes:
        """Group the layers, and resolve the block sizes that an engine then works with."""
        ...

    def construct(
        self,
        layers: Mapping[str, SpecDescriptor],
        enable_caching: bool,
        scheduler_block_size: int,
        hash_block_size: int,
    ) -> Constructed:
        """Group the layers, and make a cache manager with these block sizes."""
        ...

    def capacity(
        self,
        layers: Mapping[str, SpecDescriptor],
        memory: int,
        max_model_len: int,
        max_in_flight_tokens: int,
        backwards: bool,
    ) -> CapacityReport:
        """Plan as `config` does, and return the capacity that is reported for the plan.

        Args:
            backwards: reverse the order of the groups before the capacity is computed.
        """
        ...
