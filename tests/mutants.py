"""Whether the laws alone find what mutmut does to the reference (docs/mutants.md).

python tests/mutants.py [--sample N] [--where GLOB] [--jobs N] [--page FILE]

It goes on where it was, as long as nothing has changed in what is mutated and what judges it. It exits with 1 if
a mutant survives that docs/survivors.toml does not list, or if one that it lists is killed, or is none.
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
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mutating import ROOT, Mutant, mutate, sample
from targets.mutated import MUTATED, REACHED

from kvref_conformance.laws import ANSWERS, LAWS
from kvref_conformance.session import NotJudged
from kvref_conformance.trials import Trial, try_out
from kvref_conformance.units import Unit
from kvref_conformance.worker import TargetFailed, Worker

LISTED = ROOT / "docs" / "survivors.toml"

KEPT = ROOT / "mutants"

SECONDS = 20.0
"""How long a mutant is tried. One that is alive then has survived, however slow it is."""

HANGS = 5.0
"""Seconds within which an operation has to answer: the reference takes far less than one."""

PACKAGES = ("kvref", "strategies/kvref_strategies", "conformance/kvref_conformance")


@dataclass(frozen=True)
class Mutated(Worker):
    """The reference with mutants, one of which is at work."""

    mutant: str = ""
    reached: Path = KEPT / "reached"

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            MUTATED: str(KEPT / "kvref"),
            REACHED: str(self.reached),
            "MUTANT_UNDER_TEST": self.mutant,
        }


def worker(mutant: str) -> Mutated:
    folder = Path(__file__).with_name("targets")
    return Mutated("mutated:target", paths=(str(folder),), timeout=HANGS, mutant=mutant)


@dataclass(frozen=True)
class Known:
    """A unit of the check of the reference: what it takes, which laws it feeds, which functions it calls."""

    name: str
    seconds: float
    laws: tuple[str, ...]
    reached: frozenset[str] = field(default_factory=frozenset)


def record() -> list[Known]:
    """Run all units on the reference, with its mutants asleep, and once more to see which functions each calls.

    The first of them stands for what is called while the reference is loaded.
    """
    seconds: dict[str, float] = {}
    reached: dict[str, frozenset[str]] = {}
    laws: dict[str, tuple[str, ...]] = {"": ()}
    notes = KEPT / "reached"

    def timed(units: list[Unit]) -> Iterator[Unit]:
        for unit in units:
            yield unit
            seconds[unit.name] = round(unit.seconds, 3)

    def counted(units: list[Unit]) -> Iterator[Unit]:
        for name, unit in zip(["", *(unit.name for unit in units)], [*units, None], strict=True):
            if name:
                laws[name] = tuple(law.id for law in done.laws)
            reached[name] = frozenset(notes.read_text().split())
            notes.write_text("")
            if unit is not None:
                done = unit
                yield unit

    notes.write_text("")
    for mutant, chosen in (("", timed), ("stats", counted)):
        trial = try_out(worker(mutant), tuple(LAWS), chosen=chosen)
        if trial.catches or trial.open:
            raise SystemExit(f"without a mutant, this is wrong: {trial.catches} {trial.open}")
    return [Known(name, seconds.get(name, 0.0), laws[name], reached[name]) for name in reached]


@dataclass(frozen=True)
class Result:
    """What became of a mutant. `by` is the law that found it, or what else ended it; nothing if it survived."""

    name: str
    by: str
    why: str = ""
    """Of one that survived, how it was tried."""


def try_mutant(mutant: Mutant, units: Sequence[Known]) -> Result:
    """Have the units that call the mutated function judge it, the quickest first."""
    function = mutant.key.rpartition("__mutmut_")[0]
    loading, *rest = units
    calling = [unit for unit in rest if function in unit.reached or function in loading.reached]
    calling.sort(key=lambda unit: (function not in unit.reached, unit.seconds))
    if not calling:
        return Result(mutant.name, "", "not reached")
    laws = (*dict.fromkeys(law for unit in calling for law in unit.laws), ANSWERS.id)
    end = time.monotonic() + SECONDS

    def chosen(planned: list[Unit]) -> Iterator[Unit]:
        by_name = {unit.name: unit for unit in planned}
        for unit in calling:
            if unit.name in by_name:
                yield by_name[unit.name]
                if by_name[unit.name].failure:
                    return

    try:
        trial = try_out(
            worker(mutant.key), laws, chosen=chosen, until=laws, stop=lambda: time.monotonic() > end
        )
    except TargetFailed as failed:
        return Result(mutant.name, "cannot be loaded", str(failed)[:300])
    except NotJudged as error:
        return Result(mutant.name, "cannot be run", str(error)[:300])
    return judged(mutant, trial, time.monotonic() > end)


def judged(mutant: Mutant, trial: Trial, late: bool) -> Result:
    if trial.catches:
        return Result(mutant.name, next(iter(trial.catches)))
    if failed := [line for line in trial.open if not line.endswith(": cut")]:
        return Result(mutant.name, "not judged", failed[0][:300])
    return Result(mutant.name, "", "time was up" if late else f"{trial.examples} examples")


def try_all(mutants: Sequence[Mutant], units: Sequence[Known], jobs: int, done: dict[str, Result]) -> None:
    """Try those that have not been, and keep each result at once."""
    todo = [mutant for mutant in mutants if mutant.name not in done]
    lock = threading.Lock()
    judging = digest(*PACKAGES)

    def one(mutant: Mutant) -> None:
        started = time.monotonic()
        result = try_mutant(mutant, units)
        with lock:
            done[mutant.name] = result
            with (KEPT / "results.jsonl").open("a") as kept:
                kept.write(json.dumps({"judging": judging, **asdict(result)}, ensure_ascii=False) + "\n")
            number = sum(mutant.name in done for mutant in mutants)
            fate = result.by or f"SURVIVED ({result.why})"
            took = time.monotonic() - started
            print(f"{number}/{len(mutants)} {took:.1f} s  {mutant.name[:140]}  {fate}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(one, todo):
            pass


def digest(*folders: str) -> str:
    """Of all sources there."""
    told = hashlib.sha256()
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            told.update(f"{path.relative_to(ROOT)}\0{path.read_text()}\0".encode())
    return told.hexdigest()[:16]


def made() -> list[Mutant]:
    """All mutants that change more than text, made anew if the reference has changed."""
    file, of = KEPT / "made.json", digest("kvref")
    if file.exists() and (there := json.loads(file.read_text()))["of"] == of:
        return [Mutant(**mutant) for mutant in there["mutants"]]
    print("making mutants", flush=True)
    KEPT.mkdir(exist_ok=True)
    mutants = [mutant for mutant in mutate(KEPT / "kvref") if not mutant.text_alone]
    file.write_text(json.dumps({"of": of, "mutants": [asdict(mutant) for mutant in mutants]}))
    return mutants


def recorded() -> list[Known]:
    """The units, run anew if anything has changed."""
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
    """What is known of mutants from a run that was interrupted, or of fewer of them."""
    file, of = KEPT / "results.jsonl", digest(*PACKAGES)
    lines = file.read_text().splitlines() if file.exists() else ()
    told = [json.loads(line) for line in lines]
    return {each["name"]: Result(each["name"], each["by"], each["why"]) for each in told if each["judging"] == of}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Whether the laws alone find mutants of the reference.")
    parser.add_argument("--sample", type=int, default=600, help="how many mutants, of all modules")
    parser.add_argument("--where", default="*", help="only functions like this, such as 'pool.*'")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many are tried at a time")
    options = parser.parse_args(arguments)
    mutants = made()
    tried = sample(mutants, options.sample, least=max(1, options.sample // 120))
    tried = [mutant for mutant in tried if fnmatch.fnmatchcase(mutant.where, options.where)]
    units = recorded()
    done = results()
    try_all(tried, units, options.jobs, done)
    print(table(tried, done))
    return 0


def table(mutants: Sequence[Mutant], done: dict[str, Result]) -> str:
    lines = []
    for module in [*dict.fromkeys(mutant.module for mutant in mutants), ""]:
        there = [done[mutant.name] for mutant in mutants if module in ("", mutant.module)]
        killed = sum(bool(result.by) for result in there)
        lines.append(f"| {module or 'all'} | {len(there)} | {killed} | {killed / len(there):.1%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
