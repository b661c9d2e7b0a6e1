"""How a command ends: it reports an error in one paragraph, exits with 2, and leaves no process running."""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from kvref_conformance.bench.comparison import NoSuchBenchmark
from kvref_conformance.documents import baseline as baselines, schemas
from kvref_conformance.documents.diff import UnusableReport
from kvref_conformance.documents.folder import ForeignDirectory
from kvref_conformance.documents.profile import ProfileError
from kvref_conformance.documents.results import EXIT_USAGE
from kvref_conformance.processes import releases
from kvref_conformance.processes.launch import TargetFailed
from kvref_conformance.processes.session import NotJudged
from kvref_conformance.proofs.prove import CannotProve
from kvref_conformance.report.plotting import CannotPlot
from kvref_conformance.report.text import visible, visible_lines
from kvref_conformance.running import fault_matrix
from kvref_conformance.running.checker import NoSuchSubject
from kvref_conformance.running.line_coverage import CannotMeasure
from kvref_conformance.running.loading import BackendRefused, NoSuchLaw
from kvref_conformance.targets import UnknownTarget

EXIT_INTERRUPTED = 130

_POLITE_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

_REFUSED = (
    NoSuchLaw,
    NoSuchSubject,
    BackendRefused,
    fault_matrix.NoSuchArea,
    fault_matrix.NoSuchFault,
    NoSuchBenchmark,
    CannotPlot,
    UnknownTarget,
    ProfileError,
    NotJudged,
    CannotMeasure,
    CannotProve,
    ForeignDirectory,
    UnusableReport,
    releases.HostError,
    baselines.BaselineError,
    schemas.InvalidDocument,
)


@contextmanager
def _ends_in_order() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, so that processes and temporary files are removed."""

    def leave(number: int, frame: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    polite = [number for number in _POLITE_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in polite:
            signal.signal(number, leave)
        yield
    finally:
        for number in polite:
            signal.signal(number, signal.SIG_DFL)


class Group(click.Group):
    """A group of commands. It reports every expected error in one paragraph, and then exits with 2.

    After an interrupt, no process is left running.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _ends_in_order():
                return super().invoke(ctx)
        except TargetFailed as error:
            # The target's own output is marked, because it could look like a message of kvref.
            first, *more = visible_lines(str(error)).split("\n")
            click.echo("\n".join([f"kvref: {first}", *(f"  | {line}" for line in more)]), err=True)
            ctx.exit(EXIT_USAGE)
        except _REFUSED as error:
            click.echo(f"kvref: {visible_lines(str(error))}", err=True)
            ctx.exit(EXIT_USAGE)
        except KeyboardInterrupt:
            click.echo("kvref: interrupted", err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except EOFError:  # click would take it for an interrupt
            click.echo("kvref: a process of the target ended unexpectedly", err=True)
            ctx.exit(EXIT_USAGE)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader is gone: click ends quietly
                raise
            click.echo(f"kvref: {visible(str(error))}", err=True)
            ctx.exit(EXIT_USAGE)
