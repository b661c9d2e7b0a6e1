"""Mutants that the laws leave alive: docs/survivors.toml, and the page that is made of it and of a run."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mutating import ROOT, Mutant

LISTED = ROOT / "docs" / "survivors.toml"

HEADING = "## Survivors\n"

_HEAD = """# Mutants

Made by `tox -e mutants -- --page docs/mutants.md`, of a run and of `survivors.toml`: change that, not this
page.

Are the laws sharp? [mutmut](https://mutmut.readthedocs.io) makes small changes in the reference, thousands
of them: a `<` becomes `<=`, an argument is left out, a value is `None`. Each is a mutant. A mutant is
*killed* if a check of it would not say that it conforms; our own tests have no part in that. What no law
kills is the same as before, for all that anybody can see, or is nothing that a law may ask for: it is
listed below, with the reason. A run fails if a mutant survives that is not listed, or if one that is listed
is killed.

## What is done

* mutmut makes mutants of all of `kvref` but the protocol of a target, and `fast.device_copy` and
  `fast.device_kernel`, which need a CUDA device and are judged by tests/cuda. Those that change nothing but what is
  said, a string or what goes into the message of an exception, are left out, as are those of `strict` of a
  `zip`, which guards against mistakes to come; and so are functions that mutmut never changes: those with
  decorators, properties among them.
* Of the rest {size} are tried, of each module in proportion to what it has, but {least} if it has them. A
  hash of what is changed draws them, so that a change of the reference leaves most of them in.
* All units of a quick check run once on the reference, with its mutants asleep: nothing may break. They run
  again to see which functions each of them calls.
* For each mutant those units are run that call its function, of each workload one in turn, and again
  with other seeds, until one finds it, or until they would have taken {seconds:g} seconds on the reference.
  Nothing is reduced or confirmed.
* It is killed if a law breaks; if its process dies, or does not answer an operation for {hangs:g} seconds
  (`target.answers`); if it cannot be loaded; or if a check would be *incomplete*: a unit ends in an error,
  or a law is given nothing to judge, where it was something without the mutant. Being slow is no reason.

`tox -e mutants` does that. It goes on where it was until something is changed, and takes `--sample 40` for
a short run, `--where 'pool.*'` for some functions, and `--jobs`.

## Result

| module | mutants | tried | found by a law | otherwise | survive | killed |
|---|---:|---:|---:|---:|---:|---:|
"""


@dataclass(frozen=True)
class Result:
    """What became of a mutant. `by` is the law that found it, or what else did; nothing if it survived."""

    name: str
    by: str
    why: str = ""


def load() -> list[dict[str, Any]]:
    """Reasons, each with the mutants of which it is told."""
    reasons: list[dict[str, Any]] = tomllib.loads(LISTED.read_text(encoding="utf-8"))["survivors"]
    return reasons


def wrong(
    reasons: Sequence[Mapping[str, Any]], known: Collection[str], results: Sequence[Result]
) -> Iterator[str]:
    """What the list does not say, or says without need. `known` are the names of all mutants."""
    listed = {name for reason in reasons for name in reason["mutants"]}
    for result in results:
        if not result.by and result.name not in listed:
            yield f"survives, and is not listed ({result.why}): {result.name}"
        if result.by and result.name in listed:
            yield f"is listed, and killed ({result.by}): {result.name}"
    for name in sorted(listed - {*known}):
        yield f"is listed, and no mutant: {name}"


def page(
    reasons: Sequence[Mapping[str, Any]],
    mutants: Sequence[Mutant],
    tried: Sequence[Mutant],
    results: Mapping[str, Result],
    **how: float,
) -> str:
    return f"{_HEAD.format(size=len(tried), **how)}{table(mutants, tried, results)}\n{list_of(reasons)}"


def table(mutants: Sequence[Mutant], tried: Sequence[Mutant], results: Mapping[str, Result]) -> str:
    rows = []
    for module in [*dict.fromkeys(mutant.module for mutant in tried), ""]:
        there = [results[mutant.name] for mutant in tried if module in ("", mutant.module)]
        number = sum(module in ("", mutant.module) for mutant in mutants)
        by_law = sum("." in result.by for result in there)
        killed = sum(bool(result.by) for result in there)
        counts = f"{number} | {len(there)} | {by_law} | {killed - by_law} | {len(there) - killed}"
        rows.append(f"| {f'`{module}`' if module else 'all'} | {counts} | {killed / len(there):.1%} |\n")
    return "".join(rows)


def list_of(reasons: Sequence[Mapping[str, Any]]) -> str:
    """What the page says of those that survive."""
    lines = [HEADING]
    for reason in reasons:
        lines += [f"\n{reason['why']}:\n\n", *(f"* `` {name} ``\n" for name in reason["mutants"])]
    return "".join(lines)
