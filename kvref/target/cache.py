"""The part `cache`: a cache manager, driven the way a scheduler drives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NotRequired, Protocol, TypedDict

from kvref.target.pool import PoolState
from kvref.target.specs import SpecDescriptor


class CacheGroup(TypedDict):
    """A group of layers."""

    spec: SpecDescriptor
    """The spec of the group's layers."""
    eagle: bool
    """Whether the group has layers of a draft model."""
    kind: NotRequired[str]
    """A spec class, such as "SlidingWindowSpec". The laws apply the rules of this class. Targets ignore
    it."""


class CacheShape(TypedDict):
    """The fixed properties of a new cache."""

    null: int | None
    """The null block; None if the cache has none."""
    reserved: list[int]
    """Other blocks that the cache never allocates to requests."""
    alignment: int
    """The number of tokens in a prefix hit is always a multiple of this number."""
    caps: list[int | None]
    """For each group, the most blocks that admission expects a request to hold. None: there is no such limit,
    so a request may hold a block for all of its tokens."""
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
    """The length in tokens of a longer prefix that other requests share but that some group has not cached; 0
    if there is none. The scheduler ends a step there, so that the group can cache its recurrent state."""


class Allocation(TypedDict):
    """The result of `allocate`."""

    added: list[list[int]] | None
    """For each group, the blocks appended to the block table, null blocks included. None if refused."""
    needed: int
    """How many free blocks the cache expected to need for this allocation."""
    taken: list[int]
    """The blocks that `allocate` got from the pool. They do not include the blocks of the prefix hit."""


class Copy(TypedDict):
    """A copy of one block to another, to be made after a step is scheduled and before it runs."""

    source: int
    destination: int


class CacheEvent(TypedDict):
    """An event of the prefix cache: some blocks were cached, some lost their keys, or all lost their keys.

    Leave out a field that the implementation does not report.
    """

    what: Literal["stored", "removed", "cleared"]
    hashes: list[str]
    """The hashes that were stored or removed, as in `Hit`. Empty for "cleared"."""
    group: NotRequired[int]
    """The number of the group whose blocks were cached or lost their keys."""
    parent: NotRequired[str | None]
    """The hash of the block before the first stored block. None if that is the first of its request."""
    tokens: NotRequired[list[int]]
    """The tokens in the stored blocks."""
    block_size: NotRequired[int]
    """The number of tokens in a stored block."""


class CacheState(PoolState):
    """The state of a cache, read from its internal data and not through the functions under test."""

    tables: dict[str, list[list[int]]]
    """By the name of the request: its block table in each group, null blocks included."""
    pins: list[int]
    """The blocks that the cache itself references until copies are made, once for each reference."""


class CachePart(Protocol):
    """A cache manager, driven the way a scheduler drives it. Each `create` replaces the previous cache.

    For the calls that a scheduler may make, see docs/engine-contract.md. `request` is the name of a request.
    Counts are in tokens unless they say otherwise.
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
        """Make a new cache, without requests, that has `num_blocks` blocks, the null block included."""
        ...

    def add(
        self,
        request: str,
        tokens: Sequence[int],
        max_tokens: int,
        salt: str | None,
        adapter: str | None = None,
    ) -> None:
        """Add a request with the prompt `tokens`. The request gets at most `max_tokens` output tokens.

        kvref passes `adapter` only if the target lists "adapter" in its capability `contents`.
        """
        ...

    def lookup(self, request: str) -> Hit:
        """Return the prefix hit of a request. This is vLLM's `get_computed_blocks`."""
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
        """Allocate blocks for `new` more tokens of a request. This is vLLM's `allocate_slots`.

        Args:
            hit: the hit that the preceding look-up of this request returned.
            lookahead: how many tokens after the new ones need slots, too. A draft model uses these slots.
            external: the number of tokens after the hit that a connector loads.
            delay: do not cache the blocks now, because a later `cache_blocks` does.
            encoder: the number of the request's encoder tokens.
            whole: refuse unless the free blocks suffice for all tokens of the request.
        """
        ...

    def progress(self, request: str, computed: int, in_flight: int, output: Sequence[int]) -> None:
        """Set a request's counts, and append output tokens to the request.

        Args:
            computed: how many tokens have been scheduled so far.
            in_flight: how many of the `computed` tokens are not yet reported as done.
            output: the output tokens since the last call.
        """
        ...

    def block_ids(self, request: str) -> list[list[int]]:
        """Return the block table of each group, as a model runner gets it. vLLM's `get_block_ids`."""
        ...

    def cache_blocks(self, request: str, computed: int) -> None:
        """Cache the blocks that the first `computed` tokens of a request fill. These tokens are final."""
        ...

    def free(self, request: str) -> None:
        """Free all blocks of a request. A later `allocate` may give the request new blocks."""
        ...

    def evict(self, blocks: Sequence[int]) -> None:
        """Remove all keys of these blocks, whether the blocks are free or referenced."""
        ...

    def reset(self) -> bool:
        """Remove all keys of all blocks, and return True. If a block is referenced, only return False."""
        ...

    def new_step(self) -> None:
        """Begin a step. The scheduler calls this first in each step. This is vLLM's `new_step_starts`."""
        ...

    def take_new_block_ids(self) -> list[int]:
        """Return the blocks allocated since the last call. A model runner has to zero them."""
        ...

    def take_copies(self) -> list[Copy]:
        """Return the copies to make before the step runs. Afterwards the cache assumes that they are made."""
        ...

    def take_events(self) -> list[CacheEvent]:
        """Return the prefix-cache events since the last call, in order."""
        ...

    def common_prefix(self, request: str) -> list[int]:
        """Return for each group how many blocks at the beginning all running requests share.

        This is vLLM's `get_num_common_prefix_blocks`. `request` is any running request.
        """
        ...

    def state(self) -> CacheState:
        """Return the state of the cache, read from its internal data."""
        ...
