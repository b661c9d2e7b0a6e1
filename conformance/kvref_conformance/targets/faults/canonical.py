"""Faults in the canonical view, by which connectors see the caches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from kvref import canonical
from kvref.canonical import CanonicalKVCaches
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference import canonical as operations
from kvref_conformance.targets.reference.target import ReferenceTarget

_register = canonical.register_kv_caches


def _registered_as(change: Any) -> ReferenceTarget:
    break_it(operations, "register_kv_caches", lambda caches: change(caches, _register(caches)))
    return ReferenceTarget()


def bytes_without_a_sign() -> ReferenceTarget:
    """The rows of the canonical view are uint8 instead of int8."""

    def change(caches: Any, made: CanonicalKVCaches) -> CanonicalKVCaches:
        tensors = [each._replace(tensor=each.tensor.view(torch.uint8)) for each in made.tensors]
        return replace(made, tensors=tuple(tensors))

    return _registered_as(change)


def sharing_layers_referenced_too() -> ReferenceTarget:
    """The canonical view refers to a cache once more for each layer that shares a cache."""

    def change(caches: Any, made: CanonicalKVCaches) -> CanonicalKVCaches:
        groups = caches.placement.config.kv_cache_groups
        refs = [
            (*own, *own[:1] * len(group.kv_sharing_layers))
            for group, own in zip(groups, made.group_data_refs, strict=True)
        ]
        return replace(made, group_data_refs=tuple(refs))

    return _registered_as(change)


def first_piece_copied() -> ReferenceTarget:
    """If a block of a group has several pages, a copy moves only the first page."""

    def copy_blocks(source: CanonicalKVCaches, destination: CanonicalKVCaches, *what: Any) -> None:
        first = [refs[:1] for refs in source.group_data_refs]
        canonical.copy_blocks(replace(source, group_data_refs=tuple(first)), destination, *what)

    break_it(operations, "copy_blocks", copy_blocks)
    return ReferenceTarget()


def copied_forwards_alone() -> ReferenceTarget:
    """Copying a block to a block with a lower number raises an error."""

    def copy_blocks(source: Any, destination: Any, group: int, pairs: Any) -> None:
        for one, other in pairs:
            range(one, other).index(one)
        canonical.copy_blocks(source, destination, group, pairs)

    break_it(operations, "copy_blocks", copy_blocks)
    return ReferenceTarget()


def a_group_more() -> ReferenceTarget:
    """The canonical view has one group too many, and that group has no pages."""

    def change(caches: Any, made: CanonicalKVCaches) -> CanonicalKVCaches:
        return replace(made, group_data_refs=(*made.group_data_refs, ()))

    return _registered_as(change)
