"""The part `cache`: a cache manager, driven the way a scheduler drives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NotRequired, Protocol, TypedDict

from kvref.target.pool import PoolState
from kvref.target.specs import SpecDescriptor


class CacheGroup(TypedDict):
    """A group of layers: their spec, and whether any of them belongs to a draft model (`eagle`)."""

    spec: SpecDescriptor
    eagle: bool
    kind: NotRequired[str]
    """The kind whose rules the laws apply. The laws read it; an implementation ignores it."""


class CacheShape(TypedDict):
    """The fixed properties of a new cache."""

    null: int | None
    """The null block; None if there is none."""
    reserved: list[int]
    """Other blocks that the cache keeps for itself."""
    alignment: int
    """Prefix hits are multiples of this many tokens."""
    caps: list[int | None]
    """For each group, the most blocks that admission expects a request to hold. None: as many as its tokens
    fill."""
    reports_new: list[bool]
    """For each group, whether `take_new_block_ids` reports its blocks."""


class Hit(TypedDict):
    """A prefix hit: its tokens, and its blocks in each group, null blocks included."""

    tokens: int
    blocks: list[list[int]]
    hashes: list[str]
    """The request's block hashes, one for each `hash_block_size` tokens. A key in `CacheState` is a block
    hash, followed by "/" and the number of the group."""
    junction: NotRequired[int]
    """The end, in tokens, of a longer prefix that other requests share but that some group has not cached; 0
    if there is none. A step ends there, so that a recurrent state can be cached."""


class Allocation(TypedDict):
    """What `allocate` did."""

    added: list[list[int]] | None
    """The blocks that each group's block table got at its end, null blocks included. None if refused."""
    needed: int
    """The number of free blocks that the cache predicted for this allocation."""
    taken: list[int]
    """The blocks that it allocated from the pool, without those of prefix hits."""


class Copy(TypedDict):
    """A block to be copied before the step that was just scheduled runs."""

    source: int
    destination: int


class CacheEvent(TypedDict):
    """An event of the prefix cache: hashes that were stored or removed, or that all were cleared.

    Leave out a field that the implementation does not report.
    """

    what: Literal["stored", "removed", "cleared"]
    hashes: list[str]
    group: NotRequired[int]
    parent: NotRequired[str | None]
    tokens: NotRequired[list[int]]
    block_size: NotRequired[int]


class CacheState(PoolState):
    """The state of a cache, read from its internals and not through the functions under test."""

    tables: dict[str, list[list[int]]]
    """The block tables of each request, one for each group, null blocks included."""
    pins: list[int]
    """Blocks that the cache itself holds for copies still to be made, once for each reference."""


class CachePart(Protocol):
    """A cache manager, driven the way a scheduler drives it. Each `create` replaces the previous cache.

    For what a scheduler may do, see docs/engine-contract.md. `request` is the name of a request. Counts are
    tokens if nothing else is said.
    """

    def create(
        self,
        groups: Sequence[CacheGroup],
        num_blocks: int,
        scheduler_block_size: int,
        hash_block_size: int,
        max_model_len: int,
        max_in_flight_tokens: int,
        enable_caching: bool,
        use_eagle: bool,
        max_encoder_tokens: int,
    ) -> CacheShape:
        """Make a new cache with `num_blocks` blocks, the null block included, and without requests."""
        ...

    def add(
        self,
        request: str,
        tokens: Sequence[int],
        max_tokens: int,
        salt: str | None,
        adapter: str | None = None,
    ) -> None:
        """Add a request with this prompt, which gets at most `max_tokens` output tokens.

        `adapter` is given only if the target declares "adapter" in its capability `contents`.
        """
        ...

    def lookup(self, request: str) -> Hit:
        """Look up the prefix hit of a request: vLLM's `get_computed_blocks`."""
        ...

    def allocate(
        self,
        request: str,
        new: int,
        hit: Hit | None = None,
        lookahead: int = 0,
        external: int = 0,
        delay: bool = False,
        encoder: int = 0,
        whole: bool = False,
    ) -> Allocation:
        """Allocate blocks for `new` tokens of a request: vLLM's `allocate_slots`.

        Args:
            hit: what the look-up just before returned.
            lookahead: tokens to allocate beyond the new ones, for a draft model with a cache of its own.
            external: tokens after the hit that a connector loads.
            delay: do not cache the blocks yet; `cache_blocks` does so later.
            encoder: encoder tokens of the request.
            whole: refuse if the free blocks are too few for all tokens of the request.
        """
        ...

    def progress(self, request: str, computed: int, in_flight: int, output: Sequence[int]) -> None:
        """Update the counts of a request, and append output tokens.

        Args:
            computed: all tokens that have been scheduled so far.
            in_flight: how many of these are not yet reported as done.
            output: output tokens since the last call.
        """
        ...

    def block_ids(self, request: str) -> list[list[int]]:
        """Return the block table of each group, as the model runner gets it: vLLM's `get_block_ids`."""
        ...

    def cache_blocks(self, request: str, computed: int) -> None:
        """Cache the full blocks among the first `computed` tokens, which are certain now."""
        ...

    def free(self, request: str) -> None:
        """Free all blocks of a request. Blocks may be allocated for it again later."""
        ...

    def evict(self, blocks: Sequence[int]) -> None:
        """Take all keys from these blocks, whether they are free or referenced."""
        ...

    def reset(self) -> bool:
        """Take all keys from all blocks and return True. While a block is referenced, only return False."""
        ...

    def new_step(self) -> None:
        """Begin a step, before anything is scheduled for it: vLLM's `new_step_starts`."""
        ...

    def take_new_block_ids(self) -> list[int]:
        """Return the blocks allocated since the last call, which a model runner has to zero."""
        ...

    def take_copies(self) -> list[Copy]:
        """Return the copies to make before the step runs. After this call they count as made."""
        ...

    def take_events(self) -> list[CacheEvent]:
        """Return the prefix-cache events since the last call, in order."""
        ...

    def common_prefix(self, request: str) -> list[int]:
        """Return how many blocks all running requests share, for each group.

        This is vLLM's `get_num_common_prefix_blocks`; `request` is any running request.
        """
        ...

    def state(self) -> CacheState:
        """Return the state of the cache, read from its internals."""
        ...
