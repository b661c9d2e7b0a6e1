"""Start and stop hosts: one process per set of interpreter flags that has imported the target."""

from __future__ import annotations

import collections
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from kvref_conformance.channel import Channel, Message
from kvref_conformance.session import kill_group

OWN_PACKAGES = ("kvref", "kvref_conformance", "kvref_strategies")
LENT_PACKAGES = ("hypothesis", "_hypothesis_globals", "_hypothesis_ftz_detector", "sortedcontainers")
LOAD_PATIENCE = 10
"""How many operation time-outs a target may take to import."""

TAIL_BYTES = 16 * 1024


class TargetFailed(Exception):
    """The target could not be loaded, with a paragraph that says why."""


@dataclass(frozen=True)
class Worker:
    """How to run the target: what to load, in which interpreter, with which import paths.

    `timeout` is the longest an operation may take, in seconds.
    """

    target: str
    python: str = sys.executable
    paths: tuple[str, ...] = ()
    timeout: float = 30.0

    @property
    def import_paths(self) -> list[str]:
        """Folders in front of the interpreter's own; an external target may lie in the current one."""
        here = [os.getcwd()] if ":" in self.target else []
        return [*(os.path.abspath(path) for path in self.paths), *here]

    def environment(self) -> dict[str, str]:
        """Environment of hosts and programs: the same hashes every time, no thread pools, no chatter."""
        inherited = os.environ.get("PYTHONPATH")
        return {
            **os.environ,
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([*self.import_paths, *([inherited] if inherited else [])]),
            "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        }


class Tail:
    """The end of a stream that may never stop: read by a thread, forgotten but for the last bytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._chunks: collections.deque[bytes] = collections.deque(maxlen=16)
        self._stream = stream
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        descriptor = self._stream.fileno()
        while chunk := os.read(descriptor, TAIL_BYTES):
            self._chunks.append(chunk)

    def text(self) -> str:
        self._thread.join(timeout=0.5)
        return b"".join(self._chunks)[-TAIL_BYTES:].decode(errors="replace").strip()


@dataclass
class Host:
    """A running host. `address` is where sessions and units connect, once `ready` has returned."""

    worker: Worker
    flags: tuple[str, ...]
    folder: Path
    address: str = ""
    _process: subprocess.Popen[bytes] = field(init=False)
    _control: Channel = field(init=False)
    _output: Tail = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        near, far = socket.socketpair()
        config = {
            "target": self.worker.target,
            "own": package_folders(OWN_PACKAGES),
            "lent": package_folders(LENT_PACKAGES),
            "control": far.fileno(),
            "folder": str(self.folder),
        }
        bootstrap = Path(__file__).with_name("bootstrap.py")
        try:
            self._process = subprocess.Popen(
                [self.worker.python, "-P", *self.flags, str(bootstrap), json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[far.fileno()],
                env=self.worker.environment(),
                start_new_session=True,
            )
        except OSError as error:
            near.close()
            raise TargetFailed(f"cannot start {self.worker.python!r}: {error.strerror}") from error
        finally:
            far.close()
        self._control = Channel.from_socket(near)
        output = self._process.stdout
        if output is None:
            raise RuntimeError("the host has no output pipe")
        self._output = Tail(output)

    def ready(self) -> None:
        """Wait until the target is loaded. Raises `TargetFailed`."""
        patience = self.worker.timeout * LOAD_PATIENCE
        if not self._control.ready(patience):
            self.stop()
            raise TargetFailed(self._paragraph(f"still loading after {patience:g} s"))
        try:
            reply = self._control.receive()
        except EOFError:
            code = self._process.wait()
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise TargetFailed(self._paragraph(f"its process ended while loading ({how})")) from None
        if "failed" in reply:
            raise TargetFailed(self._paragraph(f"loading it raised {reply['failed']}"))
        self.address = reply["ready"]

    def ask(self, request: Message) -> Message:
        """Have a child answer one request. Raises `TargetFailed`."""
        channel = Channel.connect(Path(self.address))
        try:
            pid = channel.receive()["pid"]
            channel.send(request)
            if not channel.ready(self.worker.timeout):
                kill_group(pid)
                raise TargetFailed(self._paragraph(f"no answer to '{request['kind']}'"))
            reply = channel.receive()
        except EOFError:
            raise TargetFailed(self._paragraph(f"its process ended at '{request['kind']}'")) from None
        finally:
            channel.close()
        if "failed" in reply:
            raise TargetFailed(self._paragraph(f"'{request['kind']}' raised {reply['failed']}"))
        return reply

    def _paragraph(self, what: str) -> str:
        where = f" by {self.worker.python}" if self.worker.python != sys.executable else ""
        text = f"target {self.worker.target!r} cannot be used{where}: {what}."
        output = self._output.text()
        return f"{text}\nIts last output:\n{output[-1500:]}" if output else text

    def stop(self) -> None:
        """End the host and every child of it."""
        self._control.close()
        deadline = time.monotonic() + 1
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def package_folders(names: tuple[str, ...]) -> dict[str, str]:
    """The folder each package is imported from here."""
    folders = {}
    for name in names:
        spec: Any = importlib.util.find_spec(name)
        if spec is None or not spec.origin:
            raise TargetFailed(f"the suite's own package {name!r} is not installed")
        location = Path(spec.origin)
        folders[name] = str(location.parent.parent if location.name == "__init__.py" else location.parent)
    return folders


@contextmanager
def running_hosts(worker: Worker, flag_sets: Iterable[str]) -> Iterator[dict[str, Host]]:
    """Hosts for each set of interpreter flags, loaded side by side; gone afterwards with all they started.

    Raises `TargetFailed`.
    """
    folder = Path(tempfile.mkdtemp(prefix="kvref-"))
    hosts: dict[str, Host] = {}
    try:
        for number, flags in enumerate(flag_sets):
            hosts[flags] = Host(worker, tuple(flags.split()), folder / str(number))
        for host in hosts.values():
            host.ready()
        yield hosts
    finally:
        for host in hosts.values():
            host.stop()
        shutil.rmtree(folder, ignore_errors=True)
