"""The part `bench`: the implementation's own API, for `kvref bench` to time.

This is the only part that returns objects of the implementation: converting arguments and answers would take
longer than many of the calls. The benchmark runs in the same process. If possible, return bound methods of
the implementation's own objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kvref.target.sharing import Pair
from kvref.target.specs import SpecDescriptor


class PoolCalls(NamedTuple):
    """The calls of a block pool. Blocks, requests and hashes are the implementation's own objects."""

    take: Callable[[int], Sequence[Any]]
    """Allocate this many free blocks."""
    free: Callable[[Sequence[Any]], object]
    """Drop one reference to each block."""
    touch: Callable[[Sequence[Any]], object]
    """Add one reference to each block."""
    find: Callable[[Any, Sequence[int]], object]
    """Look up a block hash in each of these groups; None if a group lacks it."""
    num_free: Callable[[], int]
    take_events: Callable[[], object]
    request: Callable[[Sequence[int]], Any]
    """Make a request of these tokens, with its block hashes."""
    hashes: Callable[[Any], Sequence[Any]]
    """The block hashes of a request, one for each full block."""
    cache: Callable[[Any, Sequence[Any]], object]
    """Cache these blocks as the first blocks of a request, in group 0."""


class CacheCalls(NamedTuple):
    """The calls of a cache manager that a scheduler makes."""

    request: Callable[[str, Sequence[int]], Any]
    """Make a request of this name and prompt, with its block hashes."""
    new_step: Callable[[], object]
    find: Callable[[Any], Sequence[Any]]
    """`get_computed_blocks`: the blocks of the prefix hit and its tokens; more items may follow."""
    allocate: Callable[..., object]
    """`allocate_slots(request, new tokens[, hit tokens, hit blocks])`; returns None if refused."""
    advance: Callable[[Any, int, int], object]
    """Count this many tokens of a request as computed, and append this output token."""
    tables: Callable[[Any], Sequence[Sequence[Any]]]
    """The block table of a request in each group."""
    free: Callable[[Any], object]
    """Free all blocks of a request."""


class BenchCall(NamedTuple):
    """One call to time, and what to prepare for it each time."""

    fresh: Callable[[], Any]
    """Makes the argument of `run`; not timed."""
    run: Callable[[Any], Any]
    """Does the work; timed."""
    size: Callable[[Any], int]
    """The size of the result of `run`. It shows whether two implementations did the same work."""


class BenchPart(Protocol):
    """What `kvref bench` can time.

    Raises:
        NotImplementedError: by any function, if the implementation has nothing to time there. Say so in the
            message.
    """

    def pool(self, num_blocks: int, block_size: int, events: bool) -> PoolCalls:
        """Make a new pool whose blocks have `block_size` tokens. `events`: whether it records events."""
        ...

    def cache(
        self, groups: Sequence[SpecDescriptor], num_blocks: int, block_size: int, max_model_len: int
    ) -> CacheCalls:
        """Make a new cache manager with prefix caching. All groups have blocks of `block_size` tokens."""
        ...

    def plan(self, layers: Mapping[str, SpecDescriptor], memory: int, max_model_len: int) -> BenchCall:
        """Group the layers and size their memory. The size of the result is the number of blocks."""
        ...

    def join(self, groups: Sequence[Sequence[str]], sharing: Sequence[Pair]) -> BenchCall:
        """Add sharing layers to the groups of the layers whose caches they use.

        The size of the result is the number of layers in all groups.
        """
        ...

    def allocate(
        self, layers: Mapping[str, SpecDescriptor], num_blocks: int, layout: str, buffers: str, device: str
    ) -> BenchCall:
        """Allocate the memory of a plan and give every layer its views. The size of the result is in bytes.

        `buffers` is `each` or `one`, as in the capability `buffers`. The memory must be released when the
        result is garbage-collected.
        """
        ...

    def register(
        self, layers: Mapping[str, SpecDescriptor], num_blocks: int, layout: str, device: str
    ) -> BenchCall:
        """Make the canonical view of a cache.

        The size of the result is the bytes of one block, summed over all references of the view.
        """
        ...

    def copy(
        self,
        layers: Mapping[str, SpecDescriptor],
        num_blocks: int,
        layout: str,
        device: str,
        pairs: Sequence[tuple[int, int]],
    ) -> BenchCall:
        """Copy blocks of the first group through the canonical view. The size of the result is in bytes.

        Each pair is (source block, destination block).
        """
        ...
