"""Run one unit: make the examples of a workload for one subject, judge them, and reduce the failures.

First, the unit makes all examples, and every law judges each of them. So no failure hides another. Then the
unit reduces each new facet that broke. It makes the same examples again from the same seed, judges them by
this one law, and Hypothesis reduces the example that breaks it. If a facet broke only in driven examples, the
driver reduces it. If CrossHair also makes examples and a facet breaks only in those, the facet is reduced at
once.

In a fuzz, the unit reports each failure before it reduces it, because the fuzz may end at any moment. When
kvref measures how soon a law breaks, the unit reduces nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis.errors import Flaky, HypothesisException

from kvref.target import Target
from kvref_conformance.laws import LAWS, Law, LawBroken
from kvref_conformance.processes.channel import Channel, Message
from kvref_conformance.processes.line_tracer import Measure, Measured
from kvref_conformance.running.exploring.behaviours import SAMPLED, behaviours_of
from kvref_conformance.running.exploring.driver import Driver, Example
from kvref_conformance.running.exploring.explorer import Explorer, warm_up
from kvref_conformance.running.exploring.inputs import inputs_of
from kvref_conformance.running.exploring.stage import Died, IsolatedStage, Journal, LocalStage, Stage
from kvref_conformance.targets import load_target
from kvref_strategies.catalogue import WORKLOADS
from kvref_strategies.workload import Description

MAX_FACETS = 6
"""A unit reduces at most this many facets of one law. The report only names the others."""

PROGRESS_SECONDS = 0.2

LONGEST_TEXT = 4000
"""At most this many characters of a law's `expected` and `observed` are kept: they may contain a huge
answer."""


class _Found(Exception):
    """Raised within an example that breaks the law in the facet that is being reduced."""


class _Stop(BaseException):
    """Raised within an example to end all of the exploration."""


COUNTED = ("examples", "steps", "seconds", "driven_examples", "driven_steps", "driven_seconds")
"""What a unit counts, besides behaviours (see `behaviours.py`)."""


class Report:
    """Sends reports about the unit to kvref's own process.

    They contain the progress now and then, with the lines that were reached if coverage is measured. In a
    fuzz, they also contain counts of behaviours, and each failure at once. If the request asks for the inputs
    of examples, the report collects them.
    """

    def __init__(self, channel: Channel, request: Message, measure: Measure | None) -> None:
        self._channel = channel
        self._measure = measure
        self._last = time.monotonic()
        self._fuzzing = bool(request["database"])
        self._known = {(law, facet) for law, facets in request["known"].items() for facet in facets}
        self.findings: dict[str, Any] = {}
        self._behaviours: Counter[str] = Counter()
        self._described: Description | None = request["description"] if request["inputs"] else None
        self.inputs: set[str] = set()

    def progress(self) -> None:
        if time.monotonic() - self._last > PROGRESS_SECONDS:
            self._last = time.monotonic()
            self._send()

    def judged(self) -> None:
        """Stop measuring coverage: all examples have been made, and the unit only reduces failures now."""
        if self._measure:
            self._send()
            self._measure.on = False

    def _send(self) -> None:
        reached = {"reached": self._measure.new()} if self._measure and self._measure.on else {}
        self._channel.send({"progress": self.findings["examples"], **self.counted(), **reached})

    def counted(self) -> dict[str, Any]:
        if not self._fuzzing:
            return {}
        counted = {name: self.findings[name] for name in COUNTED}
        return {"counted": {**counted, "behaviours": dict(self._behaviours)}}

    def saw(self, stage: Stage) -> None:
        """Count the behaviours in an example and note its inputs, if the request asks for them."""
        if self._described is not None:
            for run in stage.runs:
                self.inputs |= inputs_of(run, self._described)
        if self._fuzzing:
            for run in stage.runs:
                self._behaviours.update(behaviours_of(run))

    def broke(self, law: Law, facet: str, look: Callable[[], Stage]) -> None:
        """In a fuzz, report that a law broke in a facet, unless the facet is known or already reported.

        `look` returns the stage on which the example was performed.
        """
        if not self._fuzzing or (law.id, facet) in self._known:
            return
        self._known.add((law.id, facet))
        if shown := _shown(law, look(), facet):
            self._channel.send({"broke": {"law": law.id, **shown}})

    def reduced(self, law: Law, smallest: dict[str, Any]) -> None:
        """In a fuzz, report a reduced failure at once: the fuzz may end before the others are reduced."""
        if self._fuzzing and "trace" in smallest:
            self._channel.send({"reduced": {"law": law.id, **smallest}})


def prepare_host(folder: Path) -> None:
    """Do, once in a host, the start-up work that all units forked from the host share."""
    warm_up(folder / "hypothesis")


def run_unit(target: Target, request: Message, channel: Channel, measure: Measure | None) -> None:
    """Run one unit. It sends its progress over the channel while it runs, and its findings at the end."""
    if request["target"]:
        target = load_target(request["target"])
    performer = Measured(target, measure) if measure else target
    workload = WORKLOADS[request["workload"]]
    laws = [LAWS[name] for name in request["laws"]]

    def new_stage() -> Stage:
        if workload.isolated:
            return IsolatedStage(request["hosts"], request["timeout"], journal, measure)
        return LocalStage(performer, journal)

    journal = Journal(Path(request["journal"]))
    report = Report(channel, request, measure)
    explorer = Explorer(workload, request, new_stage)
    enough = partial(_is_enough, request["until"])
    findings = _collect(explorer, laws, report, enough)
    driver = Driver(performer, workload, request, journal)
    driven = _drive(driver, explorer.setups(request["driven"]), laws, report, enough)
    report.judged()
    seen: set[tuple[str, str]] = set()
    for law in laws:
        found = findings["laws"][law.id]
        if not request["reduce"]:
            found["unreduced"], found["broken"] = sorted(found.pop("facets").union(driven[law.id])), []
            continue
        accepted = request["accepted"].get(law.id, ())
        known = request["known"].get(law.id, ())
        drawn = found.pop("facets")
        facets = sorted(drawn.union(driven[law.id]) - set(known))
        seen.update((law.id, facet) for facet in [*known, *facets])
        facets.sort(key=lambda facet: facet in accepted)
        found["broken"] = []
        for facet in facets[:MAX_FACETS]:
            smallest = (
                _reduce(explorer, law, facet, report)
                if facet in drawn
                else _reduce_driven(driver, driven[law.id][facet], law, facet, report)
            )
            found["broken"].append(smallest)
            report.reduced(law, smallest)
        found["unreduced"] = facets[MAX_FACETS:]
    if request["symbolic"] and not findings["died"]:
        # CrossHair takes long to load: only when needed.
        from kvref_conformance.running.exploring.symbolic import SymbolicExplorer

        _search(SymbolicExplorer(target, laws, workload, request, new_stage), laws, seen, report)
    channel.send({"findings": {**findings, **report.counted(), "inputs": sorted(report.inputs)}})


def _is_enough(until: list[str], per_law: dict[str, dict[str, Any]]) -> bool:
    return any(per_law[law]["first"] is not None for law in until if law in per_law)


def _collect(
    explorer: Explorer, laws: list[Law], report: Report, enough: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Make all examples that Hypothesis draws, and judge each by every law. Returns the findings."""
    per_law: dict[str, dict[str, Any]] = {
        law.id: {"examples": 0, "substantial": 0, "facets": set(), "first": None} for law in laws
    }
    findings: dict[str, Any] = {"laws": per_law, "died": None, **dict.fromkeys(COUNTED, 0)}
    report.findings = findings
    started = time.monotonic()

    def judge(stage: Stage) -> None:
        findings["examples"] += 1
        findings["steps"] += stage.steps
        findings["seconds"] = time.monotonic() - started
        report.saw(stage)
        worked = explorer.workload.worked(stage.runs)
        for law in laws:
            for facet in _judge(law, stage, findings, worked):
                per_law[law.id]["facets"].add(facet)
                report.broke(law, facet, lambda: stage)
        if enough(per_law):
            raise _Stop
        if died := stage.died:
            findings["died"] = {"how": died, "trace": stage.trace()}
            raise _Stop
        report.progress()

    try:
        explorer.explore(judge)
    except _Stop:
        pass
    findings["seconds"] = time.monotonic() - started
    return findings


