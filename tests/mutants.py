"""Checks whether the laws alone find mutants of the reference, which mutmut makes (docs/mutants.md).

    python tests/mutants.py [--sample N] [--where GLOB] [--jobs N] [--page FILE]

A run resumes the last one, unless the mutated code or the laws have changed. It exits with 1 if a mutant
survives that docs/survivors.toml does not list, or if a listed mutant is killed or does not exist.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import cast

import survivors
from mutating import ROOT, Mutant, mutate, sample
from survivors import Result
from targets.mutated import AWAKE, COUNTING, MUTATED, REACHED

from kvref_conformance.laws import ANSWERS, LAWS
from kvref_conformance.processes.launch import Launch, TargetFailed
from kvref_conformance.running.dispatch import Unit
from kvref_conformance.running.loading import Loaded, loaded
from kvref_conformance.running.progress import Silence
from kvref_conformance.running.time_to_find import try_on
from kvref_strategies.workload import Description

KEPT = ROOT / "mutants"

SECONDS = 20.0
"""How many seconds of units each mutant gets. The time counts as on the reference, without the mutant."""

SEEDS = 10
"""The largest number of seeds for one mutant. The reference conforms with each of these seeds."""

LONGEST = 10 * SECONDS
"""Seconds after which we give up on a mutant. It counts as survived: it only makes the reference slow."""

HANGS = 5.0
"""Seconds within which an operation must answer. The reference takes far less than one."""

LEAST = 120
"""For every 120 mutants in a sample, each module has at least one, however small the module is."""

PACKAGES = ("kvref", "strategies/kvref_strategies", "conformance/kvref_conformance")


@dataclass(frozen=True)
class Mutated(Launch):
    """Launches the reference with all its mutants. The file `awake` names the active mutant."""

    awake: Path = KEPT / "awake"

    def environment(self) -> dict[str, str]:
        told = {MUTATED: KEPT / "kvref", AWAKE: self.awake, REACHED: KEPT / "reached"}
        return {**super().environment(), **{name: str(path) for name, path in told.items()}}

    def load(self, mutant: str) -> AbstractContextManager[Loaded]:
        self.awake.write_text(mutant)
        return loaded(self, tuple(LAWS), Silence())


def worker(number: int) -> Mutated:
    folder = Path(__file__).with_name("targets")
    return Mutated("mutated:target", paths=(str(folder),), timeout=HANGS, awake=KEPT / f"awake-{number}")


@dataclass(frozen=True)
class Known:
    """A unit of the reference's check: its time, the laws that it feeds, the functions that it calls."""

    name: str
    seconds: float
    laws: tuple[str, ...]
    reached: frozenset[str]

    @property
    def workload(self) -> str:
        return self.name.partition(" ")[0]


