"""The environment of a benchmark run: targets, machine and device."""

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
    """The environment, as it appears in the JSON document."""

    targets: dict[str, dict[str, str]]
    """Name, version and interpreter of each target, by label."""
    cpu: str
    cpus: int
    load: float
    """The load average of the machine when the run began."""
    device: str
    """The device of tensors: `cpu`, or the name of the GPU."""
    rounds: int
    way: str
    """What is timed: `bench` for the API of the targets themselves, `operations` for their operations."""


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
        model = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        model = None
    return model[1] if model else platform.machine()


def _device(contender: Contender) -> str:
    loaded = contender.loaded
    device = loaded.description["device"]
    if device == "cpu":
        return device
    with Session(loaded.hosts.addresses[""], loaded.worker.timeout, through=name_of(served)) as session:
        named: Any = session.perform("bench.device_name", {}).get("value", device)
    return str(named)