def _judge(law: Law, stage: Stage, findings: dict[str, Any], worked: bool = True) -> tuple[str, ...]:
    """The facets in which the example breaks the law. Counts the example if the law judged anything in it.

    `worked` says whether the target did more in it than refuse.
    """
    found = findings["laws"][law.id]
    try:
        judged = law.check(stage.runs) > 0
        found["examples"] += judged
        found["substantial"] += judged and worked
    except LawBroken as broken:
        found["examples"] += 1
        found["substantial"] += 1
        found["first"] = found["first"] or {
            "examples": findings["examples"],
            "seconds": findings["seconds"] + findings["driven_seconds"],
        }
        return broken.facets
    return ()


def _drive(
    driver: Driver,
    setups: list[dict[str, Any]],
    laws: list[Law],
    report: Report,
    enough: Callable[[dict[str, Any]], bool],
) -> dict[str, dict[str, Example]]:
    """Make a driven example from each setup, and judge it by every law.

    Returns, by law and facet, the first driven example that breaks the law in this facet.
    """
    broken: dict[str, dict[str, Example]] = {law.id: {} for law in laws}
    findings = report.findings
    started = time.monotonic()
    for example in driver.examples(setups):
        if findings["died"] or enough(findings["laws"]):
            break
        stage = driver.perform_swiftly(example)
        findings["examples"] += 1
        findings["driven_steps"] += stage.steps
        if findings["driven_examples"] % SAMPLED == 0:
            report.saw(stage)
        findings["driven_examples"] += 1
        findings["driven_seconds"] = time.monotonic() - started
        worked = driver.workload.worked(stage.runs)
        for law in laws:
            for facet in _judge(law, stage, findings, worked):
                if broken[law.id].setdefault(facet, example) is example:
                    report.broke(law, facet, partial(driver.perform, example))
        if died := stage.died:
            findings["died"] = {"how": died, "trace": stage.trace()}
        report.progress()
    findings["driven_seconds"] = time.monotonic() - started
    return broken