def record() -> list[Known]:
    """Run all units on the reference, with no mutant active. Returns what was measured for each.

    The units run twice: once to time them, and once to record the functions that each calls. The first item
    is no unit. It has the functions that are called while the reference is loaded.
    """
    notes = KEPT / "reached"
    seconds: dict[str, float] = {}
    units: list[Known] = []

    def timed(planned: list[Unit]) -> Iterator[Unit]:
        for unit in planned:
            yield unit
            seconds[unit.name] = unit.seconds

    def counted(planned: list[Unit]) -> Iterator[Unit]:
        units.append(Known("", 0.0, (), frozenset(notes.read_text().split())))
        for unit in planned:
            notes.write_text("")
            yield unit
            laws = tuple(law.id for law in unit.laws)
            reached = frozenset(notes.read_text().split())
            units.append(Known(unit.name, seconds[unit.name], laws, reached))

    def run(awake: str, chosen: Callable[[list[Unit]], Iterator[Unit]]) -> float:
        """Returns the processor time that the run took, in seconds."""
        before = getrusage(RUSAGE_CHILDREN)
        with worker(0).load(awake) as target:
            trial = try_on(target, tuple(LAWS), chosen=chosen)
        if trial.catches or trial.open:
            raise SystemExit(f"without a mutant, this is wrong: {trial.catches} {trial.open}")
        after = getrusage(RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    notes.write_text("")
    # Other work on the machine makes units take longer. Scale their times down to processor time.
    share = min(1.0, run("", timed) / sum(seconds.values()))
    run(COUNTING, counted)
    return [replace(unit, seconds=round(share * unit.seconds, 3)) for unit in units]


def order(units: Iterable[Known], function: str) -> list[Known]:
    """The units that call the function, in the order in which to run them.

    Units that call few functions come first. The more units of a workload have run, the later its next one
    comes. Each workload begins with another subject, so a few units already cover all subjects.
    """
    loading, *rest = units
    calling = [unit for unit in rest if function in unit.reached or function in loading.reached]
    workloads: dict[str, list[Known]] = {}
    for unit in sorted(calling, key=lambda unit: unit.seconds):
        workloads.setdefault(unit.workload, []).append(unit)
    late: dict[str, int] = {}
    for number, (_, known) in enumerate(sorted(workloads.items())):
        first = number % len(known)
        for turn, unit in enumerate([*known[first:], *known[:first]], 1):
            late[unit.name] = turn * len(unit.reached)
    calling.sort(key=lambda unit: (function not in unit.reached, late[unit.name], unit.seconds))
    return calling


def rounds(units: Sequence[Known]) -> Iterator[list[Known]]:
    """Repeats the units, each round with another seed, until `SECONDS` or `SEEDS` are used up.

    The time is counted as on the reference. So the load of the machine does not change which units run.
    """
    left = SECONDS
    for _ in range(SEEDS):
        passed = accumulate(unit.seconds for unit in units)
        fitting = [unit for unit, seconds in zip(units, passed, strict=True) if seconds <= left]
        if fitting:
            yield fitting
        if len(fitting) < len(units):
            return
        left -= sum(unit.seconds for unit in units)


def try_mutant(target: Loaded, mutant: Mutant, units: Sequence[Known]) -> Result:
    """Run the units that call the mutated function, on a host whose children have the mutant active.

    Raises `NotJudged` if the host cannot fork.
    """
    calling = order(units, mutant.function)
    if not calling:
        return Result(mutant.name, "", "not reached")
    at_work = cast(Mutated, target.worker)
    if mutant.function in units[0].reached:
        # The mutant may already act while the reference is loaded, so load the reference again.
        try:
            with at_work.load(mutant.key) as fresh:
                return judged(fresh, mutant, calling)
        except TargetFailed as failed:
            return Result(mutant.name, "cannot be loaded", str(failed)[:300])
        finally:
            at_work.awake.write_text("")
    at_work.awake.write_text(mutant.key)
    try:
        told = target.hosts[""].ask({"kind": "describe"})["description"]
    except TargetFailed as failed:
        return Result(mutant.name, "does not describe itself", str(failed)[:300])
    described = cast(Description, {**told, "device": target.description["device"]})
    return judged(replace(target, description=described), mutant, calling)


def judged(target: Loaded, mutant: Mutant, calling: Sequence[Known]) -> Result:
    end = time.monotonic() + LONGEST
    seed = number = 0
    for seed, units in enumerate(rounds(calling)):
        laws = (*dict.fromkeys(law for unit in units for law in unit.laws), ANSWERS.id)
        ended = ""

        def chosen(planned: list[Unit], units: list[Known] = units, seed: int = seed) -> Iterator[Unit]:
            nonlocal ended
            by_name = {unit.name: unit for unit in planned}
            for name in (unit.name for unit in units if unit.name in by_name):
                yield by_name[name]
                # Only for the first seed do we know that each law has something to judge without a mutant.
                if not seed and (ended := incomplete(by_name[name])):
                    return

        trial = try_on(
            target, laws, chosen=chosen, until=laws, seed=seed, stop=lambda: time.monotonic() > end
        )
        if trial.catches:
            return Result(mutant.name, next(iter(trial.catches)), f"seed {seed}" if seed else "")
        if ended:
            return Result(mutant.name, "incomplete", ended)
        if time.monotonic() > end:
            return Result(mutant.name, "", f"time was up at seed {seed}")
        number += len(units)
    return Result(mutant.name, "", f"{number} units, seeds 0 to {seed}")


def incomplete(unit: Unit) -> str:
    """Why a check would be incomplete because of this unit. Empty if it would not be."""
    if unit.findings is None:
        return unit.failure
    empty = [law.id for law in unit.laws if not unit.findings["laws"][law.id]["examples"]]
    return f"nothing to judge for {empty[0]}" if empty and not unit.workload.unobserved else ""


def try_all(mutants: Sequence[Mutant], units: Sequence[Known], jobs: int, done: dict[str, Result]) -> None:
    """Try each mutant that has no result yet, and store each result at once."""
    waiting = [mutant for mutant in reversed(mutants) if mutant.name not in done]
    lock = threading.Lock()
    judging = digest(*PACKAGES)

    def work(number: int) -> None:
        with worker(number).load("") as target:
            while waiting:
                mutant = waiting.pop()
                started = time.monotonic()
                result = try_mutant(target, mutant, units)
                with lock:
                    done[mutant.name] = result
                    keep(result, judging)
                    tell(result, time.monotonic() - started)

    def keep(result: Result, judging: str) -> None:
        with (KEPT / "results.jsonl").open("a") as kept:
            kept.write(json.dumps({"judging": judging, **asdict(result)}, ensure_ascii=False) + "\n")

    def tell(result: Result, seconds: float) -> None:
        number = sum(mutant.name in done for mutant in mutants)
        fate = result.by or f"SURVIVES, {result.why}"
        print(f"{number}/{len(mutants)} {seconds:.1f} s  {result.name[:140]}  {fate}", flush=True)

    if waiting:
        with ThreadPoolExecutor(jobs) as pool:
            for _ in pool.map(work, range(jobs)):
                pass


def digest(*folders: str) -> str:
    told = hashlib.sha256()
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            told.update(f"{path.relative_to(ROOT)}\0{path.read_text()}\0".encode())
    return told.hexdigest()[:16]


def made() -> list[Mutant]:
    """All mutants that change more than text. Makes them again if the reference has changed."""
    file, of = KEPT / "made.json", digest("kvref")
    if file.exists() and (there := json.loads(file.read_text()))["of"] == of:
        return [Mutant(**mutant) for mutant in there["mutants"]]
    print("making mutants", flush=True)
    KEPT.mkdir(exist_ok=True)
    mutants = [mutant for mutant in mutate(KEPT / "kvref") if not mutant.text_alone]
    file.write_text(json.dumps({"of": of, "mutants": [asdict(mutant) for mutant in mutants]}))
    return mutants


def recorded() -> list[Known]:
    """The recorded units. Runs them again if any source has changed."""
    file, of = KEPT / "units.json", digest(*PACKAGES)
    if file.exists() and (there := json.loads(file.read_text()))["of"] == of:
        return [
            Known(unit["name"], unit["seconds"], tuple(unit["laws"]), frozenset(unit["reached"]))
            for unit in there["units"]
        ]
    print("running all units without a mutant, twice", flush=True)
    units = record()
    told = [{**asdict(unit), "reached": sorted(unit.reached)} for unit in units]
    file.write_text(json.dumps({"of": of, "units": told}))
    return units


def results() -> dict[str, Result]:
    """The results that earlier runs stored, if no source has changed since."""
    file, of = KEPT / "results.jsonl", digest(*PACKAGES)
    lines = file.read_text().splitlines() if file.exists() else ()
    told = [each for each in map(json.loads, lines) if each.pop("judging") == of]
    return {each["name"]: Result(**each) for each in told}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Whether the laws alone find mutants of the reference.")
    parser.add_argument("--sample", type=int, default=600, help="how many mutants, of all modules")
    parser.add_argument("--where", default="*", help="only functions like this, such as 'pool.*'")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many are tried at a time")
    parser.add_argument("--page", type=Path, help="write docs/mutants.md there, of a whole sample")
    options = parser.parse_args(arguments)
    mutants, least = made(), max(1, options.sample // LEAST)
    drawn = sample(mutants, options.sample, least)
    tried = [mutant for mutant in drawn if fnmatch.fnmatchcase(mutant.where, options.where)]
    if not tried:
        parser.error(f"no mutant of {options.where!r} is in the sample")
    done = results()
    try_all(tried, recorded(), options.jobs, done)
    print(survivors.table(mutants, tried, done))
    reasons = survivors.load()
    if options.page and len(tried) == len(drawn):
        text = survivors.page(reasons, mutants, tried, done, least=least, seconds=SECONDS, hangs=HANGS)
        options.page.write_text(text, encoding="utf-8")
    of_these = [done[mutant.name] for mutant in tried]
    problems = [*survivors.wrong(reasons, {mutant.name for mutant in mutants}, of_these)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
