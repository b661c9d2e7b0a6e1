"""Measure how soon the laws catch a target that is known to be wrong. Nothing is reduced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kvref_conformance.laws import ANSWERS
from kvref_conformance.running.checker import DEPTH, Options
from kvref_conformance.running.dispatch import Running, Unit, work_off
from kvref_conformance.running.loading import Loaded
from kvref_conformance.running.progress import Silence


@dataclass(frozen=True)
class Catch:
    """A law that broke, and how many examples and seconds all workloads together took until then."""

    law: str
    subject: str
    examples: int
    seconds: float


@dataclass
class Trial:
    """What happened when a target was tried: which laws broke, and how many examples and seconds it took."""

    catches: dict[str, Catch] = field(default_factory=dict)
    """The first catch of each law."""
    examples: int = 0
    seconds: float = 0.0
    open: list[str] = field(default_factory=list)
    """Units that were not judged to the end, each with the reason."""

    def add(self, unit: Unit) -> None:
        findings = unit.findings
        if unit.death:
            self._catch(ANSWERS.id, unit.subject, findings["examples"] if findings else 0, unit.seconds)
        elif findings is None:
            self.open.append(f"{unit.name}: {unit.failure or 'cut'}")
        for law, found in findings["laws"].items() if findings else ():
            if found["first"]:
                self._catch(law, unit.subject, **found["first"])
        self.examples += findings["examples"] if findings else 0
        self.seconds += unit.seconds

    def _catch(self, law: str, subject: str, examples: int, seconds: float) -> None:
        self.catches.setdefault(
            law, Catch(law, subject, self.examples + examples, round(self.seconds + seconds, 3))
        )


def try_on(
    target: Loaded,
    laws: Sequence[str],
    *,
    chosen: Callable[[list[Unit]], Iterable[Unit]] = list,
    until: Sequence[str] = (),
    depth: str = DEPTH,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
    fault: str = "",
) -> Trial:
    """Run the units that these laws need, one after the other. Returns what they caught.

    Args:
        target: a target that was loaded for these laws.
        chosen: selects the units and puts them in order.
        until: laws; the trial ends when one of them breaks.
        stop: called now and then; if it returns True, the trial ends and the running unit is cut.
        fault: the name of a fault of the target; each unit loads it first. Workloads that perform their
            operations in other processes do not see the fault.

    Raises `NotJudged` if the host cannot fork.
    """
    trial = Trial()
    runner = target.checker(Options(tuple(laws), depth, seed), Silence())

    def starts() -> Iterator[Running]:
        for unit in chosen(runner.plan()[0]):
            if stop() or not trial.catches.keys().isdisjoint(until):
                return
            effort = replace(runner.effort(unit), reduce=False, until=tuple(until), target=fault)
            yield runner.start(unit, effort)

    for one, message in work_off(starts(), 1, lambda _: stop()):
        if message is None:
            trial.add(one.unit)
    return trial
