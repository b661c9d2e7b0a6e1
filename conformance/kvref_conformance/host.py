"""The process that imports the target once and forks for everything else.

The host itself performs no operation, so each child starts from a target that was imported and nothing
more. A connection is either a *unit* (explore one workload for one subject) or a *session* (perform
operations one by one). The host stays single-threaded: forking a process with threads is not safe.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

from kvref.target import Target, perform
from kvref_conformance.channel import Channel, Message
from kvref_conformance.targets import load_target
from kvref_conformance.unit import run_unit

_NOT_FOR_PROGRAMS = ("kvref_conformance", "kvref_strategies", "hypothesis")
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def serve(config: dict[str, Any]) -> None:
    """Load the target, report on the control channel, then serve connections until that closes."""
    _die_with_parent()
    control = Channel.from_socket(socket.socket(fileno=config["control"]))
    try:
        target = load_target(config["target"])
    except BaseException as error:
        control.send({"failed": _explain(error)})
        return
    # What is imported stays: children need not look through it, nor copy it, when they collect garbage.
    gc.freeze()
    folder = Path(config["folder"])
    address = folder / "host.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(os.fspath(address))
        listener.listen(64)
        _serve_connections(target, listener, control, folder)


def _serve_connections(target: Target, listener: socket.socket, control: Channel, folder: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    control.send({"ready": str(folder / "host.sock")})
    while True:
        events = wait([listener, control.connection, reader])
        if reader in events:
            os.read(reader, 4096)
            _record_deaths(folder)
        if control.connection in events:
            return
        if listener in events:
            connection, _ = listener.accept()
            if os.fork() == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                control.close()
                _child(target, Channel.from_socket(connection), folder)
            connection.close()


def _child(target: Target, channel: Channel, folder: Path) -> NoReturn:
    """Serve one connection and end, whatever happens."""
    status = 1
    try:
        os.setpgid(0, 0)
        _die_with_parent()
        channel.send({"pid": os.getpid()})
        request = channel.receive()
        match request["kind"]:
            case "describe":
                channel.send({"description": describe(target)})
            case "session":
                _serve_session(target, channel)
            case "unit":
                run_unit(target, request, channel)
            case "program":
                channel.send({"exit_code": _run_program(Path(request["path"]), request["target"])})
        status = 0
    except EOFError:
        status = 0
    except BaseException as error:
        channel.send({"failed": _explain(error)})
    finally:
        os._exit(status)


def _serve_session(target: Target, channel: Channel) -> None:
    while True:
        request = channel.receive()
        channel.send({"outcome": perform(target, request["op"], request["args"])})


class _Alone:
    """Refuses to import what a stand-alone program must do without."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self._packages:
            raise ModuleNotFoundError(f"a stand-alone program must not import {name}", name=name)


def _run_program(path: Path, target_name: str) -> int:
    """Run a stand-alone program as the interpreter would: its exit code.

    Nothing of the suite is importable for it; what it imports of the target is there already, which is all
    that tells this process from a new interpreter.
    """
    unwanted = [package for package in _NOT_FOR_PROGRAMS if package != target_name.partition(".")[0]]
    for name in [name for name in sys.modules if name.partition(".")[0] in unwanted]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Alone(unwanted))
    sys.argv = [str(path)]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 2
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def describe(target: Target) -> Message:
    """What the runner and the strategies need to know of a target, as plain data."""
    specs, registry = target.specs, target.registry
    return {
        "name": target.name,
        "version": target.version,
        "capabilities": dict(target.capabilities),
        "parts": [part for part in ("specs", "registry") if getattr(target, part) is not None],
        "classes": specs.classes() if specs is not None else [],
        "managers": registry.managers() if registry is not None else [],
        "environment": {"python": platform.python_version(), "torch": _torch_version()},
        "threads": _thread_count(),
    }


def _torch_version() -> str:
    torch = sys.modules.get("torch")
    return str(getattr(torch, "__version__", "not imported"))


def _thread_count() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 1


def _record_deaths(folder: Path) -> None:
    """Leave how each ended child ended where whoever was talking to it can read it."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            (folder / f"{pid}.end").write_text(f"killed by {signal.Signals(-code).name}")
        elif code > 0:
            (folder / f"{pid}.end").write_text(f"exit code {code}")


def _explain(error: BaseException) -> str:
    """The exception and the innermost place it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def _die_with_parent() -> None:
    """End when the parent does, however it ends (Linux; elsewhere the closed channel has to do)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
