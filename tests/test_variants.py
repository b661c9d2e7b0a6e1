"""The two halves of the reference behave the same. If the fast half has a mistake, the laws notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import TARGETS
from targets import mutated_fast

from kvref_conformance.laws import LawBroken
from kvref_conformance.laws.variants import variants_agree
from kvref_conformance.processes.launch import Launch
from kvref_conformance.running.loading import loaded
from kvref_conformance.running.progress import Silence
from kvref_conformance.running.time_to_find import try_on
from kvref_conformance.targets import UnknownTarget, check_name, load_target, operations_module

POOL = "pool.variants-agree"
CACHE = "manager.variants-agree"

MUTATIONS = {
    "touched_block_keeps_its_turn": POOL,
    "key_kept_after_eviction": POOL,
    "removal_without_event": CACHE,
    "single_block_has_two_references": POOL,
    "freed_in_reverse": POOL,
    "freed_too_often_unnoticed": POOL,
    "evicted_block_at_the_end": POOL,
    "copy_lost_with_the_first": POOL,
    "settled_a_token_too_long": CACHE,
    "settled_although_a_block_gets_free": CACHE,
}
"""Mistakes in the fast half, each with the law that finds it in a quick check."""


def test_each_mutation_is_tried() -> None:
    own = [
        made
        for made in vars(mutated_fast).values()
        if getattr(made, "__module__", "") == "targets.mutated_fast"
    ]
    assert {made.__name__ for made in own if not made.__name__.startswith("_")} == set(MUTATIONS)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_of_the_fast_half_is_found(mutation: str) -> None:
    law = MUTATIONS[mutation]
    with loaded(Launch(f"mutated_fast:{mutation}", paths=(str(TARGETS),)), (law,), Silence()) as target:
        trial = try_on(target, (law,), until=(law,))
    assert set(trial.catches) == {law}


def event(op: str, value: Any, **arguments: Any) -> dict[str, Any]:
    return {"op": op, "args": arguments, "outcome": {"value": value}}


def refused(op: str, kind: str, **arguments: Any) -> dict[str, Any]:
    return {"op": op, "args": arguments, "outcome": {"error": {"type": kind, "message": f"said by {kind}"}}}


def created(variant: str) -> dict[str, Any]:
    return event("pool.create", {"null": 0}, num_blocks=3, variant=variant)


def facet(*events: dict[str, Any]) -> str:
    with pytest.raises(LawBroken) as broken:
        variants_agree([list(events)])
    [found] = broken.value.facets
    return found


def test_equal_answers() -> None:
    plain = [
        created("a"),
        event("pool.touch", None, blocks=[1]),
        refused("pool.free", "BlockError", blocks=[2]),
    ]
    fast = [created("b"), *plain[1:]]
    assert variants_agree([plain + fast]) == 3
    assert variants_agree([plain + fast + [created("c"), *plain[1:]]]) == 6


def test_what_is_not_two_variants_is_not_judged() -> None:
    assert variants_agree([[]]) == 0
    assert variants_agree([[created("a"), event("pool.usage", 0.5)]]) == 0
    assert variants_agree([[event("pool.create", {}, num_blocks=3), event("pool.usage", 0.5)]]) == 0
    # A different operation gives nothing to compare.
    events = [created("a"), event("pool.usage", 0.5), created("b"), event("pool.reset", True)]
    assert variants_agree([events]) == 1


def test_what_differs() -> None:
    for one, other, name in (
        (event("pool.usage", 0.5), event("pool.usage", 0.6), "usage"),
        (event("pool.touch", None, blocks=[1]), refused("pool.touch", "BlockError", blocks=[1]), "touch"),
        (refused("pool.reset", "BlockError"), refused("pool.reset", "KeyError"), "reset"),
    ):
        assert facet(created("a"), one, created("b"), other) == name


def test_a_state_differs_by_what_was_done_before() -> None:
    done = event("pool.free", None, blocks=[1])
    states = [event("pool.state", {"free": free, "refs": [0]}) for free in ([1, 2], [2, 1])]
    with pytest.raises(LawBroken) as broken:
        variants_agree([[created("a"), done, states[0], created("b"), done, states[1]]])
    assert broken.value.facets == ("free",)
    assert "free [1, 2]" in broken.value.expected
    assert broken.value.observed == "free [2, 1]"


def test_errors_may_say_it_in_other_words() -> None:
    other = refused("pool.free", "BlockError", blocks=[2])
    other["outcome"]["error"]["message"] = "no"
    same = [created("a"), refused("pool.free", "BlockError", blocks=[2]), created("b"), other]
    assert variants_agree([same]) == 2


@pytest.mark.parametrize("half", ["plain", "fast"])
def test_halves_are_targets(half: str) -> None:
    name = f"reference:{half}"
    check_name(name)
    target = load_target(name)
    assert target.name == name
    assert operations_module(name, "specs") == "kvref_conformance.targets.reference.specs"
    own = "reference.fast" if half == "fast" else "reference"
    assert operations_module(name, "pool") == f"kvref_conformance.targets.{own}.pool"
    for part in ("pool", "cache", "canonical", "connector"):
        assert getattr(target, part).__name__ == operations_module(name, part)


def test_there_are_no_other_halves() -> None:
    with pytest.raises(UnknownTarget, match="reference:fast"):
        check_name("reference:other")


def test_the_fast_half_keeps_the_laws_of_the_pool(kvref: Any, tmp_path: Path) -> None:
    _, report = kvref.report("reference:fast", "--laws", "pool.*", "--laws", "canonical.round-trip")
    assert report["verdict"] == "conformant"
    assert {row["status"] for row in report["laws"]} == {"holds"}
