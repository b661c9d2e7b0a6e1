"""Start and stop hosts, the processes that import the target: one host for each set of interpreter flags."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvref_conformance.processes.channel import Channel, Message
from kvref_conformance.processes.exit_codes import how_it_ended
from kvref_conformance.processes.session import NotJudged, Tail, end_of, kill_group, open_child
from kvref_conformance.targets import is_external
from kvref_conformance.targets.plugins import NO_PLUGIN

OWN_PACKAGES = ("kvref", "kvref_conformance", "kvref_strategies")
LENT_PACKAGES = (
    "hypothesis",
    "_hypothesis_globals",
    "_hypothesis_ftz_detector",
    "msgspec",
    "sortedcontainers",
)
MEASURING_PACKAGES = ("coverage",)
SYMBOLIC_PACKAGES = (
    "hypothesis_crosshair_provider",
    "crosshair",
    "_crosshair_tracers",
    "z3",
    "typeshed_client",
    "typing_inspect",
    "mypy_extensions",
    "typing_extensions",
    "packaging",
)
"""The packages that a host needs in addition to `LENT_PACKAGES` for `--backend crosshair`."""

LOAD_PATIENCE = 10
"""The time limit for importing the target, as a multiple of the time limit for one operation."""

STOP_SECONDS = 3.0
"""Seconds that a host may take to end its children and itself."""

LONGEST_FOLDER = 60
"""If the path of the temporary folder has more bytes than this, sockets go to /tmp.

The path of a socket may have only about 100 bytes.
"""


class TargetFailed(Exception):
    """The target cannot be used: it did not load, or it does not describe itself. The message says why."""


@dataclass(frozen=True)
class Launch:
    """How to start the target: the target's name, the interpreter, the import paths and some options.

    `timeout` is the time limit for one operation, in seconds. `stubs` names packages for hardware that this
    machine lacks; a plugin that imports them gets mocks. `measured` names the modules whose lines
    `--coverage` records: an empty tuple stands for the target's own modules, None for no recording. With
    `symbolic`, the target's processes can import the packages that `--backend crosshair` needs.
    """

    target: str
    python: str = sys.executable
    paths: tuple[str, ...] = ()
    timeout: float = 30.0
    stubs: tuple[str, ...] = ()
    measured: tuple[str, ...] | None = None
    symbolic: bool = False

    @property
    def import_paths(self) -> list[str]:
        """Folders to import from before the interpreter's own folders.

        The current folder is one of them if the target is external (`module:factory`), since the target's
        module may be there.
        """
        here = [os.getcwd()] if is_external(self.target) else []
        return [*(os.path.abspath(path) for path in self.paths), *here]

    def environment(self) -> dict[str, str]:
        """The environment variables of hosts and programs: fixed hash seed, one thread, few log messages."""
        inherited = os.environ.get("PYTHONPATH")
        return {
            **os.environ,
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([*self.import_paths, *([inherited] if inherited else [])]),
            "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        }


@dataclass
class Host:
    """A running host. To get a new child, connect to `address`. It is empty until `ready` has returned."""

    worker: Launch
    flags: tuple[str, ...]
    folder: Path
    prepare: str = ""
    address: str = ""
    _process: subprocess.Popen[bytes] = field(init=False)
    _control: Channel = field(init=False)
    _output: Tail = field(init=False)
    _loaded: bool = field(init=False, default=False)
    _stopped: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        temporary = self.folder / "tmp"  # so that killed processes leave no files behind
        temporary.mkdir(parents=True)
        near, far = socket.socketpair()
        reading, writing = os.pipe()
        self._output = Tail(reading)
        measured = self.worker.measured
        config = {
            "target": self.worker.target,
            "stubs": list(self.worker.stubs),
            "measured": measured,
            # Measure with the same version of `coverage` that reads the result.
            "own": package_folders((*OWN_PACKAGES, *MEASURING_PACKAGES * (measured is not None))),
            "lent": package_folders(LENT_PACKAGES + SYMBOLIC_PACKAGES * self.worker.symbolic),
            "control": far.fileno(),
            "folder": str(self.folder),
            "prepare": self.prepare,
        }
        bootstrap = Path(__file__).with_name("bootstrap.py")
        try:
            self._process = subprocess.Popen(
                [self.worker.python, "-P", *self.flags, str(bootstrap), json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.STDOUT,
                pass_fds=[far.fileno()],
                env={**self.worker.environment(), "TMPDIR": str(temporary)},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            near.close()
            reason = error.strerror if isinstance(error, OSError) else error
            raise TargetFailed(f"cannot start the interpreter {self.worker.python!r}: {reason}") from error
        finally:
            far.close()
            os.close(writing)
        self._control = Channel.from_socket(near)

    def ready(self) -> None:
        """Wait until the target is loaded. Raises `TargetFailed`."""
        patience = self.worker.timeout * LOAD_PATIENCE
        if not self._control.ready(patience):
            self.stop()
            raise TargetFailed(self._paragraph(f"still loading after {patience:g} s"))
        try:
            reply = self._control.receive()
        except EOFError:
            try:
                how = how_it_ended(self._process.wait(STOP_SECONDS))
            except subprocess.TimeoutExpired:
                how = "closed its connection to kvref"
            self.stop()
            raise TargetFailed(self._paragraph(f"its process ended while loading ({how})")) from None
        if "refused" in reply:
            raise TargetFailed(f"target {self.worker.target!r} cannot be used: {reply['refused']}.")
        self._loaded = True
        if "failed" in reply:
            raise TargetFailed(self._paragraph(f"loading it raised {reply['failed']}"))
        self.address = reply["ready"]

    def ask(self, request: Message) -> Message:
        """Send a request to a new child of the host, and return the child's reply. Raises `TargetFailed`."""
        timeout = self.worker.timeout
        try:
            channel, pid = open_child(self.address, timeout)
        except NotJudged as error:
            raise TargetFailed(self._paragraph(str(error))) from error
        try:
            channel.send(request)
            if not channel.ready(timeout):
                kill_group(pid)
                raise TargetFailed(self._paragraph(f"it does not describe itself within {timeout:g} s"))
            reply = channel.receive()
        except EOFError:
            how = end_of(Path(self.address), pid)
            raise TargetFailed(
                self._paragraph(f"its process ended while it described itself ({how})")
            ) from None
        finally:
            channel.close()
        if "failed" in reply:
            raise TargetFailed(self._paragraph(f"it does not describe itself: {reply['failed']}"))
        return reply

    def _paragraph(self, what: str) -> str:
        where = f" by {self.worker.python}" if self.worker.python != sys.executable else ""
        where += f" under python {' '.join(self.flags)}" if self.flags else ""
        text = f"target {self.worker.target!r} cannot be used{where}: {what}."
        output = self._output.text()
        return f"{text}\nIts last output:\n{output[-1500:]}" if output else text

    def stop(self) -> None:
        """Stop the host and all its children."""
        if self._stopped:
            return
        self._stopped = True
        self._control.close()
        # While a host loads its target it does not listen, so waiting would not help.
        deadline = time.monotonic() + (STOP_SECONDS if self._loaded else 0)
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()


