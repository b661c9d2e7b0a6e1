"""Load a target and choose laws and baseline, for the command line and for pytest."""

from __future__ import annotations

import difflib
import fnmatch
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from kvref_conformance.documents import baseline as baselines
from kvref_conformance.documents.baseline import NO_BASELINE, Baseline, BaselineError
from kvref_conformance.documents.profile import NO_PROFILE, Profile, choose_profile
from kvref_conformance.documents.results import Result
from kvref_conformance.laws import ANSWERS, LAWS, Law
from kvref_conformance.processes import releases as hosts
from kvref_conformance.processes.launch import Launch, RunningHosts, TargetFailed, running_hosts
from kvref_conformance.processes.names import name_of
from kvref_conformance.running.checker import Checker, Options, flags_needed
from kvref_conformance.running.exploring.unit import prepare_host
from kvref_conformance.running.progress import Progress
from kvref_conformance.targets import DEFAULT_TARGET, check_name, plugin_of, without_release
from kvref_strategies.catalogue import WORKLOADS
from kvref_strategies.workload import Description

DEVICES = ("cpu", "cuda")
"""Devices for tensors, the default first."""

BACKENDS = ("hypothesis", "crosshair")
"""Backends of Hypothesis, the default first. A backend chooses the values that are drawn."""


class NoSuchLaw(ValueError):
    """No law has this id, or no law matches this glob."""


class BackendRefused(ValueError):
    """The backend is not installed, or none of the chosen laws can use it."""


def is_symbolic(backend: str, laws: Sequence[str]) -> bool:
    """Whether CrossHair also makes examples.

    Raises `BackendRefused` if it should but cannot.
    """
    if backend == BACKENDS[0]:
        return False
    if find_spec("hypothesis_crosshair_provider") is None:
        raise BackendRefused(f"the backend {backend} comes with the extra: pip install 'kvref[symbolic]'")
    every = [law.id for law in LAWS.values() if law is not ANSWERS and WORKLOADS[law.workload].symbolic]
    if not set(every) & set(laws):
        raise BackendRefused(
            f"the backend {backend} serves laws about what specs compute; choose at least one of these: "
            f"{', '.join(every)}"
        )
    return True


def select_laws(patterns: Sequence[str]) -> tuple[str, ...]:
    """The ids of the laws that match any of the globs. Without globs, the ids of all laws.

    Raises `NoSuchLaw` if a glob matches nothing.
    """
    for pattern in patterns:
        if not fnmatch.filter(LAWS, pattern):
            raise NoSuchLaw(
                f"no law matches {pattern!r}; 'kvref laws' lists them (areas: "
                f"{', '.join(dict.fromkeys(law.area for law in LAWS.values()))})"
            )
    return tuple(law for law in LAWS if not patterns or any(fnmatch.fnmatchcase(law, p) for p in patterns))


def find_law(name: str) -> Law:
    """The law with this id. Raises `NoSuchLaw`, which suggests similar ids."""
    if name in LAWS:
        return LAWS[name]
    # `name` may be an area, or the second half of an id.
    close = [law for law in LAWS if name in law.split(".")]
    close += difflib.get_close_matches(name, LAWS, n=5)
    meant = f"did you mean {', '.join(dict.fromkeys(close))}? " if close else ""
    raise NoSuchLaw(f"no law is called {name!r}; {meant}'kvref laws' lists them")


def _wanted(target: str | None, chosen: Profile) -> str:
    """The target that the caller names, else the one that the profile names, else the default."""
    return (None if target == chosen.label else target) or chosen.target or DEFAULT_TARGET


def pinned_baseline(target: str | None, profile: str | None) -> Baseline | None:
    """The baseline that kvref ships for a target such as `vllm==0.25.1`. The release need not be prepared.

    Returns None if the target names no release. Raises `ProfileError`.
    """
    name, release = without_release(_wanted(target, choose_profile(profile, target)))
    return baselines.shipped(name.partition(":")[0], release) if release else None


def prepare(
    target: str | None,
    profile: str | None,
    *,
    python: str | None,
    paths: Sequence[str],
    stubs: Sequence[str],
    timeout: float = Launch.timeout,
) -> tuple[Launch, Profile]:
    """How to launch the target, and its profile. The caller's options take precedence over the profile.

    Raises `ProfileError`, and `HostError` for a target such as `vllm==0.25.1` that is not prepared (see
    `kvref hosts`).
    """
    chosen = choose_profile(profile, target)
    wanted = _wanted(target, chosen)
    name, release = without_release(wanted)
    folders = [*paths, *chosen.paths]
    if release:
        if python:
            raise hosts.HostError(f"{wanted} has its own interpreter: leave out --python, or check {name}")
        host = hosts.prepared(release)
        python = str(host.python)
        # The caller's folders come first: a plugin, or a patched copy of a module.
        folders += [str(host.folder)] if host.folder else []
    all_stubs = dict.fromkeys([*stubs, *chosen.stubs])
    return Launch(name, python or sys.executable, tuple(folders), timeout, tuple(all_stubs)), chosen


@dataclass(frozen=True)
class Loaded:
    """A target with running hosts, its description and its profile."""

    worker: Launch
    hosts: RunningHosts
    description: Description
    profile: Profile = NO_PROFILE

    def check(self, options: Options, baseline: Baseline, watcher: Progress) -> Result:
        return self.checker(options, watcher).run(baseline)

    def checker(self, options: Options, watcher: Progress) -> Checker:
        return Checker(self.worker, self.hosts, self.description, options, watcher, self.profile)


@contextmanager
def loaded(
    worker: Launch,
    laws: Sequence[str],
    watcher: Progress,
    profile: Profile = NO_PROFILE,
    flags: Sequence[str] = (),
    device: str = DEVICES[0],
) -> Iterator[Loaded]:
    """Load the target.

    Start a host for each set of interpreter flags: the sets that the laws need, and those in `flags`.
    The target's tensors are on `device`. Raises `UnknownTarget`, `TargetFailed`, `ProfileError`.
    """
    check_name(worker.target)
    watcher.phase(f"loading {worker.target}")
    needed = dict.fromkeys([*flags_needed(laws, bool(plugin_of(worker.target))), *flags])
    with running_hosts(worker, needed, name_of(prepare_host)) as hosts:
        described = hosts[""].ask({"kind": "describe"})["description"]
        if device not in described["devices"]:
            raise TargetFailed(
                f"PyTorch sees no device of the kind {device!r} in the process of {worker.target}, only "
                f"{', '.join(described['devices'])}"
            )
        description = profile.apply(cast(Description, {**described, "device": device}))
        if description["plugin"] is not None:
            hosts.start(flags_needed(laws, True))
        yield Loaded(worker, hosts, description, profile.beside(described))


def choose_baseline(choice: str | None, description: Description) -> Baseline:
    """The baseline in the file `choice`. Without a choice, the one that kvref ships for the target's version.

    The choice `none` gives an empty baseline. Raises `BaselineError`.
    """
    if choice is not None:
        return given_baseline(choice)
    return baselines.shipped(description["name"], description["version"])


def given_baseline(choice: str) -> Baseline:
    """The baseline in the file `choice`, or an empty one if `choice` is `none`. Raises `BaselineError`."""
    if choice == "none":
        return NO_BASELINE
    try:
        return baselines.load(Path(choice))
    except RecursionError as error:
        raise BaselineError(f"baseline {choice!r} is nested too deeply") from error
