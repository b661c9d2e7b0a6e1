"""What figures were taken on."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from kvref_conformance.bench.comparison import Contender, way_of
from kvref_conformance.bench.serving import served
from kvref_conformance.processes.names import name_of
from kvref_conformance.processes.session import Session


class Environment(TypedDict):
    """As it stands in the document."""

    targets: dict[str, dict[str, str]]
    """By label, what each is, and in which interpreter."""
    cpu: str
    cpus: int
    load: float
    """Of the machine when it began: processes that ran, or wanted to."""
    device: str
    """Where tensors are: `cpu`, or what the device calls itself."""
    rounds: int
    way: str
    """`bench`, or `operations` where those of the parts are timed."""


def environment(contenders: Sequence[Contender], rounds: int) -> Environment:
    return {
        "targets": {
            each.label: {
                "name": each.loaded.description["name"],
                "version": each.loaded.description["version"],
                **each.loaded.description["environment"],
            }
            for each in contenders
        },
        "cpu": _cpu(),
        "cpus": os.cpu_count() or 1,
        "load": os.getloadavg()[0],
        "device": _device(contenders[0]),
        "rounds": rounds,
        "way": way_of(contenders),
    }


def _cpu() -> str:
    try:
        told = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        told = None
    return told[1] if told else platform.machine()


def _device(contender: Contender) -> str:
    loaded = contender.loaded
    device = loaded.description["device"]
    if device == "cpu":
        return device
    with Session(loaded.hosts.addresses[""], loaded.worker.timeout, through=name_of(served)) as session:
        named: Any = session.perform("bench.device_name", {}).get("value", device)
    return str(named)
