"""The part `bench`: the implementation's own API, for `kvref bench` to time.

This is the only part that returns objects of the implementation. Converting them to plain data would take
longer than many of the timed calls. The benchmark runs in the same process as the target. If possible, return
bound methods of the implementation's own objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kvref.target.sharing import Pair
from kvref.target.specs import SpecDescriptor


class PoolCalls(NamedTuple):
    """The functions of a block pool. Blocks, requests and hashes are the implementation's own objects."""

    take: Callable[[int], Sequence[Any]]
    """Allocate this many free blocks."""
    free: Callable[[Sequence[Any]], object]
    """Drop one reference to each block."""
    touch: Callable[[Sequence[Any]], object]
    """Add one reference to each block."""
    find: Callable[[Any, Sequence[int]], object]
    """Look up a block hash in each of these groups. Returns None if a group has no block with this hash."""
    num_free: Callable[[], int]
    take_events: Callable[[], object]
    """Return the events since the last call."""
    request: Callable[[Sequence[int]], Any]
    """Make a request with these tokens, and compute its block hashes."""
    hashes: Callable[[Any], Sequence[Any]]
    """Return the block hashes of a request, one for each full block."""
    cache: Callable[[Any, Sequence[Any]], object]
    """Cache these blocks as the first blocks of this request, in group 0."""


class CacheCalls(NamedTuple):
    """The functions of a cache manager that a scheduler calls."""

    request: Callable[[str, Sequence[int]], Any]
    """Make a request with this name and prompt, and compute its block hashes."""
    new_step: Callable[[], object]
    find: Callable[[Any], Sequence[Any]]
    """vLLM's `get_computed_blocks`: return a sequence that begins with the blocks and tokens of the hit."""
    allocate: Callable[..., object]
    """vLLM's `allocate_slots(request, new tokens[, hit tokens, hit blocks])`. Returns None if it refuses."""
    advance: Callable[[Any, int, int], object]
    """Set how many tokens of this request are computed, and append this output token."""
    tables: Callable[[Any], Sequence[Sequence[Any]]]
    """Return the block table of a request in each group."""
    free: Callable[[Any], object]
    """Free all blocks of a request."""


class BenchCall(NamedTuple):
    """A function to time, and the preparation that each call needs."""

    fresh: Callable[[], Any]
    """Make a new argument for `run`. kvref does not time this."""
    run: Callable[[Any], Any]
    """Do the work. kvref times this."""
    size: Callable[[Any], int]
    """Return the size of a result of `run`. If two targets do the same work, their results have one size."""


class BenchPart(Protocol):
    """Gives `kvref bench` the functions to time.

    Raises:
        NotImplementedError: any function raises this if the implementation has nothing to time there. The
            message should say why.
    """

    def pool(self, num_blocks: int, block_size: int, events: bool) -> PoolCalls:
        """Make a new pool whose blocks have `block_size` tokens. It records events if `events` is true."""
        ...

    def cache(
        self, groups: Sequence[SpecDescriptor], num_blocks: int, block_size: int, max_model_len: int
    ) -> CacheCalls:
        """Make a new cache manager with prefix caching.

        Args:
            groups: the spec of each group. All of them have blocks of `block_size` tokens.
        """
        ...

    def plan(self, layers: Mapping[str, SpecDescriptor], memory: int, max_model_len: int) -> BenchCall:
        """Group the layers, and plan a cache in `memory` bytes. The result's size is its number of blocks."""
        ...

    def join(self, groups: Sequence[Sequence[str]], sharing: Sequence[Pair]) -> BenchCall:
        """Add the sharing layers to the groups of the layers whose caches they share.

        The result's size is the number of layers in all groups together.
        """
        ...

    def allocate(
        self, layers: Mapping[str, SpecDescriptor], num_blocks: int, layout: str, buffers: str, device: str
    ) -> BenchCall:
        """Allocate the memory of a cache, and give every layer its views.

        `buffers` is `each` or `one`, as in `TensorsPart.allocate`. The memory must be released when Python
        deletes the result. The result's size is the allocated bytes.
        """
        ...

    def register(
        self, layers: Mapping[str, SpecDescriptor], num_blocks: int, layout: str, device: str
    ) -> BenchCall:
        """Make the canonical view of a cache.

        The result's size is the sum of `page_size_bytes` over all references of the view.
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
        """Copy blocks of the first group through the canonical view.

        Each pair is (source block, destination block). The result's size is the copied bytes.
        """
        ...
