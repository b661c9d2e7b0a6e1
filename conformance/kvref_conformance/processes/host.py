"""The host: a process that imports the target once, and forks a child for each task.

The host forks a child for each connection. The host itself performs no operation, so each child starts with a
freshly imported target. The first message on the connection names the child's task. For example, a *unit*
tries examples of one workload for one subject, and a *session* performs the operations that it receives.
Other children run a stand-alone program or describe the target. The host starts no threads, because it is not
safe to fork a process that has several.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import platform
import runpy
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

from kvref.target import Target
from kvref_conformance.processes.answers import PARTS, answer, checked, operations_of
from kvref_conformance.processes.channel import Channel, Message
from kvref_conformance.processes.exit_codes import how_it_ended
from kvref_conformance.processes.huge_pages import use_huge_pages
from kvref_conformance.processes.line_tracer import Measure, Measured
from kvref_conformance.processes.names import named
from kvref_conformance.processes.session import NotJudged, kill_group
from kvref_conformance.targets import TargetRefused, load_target
from kvref_conformance.targets.own import find, own_of

_NOT_FOR_PROGRAMS = ("kvref_conformance", "kvref_strategies", "hypothesis")
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER
_ORDERLY_END = 86  # exit code of a child that finished; an operation may call `os._exit(0)`
_LONGEST_NAME = 100


def serve(config: dict[str, Any]) -> NoReturn:
    """Load the target, report the result on the control channel, and serve connections until it closes.

    Then kill all processes that were started from this one, and exit. The target's exit handlers do not run.
    """
    control = Channel.from_socket(socket.socket(fileno=config["control"]))
    _prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if control.ready(0):  # the parent never sends on this channel, so it has ended
        os._exit(1)
    # Orphans become children of this process, even in another group, so that it can end them.
    _prctl(_ADOPT_ORPHANS, 1)
    _watch(control)
    folder = Path(config["folder"])
    status = 0
    try:
        try:
            target = load_target(config["target"], config["stubs"])
            measure = _measure(target, config)
        except TargetRefused as refused:
            control.send({"refused": str(refused)})
        except BaseException as error:
            control.send({"failed": _explain(error)})
        else:
            if config["prepare"]:
                named(config["prepare"])(folder)
            # Imported objects stay. Children need not scan them for garbage, so their memory is not copied.
            gc.freeze()
            use_huge_pages()
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(os.fspath(folder / "host.sock"))
                listener.listen(64)
                _serve_connections(target, measure, listener, control, folder)
    except EOFError:
        pass
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        _end_children()
        _flush()
        os._exit(status)


def _watch(control: Channel) -> None:
    """Fork a watcher, which kills the host's process group if the host dies before it has cleaned up.

    The target may have started other processes before it made the host die. The watcher ends those, too.
    """
    host = os.getpid()
    if os.fork() == 0:
        try:
            control.close()
            while os.getppid() == host:
                time.sleep(0.1)
            os.killpg(0, signal.SIGKILL)
        finally:
            os._exit(0)


def _measure(target: Target, config: dict[str, Any]) -> Measure | None:
    """Start the recording of reached lines. Returns None without --coverage. Raises `TargetRefused`."""
    if config["measured"] is None:
        return None
    return Measure(find(own_of(config["target"], getattr(target, "plugin", None), config["measured"])))


def _serve_connections(
    target: Target, measure: Measure | None, listener: socket.socket, control: Channel, folder: Path
) -> None:
    host, threads = os.getpid(), _thread_count()
    children: set[int] = set()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # From here on, a closed control channel means that the parent has ended. That leaves time to clean up.
    _prctl(_DIE_WITH_PARENT, 0)
    control.send({"ready": str(folder / "host.sock")})
    while True:
        events = wait([listener, control.connection, reader])
        if reader in events:
            os.read(reader, 4096)
            _record_deaths(folder, children)
        if control.connection in events:
            # The parent does this, too, but it may have been killed.
            shutil.rmtree(folder.parent, ignore_errors=True)
            return
        if listener in events:
            connection, _ = listener.accept()
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                control.close()
                _child(target, measure, Channel.from_socket(connection), host, threads)
            children.add(pid)
            connection.close()


def _child(target: Target, measure: Measure | None, channel: Channel, host: int, threads: int) -> NoReturn:
    """Serve one connection, then exit. No exception leaves this function."""
    status = 1
    try:
        os.setpgid(0, 0)
        # Other systems than Linux rely on the closed channel.
        _prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != host:  # it ended before
            os._exit(1)
        channel.send({"pid": os.getpid()})
        request = channel.receive()
        match request["kind"]:
            case "describe":
                channel.send({"description": {**describe(target), "threads": threads}})
            case "own" if measure:
                channel.send({"own": asdict(measure.own)})
            case "session":
                performer = named(request["through"])(target) if request["through"] else target
                _serve_session(performer, channel, measure if request["measured"] else None)
            case "call":
                named(request["function"])(target, request, channel, measure)
            case "program":
                channel.send({"exit_code": _run_program(Path(request["path"]), request["target"])})
        status = _ORDERLY_END
    except EOFError:
        status = _ORDERLY_END
    except BaseException as error:
        channel.send({"failed": _explain(error)})
    finally:
        os._exit(status)


def _serve_session(target: Target, channel: Channel, measure: Measure | None) -> None:
    performer = Measured(target, measure) if measure else target
    while True:
        request = channel.receive()
        if measure and "reached" in request:
            channel.send({"reached": measure.new()})
        else:
            channel.send({"outcome": answer(performer, request["op"], request["args"])})


class _Alone:
    """An import finder that refuses packages which a stand-alone program must not import."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self._packages:
            raise ModuleNotFoundError(f"a stand-alone program must not import {name}", name=name)


