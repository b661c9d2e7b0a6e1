"""The part `sharing`: some layers own no KV cache, but share that of another layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, TypedDict

Pair: TypeAlias = list[str]
"""A sharing layer and its target, which is the layer whose cache it shares. The target may share, too."""


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
