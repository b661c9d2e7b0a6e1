"""Where each block of each layer lies in memory, byte by byte. The laws about memory use it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import product
from typing import Any

from kvref_conformance.laws.core import Event

Place = tuple[int, int]
"""The address of a byte: the number of its allocation, and its offset there."""


class Caches:
    """The memory of a cache: the arguments and the answer of one `tensors.allocate`."""

    def __init__(self, event: Event) -> None:
        self.args: dict[str, Any] = event["args"]
        self.answer: dict[str, Any] = event["outcome"]["value"]
        self._places: dict[tuple[str, int], list[Place]] = {}

    @property
    def num_blocks(self) -> int:
        return int(self.args["num_blocks"])

    @cached_property
    def owners(self) -> list[str]:
        """The layers that have memory of their own."""
        return [name for name in self.answer["layers"] if name in self.args["layers"]]

    @cached_property
    def owner_of(self) -> dict[str, str]:
        """For each layer, the layer whose memory it uses: the last one in its chain of targets, or itself."""
        targets = dict(self.args["sharing"])
        found = {}
        for name in self.answer["layers"]:
            owner = name
            for _ in targets:
                owner = targets.get(owner, owner)
            found[name] = owner
        return found

    @cached_property
    def group_of(self) -> dict[str, int]:
        return {name: number for number, group in enumerate(self.answer["groups"]) for name in group}

    @property
    def names(self) -> list[str]:
        """All layers that the call named: those with memory of their own, and those that share."""
        return [*self.args["layers"], *dict(self.args["sharing"])]

    @cached_property
    def is_complete(self) -> bool:
        """Whether every layer has a view. Laws about addresses judge no other caches."""
        return all(self.answer["layers"].get(name, {}).get("views") for name in self.names)

    def views(self, layer: str) -> list[dict[str, Any]]:
        views: list[dict[str, Any]] = self.answer["layers"][layer]["views"]
        return views

    def places(self, layer: str, block: int) -> list[Place]:
        """The addresses of a block's bytes in a layer, in the order in which the bytes are read."""
        key = (layer, block)
        if key not in self._places:
            views = self.views(layer)
            self._places[key] = [at for view in views for at in places_in(view, block, self.num_blocks)]
        return self._places[key]

    def in_words(self) -> str:
        kernel = self.args["kernel_block_size"]
        return (
            f"{len(self.args['layers'])} layers with {self.num_blocks} blocks in layout {self.args['layout']}"
            + (f", kernel blocks of {kernel} tokens" if kernel else "")
        )


def blocks_per_block(view: dict[str, Any], num_blocks: int) -> int:
    """How many blocks of the view make up one block of the pool: more than one with kernel blocks."""
    return int(view["shape"][view["axes"].index("B")] // num_blocks)


def places_in(view: dict[str, Any], block: int, num_blocks: int) -> Iterator[Place]:
    """The addresses of a block's bytes in a view."""
    several = blocks_per_block(view, num_blocks)
    ranges = [range(size) for size in view["shape"]]
    ranges[view["axes"].index("B")] = range(block * several, (block + 1) * several)
    for indices in product(*ranges):
        start = view["offset"] + sum(i * stride for i, stride in zip(indices, view["strides"], strict=True))
        for byte in range(start, start + view["itemsize"]):
            yield view["buffer"], byte


def is_plain(arguments: dict[str, Any]) -> bool:
    """Whether all layers have the same full-attention spec, without padding and without kernel blocks."""
    specs = list(arguments["layers"].values())
    return (
        all(spec == specs[0] for spec in specs)
        and specs[0]["class"] == "FullAttentionSpec"
        and "page_size_padded" not in specs[0]["fields"]
        and arguments["kernel_block_size"] is None
    )


_LAST: dict[str, Any] = {}
"""The caches of the last example, kept because several laws judge the same example in turn."""


def allocations(events: list[Event]) -> list[Caches]:
    """The cache of each call that returned, complete or not."""
    if _LAST.get("events") is not events or _LAST["number"] != len(events):
        made = [e for e in events if e["op"] == "tensors.allocate" and "value" in e["outcome"]]
        _LAST.update(events=events, number=len(events), made=[Caches(event) for event in made])
    found: list[Caches] = _LAST["made"]
    return found


def complete(events: list[Event]) -> list[Caches]:
    """Each allocated cache in which every layer has a view."""
    return [caches for caches in allocations(events) if caches.is_complete]
