"""The mini-scheduler on the reference: no call fails, and the search in `following` finds its calls again."""

import copy
import random
from typing import Any

import pytest
from following import Call, follow, news

from kvref.target import CacheGroup, Outcome, perform
from kvref_conformance.targets.reference.target import ReferenceTarget
from kvref_strategies.engine import CHOICES, Engine, Setup

OPERATIONS = ["add", "allocate", "cache_blocks", "evict", "free", "lookup", "progress", "reset"]
PER_STEP = ["new_step", "take_copies", "take_events", "take_new_block_ids"]


class Kept:
    """A stage that performs the operations on the reference and records the calls."""

    def __init__(self) -> None:
        self.target = ReferenceTarget()
        self.calls: list[Call] = []

    def fresh(self, *flags: str) -> None:
        raise NotImplementedError

    def perform(self, operation: str, /, **arguments: Any) -> Outcome:
        told = copy.deepcopy(arguments)
        outcome = copy.deepcopy(perform(self.target, operation, arguments))
        assert "value" in outcome, (operation, arguments, outcome)
        name = operation.removeprefix("cache.")
        if name != "create":
            self.calls.append({"op": name, "args": told, "value": outcome["value"]})
        return outcome


def group(name: str, **fields: Any) -> CacheGroup:
    heads = {} if name == "MambaSpec" else {"num_kv_heads": 1, "head_size": 8, "dtype": "torch.float16"}
    state = {"shapes": [[8]], "dtypes": ["torch.float16"]} if name == "MambaSpec" else {}
    fields = {"block_size": 4, **heads, **state, **fields}
    return {"spec": {"class": name, "fields": fields}, "eagle": False, "kind": name}


FULL = group("FullAttentionSpec")
WINDOW = group("SlidingWindowSpec", sliding_window=6)
SIZES: dict[str, Any] = {
    "num_blocks": 8,
    "scheduler_block_size": 4,
    "hash_block_size": 4,
    "max_model_len": 24,
    "max_num_batched_tokens": 8,
}
SETUPS = {
    "drafts": Setup([FULL], drafts=2, priority=True, **SIZES),
    "asynchronous": Setup([FULL, WINDOW], drafts=1, max_batches=2, is_async=True, **SIZES),
    "pipeline": Setup([WINDOW], max_batches=2, whole=True, **SIZES),
    "states": Setup([FULL, group("MambaSpec", mamba_cache_mode="align")], align=4, **SIZES),
    "loads": Setup([FULL], loads=True, **SIZES),
    "loads of groups": Setup([FULL, WINDOW], loads=True, drops=True, max_batches=2, **SIZES),
}


def driven(setup: Setup, seed: int) -> tuple[Engine, list[Call]]:
    numbers, stage = random.Random(seed), Kept()
    offered = [f"cache.{name}" for name in (*OPERATIONS, *PER_STEP)]
    engine = Engine(stage, setup, offered)
    for _ in range(100):
        engine.go_on(numbers.randrange(CHOICES))
    return engine, stage.calls


@pytest.mark.parametrize("name", SETUPS)
def test_the_reference_refuses_nothing_that_it_asks(name: str) -> None:
    calls = [call for seed in range(20) for call in driven(SETUPS[name], seed)[1]]
    asked = {call["op"] for call in calls}
    assert asked >= {"add", "allocate", "free", "lookup", "progress", "reset", *PER_STEP}
    assert ("cache_blocks" in asked) == (SETUPS[name].is_async or SETUPS[name].loads)
    assert any(call["op"] == "allocate" and call["value"]["added"] is None for call in calls)


@pytest.mark.parametrize("name", ["asynchronous", "pipeline", "states"])
def test_what_it_asked_it_can_ask(name: str) -> None:
    """Without the call that starts a step, the search finds no way past that point."""
    engine, calls = driven(SETUPS[name], 1)
    told = news(calls)[:80]
    assert follow(SETUPS[name], engine.shape, told) == (80, 80)
    place = [call["op"] for call in told].index("new_step")
    fewer = [*told[:place], *told[place + 1 :]]
    assert follow(SETUPS[name], engine.shape, fewer)[0] == place
