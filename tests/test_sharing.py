"""Which layer's cache a layer uses, in groups and in memory."""

from __future__ import annotations

import itertools
import random
import re
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_layout import BLOCKS, config_of, full, window

from kvref.errors import InvalidConfigError, KVSharingError
from kvref.planning import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor, get_kv_cache_config_from_groups
from kvref.sharing import (
    add_kv_sharing_layers_to_kv_cache_groups,
    get_shared_kv_cache_layers,
    resolve_kv_sharing,
)
from kvref.specs import EncoderOnlyAttentionSpec
from kvref.tensors import KVCaches, allocate_kv_cache, bind_kv_cache, init_kv_cache, share_kv_caches
from kvref.uniform import get_uniform_type_specs

Targets = dict[str, str]

FOREST = {"a": "owner", "b": "a", "c": "b", "d": "a", "e": "other", "f": "owner"}
RESOLVED = {"a": "owner", "b": "owner", "c": "owner", "d": "owner", "e": "other", "f": "owner"}


def groups_of(*names: str) -> list[KVCacheGroupSpec]:
    """One group for each string, which lists the group's layers."""
    return [KVCacheGroupSpec(each.split(), full()) for each in names]


def listed(groups: list[KVCacheGroupSpec]) -> list[str]:
    return [" ".join(group.layer_names) for group in groups]


