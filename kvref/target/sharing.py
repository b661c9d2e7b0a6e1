"""The part `sharing`: layers that own no KV cache, but share the cache of another layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, TypedDict

Pair: TypeAlias = list[str]
"""A sharing layer and its target, the layer whose cache it shares. The target may be a sharing layer, too."""


class Joined(TypedDict):
    """The groups after the sharing layers have joined them."""

    groups: list[list[str]]
    """For each group, the names of all its layers: those that own a cache, and those that share one."""


class SharingPart(Protocol):
    """Adds each sharing layer to the group of the layer whose cache it shares."""

    def join(self, groups: Sequence[Sequence[str]], sharing: Sequence[Pair], times: int) -> Joined:
        """Add the sharing layers to the groups, and return all groups.

        An engine does this once. With a draft model, it does it a second time on the same groups.

        Args:
            groups: for each group, the names of its layers that own a cache.
            sharing: the sharing layers with their targets, in the order of the model.
            times: how often to add the sharing layers.
        """
        ...
