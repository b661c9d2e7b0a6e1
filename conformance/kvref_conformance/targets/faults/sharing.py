"""Faults in the sharing of caches between layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

import kvref.layout
import kvref.sharing
from kvref import planning, tensors
from kvref.layout import KVCachePlacement
from kvref.planning import KVCacheConfig, KVCacheGroupSpec
from kvref.tensors import KVCaches
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference import sharing as operations
from kvref_conformance.targets.reference.target import ReferenceTarget

_share = tensors.share_kv_caches
_place = kvref.layout.place_kv_caches
_allocate = tensors._allocate
_resolve = kvref.sharing.resolve_kv_sharing
_join = kvref.sharing.add_kv_sharing_layers_to_kv_cache_groups

Targets = Mapping[str, str]


def states_and_content_exchanged() -> ReferenceTarget:
    """A layer that shares a cache sees the axes of states and of content swapped."""

    def share_kv_caches(kv_caches: KVCaches, targets: Targets) -> None:
        _share(kv_caches, targets)
        for sharer in targets:
            cache = kv_caches.layers[sharer]
            if not isinstance(cache, list):
                kv_caches.layers[sharer] = cache.transpose(-1, -2)

    break_it(tensors, "share_kv_caches", share_kv_caches)
    return ReferenceTarget()


def second_layer_where_the_first_is() -> ReferenceTarget:
    """The second layer of a group gets the first layer's memory if the pages of both are laid out alike."""

    def place_kv_caches(*arguments: Any, **options: Any) -> KVCachePlacement:
        placement = _place(*arguments, **options)
        layers = dict(placement.layers)
        for group in placement.config.kv_cache_groups:
            first, *others = group.owning_layers
            if others and layers[first].pages == layers[others[0]].pages:
                layers[others[0]] = layers[first]
        return replace(placement, layers=layers)

    break_it(tensors, "place_kv_caches", place_kv_caches)
    return ReferenceTarget()


def memory_for_each_layer() -> ReferenceTarget:
    """Layers that share a cache get memory of their own, which nothing uses."""

    def allocate(config: KVCacheConfig, *what: Any) -> tuple[torch.Tensor, ...]:
        buffers = _allocate(config, *what)
        sharers = [name for group in config.kv_cache_groups for name in group.kv_sharing_layers]
        return (*buffers, *(torch.zeros_like(buffers[0]) for _ in sharers))

    break_it(tensors, "_allocate", allocate)
    break_it(tensors, "_check_buffers", lambda *_: None)
    return ReferenceTarget()


def targets_without_targets() -> ReferenceTarget:
    """The target of a sharing layer is looked up only among layers that have a cache of their own."""

    def resolve_kv_sharing(targets: Targets, owners: Collection[str], *groups: Any) -> dict[str, str]:
        resolved = _resolve(targets, owners, *groups)
        return {layer: {owner: owner for owner in owners}[targets[layer]] for layer in resolved}

    break_it(kvref.sharing, "resolve_kv_sharing", resolve_kv_sharing)
    return ReferenceTarget()


def targets_listed_before() -> ReferenceTarget:
    """A target is looked up among the layers listed before it, so a later one ends in a KeyError."""

    def resolve_kv_sharing(targets: Targets, owners: Collection[str], *groups: Any) -> dict[str, str]:
        resolved = _resolve(targets, owners, *groups)
        known = set(owners)
        for layer in resolved:
            if targets[layer] not in known:
                raise KeyError(targets[layer])
            known.add(layer)
        return resolved

    break_it(kvref.sharing, "resolve_kv_sharing", resolve_kv_sharing)
    return ReferenceTarget()


def targets_followed_for_ever() -> ReferenceTarget:
    """A chain of targets is followed by recursion, without a check for cycles."""

    def resolve_kv_sharing(targets: Targets, owners: Collection[str], *groups: Any) -> dict[str, str]:
        def end_of(layer: str) -> str:
            return end_of(targets[layer]) if layer in targets else layer

        for layer in targets:
            end_of(layer)
        return _resolve(targets, owners, *groups)

    break_it(kvref.sharing, "resolve_kv_sharing", resolve_kv_sharing)
    return ReferenceTarget()


def unknown_targets_left_out() -> ReferenceTarget:
    """A sharing layer whose target does not exist is left out without an error."""

    def resolve_kv_sharing(targets: Targets, owners: Collection[str], *groups: Any) -> dict[str, str]:
        known = dict(targets)
        while lost := [layer for layer in known if known[layer] not in {*known, *owners}]:
            known = {layer: target for layer, target in known.items() if layer not in lost}
        return _resolve(known, owners, *groups)

    break_it(kvref.sharing, "resolve_kv_sharing", resolve_kv_sharing)
    return ReferenceTarget()


def joined_again() -> ReferenceTarget:
    """Sharing layers that are already in a group are added again, and no error reports duplicate names."""

    def add_kv_sharing_layers_to_kv_cache_groups(
        targets: Targets, groups: Sequence[KVCacheGroupSpec], *more: Any
    ) -> list[KVCacheGroupSpec]:
        joined = _join(targets, groups, *more)
        return [
            replace(after, layer_names=(*after.layer_names, *before.kv_sharing_layers))
            for before, after in zip(groups, joined, strict=True)
        ]

    break_it(planning, "_check_names", lambda *_: None)
    break_it(operations, "add_kv_sharing_layers_to_kv_cache_groups", add_kv_sharing_layers_to_kv_cache_groups)
    return ReferenceTarget()
