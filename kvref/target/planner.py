"""The part `planner`: groups of layers, memory for them, and what an engine makes of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NotRequired, Protocol, TypedDict

from kvref.target.specs import SpecDescriptor, SpecFacts


class PlannedLayer(TypedDict):
    """A layer within a plan: the spec that the plan has for it, and the manager of such specs."""

    name: str
    spec: SpecFacts
    manager: str | None


class PlannedGroup(TypedDict):
    """Layers that share block tables, and the manager that allocates for all of them."""

    layers: list[PlannedLayer]
    manager: str | None


class Plan(TypedDict):
    """How layers are grouped. `given` tells what was handed to the planner, as it is when that is done."""

    groups: list[PlannedGroup]
    given: dict[str, SpecFacts]


class Storage(TypedDict):
    """Where a layer's pages are: that of block `b` starts at byte `offset + b * block_stride` of a tensor."""

    tensor: int
    offset: int
    block_stride: int


class SizedPlan(Plan):
    """A plan with memory: blocks, the null block included; the bytes of each tensor; each layer's storage."""

    num_blocks: int
    tensors: list[int]
    storage: dict[str, Storage]


class WorkerLayers(TypedDict):
    """What one of several workers has: the layers that run on it, and bytes for them."""

    layers: dict[str, SpecDescriptor]
    memory: int


class BlockSizes(TypedDict):
    """A plan, and the block sizes, in tokens, that an engine of it works with."""

    groups: list[PlannedGroup]
    scheduler_block_size: int
    """Cache hits are multiples of it."""
    hash_block_size: int
    """From one hash of a request to the next."""
    said: list[str]
    """What the implementation told the user meanwhile, by warnings and by lines of a log that is on."""


class Constructed(TypedDict):
    """The block sizes that a cache manager works with, by the name of the object that has them.

    What an object does not show is left out.
    """

    scheduler_block_size: dict[str, int] | None
    """None where a cache manager is not told it."""
    hash_block_size: dict[str, int]


class Capacity(TypedDict):
    """What an implementation tells its user of a plan."""

    max_concurrency: float
    """How many requests of the longest length run at once."""
    num_tokens: NotRequired[int | float]
    """Tokens of that many requests."""


class CapacityReport(TypedDict):
    """What is told of a plan, by who is asked: workers and scheduler may have different views of it."""

    num_blocks: int
    """Of the plan, the null block included."""
    blocks_per_request: list[int]
    """The most that a request of the longest length holds of each group, as its spec says."""
    told: dict[str, Capacity]


class PlannerPart(Protocol):
    """What decides which layers share blocks, and how many there are.

    `layers` has the spec of each layer by its name, in the order of the model.
    """

    def groups(self, layers: Mapping[str, SpecDescriptor]) -> Plan:
        """Put the layers into groups, with pages of one size where that is needed."""
        ...

    def one_group(self, layers: Mapping[str, SpecDescriptor]) -> Plan:
        """Group layers for an engine that manages all of them as full attention, in a single group."""
        ...

    def config(
        self,
        layers: Mapping[str, SpecDescriptor],
        memory: int,
        max_model_len: int,
        max_in_flight_tokens: int,
    ) -> SizedPlan:
        """Do all that is done for one worker at start, which has `memory` bytes; the limits are in tokens."""
        ...

    def workers(
        self, workers: Sequence[WorkerLayers], max_model_len: int, max_in_flight_tokens: int
    ) -> list[SizedPlan]:
        """The same for several workers of one engine; a layer that some of them have is the same layer."""
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
        """Group the layers, and make a cache manager that is to work with these block sizes."""
        ...

    def capacity(
        self,
        layers: Mapping[str, SpecDescriptor],
        memory: int,
        max_model_len: int,
        max_in_flight_tokens: int,
        backwards: bool,
    ) -> CapacityReport:
        """Plan as `config` does, perhaps list the groups backwards, and tell what that amounts to."""
        ...
