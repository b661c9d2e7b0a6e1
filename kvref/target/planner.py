"""The part `planner`: puts layers into groups, plans their memory, and resolves an engine's block sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NotRequired, Protocol, TypedDict

from kvref.target.specs import SpecDescriptor, SpecFacts


class PlannedLayer(TypedDict):
    """A layer in a plan: the spec that the plan gives it, and the manager class registered for that spec."""

    name: str
    spec: SpecFacts
    manager: str | None


class PlannedGroup(TypedDict):
    """Layers that share a block table, and the manager class that runs the block tables of the group."""

    layers: list[PlannedLayer]
    manager: str | None


class Plan(TypedDict):
    """How the planner grouped the layers.

    `given` has, by layer, the specs that were passed to the planner, as they are after the call.
    """

    groups: list[PlannedGroup]
    given: dict[str, SpecFacts]


class Storage(TypedDict):
    """Where a layer's pages are: block b's page starts at byte `offset + b * block_stride` of a tensor.

    `tensor` is the index of that tensor in `SizedPlan.tensors`.
    """

    tensor: int
    offset: int
    block_stride: int


class SizedPlan(Plan):
    """A plan with memory: the number of blocks, the size of each tensor, and where each layer's pages are.

    `num_blocks` includes the null block. `tensors` has the bytes of each tensor. `storage` is by layer.
    """

    num_blocks: int
    tensors: list[int]
    storage: dict[str, Storage]


class WorkerLayers(TypedDict):
    """One worker of an engine: the layers that run on it, and its memory for their caches in bytes."""

    layers: dict[str, SpecDescriptor]
    memory: int


class BlockSizes(TypedDict):
    """The groups of a plan, and the block sizes in tokens that an engine derives from the groups."""

    groups: list[PlannedGroup]
    scheduler_block_size: int
    """The number of tokens in a prefix hit is always a multiple of this size."""
    hash_block_size: int
    """Tokens from one block hash of a request to the next."""
    said: list[str]
    """What the user sees during the call: warnings, and log lines of a level that is shown by default."""


class Constructed(TypedDict):
    """The block sizes that the objects of a new cache manager use.

    Each field maps the name of an object, such as "the pool", to the size that this object uses. Leave out
    objects that do not show their size.
    """

    scheduler_block_size: dict[str, int] | None
    """None if the implementation does not pass this size to its cache manager."""
    hash_block_size: dict[str, int]


class Capacity(TypedDict):
    """The capacity that an implementation reports to its user for a plan."""

    max_concurrency: float
    """How many requests of `max_model_len` tokens can run at once."""
    num_tokens: NotRequired[int | float]
    """How many tokens these requests have together."""


class CapacityReport(TypedDict):
    """The capacity of a plan, as the workers and the scheduler report it."""

    num_blocks: int
    """The number of blocks of the plan, the null block included."""
    blocks_per_request: list[int]
    """For each group, the most blocks that its spec allows a request of `max_model_len` tokens to hold."""
    told: dict[str, Capacity]
    """The reported capacity, by the reporter's name, such as "worker" or "scheduler"."""


class PlannerPart(Protocol):
    """Decides which layers share blocks, and how many blocks there are.

    In every function `layers` maps the name of each layer to its spec, in the order of the model. Lengths are
    in tokens, memory is in bytes.
    """

    def groups(self, layers: Mapping[str, SpecDescriptor]) -> Plan:
        """Put the layers into groups. If groups share memory, give their layers pages of one size."""
        ...

    def one_group(self, layers: Mapping[str, SpecDescriptor]) -> Plan:
        """Put all layers into a single group, as for an engine that manages all of them as full attention."""
        ...

    def config(
        self,
        layers: Mapping[str, SpecDescriptor],
        memory: int,
        max_model_len: int,
        max_in_flight_tokens: int,
    ) -> SizedPlan:
        """Plan the cache of a single worker with `memory` bytes, as an engine does at start."""
        ...

    def workers(
        self, workers: Sequence[WorkerLayers], max_model_len: int, max_in_flight_tokens: int
    ) -> list[SizedPlan]:
        """Plan the caches of several workers of one engine, as the engine does at start.

        If several workers have a layer of the same name, they are ranks that each hold a part of this layer.
        A worker without layers is a pipeline stage in which no layer has a cache.
        """
        ...

    def block_sizes(self, layers: Mapping[str, SpecDescriptor], enable_caching: bool) -> BlockSizes:
        """Group the layers, and resolve the block sizes that an engine then uses."""
        ...

    def construct(
        self,
        layers: Mapping[str, SpecDescriptor],
        enable_caching: bool,
        scheduler_block_size: int,
        hash_block_size: int,
    ) -> Constructed:
        """Group the layers, make a cache manager with these block sizes, and return the sizes in use."""
        ...

    def capacity(
        self,
        layers: Mapping[str, SpecDescriptor],
        memory: int,
        max_model_len: int,
        max_in_flight_tokens: int,
        backwards: bool,
    ) -> CapacityReport:
        """Plan as `config` does, and return the capacity that the implementation reports for the plan.

        Args:
            backwards: reverse the order of the groups before the implementation computes the capacity.
        """
        ...