def _run_program(path: Path, target_name: str) -> int:
    """Run a stand-alone program as a new interpreter would. Returns the program's exit code.

    The program cannot import kvref_conformance, kvref_strategies or Hypothesis, unless the target is part of
    that package. The only other difference from a new interpreter is that the target is already imported.
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
        _flush()
    return 0


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # a stream of the target's own, or a closed one
            pass


def describe(target: Target) -> Message:
    """Describe a target as plain data, for the runner and the strategies.

    The caller adds the entry `threads`: how many threads the host had when it began to fork.

    Raises:
        NotJudged: the target's name, version, capabilities, classes or managers do not have the form that
            `kvref.target` requires.
    """
    specs, registry = getattr(target, "specs", None), getattr(target, "registry", None)
    for attribute in ("name", "version"):
        text = getattr(target, attribute, None)
        if not isinstance(text, str) or not 0 < len(text) <= _LONGEST_NAME or not text.isprintable():
            raise NotJudged(
                f"the factory returned a {type(target).__name__!r} whose {attribute} is {_short(text)}, "
                f"not a string of 1 to {_LONGEST_NAME} printable characters"
            )
    return {
        "name": target.name,
        "version": target.version,
        "capabilities": _plain_capabilities(target),
        "parts": parts(target),
        "classes": _checked("specs.classes", specs.classes()) if specs is not None else [],
        "managers": _checked("registry.managers", registry.managers()) if registry is not None else [],
        "environment": {"python": platform.python_version(), "torch": _torch_version()},
        "devices": _devices(),
        "plugin": getattr(target, "plugin", None),
        "setup": getattr(target, "setup", None),
    }


def _checked(operation: str, value: Any) -> Any:
    return checked(operation, {"value": value}).get("value")


def _plain_capabilities(target: Target) -> Any:
    capabilities: Any = getattr(target, "capabilities", None)
    try:
        return json.loads(json.dumps(dict(capabilities), allow_nan=False))
    except Exception as error:
        raise NotJudged(
            f"capabilities is {_short(capabilities)}, which is not plain data ({error})"
        ) from error


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        text = object.__repr__(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def parts(target: Target) -> list[str]:
    """The names of the target's parts, each followed by the names of the operations that it implements."""
    found = []
    for part in PARTS:
        offered = getattr(target, part, None)
        if offered is not None:
            found += [part, *(f"{part}.{name}" for name in operations_of(part) if hasattr(offered, name))]
    return found


def _torch_version() -> str:
    torch = sys.modules.get("torch")
    return str(getattr(torch, "__version__", "not imported"))


def _devices() -> list[str]:
    """The devices that can hold tensors. Call this only in a child, because CUDA does not survive a fork."""
    torch = sys.modules.get("torch")
    return ["cpu", *["cuda"] * bool(torch and torch.cuda.is_available())]


def _thread_count() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 1


def _record_deaths(folder: Path, children: set[int]) -> None:
    """For each child that has ended, kill the processes that it started.

    If the child did not end as planned, also write a file `PID.end` that says how it ended.
    """
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid not in children:  # an orphan
            continue
        children.remove(pid)
        code = os.waitstatus_to_exitcode(status)
        if code != _ORDERLY_END:
            (folder / f"{pid}.end").write_text(how_it_ended(code))
        try:
            os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def _end_children() -> None:
    """Kill every process that was started from this one, orphans included."""
    for _ in range(100):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in _children():
            kill_group(pid)
        time.sleep(0.01)


def _children() -> list[int]:
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_bytes().rpartition(b")")[2].split()[1]
        except OSError:
            continue
        if int(parent) == os.getpid():
            children.append(int(stat.parent.name))
    return children


def _explain(error: BaseException) -> str:
    """The exception as text, with the file and line that raised it."""
    if isinstance(error, NotJudged):
        return str(error)
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{text[:2000]}{place}"


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)
