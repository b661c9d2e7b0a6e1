"""Make the examples of a workload with Hypothesis."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import hypothesis
from hypothesis import HealthCheck, Phase, strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase
from hypothesis.internal.conjecture import providers
from hypothesis.reporting import with_reporter
from hypothesis.stateful import run_state_machine_as_test

from kvref_conformance.processes.channel import Message
from kvref_conformance.running.exploring.stage import Died, Stage
from kvref_strategies.workload import Machine, Script, Workload

STEPS_PER_EXAMPLE = 20
"""How many rules a state machine runs in one example."""

_LOCAL = "is_local_module_file"
"""The name of a function in Hypothesis. Hypothesis takes constants as values only from files that this
function accepts. Some versions lack the function."""

_SUPPRESSED = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
)
"""Health checks that are off. How long examples take depends on the target, and kvref itself reports a law
that got no examples."""


def _settings(
    examples: int, *phases: Phase, database: ExampleDatabase | None = None, backend: str = "hypothesis"
) -> hypothesis.settings:
    return hypothesis.settings(
        backend=backend,
        max_examples=examples,
        phases=phases,
        deadline=None,
        database=database,
        report_multiple_bugs=False,
        print_blob=False,
        stateful_step_count=STEPS_PER_EXAMPLE,
        suppress_health_check=_SUPPRESSED,
    )


class Explorer:
    """Makes the examples of one unit with Hypothesis, from one seed.

    `backend` is the backend of Hypothesis that chooses the values.
    """

    def __init__(
        self,
        workload: Workload,
        request: Message,
        new_stage: Callable[[], Stage],
        backend: str = "hypothesis",
    ) -> None:
        self.workload = workload
        self._description = request["description"]
        self._subject: str = request["subject"]
        self._seed: int = request["seed"]
        self._examples: int = request["examples"]
        self._database: str = request.get("database", "")
        self._backend = backend
        self.new_stage = new_stage

    def explore(self, judge: Callable[[Stage], None], *, reduce: str = "") -> None:
        """Make all examples, and pass each to `judge`.

        If `reduce` is given, Hypothesis reduces the first example for which `judge` raises an exception.
        `reduce` is the name of this reduction. If there is a database, a reduction of this name that was
        interrupted continues.
        """
        settings = _settings(self._examples, Phase.generate, backend=self._backend)
        if reduce:
            phases = (Phase.reuse, Phase.generate, Phase.shrink)
            kept = self._kept(reduce)
            settings = _settings(self._examples, *phases, database=kept, backend=self._backend)
        examples = self.workload.examples
        with with_reporter(lambda _: None):
            if isinstance(examples, type):
                self._run_machine(examples, settings, judge)
            else:

                @hypothesis.seed(self._seed)
                @settings
                @hypothesis.given(data=st.data())
                def example(data: st.DataObject) -> None:
                    self.example(data, judge)

                example()

    def example(self, data: st.DataObject, judge: Callable[[Stage], None]) -> None:
        """Make and judge one example of a script. A script is a workload written as a function."""
        stage = self.new_stage()
        self.perform(data, stage)
        judge(stage)

    def perform(self, data: st.DataObject, stage: Stage) -> None:
        """Perform an example of a script until it ends or the target dies."""
        script = cast(Script, self.workload.examples)
        try:
            script(data.draw, stage, self._description, self._subject)
        except Died:
            pass
        finally:
            stage.close()

    def _kept(self, name: str) -> ExampleDatabase | None:
        """The database of one reduction, in a folder of its own. None if the request names no database."""
        if not self._database:
            return None
        key = f"{self.workload.name}/{self._subject}/{name}"
        folder = hashlib.sha256(key.encode()).hexdigest()[:16]
        return DirectoryBasedExampleDatabase(Path(self._database) / folder)

    def _run_machine(
        self, machine: type[Machine], settings: hypothesis.settings, judge: Callable[[Stage], None]
    ) -> None:
        new_stage, description, subject = self.new_stage, self._description, self._subject

        class Judged(machine):  # type: ignore[misc, valid-type]
            def __init__(self) -> None:
                self.recorded = new_stage()
                super().__init__(self.recorded, description, subject)

            def teardown(self) -> None:
                self.recorded.close()
                # If Hypothesis gives up an example, it raises an exception, and there is nothing to judge.
                if sys.exception() is None or isinstance(sys.exception(), Died):
                    judge(self.recorded)

        Judged.__name__ = machine.__name__
        hypothesis.seed(self._seed)(Judged)
        run_state_machine_as_test(Judged, settings=settings)

    def setups(self, number: int) -> list[dict[str, Any]]:
        """Draw the setups of driven examples, at most `number` of them."""
        made: list[dict[str, Any]] = []
        if self.workload.driven is None or not number:
            return made
        draw_setup = self.workload.driven.setup

        @hypothesis.seed(self._seed)
        @_settings(number, Phase.generate)
        @hypothesis.given(data=st.data())
        def setup(data: st.DataObject) -> None:
            made.append(draw_setup(data.draw, self._description, self._subject))

        with with_reporter(lambda _: None):
            setup()
        return made


def warm_up(folder: Path) -> None:
    """Have Hypothesis do its start-up work now, once for all processes that are forked from this one.

    Hypothesis scans all imported modules, which takes longer than many units run. This function also gives
    Hypothesis `folder` as its home, so that it does not write to the user's folder. And it stops Hypothesis
    from using constants in kvref's source as values. Otherwise the examples would depend on how kvref is
    installed, and on every change to kvref.
    """
    set_hypothesis_home_dir(folder)
    if hasattr(providers, _LOCAL):
        setattr(providers, _LOCAL, lambda path: False)

    @hypothesis.seed(0)
    @_settings(50, Phase.generate)
    @hypothesis.given(st.integers())
    def example(number: int) -> None:
        pass

    with with_reporter(lambda _: None):
        example()
