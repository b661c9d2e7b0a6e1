"""Time a target that has no part `bench`, through its operations.

The time includes the conversion of arguments and answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from kvref.target import BenchCall, CacheCalls, Pair, PoolCalls, SpecDescriptor, Target


class Prefixes(Sequence[list[int]]):
    """Stands in for block hashes: the tokens up to the end of each block, made only when they are read."""

    def __init__(self, tokens: Sequence[int], block_size: int) -> None:
        self._tokens, self._size = tokens, block_size

    def __len__(self) -> int:
        return len(self._tokens) // self._size

    @overload
    def __getitem__(self, place: int) -> list[int]: ...
    @overload
    def __getitem__(self, place: slice) -> list[list[int]]: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return [self[each] for each in range(len(self))[place]]
        if not 0 <= place < len(self):
            raise IndexError(place)
        return [*self._tokens[: (place + 1) * self._size]]


class Operations:
    """A `kvref.target.BenchPart` that calls the other parts of a target."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def _part(self, name: str) -> Any:
        part = getattr(self._target, name, None)
        if part is None:
            raise NotImplementedError(f"it does not implement the part {name}")
        return part

    def pool(self, num_blocks: int, block_size: int, events: bool) -> PoolCalls:
        part = self._part("pool")
        if events:
            raise NotImplementedError("the part pool has no events")
        part.create(
            num_blocks=num_blocks, enable_caching=True, block_size=block_size, hash_block_size=block_size
        )
        return PoolCalls(
            take=lambda number: part.get_new_blocks(num_blocks=number),
            free=lambda blocks: part.free(blocks=blocks),
            touch=lambda blocks: part.touch(blocks=blocks),
            find=lambda tokens, groups: part.lookup(tokens=tokens, groups=groups),
            num_free=lambda: part.state()["free_count"],
            take_events=lambda: None,
            request=lambda tokens: [*tokens],
            hashes=lambda tokens: Prefixes(tokens, block_size),
            cache=lambda tokens, blocks: part.cache(tokens=tokens, blocks=[*blocks], start=0, group=0),
        )

    def cache(
        self, groups: Sequence[SpecDescriptor], num_blocks: int, block_size: int, max_model_len: int
    ) -> CacheCalls:
        part = self._part("cache")
        part.create(
            groups=[{"spec": spec, "eagle": False} for spec in groups],
            num_blocks=num_blocks,
            scheduler_block_size=block_size,
            hash_block_size=block_size,
            max_model_len=max_model_len,
            max_in_flight_tokens=max_model_len,
            enable_caching=True,
            use_eagle=False,
            max_encoder_tokens=0,
        )

        def request(name: str, tokens: Sequence[int]) -> str:
            part.add(request=name, tokens=[*tokens], max_tokens=max_model_len, salt=None)
            return name

        def find(name: str) -> tuple[Any, int]:
            hit = part.lookup(request=name)
            return hit, hit["tokens"]

        def allocate(name: str, new: int, found: int = 0, hit: Any = None) -> object:
            return part.allocate(request=name, new=new, hit=hit)["added"]

        def advance(name: str, computed: int, token: int) -> None:
            part.progress(request=name, computed=computed, in_flight=0, output=[token])

        return CacheCalls(
            request=request,
            new_step=part.new_step,
            find=find,
            allocate=allocate,
            advance=advance,
            tables=lambda name: part.block_ids(request=name),
            free=lambda name: part.free(request=name),
        )

    def plan(self, layers: Mapping[str, SpecDescriptor], memory: int, max_model_len: int) -> BenchCall:
        part = self._part("planner")
        return BenchCall(
            fresh=lambda: layers,
            run=lambda given: part.config(
                layers=given, memory=memory, max_model_len=max_model_len, max_in_flight_tokens=max_model_len
            ),
            size=lambda plan: plan["num_blocks"],
        )

    def join(self, groups: Sequence[Sequence[str]], sharing: Sequence[Pair]) -> BenchCall:
        part = self._part("sharing")
        pairs = [list(pair) for pair in sharing]
        return BenchCall(
            fresh=lambda: [[*names] for names in groups],
            run=lambda given: part.join(groups=given, sharing=pairs, times=1),
            size=lambda joined: sum(map(len, joined["groups"])),
        )

    def allocate(
        self, layers: Mapping[str, SpecDescriptor], num_blocks: int, layout: str, buffers: str, device: str
    ) -> BenchCall:
        part = self._part("tensors")
        for capability, wanted in (("layouts", layout), ("buffers", buffers)):
            if wanted not in self._target.capabilities.get(capability, ()):
                raise NotImplementedError(f"it does not declare {wanted!r} among its {capability}")
        return BenchCall(
            fresh=lambda: layers,
            run=lambda given: part.allocate(
                layers=given,
                num_blocks=num_blocks,
                layout=layout,
                buffers=buffers,
                kernel_block_size=None,
                sharing=[],
                device=device,
            ),
            size=lambda caches: sum(caches["buffers"]),
        )

    def register(
        self, layers: Mapping[str, SpecDescriptor], num_blocks: int, layout: str, device: str
    ) -> BenchCall:
        part = self._part("canonical")
        self._allocated(layers, num_blocks, layout, device)
        return BenchCall(
            fresh=lambda: None,
            run=lambda nothing: part.register(),
            size=lambda made: sum(ref["page_size_bytes"] for refs in made["groups"] for ref in refs),
        )

    def copy(
        self,
        layers: Mapping[str, SpecDescriptor],
        num_blocks: int,
        layout: str,
        device: str,
        pairs: Sequence[tuple[int, int]],
    ) -> BenchCall:
        call = self.register(layers, num_blocks, layout, device)
        size = len(pairs) * call.size(call.run(call.fresh()))
        part = self._part("canonical")

        def run(given: Sequence[tuple[int, int]]) -> None:
            for source, destination in given:
                part.copy(group=0, source=source, destination=destination)

        return BenchCall(fresh=lambda: pairs, run=run, size=lambda nothing: size)

    def _allocated(
        self, layers: Mapping[str, SpecDescriptor], num_blocks: int, layout: str, device: str
    ) -> None:
        """Allocate in one buffer or in several, whichever the target declares."""
        ways = self._target.capabilities.get("buffers", ())
        call = self.allocate(layers, num_blocks, layout, next(iter(ways), "one"), device)
        call.run(call.fresh())
