"""The main job, for both doors (the command line and pytest): load a target and run laws against it."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvref_conformance import baseline as baselines
from kvref_conformance.baseline import NO_BASELINE, Baseline, BaselineError
from kvref_conformance.laws import LAWS
from kvref_conformance.report.progress import Progress
from kvref_conformance.results import Result
from kvref_conformance.runner import Options, Runner, flags_needed
from kvref_conformance.targets import check_name
from kvref_conformance.worker import Host, Worker, running_hosts
from kvref_strategies.workload import Description


class NoSuchLaw(ValueError):
    """A pattern that matches no law."""


def select_laws(patterns: Sequence[str]) -> tuple[str, ...]:
    """Ids of the laws that match any of the globs; every pattern must match something."""
    for pattern in patterns:
        if not fnmatch.filter(LAWS, pattern):
            raise NoSuchLaw(
                f"no law matches {pattern!r}; 'kvref laws' lists them (areas: "
                f"{', '.join(dict.fromkeys(law.area for law in LAWS.values()))})"
            )
    return tuple(law for law in LAWS if not patterns or any(fnmatch.fnmatchcase(law, p) for p in patterns))


@dataclass(frozen=True)
class Loaded:
    """A target that is loaded and has told what it is."""

    worker: Worker
    hosts: dict[str, Host]
    description: Description

    def check(self, options: Options, baseline: Baseline, watcher: Progress) -> Result:
        return Runner(self.worker, self.hosts, self.description, options, watcher).run(baseline)


@contextmanager
def loaded(
    worker: Worker, laws: Sequence[str], watcher: Progress, flags: Sequence[str] = ()
) -> Iterator[Loaded]:
    """Load the target for these laws, and for sets of interpreter flags that a trace asks for.

    Raises `UnknownTarget`, `TargetFailed`.
    """
    check_name(worker.target)
    watcher.phase(f"loading {worker.target}")
    with running_hosts(worker, dict.fromkeys([*flags_needed(laws), *flags])) as hosts:
        yield Loaded(worker, hosts, hosts[""].ask({"kind": "describe"})["description"])


def choose_baseline(choice: str | None, description: Description) -> Baseline:
    """The shipped baseline of the target's version, another file, or none. Raises `BaselineError`."""
    if choice == "none":
        return NO_BASELINE
    if choice is not None:
        try:
            return baselines.load(Path(choice))
        except RecursionError as error:
            raise BaselineError(f"baseline {choice!r} is nested too deeply") from error
    return baselines.shipped(description["name"], description["version"])
