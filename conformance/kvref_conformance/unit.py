"""One unit of work: explore a workload for one subject, judge it by its laws, reduce what broke.

The first pass makes all examples and lets every law look at each of them, so that no failure hides
another. Then each law and facet found broken, and not known, is searched again from the same seed with
that one as the only judge, and Hypothesis reduces the example. What broke in driven examples alone is
reduced by the driver.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from hypothesis.errors import Flaky, HypothesisException

from kvref.target import Target
from kvref_conformance.channel import Channel, Message
from kvref_conformance.driver import Driver, Example
from kvref_conformance.explorer import Explorer
from kvref_conformance.laws import LAWS, Law, LawBroken
from kvref_conformance.stage import Died, IsolatedStage, Journal, LocalStage, Stage
from kvref_strategies.catalogue import WORKLOADS

MAX_FACETS = 6
"""Facets of one law that are reduced for one subject; further ones are named only."""

PROGRESS_SECONDS = 0.2

LONGEST_TEXT = 4000
"""Characters kept of what a law expected and observed: an answer in it may be huge."""


class _Found(Exception):
    """The law under reduction broke in the way under reduction."""


class _Stop(BaseException):
    """Ends an exploration from within an example."""


class Heartbeat:
    """Tells now and then that the unit goes on, and how many examples there were."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._last = time.monotonic()

    def __call__(self, examples: int | None = None) -> None:
        if time.monotonic() - self._last > PROGRESS_SECONDS:
            self._last = time.monotonic()
            self._channel.send({"progress": examples})


def run_unit(target: Target, request: Message, channel: Channel) -> None:
    """Serve one unit: progress on the channel while it runs, then its findings."""
    workload = WORKLOADS[request["workload"]]
    laws = [LAWS[name] for name in request["laws"]]

    def new_stage() -> Stage:
        if workload.isolated:
            return IsolatedStage(request["hosts"], request["timeout"], journal)
        return LocalStage(target, journal)

    journal = Journal(Path(request["journal"]))
    heartbeat = Heartbeat(channel)
    explorer = Explorer(workload, request, new_stage)
    findings = _collect(explorer, laws, heartbeat)
    driver = Driver(target, workload, request, journal)
    driven = _drive(driver, explorer.setups(request["driven"]), laws, findings, heartbeat)
    for law in laws:
        found = findings["laws"][law.id]
        accepted = request["accepted"].get(law.id, ())
        drawn = found.pop("facets")
        facets = sorted(drawn.union(driven[law.id]) - set(request["known"].get(law.id, ())))
        facets.sort(key=lambda facet: facet in accepted)
        found["broken"] = [
            _reduce(explorer, law, facet, heartbeat)
            if facet in drawn
            else _reduce_driven(driver, driven[law.id][facet], law, facet, heartbeat)
            for facet in facets[:MAX_FACETS]
        ]
        found["unreduced"] = facets[MAX_FACETS:]
    channel.send({"findings": findings})


def _collect(explorer: Explorer, laws: list[Law], heartbeat: Heartbeat) -> dict[str, Any]:
    """Every example, judged by every law."""
    per_law: dict[str, dict[str, Any]] = {law.id: {"examples": 0, "facets": set()} for law in laws}
    findings: dict[str, Any] = {"laws": per_law, "examples": 0, "steps": 0, "died": None}
    started = time.monotonic()

    def judge(stage: Stage) -> None:
        findings["examples"] += 1
        findings["steps"] += stage.steps
        for law in laws:
            per_law[law.id]["facets"].update(_judge(law, stage, per_law))
        if died := stage.died:
            findings["died"] = {"how": died, "trace": stage.trace()}
            raise _Stop
        heartbeat(findings["examples"])

    try:
        explorer.explore(judge, reduce=False)
    except _Stop:
        pass
    return {**findings, "seconds": time.monotonic() - started}


def _judge(law: Law, stage: Stage, per_law: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    """The ways in which the example breaks the law; it counts if it gave the law anything to judge."""
    try:
        per_law[law.id]["examples"] += law.check(stage.runs) > 0
    except LawBroken as broken:
        per_law[law.id]["examples"] += 1
        return broken.facets
    return ()


def _drive(
    driver: Driver,
    setups: list[dict[str, Any]],
    laws: list[Law],
    findings: dict[str, Any],
    heartbeat: Heartbeat,
) -> dict[str, dict[str, Example]]:
    """An example that goes on from each setup, judged by every law: those that broke it, by law and facet."""
    broken: dict[str, dict[str, Example]] = {law.id: {} for law in laws}
    findings |= {"driven_steps": 0, "driven_seconds": 0.0}
    started = time.monotonic()
    for example in driver.examples(setups):
        if findings["died"]:
            break
        stage = driver.perform_swiftly(example)
        findings["examples"] += 1
        findings["driven_steps"] += stage.steps
        for law in laws:
            for facet in _judge(law, stage, findings["laws"]):
                broken[law.id].setdefault(facet, example)
        if died := stage.died:
            findings["died"] = {"how": died, "trace": stage.trace()}
        heartbeat(findings["examples"])
    if setups:
        findings["driven_seconds"] = time.monotonic() - started
    return broken


def _short(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]}... ({len(text)} characters)"


def _shown(law: Law, stage: Stage, facet: str) -> dict[str, Any] | None:
    """How the example breaks the law in this way, if it does."""
    try:
        law.check(stage.runs)
    except LawBroken as broken:
        if facet in broken.facets:
            return {
                "facet": facet,
                "expected": _short(broken.expected),
                "observed": _short(broken.observed),
                "trace": stage.trace(),
            }
    return None


def _reduce(explorer: Explorer, law: Law, facet: str, heartbeat: Heartbeat) -> dict[str, Any]:
    """The smallest example found in which the law breaks in this way."""
    smallest: dict[str, Any] = {"facet": facet}

    def judge(stage: Stage) -> None:
        heartbeat()
        if shown := _shown(law, stage, facet):
            smallest.update(shown)
            raise _Found(facet)

    try:
        explorer.explore(judge, reduce=True)
    except (_Found, Died):  # a state machine lets `Died` through
        pass
    except (Flaky, HypothesisException) as error:
        smallest["unstable"] = f"{type(error).__name__}: the target answers differently when asked again"
    return smallest


def _reduce_driven(
    driver: Driver, example: Example, law: Law, facet: str, heartbeat: Heartbeat
) -> dict[str, Any]:
    """The smallest example like this one in which the law breaks in this way."""
    smallest: dict[str, Any] = {"facet": facet}

    def breaks(stage: Stage) -> bool:
        heartbeat()
        shown = _shown(law, stage, facet)
        smallest.update(shown or {})
        return shown is not None

    driver.reduce(example, breaks)
    return smallest
