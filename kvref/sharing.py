"""Sharing layers: layers that use the KV cache of another layer instead of their own (vLLM PR 35045).

A sharing layer names another layer as its *target*. The target may be a sharing layer, too. The chain of
targets ends at the *owner*: the layer that has the cache. The order in which layers are listed makes no
difference. A sharing layer has no memory, no spec and no group of its own. It joins the group of its owner,
because it reads the same blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from kvref.errors import KVSharingError
from kvref.planning import KVCacheGroupSpec

__all__ = [
    "add_kv_sharing_layers_to_kv_cache_groups",
    "get_shared_kv_cache_layers",
    "resolve_kv_sharing",
]

_SHOWN = 6
"""An error names this many layers at each end of a chain, and leaves out the layers in between."""


def get_shared_kv_cache_layers(layers: Mapping[str, object]) -> dict[str, str]:
    """The target of each sharing layer, from the layer's attribute `kv_sharing_target_layer_name`.

    Raises:
        KVSharingError: the attribute is neither a name nor None. The message names the layer.
    """
    targets: dict[str, str] = {}
    for name, layer in layers.items():
        target = getattr(layer, "kv_sharing_target_layer_name", None)
        if target is None:
            continue
        if not isinstance(target, str) or not target:
            raise KVSharingError(
                f"layer {name!r}: kv_sharing_target_layer_name is {target!r}, not the name of a layer; "
                "set it to None if the layer does not share"
            )
        targets[name] = target
    return targets


def resolve_kv_sharing(
    shared_kv_cache_layers: Mapping[str, str],
    owners: Collection[str],
    kv_cache_groups: Iterable[KVCacheGroupSpec] = (),
) -> dict[str, str]:
    """Find the owner for each sharing layer. Takes time linear in the number of layers.

    Args:
        shared_kv_cache_layers: the target of each sharing layer.
        owners: the layers that have a cache of their own.
        kv_cache_groups: groups that sharing layers may have joined earlier. The sharing layers in these
            groups can be targets.

    Raises:
        KVSharingError: targets form a cycle or lead to a layer without a cache; a layer with a cache of its
            own names a target; or a sharing layer in one of `kv_cache_groups` now has another owner. The
            message names the layers.
    """
    owners = frozenset(owners)
    joined = {sharer: owner for group in kv_cache_groups for sharer, owner in group.kv_sharing_layers.items()}
    targets = {**joined, **shared_kv_cache_layers}
    if both := [layer for layer in shared_kv_cache_layers if layer in owners]:
        raise KVSharingError(
            f"layer {both[0]!r} has a cache of its own and cannot share that of "
            f"{shared_kv_cache_layers[both[0]]!r}: remove its spec or its target"
        )
    resolved: dict[str, str] = {}
    for first in shared_kv_cache_layers:
        chain: dict[str, None] = {}
        layer = first
        while layer in targets and layer not in resolved:
            if layer in chain:
                cycle = list(chain)
                cycle = cycle[cycle.index(layer) :]
                raise KVSharingError(
                    f"layers share caches in a cycle of {len(cycle)}, so none of them has a cache: "
                    f"{_in_words([*cycle, layer])}"
                )
            chain[layer] = None
            layer = targets[layer]
        owner = resolved.get(layer, layer)
        if owner not in owners:
            raise KVSharingError(
                f"layer {list(chain)[-1]!r} shares the cache of {owner!r}, which has none: "
                f"{_in_words([*chain, owner])}"
            )
        resolved.update(dict.fromkeys(chain, owner))
        if joined.get(first, owner) != owner:
            raise KVSharingError(
                f"layer {first!r} cannot share the cache of {owner!r}: it shares that of {joined[first]!r} "
                "already"
            )
    return {layer: resolved[layer] for layer in shared_kv_cache_layers}


def _in_words(chain: Sequence[str]) -> str:
    if len(chain) > 2 * _SHOWN:
        left_out = f"... ({len(chain) - 2 * _SHOWN} more) ..."
        chain = [*chain[:_SHOWN], left_out, *chain[-_SHOWN:]]
    return " -> ".join(chain)


def add_kv_sharing_layers_to_kv_cache_groups(
    shared_kv_cache_layers: Mapping[str, str],
    kv_cache_groups: Iterable[KVCacheGroupSpec],
    runner_only_attn_layers: set[str] | None = None,
) -> list[KVCacheGroupSpec]:
    """Return the groups, with each sharing layer added at the end of its owner's group.

    If you pass in the result again, you get equal groups. An engine does that when it sets up its draft
    model. (vLLM changes the groups in place, and each call adds the sharing layers again.)

    Args:
        shared_kv_cache_layers: the target of each sharing layer.
        kv_cache_groups: the groups so far. They are not changed.
        runner_only_attn_layers: if given, the sharing layers are added to this set.

    Raises:
        KVSharingError: as in `resolve_kv_sharing`. Nothing has changed.
    """
    groups = list(kv_cache_groups)
    if not shared_kv_cache_layers:
        return groups
    place_of = {name: place for place, group in enumerate(groups) for name in group.owning_layers}
    joining: list[dict[str, str]] = [{} for _ in groups]
    for sharer, owner in resolve_kv_sharing(shared_kv_cache_layers, place_of.keys(), groups).items():
        if sharer not in groups[place_of[owner]].kv_sharing_layers:
            joining[place_of[owner]][sharer] = owner
    if runner_only_attn_layers is not None:
        runner_only_attn_layers.update(shared_kv_cache_layers)
    return [
        replace(
            group,
            layer_names=(*group.layer_names, *new),
            kv_sharing_layers={**group.kv_sharing_layers, **new},
        )
        if new
        else group
        for group, new in zip(groups, joining, strict=True)
    ]