def _short(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]}... ({len(text)} characters)"


def _shown(law: Law, stage: Stage, facet: str) -> dict[str, Any] | None:
    """How the example breaks the law in this facet, with its trace. None if the law does not break so."""
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


def _reduce(explorer: Explorer, law: Law, facet: str, report: Report) -> dict[str, Any]:
    """Make the examples again to reduce a facet. Returns the smallest example found that breaks it."""
    smallest: dict[str, Any] = {"facet": facet}

    def judge(stage: Stage) -> None:
        report.progress()
        if shown := _shown(law, stage, facet):
            smallest.update(shown)
            raise _Found(facet)

    try:
        explorer.explore(judge, reduce=f"{law.id}/{facet}")
    except (_Found, Died):  # a state machine lets `Died` through
        pass
    except (Flaky, HypothesisException) as error:
        smallest["unstable"] = f"{type(error).__name__}: the target answers differently the second time"
    return smallest


def _search(explorer: Explorer, laws: list[Law], seen: set[tuple[str, str]], report: Report) -> None:
    """Search for facets that are not in `seen`, until a search finds none.

    CrossHair may not find a failure a second time. So the search that finds a facet also reduces it.
    """
    findings = report.findings["laws"]
    while len(seen) < MAX_FACETS * len(laws) and (found := _search_one(explorer, laws, seen, report)):
        law, smallest = found
        seen.add((law.id, smallest["facet"]))
        findings[law.id]["broken"].append(smallest)


def _search_one(
    explorer: Explorer, laws: list[Law], seen: set[tuple[str, str]], report: Report
) -> tuple[Law, dict[str, Any]] | None:
    """Search for one facet that is not in `seen`.

    Returns the law and the smallest example found that breaks it in this facet, or None.
    """
    findings = report.findings
    found: tuple[Law, dict[str, Any]] | None = None

    def first(stage: Stage) -> tuple[Law, dict[str, Any]] | None:
        findings["examples"] += 1
        broken = [(law, facet) for law in laws for facet in _judge(law, stage, findings)]
        return next(((law, {"facet": facet}) for law, facet in broken if (law.id, facet) not in seen), None)

    def judge(stage: Stage) -> None:
        nonlocal found
        report.progress()
        found = found or first(stage)
        if died := stage.died:
            findings["died"] = {"how": died, "trace": stage.trace()}
            raise _Stop
        if found and (shown := _shown(found[0], stage, found[1]["facet"])):
            found[1].update(shown)
            raise _Found(shown["facet"])

    try:
        explorer.explore(judge, reduce="new")
    except (_Found, _Stop):
        pass
    except (Flaky, HypothesisException) as error:
        if found is None:
            raise
        found[1]["unstable"] = f"{type(error).__name__}: the target answers differently the second time"
    return found


def _reduce_driven(driver: Driver, example: Example, law: Law, facet: str, report: Report) -> dict[str, Any]:
    """Reduce a driven example. Returns the smallest one found in which the law breaks in this facet."""
    smallest: dict[str, Any] = {"facet": facet}

    def breaks(stage: Stage) -> bool:
        report.progress()
        shown = _shown(law, stage, facet)
        smallest.update(shown or {})
        return shown is not None

    driver.reduce(example, breaks)
    return smallest
