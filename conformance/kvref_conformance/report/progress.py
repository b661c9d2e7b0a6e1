"""Show what a run is doing: live on a terminal, otherwise with a line on stderr now and then."""

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


def is_live(console: Console) -> bool:
    """Whether lines can be redrawn. They cannot in a pipe, with TERM=dumb, or with NO_COLOR."""
    return console.is_terminal and not console.is_dumb_terminal and not console.no_color


@contextmanager
def progress(console: Console, clock: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """Show progress while the `with` statement runs: live on a terminal, otherwise with lines."""
    if is_live(console):
        columns = (
            live.SpinnerColumn("line"),
            # Names of units contain names from the target: never markup.
            live.TextColumn("{task.description}", markup=False),
            live.TextColumn("{task.fields[state]}", markup=False, style="dim"),
        )
        with live.Progress(*columns, console=console, transient=True) as display:
            yield _Live(display, console.encoding)
    else:
        yield _Plain(clock)


class _Live:
    """Shows one line for the phase, and one for each unit that is running."""

    def __init__(self, display: live.Progress, encoding: str) -> None:
        self._display = display
        self._encoding = encoding
        self._phase = display.add_task("starting", state="", total=None)
        self._units: dict[str, live.TaskID] = {}
        self._done = self._all = 0

    def phase(self, name: str, units: int = 0) -> None:
        self._all += units
        self._display.update(self._phase, description=self._shown(name))

    def unit_started(self, name: str) -> None:
        self._units[name] = self._display.add_task(self._shown(name), state="", total=None)

    def unit_progress(self, name: str, examples: int) -> None:
        if name in self._units:
            self._display.update(self._units[name], state=f"{examples} examples")

    def unit_done(self, name: str) -> None:
        self._done += 1
        self._display.update(self._phase, state=_share(self._done, self._all))
        if name in self._units:
            self._display.remove_task(self._units.pop(name))

    def _shown(self, name: str) -> str:
        return visible(name, _LONGEST_NAME, self._encoding)


class _Plain:
    """Prints a line for each phase, and every half minute the number of units done and those running."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()
        self._running: dict[str, int] = {}
        self._done = self._all = 0

    def phase(self, name: str, units: int = 0) -> None:
        self._all += units
        self._print(name)

    def unit_started(self, name: str) -> None:
        self._running[name] = 0

    def unit_progress(self, name: str, examples: int) -> None:
        self._running[name] = examples
        self._print_now_and_then()

    def unit_done(self, name: str) -> None:
        self._running.pop(name, None)
        self._done += 1
        self._print_now_and_then()

    def _print_now_and_then(self) -> None:
        if self._clock() - self._last >= _SECONDS_BETWEEN_LINES:
            running = ", ".join(
                visible(name, _LONGEST_NAME) + (f" ({count} examples)" if count else "")
                for name, count in self._running.items()
            )
            self._print(_share(self._done, self._all) + (f"; running {running}" if running else ""))

    def _print(self, line: str) -> None:
        # Python's stderr escapes what its encoding lacks.
        print(f"kvref: {visible(line, 500)}", file=sys.stderr)
        self._last = self._clock()


def _share(done: int, units: int) -> str:
    """How many units are done, and of how many if this is known."""
    return f"{done} of {units} units done" if units else f"{done} units done"
