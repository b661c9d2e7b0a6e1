"""One unit of work: explore a workload for one subject, judge it by its laws, reduce what broke.

The first pass makes all examples and lets every law look at each of them, so that no failure hides
another. Then each law and facet found broken, and not known, is searched again from the same seed with
that one as the only judge, and Hypothesis reduces the example.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.errors import Flaky, HypothesisException
from hypothesis.reporting import with_reporter
from hypothesis.stateful import run_state_machine_as_test

from kvref.target import Target
from kvref_conformance.channel import Channel, Message
from kvref_conformance.laws import LAWS, Law, LawBroken
from kvref_conformance.stage import Died, IsolatedStage, Journal, LocalStage, Stage
from kvref_strategies.catalogue import WORKLOADS
from kvref_strategies.workload import Machine, Workload

MAX_FACETS = 6
"""Facets of one law that are reduced for one subject; further ones are named only."""

STEPS_PER_EXAMPLE = 20
"""Rules a state machine runs in one example."""

PROGRESS_SECONDS = 0.2

_SUPPRESSED = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
)
"""The time an example takes is the target's, and a law that drew nothing is told as such."""

LONGEST_TEXT = 4000
"""Characters kept of what a law expected and observed: an answer in it may be huge."""


class _Found(Exception):
    """The law under reduction broke in the way under reduction."""


class _Stop(BaseException):
    """Ends an exploration from within an example."""


class Explorer:
    """Makes the examples of one workload for one subject, from one seed."""

    def __init__(self, workload: Workload, request: Message, new_stage: Callable[[], Stage]) -> None:
        self._workload = workload
        self._description = request["description"]
        self._subject: str = request["subject"]
        self._seed: int = request["seed"]
        self._examples: int = request["examples"]
        self._new_stage = new_stage

    def explore(self, judge: Callable[[Stage], None], *, reduce: bool) -> None:
        """Make every example and hand it to `judge`; with `reduce`, shrink the first it objects to."""
        phases = (Phase.generate, Phase.shrink) if reduce else (Phase.generate,)
        settings = hypothesis.settings(
            max_examples=self._examples,
            phases=phases,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            print_blob=False,
            stateful_step_count=STEPS_PER_EXAMPLE,
            suppress_health_check=_SUPPRESSED,
        )
        examples = self._workload.examples
        with with_reporter(lambda _: None):
            if isinstance(examples, type):
                self._run_machine(examples, settings, judge)
            else:

                @hypothesis.seed(self._seed)
                @settings
                @hypothesis.given(data=st.data())
                def example(data: st.DataObject) -> None:
                    stage = self._new_stage()
                    try:
                        examples(data.draw, stage, self._description, self._subject)
                    except Died:
                        pass
                    finally:
                        stage.close()
                    judge(stage)

                example()

    def _run_machine(
        self, machine: type[Machine], settings: hypothesis.settings, judge: Callable[[Stage], None]
    ) -> None:
        new_stage, description, subject = self._new_stage, self._description, self._subject

        class Judged(machine):  # type: ignore[misc, valid-type]
            def __init__(self) -> None:
                self.recorded = new_stage()
                super().__init__(self.recorded, description, subject)

            def teardown(self) -> None:
                self.recorded.close()
                # Hypothesis gives an example up by raising; there is nothing to judge then.
                if sys.exception() is None or isinstance(sys.exception(), Died):
                    judge(self.recorded)

        Judged.__name__ = machine.__name__
        hypothesis.seed(self._seed)(Judged)
        run_state_machine_as_test(Judged, settings=settings)


def run_unit(target: Target, request: Message, channel: Channel) -> None:
    """Serve one unit: progress on the channel while it runs, then its findings."""
    workload = WORKLOADS[request["workload"]]
    laws = [LAWS[name] for name in request["laws"]]

    def new_stage() -> Stage:
        if workload.isolated:
            return IsolatedStage(request["hosts"], request["timeout"], journal)
        return LocalStage(target, journal)

    journal = Journal(Path(request["journal"]))
    # Hypothesis keeps notes; the folder that the user happens to be in is no place for them.
    set_hypothesis_home_dir(Path(request["journal"]).with_name("hypothesis"))
    explorer = Explorer(workload, request, new_stage)
    findings = _collect(explorer, laws, channel)
    for law in laws:
        found = findings["laws"][law.id]
        accepted = request["accepted"].get(law.id, ())
        facets = sorted(found.pop("facets") - set(request["known"].get(law.id, ())))
        facets.sort(key=lambda facet: facet in accepted)
        found["broken"] = [_reduce(explorer, law, facet, channel) for facet in facets[:MAX_FACETS]]
        found["unreduced"] = facets[MAX_FACETS:]
    channel.send({"findings": findings})


def _collect(explorer: Explorer, laws: list[Law], channel: Channel) -> dict[str, Any]:
    """Every example, judged by every law."""
    per_law: dict[str, dict[str, Any]] = {law.id: {"examples": 0, "facets": set()} for law in laws}
    findings: dict[str, Any] = {"laws": per_law, "examples": 0, "steps": 0, "died": None}
    started = last_report = time.monotonic()

    def judge(stage: Stage) -> None:
        nonlocal last_report
        findings["examples"] += 1
        findings["steps"] += stage.steps
        for law in laws:
            try:
                judged = law.check(stage.runs)
            except LawBroken as broken:
                per_law[law.id]["facets"].update(broken.facets)
                judged = 1
            per_law[law.id]["examples"] += judged > 0
        if stage.runs[-1] and "died" in stage.runs[-1][-1]["outcome"]:
            findings["died"] = {"how": stage.runs[-1][-1]["outcome"]["died"], "trace": stage.trace()}
            raise _Stop
        if time.monotonic() - last_report > PROGRESS_SECONDS:
            last_report = time.monotonic()
            channel.send({"progress": findings["examples"]})

    try:
        explorer.explore(judge, reduce=False)
    except _Stop:
        pass
    return {**findings, "seconds": time.monotonic() - started}


def _short(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]}... ({len(text)} characters)"


def _reduce(explorer: Explorer, law: Law, facet: str, channel: Channel) -> dict[str, Any]:
    """The smallest example found in which the law breaks in this way."""
    smallest: dict[str, Any] = {"facet": facet}
    last_report = time.monotonic()

    def judge(stage: Stage) -> None:
        nonlocal last_report
        if time.monotonic() - last_report > PROGRESS_SECONDS:
            last_report = time.monotonic()
            channel.send({"progress": None})
        try:
            law.check(stage.runs)
        except LawBroken as broken:
            if facet in broken.facets:
                smallest.update(
                    expected=_short(broken.expected), observed=_short(broken.observed), trace=stage.trace()
                )
                raise _Found(facet) from None

    try:
        explorer.explore(judge, reduce=True)
    except (_Found, Died):  # a state machine lets `Died` through
        pass
    except (Flaky, HypothesisException) as error:
        smallest["unstable"] = f"{type(error).__name__}: the target answers differently when asked again"
    return smallest
