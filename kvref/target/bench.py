"""The part `bench`: the implementation's own API, for `kvref bench` to time.

It is the one part that hands out objects of the implementation. Whoever calls them is in the same process,
and to convert what goes in and out would take longer than many a call. Each callable is, where it can be, a
method of the implementation itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kvref.target.sharing import Pair
from kvref.target.specs import SpecDescriptor


class PoolCalls(NamedTuple):
    """A pool whose blocks have keys. Blocks, requests and hashes are what the implementation has for them."""

    take: Callable[[int], Sequence[Any]]
    """So many free blocks, which are held from then on."""
    free: Callable[[Sequence[Any]], object]
    touch: Callable[[Sequence[Any]], object]
    find: Callable[[Any, Sequence[int]], object]
    """What has a hash in each of the groups, or None."""
    num_free: Callable[[], int]
    take_events: Callable[[], object]
    request: Callable[[Sequence[int]], Any]
    """A request of these tokens, with its hashes."""
    hashes: Callable[[Any], Sequence[Any]]
    """Those of a request, one for each full block."""
    cache: Callable[[Any, Sequence[Any]], object]
    """Gives the first blocks of a request keys, in group 0."""


class CacheCalls(NamedTuple):
    """A cache manager, as a scheduler drives it."""

    request: Callable[[str, Sequence[int]], Any]
    """A request of that name and prompt, with its hashes."""
    new_step: Callable[[], object]
    find: Callable[[Any], Sequence[Any]]
    """`get_computed_blocks`: the blocks that are cached for it, how many tokens that is, and maybe more."""
    allocate: Callable[..., object]
    """`allocate_slots(request, new[, computed tokens found, the blocks found])`; None where it is refused."""
    advance: Callable[[Any, int, int], object]
    """So many tokens of a request are computed, and it got this token."""
    tables: Callable[[Any], Sequence[Sequence[Any]]]
    free: Callable[[Any], object]


class BenchCall(NamedTuple):
    """Something that is done once, with what is made for it anew each time."""

    fresh: Callable[[], Any]
    """Makes what it is given; this is not timed."""
    run: Callable[[Any], Any]
    """Does it; this is timed."""
    size: Callable[[Any], int]
    """How much came of it, so that two implementations can be seen to have done the same."""


class BenchPart(Protocol):
    """What can be timed. For what it has nothing of, a function raises `NotImplementedError`, and says so."""

    def pool(self, num_blocks: int, block_size: int, events: bool) -> PoolCalls:
        """A new pool, with events recorded or not. A hash is made for each block of so many tokens."""
        ...

    def cache(
        self, groups: Sequence[SpecDescriptor], num_blocks: int, block_size: int, max_model_len: int
    ) -> CacheCalls:
        """A new cache manager that caches prefixes. All groups have blocks of that size."""
        ...

    def plan(self, layers: Mapping[str, SpecDescriptor], memory: int, max_model_len: int) -> BenchCall:
        """Groups the layers and sizes their memory; its size is the number of blocks."""
        ...

    def join(self, groups: Sequence[Sequence[str]], sharing: Sequence[Pair]) -> BenchCall:
        """Lets layers without a cache join the groups of those whose caches they use.

        Its size is the number of layers in all groups.
        """
        ...

    def allocate(
        self, layers: Mapping[str, SpecDescriptor], num_blocks: int, layout: str, buffers: str, device: str
    ) -> BenchCall:
        """Allocates the memory of a plan and lets every layer have its views; its size is bytes.

        `buffers` is `each` or `one`, as in the capability. Memory is given back when nobody has the result.
        """
        ...

    def register(
        self, layers: Mapping[str, SpecDescriptor], num_blocks: int, layout: str, device: str
    ) -> BenchCall:
        """Makes the canonical view of a cache; its size is the bytes of a block that are referenced."""
        ...

    def copy(
        self,
        layers: Mapping[str, SpecDescriptor],
        num_blocks: int,
        layout: str,
        device: str,
        pairs: Sequence[tuple[int, int]],
    ) -> BenchCall:
        """Copies blocks of the first group to others through the canonical view; its size is bytes."""
        ...
