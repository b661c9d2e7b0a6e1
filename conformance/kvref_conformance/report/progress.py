"""What a run is doing right now: live on a terminal, else a plain line on stderr now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress as live
from rich.console import Console

from kvref_conformance.report.text import visible
from kvref_conformance.running.progress import Progress

_SECONDS_BETWEEN_LINES = 30.0
_LONGEST_NAME = 60


@contextmanager
def progress(console: Console, clock: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """Show progress while the block runs. A console that is no terminal is left alone."""
    if console.is_terminal and not console.is_dumb_terminal:
        columns = (
            live.SpinnerColumn("line"),
            # Unit names hold names of the target's: never markup.
            live.TextColumn("{task.description}", markup=False),
            live.TextColumn("{task.fields[told]}", markup=False, style="dim"),
        )
        with live.Progress(*columns, console=console, transient=True) as display:
            yield _Live(display, console.encoding)
    else:
        yield _Plain(clock)


class _Live:
    """One line for the phase, one for each unit that runs."""

    def __init__(self, display: live.Progress, encoding: str) -> None:
        self._display = display
        self._encoding = encoding
        self._phase = display.add_task("starting", told="", total=None)
        self._units: dict[str, live.TaskID] = {}
        self._done = 0

    def phase(self, name: str) -> None:
        self._display.update(self._phase, description=self._shown(name))

    def unit_started(self, name: str) -> None:
        self._units[name] = self._display.add_task(self._shown(name), told="", total=None)

    def unit_progress(self, name: str, examples: int) -> None:
        if name in self._units:
            self._display.update(self._units[name], told=f"{examples} examples")

    def unit_done(self, name: str) -> None:
        self._done += 1
        self._display.update(self._phase, told=f"{self._done} units done")
        if name in self._units:
            self._display.remove_task(self._units.pop(name))

    def _shown(self, name: str) -> str:
        return visible(name, _LONGEST_NAME, self._encoding)


class _Plain:
    """A line for each phase, and every half a minute one that says how far the units are."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()
        self._running: dict[str, int] = {}
        self._done = 0

    def phase(self, name: str) -> None:
        self._say(name)

    def unit_started(self, name: str) -> None:
        self._running[name] = 0

    def unit_progress(self, name: str, examples: int) -> None:
        self._running[name] = examples
        self._tell_now_and_then()

    def unit_done(self, name: str) -> None:
        self._running.pop(name, None)
        self._done += 1
        self._tell_now_and_then()

    def _tell_now_and_then(self) -> None:
        if self._clock() - self._last >= _SECONDS_BETWEEN_LINES:
            running = ", ".join(
                visible(name, _LONGEST_NAME) + (f" ({count} examples)" if count else "")
                for name, count in self._running.items()
            )
            self._say(f"{self._done} units done" + (f"; running {running}" if running else ""))

    def _say(self, line: str) -> None:
        # stderr escapes what its encoding cannot say, as Python sets it up.
        print(f"kvref: {visible(line, 500)}", file=sys.stderr)
        self._last = self._clock()