def package_folders(names: tuple[str, ...]) -> dict[str, str]:
    """The folder from which this process imports each package. Raises `TargetFailed` if one is missing."""
    folders = {}
    for name in names:
        spec: Any = importlib.util.find_spec(name)
        if spec is None or not spec.origin:
            raise TargetFailed(f"the suite's own package {name!r} is not installed")
        location = Path(spec.origin)
        folders[name] = str(location.parent.parent if location.name == "__init__.py" else location.parent)
    return folders


class RunningHosts(dict[str, Host]):
    """The running hosts. The key of a host is its interpreter flags, joined by spaces."""

    def __init__(self, worker: Launch, folder: Path, prepare: str = "") -> None:
        super().__init__()
        self._worker = worker
        self._folder = folder
        self._prepare = prepare
        self.failed: dict[str, str] = {}
        """Why the target does not load, by interpreter flags. Without those flags it does."""

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each host that has loaded the target, by the host's flags."""
        return {flags: host.address for flags, host in [*self.items()] if host.address}

    def start(self, flag_sets: Iterable[str]) -> None:
        """Start the missing hosts, in parallel.

        If the target loads in general but not under some interpreter flags, `failed` says why.

        Raises `TargetFailed`.
        """
        new = [flags for flags in flag_sets if flags not in self and flags not in self.failed]
        for flags in new:
            folder = self._folder / str(len(self) + len(self.failed))
            self[flags] = Host(self._worker, tuple(flags.split()), folder, self._prepare)
        for flags in new:
            try:
                self[flags].ready()
            except TargetFailed as error:
                if not flags or NO_PLUGIN in flags.split():
                    raise
                self.failed[flags] = str(error)
                self.pop(flags).stop()


@contextmanager
def running_hosts(worker: Launch, flag_sets: Iterable[str], prepare: str = "") -> Iterator[RunningHosts]:
    """Start a host for each set of interpreter flags, in parallel. At the end, stop all their processes.

    `prepare` is the name (see `names.py`) of a function. Each host calls the function once, with the path of
    the host's own folder, before it forks any child.

    Raises `TargetFailed`.
    """
    long = len(os.fsencode(tempfile.gettempdir())) > LONGEST_FOLDER
    folder = Path(tempfile.mkdtemp(prefix="kvref-", dir="/tmp" if long else None))
    hosts = RunningHosts(worker, folder, prepare)
    try:
        hosts.start(flag_sets)
        yield hosts
    finally:
        for host in hosts.values():
            host.stop()
        shutil.rmtree(folder, ignore_errors=True)
