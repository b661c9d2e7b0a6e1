"""The examples contain everything important that engines do, and kvref counts it correctly.

Otherwise the laws about whole runs of an engine could hold only because nothing happens.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kvref_conformance.processes.host import describe
from kvref_conformance.running.dispatch import seed_of
from kvref_conformance.running.exploring.behaviours import BEHAVIOURS, GROUPS, behaviours_of
from kvref_conformance.running.exploring.driver import Driver
from kvref_conformance.running.exploring.explorer import Explorer
from kvref_conformance.running.exploring.stage import Journal, Stage
from kvref_conformance.targets.reference.target import ReferenceTarget
from kvref_strategies.caches import KINDS
from kvref_strategies.catalogue import WORKLOADS

NOT_IN_THE_REFERENCE = {"hits within a block", "junctions", "copies"}
"""The reference shares only whole blocks, as its capabilities say. Sharing parts of a block needs copies."""

RARE = {"drafts accepted in part": 5, "blocks evicted on demand": 5}
OFTEN = 20


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """What the driven examples of a check at quick depth do, counted for all subjects together."""
    target, workload = ReferenceTarget(), WORKLOADS["shadow.machine"]
    journal = Journal(tmp_path_factory.mktemp("journal") / "journal")
    description = {**describe(target), "device": "cpu"}
    assert workload.driven is not None
    total: Counter[str] = Counter()
    for subject, reason in workload.subjects(description).items():
        if reason is None:
            seed = seed_of(0, workload.name, subject)
            asked = {"description": description, "subject": subject, "seed": seed, "examples": 1}
            driver = Driver(target, workload, asked, journal)
            setups = Explorer(workload, asked, Stage).setups(workload.driven.examples["quick"])
            for example in driver.examples(setups):
                total.update(behaviours_of(driver.perform_swiftly(example).runs[0]))
    return total


@pytest.mark.parametrize("behaviour", [*BEHAVIOURS, *(f"{GROUPS}{kind}" for kind in KINDS)])
def test_every_behaviour_is_generated(counted: Counter[str], behaviour: str) -> None:
    if behaviour in NOT_IN_THE_REFERENCE:
        assert not counted[behaviour], "it is there now: it has to be generated, too"
    else:
        assert counted[behaviour] >= RARE.get(behaviour, OFTEN)


def test_nothing_else_is_counted(counted: Counter[str]) -> None:
    assert {name for name in counted if not name.startswith(GROUPS)} <= {*BEHAVIOURS}


# -- what is counted ----------------------------------------------------------------------------------------

CREATE = {
    "op": "cache.create",
    "args": {
        "groups": [{"spec": {"class": "FullAttentionSpec", "fields": {}}, "eagle": False}],
        "scheduler_block_size": 4,
        "enable_caching": True,
    },
    "outcome": {"value": {"null": 0}},
}


def event(operation: str, value: Any = None, **arguments: Any) -> dict[str, Any]:
    return {"op": f"cache.{operation}", "args": {"request": "r1", **arguments}, "outcome": {"value": value}}


def add(tokens: int = 8, salt: str | None = None) -> dict[str, Any]:
    return event("add", tokens=[0] * tokens, salt=salt)


def allocate(hit: int = 0, added: Any = (), **arguments: Any) -> dict[str, Any]:
    return event("allocate", {"added": added}, hit={"tokens": hit}, **arguments)


def progress(computed: int, in_flight: int, *output: int) -> dict[str, Any]:
    return event("progress", computed=computed, in_flight=in_flight, output=[*output])


def new(*events: dict[str, Any]) -> dict[str, int]:
    """What the events add to the counts of a cache with one admitted request."""
    counted = behaviours_of([CREATE, *events])
    usual = ("caches", "requests", "admissions", f"{GROUPS}FullAttentionSpec")
    return {name: count for name, count in counted.items() if count and name not in usual}


RUN = [add(), allocate(), progress(0, 0), progress(8, 8)]
DRAFTED = [*RUN, progress(8, 0, 1), progress(11, 3)]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (RUN, {}),
        ([add(), allocate(hit=4)], {"hits": 1}),
        ([add(salt="s"), allocate(hit=6)], {
            "requests with a salt": 1, "hits": 1, "hits with a salt": 1, "hits within a block": 1,
        }),
        ([add(), allocate(added=None)], {"refused allocations": 1}),
        ([add(), allocate(), progress(5, 5)], {"chunks of prefills": 1}),
        ([add(), allocate(external=4)], {"loads in the step": 1}),
        ([add(), allocate(external=4, delay=True), progress(4, 0), progress(0, 0)], {
            "loads aside": 1, "loads that failed": 1,
        }),
        ([*RUN, event("free")], {}),
        ([*RUN, event("free"), event("reset", False)], {"requests ended in flight": 1, "resets refused": 1}),
        ([*RUN, event("free"), progress(0, 8), progress(0, 0, 1), allocate()], {
            "preemptions": 1, "resumed requests": 1,
        }),
        # The output of the first step has not come back when the request is scheduled again.
        ([*RUN, progress(9, 9)], {"asynchronous steps": 1}),
        ([*DRAFTED, progress(9, 0, 1)], {"steps with drafts": 1, "drafts all rejected": 1}),
        ([*DRAFTED, progress(10, 0, 1, 1)], {"steps with drafts": 1, "drafts accepted in part": 1}),
        ([*DRAFTED, progress(11, 0, 1, 1, 1)], {"steps with drafts": 1, "drafts all accepted": 1}),
        ([add(), event("block_ids", [[1, 2]]), event("block_ids", [[0, 2, 3]])], {
            "blocks given back by a window": 1,
        }),
        ([event("take_events", [{"what": "removed", "hashes": ["a", "b"]}])], {"evicted keys": 2}),
        ([event("take_copies", [{"source": 1, "destination": 2}])], {"copies": 1}),
        ([event("evict", blocks=[1, 2])], {"blocks evicted on demand": 2}),
    ],
)  # fmt: skip
def test_what_is_counted(events: list[dict[str, Any]], expected: dict[str, int]) -> None:
    assert new(*events) == expected


def test_nothing_is_counted_behind_a_failure_nor_of_other_parts() -> None:
    failed = {**add(), "outcome": {"error": {}}}
    assert behaviours_of([failed, CREATE]) == {}
    assert behaviours_of([{"op": "pool.reset", "args": {}, "outcome": {"value": True}}]) == {}
