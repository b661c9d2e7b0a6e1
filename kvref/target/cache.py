"""The part `cache`: a cache manager, as a scheduler drives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NotRequired, Protocol, TypedDict

from kvref.target.pool import PoolState
from kvref.target.specs import SpecDescriptor


class CacheGroup(TypedDict):
    """A group of layers: the spec that they have, and whether layers of a draft model are among them."""

    spec: SpecDescriptor
    eagle: bool
    kind: NotRequired[str]
    """The kind whose rules the laws apply. It is there for them; whoever builds the cache ignores it."""


class CacheShape(TypedDict):
    """What a new cache says of itself."""

    null: int | None
    reserved: list[int]
    """Blocks that it keeps for good."""
    alignment: int
    """Hits are multiples of so many tokens."""
    caps: list[int | None]
    """For each group the most blocks that a request is expected to hold when it is admitted; None for as
    many as its tokens take."""
    reports_new: list[bool]
    """For each group, whether `take_new_block_ids` tells its blocks."""


class Hit(TypedDict):
    """What is cached for a request: how many tokens, in which blocks of each group, null ones included."""

    tokens: int
    blocks: list[list[int]]
    hashes: list[str]
    """The request's hashes, one for each `hash_block_size` tokens: with "/" and the number of the group
    behind it, each is a key as `CacheState` has them."""
    junction: NotRequired[int]
    """Where a prefix ends that is shared and of which some group has not cached all, 0 if there is none.
    A step ends there, so that a recurrent state can be kept."""


class Allocation(TypedDict):
    """What came of asking for places.

    `added` has what each group's table got at its end, null blocks included; None where it was refused.
    """

    added: list[list[int]] | None
    needed: int
    """How many free blocks the cache predicted to use."""
    taken: list[int]
    """The blocks that it then took out of the pool, those of hits not among them."""


class Copy(TypedDict):
    """A block whose content has to be copied before the step that was just scheduled runs."""

    source: int
    destination: int


class CacheEvent(TypedDict):
    """What the cache tells others of a change: keys that are stored or removed, or that all were cleared.

    A target that does not tell something leaves it out.
    """

    what: Literal["stored", "removed", "cleared"]
    hashes: list[str]
    group: NotRequired[int]
    parent: NotRequired[str | None]
    tokens: NotRequired[list[int]]
    block_size: NotRequired[int]


class CacheState(PoolState):
    """What is in a cache, read without the functions that are under test."""

    tables: dict[str, list[list[int]]]
    """The blocks of each group, by request; null blocks where none is needed."""
    pins: list[int]
    """Blocks held by the cache itself, for copies that are still to be made; once for each time."""


class CachePart(Protocol):
    """A cache manager, as a scheduler drives it. docs/engine-contract.md tells what a scheduler may do.

    Requests have names. All counts are of tokens unless they say otherwise. There is one cache at a time.
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
        """Make a new cache with so many blocks, the null block included, without any request."""
        ...

    def add(
        self,
        request: str,
        tokens: Sequence[int],
        max_tokens: int,
        salt: str | None,
        adapter: str | None = None,
    ) -> None:
        """Let there be a request with this prompt, that gets at most `max_tokens` more.

        There is an adapter only where the target declares "adapter" among its `contents`.
        """
        ...

    def lookup(self, request: str) -> Hit:
        """`get_computed_blocks`."""
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
        """`allocate_slots` for so many new tokens.

        `hit` is what a look-up just found, and `external` tokens behind it are loaded from elsewhere; `delay`
        asks for no keys yet, and `whole` to refuse unless all tokens of the request would fit.
        """
        ...

    def progress(self, request: str, computed: int, in_flight: int, output: Sequence[int]) -> None:
        """Tell how far a request is.

        That is tokens scheduled up to now, those of them that are not confirmed, and its output since the
        last time.
        """
        ...

    def block_ids(self, request: str) -> list[list[int]]:
        """`get_block_ids`: the table of each group, null blocks included, as the model runner is told."""
        ...

    def cache_blocks(self, request: str, computed: int) -> None:
        """Let so many tokens have keys, once they are there for certain."""
        ...

    def free(self, request: str) -> None:
        """Take all blocks from a request. It may be allocated for anew."""
        ...

    def evict(self, blocks: Sequence[int]) -> None:
        """Take all keys from blocks, whether they are held or not."""
        ...

    def reset(self) -> bool:
        """Take all keys from all blocks, and say so; do nothing, and say so, while a block is held."""
        ...

    def new_step(self) -> None:
        """`new_step_starts`: called once before what is scheduled for a step."""
        ...

    def take_new_block_ids(self) -> list[int]:
        """The blocks given to requests since the last call, for those who have to zero them."""
        ...

    def take_copies(self) -> list[Copy]:
        """The copies to be made before the step runs; after the call they count as made."""
        ...

    def take_events(self) -> list[CacheEvent]:
        """What happened to keys since the last call, in order."""
        ...

    def common_prefix(self, request: str) -> list[int]:
        """`get_num_common_prefix_blocks`, for each group."""
        ...

    def state(self) -> CacheState:
        """The probe."""
        ...
