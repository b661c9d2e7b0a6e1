"""Examples whose numbers CrossHair chooses, through Hypothesis' backend of that name.

It follows the numbers that an example draws through the target and the laws, and tries to have each
comparison on the way come out either way: where a formula is wrong for one block size in a million, it can
say for which. What it finds is not believed. Each example is performed once more with the numbers that it
chose, without CrossHair, and that is what is judged; Hypothesis reduces it as any other.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

from crosshair.core import deep_realize
from crosshair.tracers import NoTracing
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException
from hypothesis.internal.conjecture import providers

from kvref.target import Outcome, Target, perform
from kvref_conformance.laws import Law
from kvref_conformance.processes.channel import Message
from kvref_conformance.running.exploring.explorer import Explorer
from kvref_conformance.running.exploring.stage import Died, Stage
from kvref_strategies.specs import widened
from kvref_strategies.workload import Workload

BACKEND = "crosshair"
_PROVIDER = "hypothesis_crosshair_provider.crosshair_provider.CrossHairPrimitiveProvider"


class SymbolicStage(Stage):
    """Performs in this process with numbers that are not known yet; so nothing of it can be written down."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def perform(self, operation: str, /, **arguments: Any) -> Outcome:
        self.asked.append((operation, arguments))
        return self._note(operation, arguments, perform(self._target, operation, arguments))


class SymbolicExplorer(Explorer):
    """Makes examples of one workload for one subject that the laws have to tell apart from one another."""

    def __init__(
        self,
        target: Target,
        laws: Sequence[Law],
        workload: Workload,
        request: Message,
        new_stage: Callable[[], Stage],
    ) -> None:
        wide = {**request, "description": widened(request["description"]), "examples": request["symbolic"]}
        super().__init__(workload, wide, new_stage, backend=BACKEND)
        self._target = target
        self._laws = laws
        # Hypothesis finds it by itself where it is installed, and not where it is lent.
        providers.AVAILABLE_PROVIDERS.setdefault(BACKEND, _PROVIDER)
        # CrossHair collects garbage often; what is imported is none.
        gc.freeze()

    def example(self, data: st.DataObject, judge: Callable[[Stage], None]) -> None:
        if not data.conjecture_data.provider.avoid_realization:  # the numbers are known
            super().example(data, judge)
            return
        stage = SymbolicStage(self._target)
        try:
            self.perform(data, stage)
            for law in self._laws:
                _look(law, stage)
        except HypothesisException:
            raise
        except (Exception, SystemExit):  # what has been asked up to here is asked again, and tells
            pass
        asked = deep_realize(stage.asked)
        with NoTracing():  # type: ignore[no-untyped-call]
            judge(self._again(asked))

    def _again(self, asked: Sequence[tuple[str, dict[str, Any]]]) -> Stage:
        stage = self.new_stage()
        try:
            for operation, arguments in asked:
                stage.perform(operation, **arguments)
        except Died:
            pass
        finally:
            stage.close()
        return stage


def _look(law: Law, stage: Stage) -> None:
    """Have the law compare what it compares, so that CrossHair sees it; its judgement is not wanted."""
    try:
        law.check(stage.runs)
    except Exception:
        pass
