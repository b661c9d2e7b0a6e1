"""Trials: which laws catch a wrong target, and how soon."""

from __future__ import annotations

from typing import Any

import pytest

from kvref_conformance.processes.launch import Launch
from kvref_conformance.running.dispatch import Unit
from kvref_conformance.running.loading import loaded
from kvref_conformance.running.progress import Silence
from kvref_conformance.running.time_to_find import Trial, try_on

MERGE = "kvref_conformance.targets.faults.spec:alignment_lost_in_merge"
DEADLY = "kvref_conformance.targets.faults.target:merge_ends_the_process"


def of_merging(units: list[Unit]) -> list[Unit]:
    return [unit for unit in units if unit.workload.name == "specs.merge-equal"]


def tried(name: str, *laws: str, **how: Any) -> Trial:
    with loaded(Launch(name), laws, Silence()) as target:
        return try_on(target, laws, chosen=of_merging, **how)


def test_what_breaks_is_told_with_what_it_took() -> None:
    trial = tried(MERGE, "spec.merge-identity", "spec.merge-keeps-class")
    assert set(trial.catches) == {"spec.merge-identity"}
    catch = trial.catches["spec.merge-identity"]
    assert 0 < catch.examples < trial.examples
    assert 0 < catch.seconds < trial.seconds
    assert trial.open == []


def test_it_ends_with_the_law_that_it_goes_on_until() -> None:
    laws = ("spec.merge-identity", "spec.merge-keeps-class")
    whole, short = tried(MERGE, *laws), tried(MERGE, *laws, until=laws)
    assert short.catches["spec.merge-identity"].examples == whole.catches["spec.merge-identity"].examples
    assert short.examples == short.catches["spec.merge-identity"].examples < whole.examples
    assert tried(MERGE, *laws, until=laws[1:]).examples == whole.examples


def test_nothing_is_caught_where_nothing_is_wrong() -> None:
    trial = tried("reference", "spec.merge-identity")
    assert trial.catches == {}
    assert trial.examples > 0


def test_a_death_is_caught_as_what_it_is() -> None:
    trial = tried(DEADLY, "spec.merge-identity", "target.answers", until=("target.answers",))
    assert set(trial.catches) == {"target.answers"}


@pytest.mark.parametrize("after", [0, 1])
def test_it_can_be_stopped(after: int) -> None:
    asked = []

    def stop() -> bool:
        asked.append(None)
        return len(asked) > after

    trial = tried("reference", "spec.merge-identity", stop=stop)
    assert trial.examples == 0
    assert [line.endswith(": cut") for line in trial.open] == [True] * after
