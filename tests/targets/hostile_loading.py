"""Factories that return no usable target, and modules that cannot be imported (see `IMPORTING`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import hostile_toy

FLOOD_MEGABYTES = 300


def flood() -> None:
    """Write much output to both streams, past Python's buffers."""
    for _ in range(FLOOD_MEGABYTES // 2):
        os.write(1, b"stdout " * (1 << 17))
        os.write(2, b"stderr " * (1 << 17))


def raises_import_error() -> NoReturn:
    raise ImportError("libascend.so: cannot open shared object file")


def raises_runtime_error() -> NoReturn:
    raise RuntimeError("no device\nsecond line \x1b[31mred")


def raises_system_exit() -> NoReturn:
    sys.exit(0)


class Untellable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def raises_untellable() -> NoReturn:
    raise Untellable


def hangs() -> NoReturn:
    while True:
        time.sleep(60)


def hangs_with_child() -> NoReturn:
    subprocess.Popen(["sleep", "300"])
    if "HOSTILE_MARKER" in os.environ:
        Path(os.environ["HOSTILE_MARKER"]).touch()
    hangs()


def exits_quietly() -> NoReturn:
    os._exit(0)


def exits_loudly() -> NoReturn:
    print("the last words", flush=True)
    os._exit(9)


def segfaults() -> NoReturn:
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def dies_of_real_time_signal() -> NoReturn:
    os.kill(os.getpid(), signal.SIGRTMIN + 3)
    raise AssertionError


def closes_everything() -> NoReturn:
    os.closerange(3, 256)
    hangs()


def floods() -> Any:
    flood()
    return hostile_toy.target(build=_chatty_build)


def _chatty_build(spec: dict[str, Any]) -> Any:
    os.write(1, b"stdout " * (1 << 17))
    os.write(2, b"stderr " * (1 << 17))
    return hostile_toy.build(spec)


def floods_and_fails() -> NoReturn:
    flood()
    raise RuntimeError("after the flood")


def gives_none() -> None:
    return None


def gives_class() -> type:
    return int


not_callable = 5

IMPORTING = {
    "raise": raises_import_error,
    "exit": raises_system_exit,
    "die": exits_loudly,
    "hang": hangs,
}
if "HOSTILE_IMPORT" in os.environ:
    IMPORTING[os.environ["HOSTILE_IMPORT"]]()