def layer(target: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(kv_sharing_target_layer_name=target)


def model_of(targets: Targets, *owners: str) -> dict[str, SimpleNamespace]:
    return {
        **{name: layer() for name in owners},
        **{name: layer(target) for name, target in targets.items()},
        "no attention": SimpleNamespace(),
    }


# -- targets and owners


def test_targets_are_what_layers_say() -> None:
    assert get_shared_kv_cache_layers(model_of({"b": "a", "c": "b"}, "a")) == {"b": "a", "c": "b"}
    assert get_shared_kv_cache_layers({}) == {}


@pytest.mark.parametrize("target", ["", 3, ["a"], b"a", False])
def test_targets_are_names(target: Any) -> None:
    with pytest.raises(
        KVSharingError, match=rf"layer 'b': kv_sharing_target_layer_name is {re.escape(repr(target))},"
    ):
        get_shared_kv_cache_layers({"a": layer(), "c": layer("a"), "b": layer(target)})


def test_targets_lead_to_owners_in_any_order() -> None:
    for names in itertools.permutations(FOREST):
        resolved = resolve_kv_sharing({name: FOREST[name] for name in names}, ["owner", "other", "third"])
        assert resolved == RESOLVED
        assert list(resolved) == list(names)
    assert resolve_kv_sharing({}, []) == {}


@pytest.mark.parametrize(
    ("targets", "cycle"),
    [
        ({"a": "a"}, "cycle of 1, so none of them has a cache: a -> a"),
        ({"a": "b", "b": "a"}, "cycle of 2, so none of them has a cache: a -> b -> a"),
        ({"x": "a", "a": "b", "b": "c", "c": "a"}, "cycle of 3, .*: a -> b -> c -> a"),
        ({"y": "owner", "x": "b", "b": "c", "c": "b", "z": "x"}, "cycle of 2, .*: b -> c -> b"),
    ],
)
def test_cycles_are_refused(targets: Targets, cycle: str) -> None:
    with pytest.raises(KVSharingError, match=f"{cycle}$"):
        resolve_kv_sharing(targets, ["owner"])
    [first, *_] = [name for name in targets if targets[name] != "owner"]
    assert resolve_kv_sharing({"y": "owner", first: "y"}, ["owner"]) == {"y": "owner", first: "owner"}


@pytest.mark.parametrize(
    ("targets", "told"),
    [
        ({"a": "ghost"}, "layer 'a' shares the cache of 'ghost', which has none: a -> ghost"),
        ({"a": "b", "b": "ghost"}, "layer 'b' shares the cache of 'ghost', which has none: a -> b -> ghost"),
        ({"b": "ghost", "a": "b"}, "layer 'b' shares the cache of 'ghost', which has none: b -> ghost"),
    ],
)
def test_targets_without_a_cache_are_refused(targets: Targets, told: str) -> None:
    with pytest.raises(KVSharingError, match=f"^{told}$"):
        resolve_kv_sharing(targets, ["owner"])
    assert set(resolve_kv_sharing(targets, ["owner", "ghost"]).values()) == {"ghost"}


def test_who_has_a_cache_cannot_share_another() -> None:
    with pytest.raises(
        KVSharingError, match="layer 'b' has a cache of its own and cannot share that of 'owner'"
    ):
        resolve_kv_sharing({"a": "owner", "b": "owner"}, ["owner", "b"])
    with pytest.raises(KVSharingError, match="layer 'owner' has a cache"):
        resolve_kv_sharing({"owner": "owner"}, ["owner"])


def test_the_error_is_of_both_kinds_and_reads_like_one() -> None:
    """Callers that expect a KeyError still get one. Its message is plain text, not the repr of a key."""
    with pytest.raises(InvalidConfigError) as refused:
        resolve_kv_sharing({"a": "ghost"}, [])
    assert isinstance(refused.value, KeyError)
    assert str(refused.value).startswith("layer 'a'")
    assert str(KVSharingError()) == ""


def chain(length: int, *, seed: int | None = None) -> Targets:
    """layer.1 shares with the owner, layer.2 with layer.1, and so on, listed in another order."""
    targets = {f"layer.{n}": f"layer.{n - 1}" if n > 1 else "owner" for n in range(1, length + 1)}
    names = list(targets)
    if seed is None:
        names.reverse()
    else:
        random.Random(seed).shuffle(names)
    return {name: targets[name] for name in names}


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_long_chain_takes_time_in_proportion(seed: int | None) -> None:
    def seconds(length: int) -> float:
        targets, best = chain(length, seed=seed), float("inf")
        for _ in range(5):
            started = time.perf_counter()
            resolved = resolve_kv_sharing(targets, ["owner"])
            joined = add_kv_sharing_layers_to_kv_cache_groups(targets, groups_of("owner"))
            best = min(best, time.perf_counter() - started)
            assert set(resolved.values()) == {"owner"}
            assert len(resolved) == length
            assert joined[0].kv_sharing_layers == resolved
        return best

    # The chain is ten times as long. A quadratic algorithm would need a hundred times the time.
    assert seconds(10_000) < 40 * seconds(1_000)


def test_a_cycle_among_many_is_named_and_nothing_else() -> None:
    targets = {**chain(5_000, seed=2), **{f"other.{n}": f"layer.{n}" for n in range(1, 5_001)}}
    targets |= {"layer.4000": "layer.4002"}
    with pytest.raises(KVSharingError) as refused:
        resolve_kv_sharing(targets, ["owner"])
    message = str(refused.value)
    assert "cycle of 3" in message
    cycle = message.rpartition(": ")[2].split(" -> ")
    assert cycle[0] == cycle[-1]
    assert sorted(cycle[1:]) == ["layer.4000", "layer.4001", "layer.4002"]


def test_of_a_long_cycle_both_ends_are_named() -> None:
    targets = {**chain(10_000), "layer.1": "layer.10000"}
    with pytest.raises(KVSharingError, match="cycle of 10000") as refused:
        resolve_kv_sharing(targets, ["owner"])
    assert "... (9989 more) ..." in str(refused.value)
    assert len(str(refused.value)) < 400


# -- groups


def test_layers_join_the_groups_of_their_owners() -> None:
    runner_only = {"mine"}
    before = groups_of("owner third", "other", "")
    after = add_kv_sharing_layers_to_kv_cache_groups(FOREST, before, runner_only)
    assert listed(after) == ["owner third a b c d f", "other e", ""]
    assert [group.kv_sharing_layers for group in after] == [
        {"a": "owner", "b": "owner", "c": "owner", "d": "owner", "f": "owner"},
        {"e": "other"},
        {},
    ]
    assert [group.owning_layers for group in after] == [("owner", "third"), ("other",), ()]
    assert listed(before) == ["owner third", "other", ""]
    assert runner_only == {"mine", *FOREST}


def test_joining_again_changes_nothing() -> None:
    once = add_kv_sharing_layers_to_kv_cache_groups(FOREST, groups_of("owner", "other"))
    assert add_kv_sharing_layers_to_kv_cache_groups(FOREST, once) == once
    assert add_kv_sharing_layers_to_kv_cache_groups({}, once) == once


def test_a_draft_model_shares_with_who_shares() -> None:
    once = add_kv_sharing_layers_to_kv_cache_groups({"a": "owner"}, groups_of("other", "owner"))
    twice = add_kv_sharing_layers_to_kv_cache_groups({"draft.1": "draft.0", "draft.0": "a"}, once)
    assert listed(twice) == ["other", "owner a draft.1 draft.0"]
    assert twice[1].kv_sharing_layers == {"a": "owner", "draft.1": "owner", "draft.0": "owner"}


def test_nobody_shares_two_caches() -> None:
    groups = add_kv_sharing_layers_to_kv_cache_groups({"a": "owner"}, groups_of("owner", "other"))
    runner_only: set[str] = set()
    with pytest.raises(
        KVSharingError, match="layer 'a' cannot share the cache of 'other': it shares that of 'owner'"
    ):
        add_kv_sharing_layers_to_kv_cache_groups({"a": "other"}, groups, runner_only)
    assert runner_only == set()
    # A chain that leads to the same owner is no change.
    assert listed(add_kv_sharing_layers_to_kv_cache_groups({"a": "b", "b": "owner"}, groups)) == [
        "owner a b",
        "other",
    ]


def test_a_refusal_changes_nothing() -> None:
    groups, runner_only = groups_of("owner"), {"mine"}
    for targets in ({"a": "owner", "b": "ghost"}, {"a": "owner", "b": "b"}, {"owner": "owner"}):
        with pytest.raises(KVSharingError):
            add_kv_sharing_layers_to_kv_cache_groups(targets, groups, runner_only)
    assert (listed(groups), runner_only) == (["owner"], {"mine"})


def test_a_group_knows_who_shares() -> None:
    group = KVCacheGroupSpec(["a", "b", "c"], full(), kv_sharing_layers={"b": "a"})
    assert group.owning_layers == ("a", "c")
    assert group.spec_of("b") == group.spec_of("a") == full()
    assert hash(group) == hash(KVCacheGroupSpec(["a", "b", "c"], full()))
    assert group != KVCacheGroupSpec(["a", "b", "c"], full())
    for wrong in ({"ghost": "a"}, {"b": "ghost"}, {"b": "a", "c": "b"}, {"a": "a"}):
        with pytest.raises(InvalidConfigError, match="cannot share the cache of"):
            KVCacheGroupSpec(["a", "b", "c"], full(), kv_sharing_layers=wrong)


def test_a_composite_has_the_specs_of_owners() -> None:
    specs = {"a": full(), "b": full(num_kv_heads=4)}
    composite = get_uniform_type_specs(specs)
    assert composite is not None
    group = KVCacheGroupSpec(["a", "b", "c"], composite, kv_sharing_layers={"c": "b"})
    assert group.spec_of("c") == specs["b"]
    with pytest.raises(InvalidConfigError, match=r"layers \['a', 'b', 'c'\] has a composite spec of"):
        KVCacheGroupSpec(["a", "b", "c"], composite)
    with pytest.raises(InvalidConfigError, match="'d' is not in the group of a, b, c"):
        group.spec_of("d")


def test_who_shares_gets_no_memory_in_a_plan() -> None:
    groups = add_kv_sharing_layers_to_kv_cache_groups(
        {"b": "a", "d": "c"}, [KVCacheGroupSpec(["a"], full()), KVCacheGroupSpec(["c"], window())]
    )
    config = get_kv_cache_config_from_groups(groups, BLOCKS)
    assert [tensor.shared_by for tensor in config.kv_cache_tensors] == [("a", "c")]
    page = full().page_size_bytes
    tensors = [KVCacheTensor(BLOCKS * page, ["a", "c"]), KVCacheTensor(BLOCKS * page, ["b"])]
    with pytest.raises(InvalidConfigError, match="layers b have a tensor and no group"):
        KVCacheConfig(BLOCKS, tensors, groups)
    # The sharing layers may be the runner's own, as in vLLM, but need not be.
    assert KVCacheConfig(BLOCKS, tensors[:1], groups, ["b"]).runner_only_attn_layers == frozenset({"b"})


# -- memory


def shared_caches(targets: Targets, *specs: Any) -> KVCaches:
    """The caches of layer.0, layer.1 and so on, with the layers of `targets` that share them."""
    caches = allocate_kv_cache(config_of(*specs), "cpu")
    share_kv_caches(caches, targets)
    return caches


@pytest.mark.parametrize("specs", [(full(), full()), (full(), window()), (full(), full(num_kv_heads=4))])
def test_who_shares_has_the_very_cache(specs: Any) -> None:
    caches = shared_caches({"b": "a", "a": "layer.0", "c": "layer.1"}, *specs)
    assert caches.layers["a"] is caches.layers["b"] is caches.layers["layer.0"]
    assert caches.layers["c"] is caches.layers["layer.1"]
    assert caches.layers["layer.0"] is not caches.layers["layer.1"]
    alone = shared_caches({}, *specs)
    assert caches.num_bytes == alone.num_bytes == sum(buffer.numel() for buffer in caches.buffers)
    assert set(alone.layers) == {"layer.0", "layer.1"}


def test_refused_sharing_leaves_caches_as_they_were() -> None:
    caches = shared_caches({"a": "layer.0"}, full())
    before = dict(caches.layers)
    for targets in ({"b": "layer.0", "c": "ghost"}, {"b": "c", "c": "b"}, {"layer.0": "layer.0"}):
        with pytest.raises(KVSharingError):
            share_kv_caches(caches, targets)
    assert caches.layers == before


def test_all_of_a_model_is_set_up() -> None:
    targets = {"b": "a", "a": "layer.0", "c": "layer.1"}
    model = model_of(targets, "layer.0", "layer.1")
    caches = init_kv_cache(model, config_of(full(), window()), "cpu")
    groups = caches.placement.config.kv_cache_groups
    assert listed(list(groups)) == ["layer.0 b a", "layer.1 c"]
    for name, owner in {"layer.0": "layer.0", "a": "layer.0", "b": "layer.0", "c": "layer.1"}.items():
        assert model[name].kv_cache is caches.layers[owner]
    assert not hasattr(model["no attention"], "kv_cache")
    cache = model["layer.0"].kv_cache
    assert isinstance(cache, torch.Tensor)
    cache[1] = 5
    assert bool((model["b"].kv_cache[1] == 5).all())

    # The same again for a draft model, whose layer shares with a layer that itself shares.
    model["draft"] = layer("b")
    again = init_kv_cache(model, caches.placement.config, "cpu")
    assert model["draft"].kv_cache is again.layers["layer.0"]
    assert listed(list(again.placement.config.kv_cache_groups)) == ["layer.0 b a draft", "layer.1 c"]


def test_a_draft_model_is_given_caches_that_are_shared() -> None:
    model = model_of({"a": "layer.0"}, "layer.0")
    caches = init_kv_cache(model, config_of(full()), "cpu")
    share_kv_caches(caches, {"draft": "a"})
    assert caches.layers["draft"] is caches.layers["layer.0"]


@pytest.mark.parametrize(
    ("targets", "told"),
    [
        ({"a": "layer.0", "b": "b"}, "in a cycle of 1"),
        ({"a": "layer.0", "b": "ghost"}, "'b' shares the cache of 'ghost'"),
        ({"a": "layer.0", "b": "encoder"}, "'b' shares the cache of 'encoder', which has none"),
        ({"a": "layer.0", "b": "no attention"}, "'b' shares the cache of 'no attention'"),
    ],
)
def test_a_refused_model_is_left_alone(targets: Targets, told: str) -> None:
    encoder = EncoderOnlyAttentionSpec(block_size=4, num_kv_heads=2, head_size=3, dtype=torch.float16)
    plain = config_of(full())
    groups = [*plain.kv_cache_groups, KVCacheGroupSpec(["encoder"], encoder)]
    config = KVCacheConfig(BLOCKS, plain.kv_cache_tensors, groups, ["encoder"])
    model = model_of(targets, "layer.0", "encoder")
    with pytest.raises(KVSharingError, match=told):
        init_kv_cache(model, config, "cpu")
    assert not any(hasattr(each, "kv_cache") for each in model.values())
    model["b"].kv_sharing_target_layer_name = "a"
    caches = init_kv_cache(model, config, "cpu")
    assert [name for name, each in model.items() if hasattr(each, "kv_cache")] == ["layer.0", "a", "b"]
    assert model["b"].kv_cache is caches.layers["layer.0"]


@pytest.mark.parametrize("runner_only", [(), ("a",), ("a", "b")])
def test_who_shares_is_bound_whoever_else_knows_of_it(runner_only: tuple[str, ...]) -> None:
    """vLLM marks sharing layers as the runner's own. They must get their owner's cache all the same."""
    targets = {"a": "layer.0", "b": "a"}
    groups = add_kv_sharing_layers_to_kv_cache_groups(targets, config_of(full()).kv_cache_groups)
    plain = get_kv_cache_config_from_groups(groups, BLOCKS)
    config = KVCacheConfig(BLOCKS, plain.kv_cache_tensors, groups, runner_only)
    caches = allocate_kv_cache(config, "cpu")
    model = model_of(targets, "layer.0")
    with pytest.raises(InvalidConfigError, match="layers of groups have no cache: a, b"):
        bind_kv_cache(caches, model)
    share_kv_caches(caches, targets)
    del model["b"]
    with pytest.raises(InvalidConfigError, match="layers with a cache are not in the model: b"):
        bind_kv_cache(caches, model)
    assert not any(hasattr(each, "kv_cache") for each in model.values())
    model["b"] = layer("a")
    bind_kv_cache(caches, model)
    assert model["a"].kv_cache is model["b"].kv_cache is model["layer.0"].kv_cache


def test_a_cache_other_than_that_of_the_group_is_refused() -> None:
    plain = config_of(full(), full())
    [joined] = add_kv_sharing_layers_to_kv_cache_groups({"s": "layer.0"}, plain.kv_cache_groups)
    caches = allocate_kv_cache(replace(plain, kv_cache_groups=[joined]), "cpu")
    share_kv_caches(caches, {"s": "layer.0"})
    with pytest.raises(KVSharingError, match=r"'s' cannot share the cache of 'layer.1': .* of 'layer.0'"):
        share_kv_caches(caches, {"s": "layer.1"})
    assert caches.layers["s"] is caches.layers["layer.0"]
