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
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path

from mutating import ROOT, Mutant, mutate, sample
from targets.mutated import MUTATED, REACHED

from kvref_conformance.laws import ANSWERS, LAWS
from kvref_conformance.session import NotJudged
from kvref_conformance.trials import try_out
from kvref_conformance.units import Unit
from kvref_conformance.worker import TargetFailed, Worker
from kvref_strategies.catalogue import WORKLOADS

LISTED = ROOT / "docs" / "survivors.toml"

KEPT = ROOT / "mutants"

SECONDS = 20.0
"""How much of a check is tried on a mutant, by the time it takes without."""

LONGEST = 10 * SECONDS
"""After how long it is left alone. A mutant that makes the reference slow has survived then."""

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

    @property
    def workload(self) -> str:
        return self.name.partition(" ")[0]


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
        reached[""] = frozenset(notes.read_text().split())
        for unit in units:
            notes.write_text("")
            yield unit
            reached[unit.name] = frozenset(notes.read_text().split())
            laws[unit.name] = tuple(law.id for law in unit.laws)

    notes.write_text("")
    for mutant, chosen in (("", timed), ("stats", counted)):
        trial = try_out(worker(mutant), tuple(LAWS), chosen=chosen)
        if trial.catches or trial.open:
            raise SystemExit(f"without a mutant, this is wrong: {trial.catches} {trial.open}")
    return [Known(name, seconds.get(name, 0.0), laws[name], reached[name]) for name in reached]


@dataclass(frozen=True)
class Result:
    """What became of a mutant. `by` is the law that found it, or what else did; nothing if it survived."""

    name: str
    by: str
    why: str = ""


def order(units: Iterable[Known], function: str) -> list[Known]:
    """Those that call the function: of each workload the quickest, then of each the next, until time is up.

    So all kinds of examples have their turn. The time is that which they take without a mutant: what is run does
    not depend on what else the machine has to do.
    """
    loading, *rest = units
    calling = [unit for unit in rest if function in unit.reached or function in loading.reached]
    turns: Counter[str] = Counter()
    turn: dict[str, int] = {}
    for unit in sorted(calling, key=lambda unit: unit.seconds):
        turn[unit.name] = turns[unit.workload]
        turns[unit.workload] += 1
    calling.sort(key=lambda unit: (function not in unit.reached, turn[unit.name], unit.seconds))
    passed = accumulate(unit.seconds for unit in calling)
    return [unit for unit, seconds in zip(calling, passed, strict=True) if seconds <= SECONDS]


def try_mutant(mutant: Mutant, units: Sequence[Known]) -> Result:
    """Have the units that call the mutated function judge it; last those that need a host of their own."""
    calling = order(units, mutant.function)
    if not calling:
        return Result(mutant.name, "", "not reached")
    flagged = [unit for unit in calling if WORKLOADS[unit.workload].flags]
    for some in [unit for unit in calling if unit not in flagged], flagged:
        if some and (result := try_on(mutant, some)).by:
            return result
    return Result(mutant.name, "", f"{len(calling)} units")


def try_on(mutant: Mutant, units: Sequence[Known]) -> Result:
    laws = (*dict.fromkeys(law for unit in units for law in unit.laws), ANSWERS.id)
    end = time.monotonic() + LONGEST

    ended = ""

    def late() -> bool:
        return time.monotonic() > end

    def chosen(planned: list[Unit]) -> Iterator[Unit]:
        nonlocal ended
        by_name = {unit.name: unit for unit in planned}
        for name in (unit.name for unit in units if unit.name in by_name):
            yield by_name[name]
            if ended := incomplete(by_name[name]):
                return

    try:
        trial = try_out(worker(mutant.key), laws, chosen=chosen, until=laws, stop=late)
    except TargetFailed as failed:
        return Result(mutant.name, "cannot be loaded", str(failed)[:300])
    except NotJudged as error:
        return Result(mutant.name, "cannot be run", str(error)[:300])
    if trial.catches:
        return Result(mutant.name, next(iter(trial.catches)))
    return Result(mutant.name, "incomplete" if ended else "", ended)


def incomplete(unit: Unit) -> str:
    """Why a check would not say that the laws hold which this unit feeds; nothing if it would."""
    if unit.findings is None:
        return unit.failure
    empty = [law.id for law in unit.laws if not unit.findings["laws"][law.id]["examples"]]
    return f"nothing to judge for {empty[0]}" if empty and not unit.workload.unobserved else ""


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
    return {
        each["name"]: Result(each["name"], each["by"], each["why"]) for each in told if each["judging"] == of
    }


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
