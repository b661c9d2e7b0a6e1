"""Mutants that no law kills: reads docs/survivors.toml, and makes docs/mutants.md from it and a run."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mutating import ROOT, Mutant

LISTED = ROOT / "docs" / "survivors.toml"

HEADING = "## Survivors\n"

_HEAD = """# Mutants

Made from a run and from `survivors.toml` by `tox -e mutants -- --page docs/mutants.md`: change these, not
this page.

Do the laws notice small changes? [mutmut](https://mutmut.readthedocs.io) makes thousands of small changes in
the reference: a `<` becomes `<=`, an argument is left out, a value becomes `None`. Each is a mutant. A mutant
is *killed* if a check of it would not end as conformant. Our own tests play no part in this. If no law kills
a mutant, then either nobody can see the change, or no law may judge it: the mutant is listed below, with the
reason. A run fails if a mutant survives that is not listed, or if a listed one is killed.

## How it works

* mutmut makes mutants of all of `kvref`, except the protocol of a target and `fast.device_copy` and
  `fast.device_kernel`, which need a CUDA device and are tested by tests/cuda. We leave out mutants that
  change only text: a string, or what goes into the message of an exception. We also leave out changes to
  `strict` of a `zip`, which guards against future mistakes. mutmut itself never changes functions with
  decorators, properties included.
* Of the rest we try {size}: from each module in proportion to its mutants, but at least {least} if it has
  that many. A hash of the change selects them, so most stay in the sample when the reference changes.
* All units of a quick check run once on the reference, with its mutants inactive: no law may break. They run
  again to record which functions each of them calls.
* For each mutant we run the units that call its function, in turn by workload, and again with other seeds,
  until one finds it or until they would have taken {seconds:g} seconds on the reference. Nothing is reduced
  or confirmed.
* A mutant is killed if a law breaks; if its process dies, or does not answer an operation for {hangs:g}
  seconds (`target.answers`); if it cannot be loaded; or if a check would be *incomplete*: a unit ends in an
  error, or a law has nothing to judge that had something without the mutant. A slow mutant is not killed.

`tox -e mutants` does all this. It continues where it stopped until something changes. For less, pass
`--sample 40` for a short run, `--where 'pool.*'` for some functions, or `--jobs`.

## Result

| module | mutants | tried | found by a law | otherwise | survive | killed |
|---|---:|---:|---:|---:|---:|---:|
"""


@dataclass(frozen=True)
class Result:
    """The result for one mutant. `by` is the law, or whatever else, that killed it. Empty if it survived."""

    name: str
    by: str
    why: str = ""


def load() -> list[dict[str, Any]]:
    """The reasons in docs/survivors.toml, each with the mutants that it explains."""
    reasons: list[dict[str, Any]] = tomllib.loads(LISTED.read_text(encoding="utf-8"))["survivors"]
    return reasons


def wrong(
    reasons: Sequence[Mapping[str, Any]], known: Collection[str], results: Sequence[Result]
) -> Iterator[str]:
    """Yields each mistake in the list: mutants that it lacks, and mutants that it should not list.

    `known` has the names of all mutants.
    """
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
    """The section of the page that lists the surviving mutants, by reason."""
    lines = [HEADING]
    for reason in reasons:
        lines += [f"\n{reason['why']}:\n\n", *(f"* `` {name} ``\n" for name in reason["mutants"])]
    return "".join(lines)
