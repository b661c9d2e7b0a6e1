"""The part `sharing`: layers that use the cache of another layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, TypedDict

Pair: TypeAlias = list[str]
"""A layer that shares, and its target: the layer whose cache it uses, which may share as well."""


class Joined(TypedDict):
    """What came of letting sharing layers join groups."""

    groups: list[list[str]]
    """The layers of each group, those that were there before and those that joined."""


class SharingPart(Protocol):
    """What decides whose cache a layer uses."""

    def join(self, groups: Sequence[Sequence[str]], sharing: Sequence[Pair], times: int) -> Joined:
        """Let sharing layers join the groups of those that have caches.

        `groups` are the layers that have them, `sharing` lists the others as the model does. An engine does
        this once, and on the same groups once more for a draft model: `times` tells how often.
        """
        ...
