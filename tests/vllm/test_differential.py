"""The reference does what stock vLLM 0.32.0 does, except for the differences in docs/differences.toml.

These tests run by name. KVREF_VLLM_PYTHON names the interpreter of an environment with vLLM (`tox -e vllm`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import differences
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st
from listed import CACHE, PLANS, listed
from lockstep import Deviation, Lockstep, Parted, Perform, Plans
from running import PYTHON

from kvref_conformance.processes.answers import answer
from kvref_conformance.processes.launch import Launch, running_hosts
from kvref_conformance.processes.session import Session
from kvref_conformance.targets.reference.target import ReferenceTarget
from kvref_strategies import caches, models
from kvref_strategies.engine import CHOICES, Engine
from kvref_strategies.workload import Description

DOCUMENT = differences.load()
EXAMPLES = {"MambaSpec": 200, "ChunkedLocalAttentionSpec": 60}
"""How many examples each spec class gets, if not `FEWEST`. Rare differences need more."""

FEWEST = 25
STEPS = 60
"""How many decisions of the engine an example has. Each takes a few operations."""

PLANNED = {"latent attention with a draft": 60}
FEWEST_PLANNED = 20
"""How many examples each family of models gets that `PLANNED` does not list."""


@dataclass
class Seen:
    """How many answers were compared, and which deviations were found."""

    compared: int = 0
    known: Counter[str] = field(default_factory=Counter)
    unlisted: list[tuple[Deviation, list[Any]]] = field(default_factory=list)

    def note(self, stage: Lockstep | Plans) -> None:
        self.compared += stage.compared.total()
        for deviation in stage.deviations:
            name = listed(deviation)
            if name is None:
                self.unlisted.append((deviation, getattr(stage, "events", [])))
            else:
                self.known[name] += 1

    def shortest(self) -> str:
        """The unlisted deviation with the fewest operations, as a message."""
        deviation, events = min(self.unlisted, key=lambda each: len(each[1]))
        lines = [f"{operation} {arguments}" for operation, arguments in events if operation != "cache.state"]
        return "\n".join([f"{len(self.unlisted)} unlisted, such as", *lines, str(deviation)])


@dataclass(frozen=True)
class Target:
    """A target in a process of its own."""

    perform: Perform
    description: Description

    @property
    def classes(self) -> set[str]:
        return {info["name"] for info in self.description["classes"]}


@contextmanager
def loaded(worker: Launch) -> Iterator[Target]:
    with running_hosts(worker, [""]) as hosts, Session(hosts[""].address, worker.timeout) as session:
        yield Target(session.perform, hosts[""].ask({"kind": "describe"})["description"])


@pytest.fixture(scope="module")
def vllm() -> Iterator[Target]:
    with loaded(Launch("vllm", PYTHON)) as target:
        yield target


@pytest.fixture(scope="module")
def reference() -> Iterator[Target]:
    with loaded(Launch("reference")) as target:
        yield target


@pytest.fixture(scope="module")
def reference_here(reference: Target) -> Target:
    """The reference in the test's own process, where it answers sooner. For caches only.

    Operations of a cache change nothing else in the process.
    """
    here = ReferenceTarget()
    return replace(reference, perform=lambda operation, arguments: answer(here, operation, arguments))


def drawn(examples: int, example: Callable[[st.DataObject], None]) -> None:
    """Run the given number of examples, the same ones each time."""
    every = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    seed(1)(every(given(st.data())(example)))()


def compare_caches(ours: Target, theirs: Target, subject: str, examples: int) -> Seen:
    seen = Seen()
    modes = theirs.description["capabilities"]["mamba_cache_modes"]
    capabilities = {**ours.description["capabilities"], "mamba_cache_modes": modes}
    description: Description = {**ours.description, "capabilities": capabilities}

    def example(data: st.DataObject) -> None:
        ahead, tight = data.draw(st.booleans()), data.draw(st.booleans())
        setup = caches.setups(data.draw, description, subject, reads_ahead=ahead)
        if tight:
            # With little room and many loads, differences in counting show.
            loads = setup.max_encoder_tokens == 0
            setup = replace(setup, num_blocks=min(setup.num_blocks, 12), whole=True, loads=loads)
        choices = random.Random(data.draw(st.integers(0, CHOICES)))
        stage = Lockstep(ours.perform, theirs.perform, setup)
        try:
            engine = Engine(stage, setup, description["parts"])
            for _ in range(STEPS):
                engine.go_on(choices.randrange(CHOICES))
        except Parted:
            pass
        seen.note(stage)

    drawn(examples, example)
    return seen


def compare_plans(ours: Target, theirs: Target, family: str) -> Seen:
    seen = Seen()

    def example(data: st.DataObject) -> None:
        stage = Plans(ours.perform, theirs.perform)
        models.plans(data.draw, stage, ours.description, family)
        seen.note(stage)

    drawn(PLANNED.get(family, FEWEST_PLANNED), example)
    return seen


@pytest.fixture(scope="module")
def seen_of_caches(reference_here: Target, vllm: Target) -> dict[str, Seen]:
    """What was compared for each spec class that a cache can have."""
    known = caches.cache_subjects(reference_here.description).items()
    subjects = [name for name, reason in known if reason is None and name in vllm.classes]
    return {
        subject: compare_caches(reference_here, vllm, subject, EXAMPLES.get(subject, FEWEST))
        for subject in subjects
    }


@pytest.fixture(scope="module")
def seen_of_plans(reference: Target, vllm: Target) -> dict[str, Seen]:
    return {family: compare_plans(reference, vllm, family) for family in models.FAMILIES}


def seen_where(where: str) -> set[str]:
    return {each["id"] for each in DOCUMENT["difference"] if each.get("seen") == where}


def test_each_difference_that_can_be_seen_is_told_from_the_others() -> None:
    assert seen_where("cache") == {*CACHE}
    assert seen_where("plans") == {*PLANS}


def test_the_classes_are_the_same(reference: Target, vllm: Target) -> None:
    assert reference.classes - vllm.classes == {"TQFullAttentionSpec", "PaddedKVCacheSpec"}
    assert vllm.classes - reference.classes == {
        "RSWASpec",
        "CircularBufferSpec",
        "HiSparseHotSpec",
        "HiSparseResidentSpec",
    }


def test_caches_differ_as_listed_alone(seen_of_caches: dict[str, Seen]) -> None:
    assert [seen.shortest() for seen in seen_of_caches.values() if seen.unlisted] == []


def test_every_listed_difference_of_caches_is_there(seen_of_caches: dict[str, Seen]) -> None:
    assert {*CACHE} - {name for seen in seen_of_caches.values() for name in seen.known} == set()


def test_much_is_compared(seen_of_caches: dict[str, Seen]) -> None:
    """Thousands of operations for each class, except for a cache that vLLM cannot make.

    That one fails in the first operation of each example.
    """
    assert len(seen_of_caches) == 9
    few = {subject for subject, seen in seen_of_caches.items() if seen.compared < 3000}
    assert few == {"SinkFullAttentionSpec"}


def test_plans_differ_as_listed_alone(seen_of_plans: dict[str, Seen]) -> None:
    assert [seen.shortest() for seen in seen_of_plans.values() if seen.unlisted] == []
    assert {*PLANS} - {name for seen in seen_of_plans.values() for name in seen.known} == set()
    assert min(seen.compared for seen in seen_of_plans.values()) >= 2 * FEWEST_PLANNED


@pytest.mark.parametrize(
    ("fault", "subject"),
    [
        ("manager:window_freed_one_block_early", "SlidingWindowSpec"),
        ("coordinator:last_full_block_gets_no_key", "FullAttentionSpec"),
        ("manager:found_blocks_counted_twice", "FullAttentionSpec"),
    ],
)
def test_a_faulty_cache_is_found(vllm: Target, fault: str, subject: str) -> None:
    with loaded(Launch(f"kvref_conformance.targets.faults.{fault}")) as faulty:
        assert compare_caches(faulty, vllm, subject, FEWEST).unlisted


def test_a_faulty_plan_is_found(vllm: Target) -> None:
    with loaded(Launch("kvref_conformance.targets.faults.plan:incomplete_groups_left_out")) as faulty:
        assert compare_plans(faulty, vllm, "windows").unlisted
