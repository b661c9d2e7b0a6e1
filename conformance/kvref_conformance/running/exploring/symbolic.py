"""Make examples whose numbers CrossHair chooses. CrossHair is used as a backend of Hypothesis.

Each example is performed twice. In the first run its numbers are symbolic: CrossHair follows them through the
target and the laws, and searches for numbers that make each comparison go the other way. So if a formula is
wrong for one block size in a million, CrossHair can find this size. In the second run, the operations are
performed with the numbers that CrossHair chose, and without CrossHair. Only the second run is judged.
Hypothesis reduces the example like any other.
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
    """Performs operations with symbolic numbers, in this process.

    Unknown numbers cannot be written down, so there is no journal.
    """

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target
        self.operations: list[tuple[str, dict[str, Any]]] = []

    def perform(self, operation: str, /, **arguments: Any) -> Outcome:
        self.operations.append((operation, arguments))
        return self._note(operation, arguments, perform(self._target, operation, arguments))


class SymbolicExplorer(Explorer):
    """Makes the examples of one unit whose numbers CrossHair chooses.

    CrossHair may choose from a whole range of numbers where Hypothesis chooses from a list.
    """

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
        # Hypothesis finds the backend by itself only if it is installed in the target's own environment.
        providers.AVAILABLE_PROVIDERS.setdefault(BACKEND, _PROVIDER)
        # CrossHair collects garbage often: exclude what was imported, to save time.
        gc.freeze()

    def example(self, data: st.DataObject, judge: Callable[[Stage], None]) -> None:
        if not data.conjecture_data.provider.avoid_realization:  # the numbers are concrete
            super().example(data, judge)
            return
        stage = SymbolicStage(self._target)
        try:
            self.perform(data, stage)
            for law in self._laws:
                _look(law, stage)
        except HypothesisException:
            raise
        except (Exception, SystemExit):  # the operations up to here are performed again, and judged
            pass
        operations = deep_realize(stage.operations)
        with NoTracing():  # type: ignore[no-untyped-call]
            judge(self._again(operations))

    def _again(self, operations: Sequence[tuple[str, dict[str, Any]]]) -> Stage:
        stage = self.new_stage()
        try:
            for operation, arguments in operations:
                stage.perform(operation, **arguments)
        except Died:
            pass
        finally:
            stage.close()
        return stage


def _look(law: Law, stage: Stage) -> None:
    """Run the law's check so that CrossHair sees its comparisons. Ignore the result."""
    try:
        law.check(stage.runs)
    except Exception:
        pass
