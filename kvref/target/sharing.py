"""The part `sharing`: layers that use the KV cache of another layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, TypedDict

Pair: TypeAlias = list[str]
"""A sharing layer and its target: the layer whose cache it uses. The target may be a sharing layer itself."""


class Joined(TypedDict):
    """The groups after the sharing layers have joined them."""

    groups: list[list[str]]
    """The names of all layers of each group: those that own a cache, and those that share one."""


class SharingPart(Protocol):
    """Puts each sharing layer into the group of the layer whose cache it uses."""

    def join(self, groups: Sequence[Sequence[str]], sharing: Sequence[Pair], times: int) -> Joined:
        """Add the sharing layers to the groups of their owners, and return all groups.

        An engine does this once, and once more on the same groups if it has a draft model.

        Args:
            groups: the names of the layers that own a cache, by group.
            sharing: the sharing layers with their targets, in the order of the model.
            times: how often to do it.
        """
        ...
