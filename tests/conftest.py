"""Fixtures that run `kvref` on the targets of tests/targets and check that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvref_conformance.commands.cli import cli
from kvref_conformance.laws import LAWS
from kvref_conformance.processes.launch import Launch
from kvref_conformance.running.checker import DEPTHS
from kvref_conformance.running.loading import Loaded, loaded
from kvref_conformance.running.progress import Silence

# If pytest runs in the background, it ignores interrupts, and so would its child processes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest.register_assert_rewrite("faulty")

TARGETS = Path(__file__).with_name("targets")

EXAMPLES = 25
"""How many examples a workload draws for each subject. Few, so that a check ends soon."""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str
    seconds: float

    @property
    def told(self) -> str:
        """stderr without the lines that announce a phase of the run."""
        phases = ("loading", "replaying", "running", "timing", "reducing", "confirming", "examining")
        lines = self.err.splitlines()
        return "\n".join(line for line in lines if not line.startswith(tuple(f"kvref: {p}" for p in phases)))


class Kvref:
    """Runs the command line with temporary folders of its own.

    It marks the environment of its processes, so that the test finds those that outlive a command.
    """

    def __init__(self, temporary: Path, cwd: Path, mark: str) -> None:
        self.temporary = temporary
        self.cwd = cwd
        self._mark = mark

    def __call__(self, *arguments: object) -> Ran:
        """Run the command line in this process. Fails if it prints a traceback or leaves anything behind."""
        started = time.monotonic()
        result = CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="kvref")
        seconds = time.monotonic() - started
        if result.exc_info is not None and not isinstance(result.exception, SystemExit | None):
            raise result.exception
        assert result.exit_code != 1 or "Aborted!" not in result.stderr
        assert "Traceback" not in result.stdout
        self.check_nothing_left()
        return Ran(result.exit_code, result.stdout, result.stderr, seconds)

    def check(self, target: str, *arguments: object) -> Ran:
        return self("check", target, "--path", TARGETS, *arguments)

    def report(self, target: str, *arguments: object) -> tuple[Ran, dict[str, Any]]:
        """Run the check with `--json`. Returns the report as well."""
        ran = self.check(target, "--json", *arguments)
        return ran, json.loads(ran.out)

    def start(self, *arguments: object, **options: Any) -> subprocess.Popen[str]:
        """Start the command line as a separate process, which draws the usual number of examples."""
        return subprocess.Popen(
            [sys.executable, "-m", "kvref_conformance", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def check_nothing_left(self, seconds: float = 4.0) -> None:
        deadline = time.monotonic() + seconds
        while (left := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, f"left running: {list(left.values())}"
        assert [path.name for path in self.temporary.iterdir()] == []
        assert [path.name for path in self.cwd.iterdir()] == []

    def _processes(self) -> dict[int, str]:
        """The other processes that carry the mark: the command line of each, by process id."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                marked = self._mark.encode() in (folder / "environ").read_bytes()
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if marked and int(folder.name) != os.getpid():
                found[int(folder.name)] = command
        return found


@pytest.fixture(scope="session")
def reference() -> Iterator[Loaded]:
    """The reference, loaded for all laws."""
    with loaded(Launch("reference"), tuple(LAWS), Silence()) as host:
        yield host


@pytest.fixture
def kvref(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kvref]:
    mark = f"mark-{uuid.uuid4().hex}"
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    # Not below tmp_path: its path is long, and the path of a socket may have only about 100 bytes.
    temporary = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    monkeypatch.setenv("KVREF_TEST_MARK", mark)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setitem(DEPTHS, "quick", EXAMPLES)
    monkeypatch.chdir(cwd)
    yield Kvref(temporary, cwd, mark)
    shutil.rmtree(temporary)
