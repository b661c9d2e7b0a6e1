"""The mutant run: which mutants it tries, on which units, and what the page says about survivors."""

from __future__ import annotations

from collections import Counter

import mutants
import pytest
import survivors
from mutants import Known
from mutating import Mutant, mutants_in, sample
from survivors import Result

from kvref_conformance.laws import LAWS
from kvref_conformance.running.dispatch import Unit
from kvref_strategies.catalogue import WORKLOADS

CODE = '''
class Pool:
    @_mutmut_mutated(mutants_)
    def take(self, number):
        """Take some."""
        if number < 1 or number < 1:
            raise ValueError(f"no {number} blocks")
        return self.blocks[:number]

    def xǁPoolǁtake__mutmut_orig(self, number):
        """Take some."""
        if number < 1 or number < 1:
            raise ValueError(f"no {number} blocks")
        return self.blocks[:number]

    def xǁPoolǁtake__mutmut_1(self, number):
        """Take some."""
        if number <= 1 or number < 1:
            raise ValueError(f"no {number} blocks")
        return self.blocks[:number]

    def xǁPoolǁtake__mutmut_2(self, number):
        """Take some."""
        if number < 1 or number < 1:
            raise ValueError(f"XXno {number} blocksXX")
        return self.blocks[:number]

    def xǁPoolǁtake__mutmut_3(self, number):
        """Take some."""
        if number < 1 or number < 1:
            raise ValueError(None)
        return self.blocks[:number]

    def xǁPoolǁfree__mutmut_orig(self, blocks):
        held = [self.counts[block] for block in blocks]
        least = min(held)
        worst = sorted(blocks)[0]
        if least < 1:
            raise ValueError(f"{worst} of {blocks}, {least} times")
        return [*zip(blocks, held, strict=True)]

    def xǁPoolǁfree__mutmut_1(self, blocks):
        held = [self.counts[block] for block in blocks]
        least = min(held)
        worst = sorted(None)[0]
        if least < 1:
            raise ValueError(f"{worst} of {blocks}, {least} times")
        return [*zip(blocks, held, strict=True)]

    def xǁPoolǁfree__mutmut_2(self, blocks):
        held = [self.counts[block] for block in blocks]
        least = min(None)
        worst = sorted(blocks)[0]
        if least < 1:
            raise ValueError(f"{worst} of {blocks}, {least} times")
        return [*zip(blocks, held, strict=True)]

    def xǁPoolǁfree__mutmut_3(self, blocks):
        held = [self.counts[block] for block in blocks]
        least = min(held)
        worst = sorted(blocks)[0]
        if least < 1:
            raise ValueError(f"{worst} of {blocks}, {least} times")
        return [*zip(blocks, held, strict=False)]

    def xǁPoolǁfree__mutmut_4(self, blocks):
        held = [self.counts[block] for block in blocks]
        least = min(held)
        worst = sorted(blocks)[0]
        if least < 1:
            raise ValueError(f"{worst} of {blocks}, {least} times")
        return [*zip(blocks, strict=True)]

    def xǁPoolǁfree__mutmut_5(self, blocks):
        held = [self.counts[block] for block in blocks]
        least = min(held)
        worst = sorted(blocks)[0]
        if least < 1:
            raise ValueError(None)
        return [*zip(blocks, held, strict=True)]

def x_names__mutmut_orig(blocks) -> str:
    return ", ".join(map(str, blocks[:3]))

def x_names__mutmut_1(blocks) -> str:
    return ", ".join(map(str, blocks[:4]))

def x_count__mutmut_orig(blocks):
    a = 1
    b = 1
    a = 1
    return a

def x_count__mutmut_1(blocks):
    a = 2
    b = 1
    a = 1
    return a

def x_count__mutmut_2(blocks):
    a = 1
    b = 1
    a = 2
    return a
'''


def test_mutants_are_named_by_what_is_changed_and_where() -> None:
    found = {mutant.key: mutant for mutant in mutants_in(CODE, "pool")}
    assert {key: mutant.name for key, mutant in found.items() if not mutant.text_alone} == {
        "kvref.pool.xǁPoolǁtake__mutmut_1": (
            "pool.Pool.take: if number < 1 or number < 1: → if number <= 1 or number < 1:"
        ),
        "kvref.pool.x_count__mutmut_1": "pool.count: a = 1 → a = 2",
        "kvref.pool.x_count__mutmut_2": "pool.count: a = 1 → a = 2 (2)",
        "kvref.pool.xǁPoolǁfree__mutmut_2": "pool.Pool.free: least = min(held) → least = min(None)",
        "kvref.pool.xǁPoolǁfree__mutmut_4": (
            "pool.Pool.free: return [*zip(blocks, held, strict=True)] → return [*zip(blocks, strict=True)]"
        ),
    }
    assert {mutant.module for mutant in found.values()} == {"pool"}
    message = found["kvref.pool.xǁPoolǁtake__mutmut_3"]
    assert message.name == "pool.Pool.take: raise ValueError(f'…{number}…') → raise ValueError(None)"
    assert message.function == "kvref.pool.xǁPoolǁtake"


def test_what_only_says_something_else_is_known() -> None:
    alone = {mutant.key for mutant in mutants_in(CODE, "pool") if mutant.text_alone}
    assert alone == {
        "kvref.pool.xǁPoolǁtake__mutmut_2",
        "kvref.pool.xǁPoolǁtake__mutmut_3",
        "kvref.pool.xǁPoolǁfree__mutmut_1",
        "kvref.pool.xǁPoolǁfree__mutmut_3",
        "kvref.pool.xǁPoolǁfree__mutmut_5",
        "kvref.pool.x_names__mutmut_1",
    }


def some(module: str, number: int) -> list[Mutant]:
    return [Mutant(f"kvref.{module}.x_f__mutmut_{n}", f"{module}.f", str(n), False) for n in range(number)]


def test_each_module_has_its_share_and_the_small_ones_some() -> None:
    there = some("a", 700) + some("b", 290) + some("c", 8) + some("d", 2)
    drawn = Counter(mutant.module for mutant in sample(there, 100, least=5))
    assert drawn == {"a": 66, "b": 27, "c": 5, "d": 2}


def test_a_small_sample_is_part_of_a_large_one_and_others_do_not_matter() -> None:
    there = some("a", 300) + some("b", 100)
    large = sample(there, 100, least=3)
    assert {*sample(there, 20, least=1)} < {*large}
    fewer = [mutant for mutant in there if mutant not in large[:10]]
    assert {*large[10:]} <= {*sample(fewer, 100, least=3)}


def unit(name: str, seconds: float, *functions: str) -> Known:
    return Known(name, seconds, ("spec.merge-identity",), frozenset(functions))


def test_units_take_turns_by_workload_those_first_that_call_little_else() -> None:
    units = [
        unit("", 0),
        unit("wide [a]", 1, "f", "g", "h"),
        unit("wide [b]", 2, "f", "g", "h"),
        *(unit(f"narrow [{n}]", n, "f") for n in (4, 3, 2, 1)),
        unit("other [a]", 0.1, "g"),
    ]
    names = [each.name for each in mutants.order(units, "f")]
    assert names == ["narrow [1]", "narrow [2]", "wide [b]", "narrow [3]", "narrow [4]", "wide [a]"]
    assert mutants.order(units, "i") == []


def test_what_is_called_while_loading_concerns_all_and_first_those_that_call_it() -> None:
    units = [unit("", 0, "f"), unit("one [a]", 1), unit("two [a]", 2, "f")]
    assert [each.name for each in mutants.order(units, "f")] == ["two [a]", "one [a]"]


def test_no_more_is_run_than_fits_into_the_time() -> None:
    units = [unit(f"w{n} [a]", mutants.SECONDS / 4, "f") for n in range(9)]
    assert [len(each) for each in mutants.rounds(units)] == [4]
    assert [len(each) for each in mutants.rounds(units[:3])] == [3, 1]
    assert [len(each) for each in mutants.rounds(units[:2])] == [2, 2]
    assert len([*mutants.rounds([unit("w [a]", 0.1, "f")])]) == mutants.SEEDS


def explored(workload: str, law: str, examples: int) -> Unit:
    made = Unit(WORKLOADS[workload], "a", [LAWS[law]])
    made.findings = {"laws": {law: {"examples": examples}}}
    return made


def test_a_law_that_is_given_nothing_is_no_law_that_holds() -> None:
    assert mutants.incomplete(explored("specs.merge-equal", "spec.merge-identity", 0))
    assert not mutants.incomplete(explored("specs.merge-equal", "spec.merge-identity", 1))
    # A check reports such a law as not applicable.
    assert not mutants.incomplete(explored("cache.machine", "manager.state-owned", 0))


def test_a_unit_that_fails_is_incomplete() -> None:
    failed = Unit(WORKLOADS["specs.merge-equal"], "a", [LAWS["spec.merge-identity"]], failure="TypeError")
    assert mutants.incomplete(failed) == "TypeError"


REASONS = [{"why": "the same", "mutants": ["pool.f: a → b"]}]


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (Result("pool.f: a → b", "", "3 units"), None),
        (Result("pool.f: a → b", "pool.reset"), "is listed, and killed (pool.reset): pool.f: a → b"),
        (Result("pool.g: a → b", "pool.reset"), None),
        (Result("pool.g: a → b", "", "3 units"), "survives, and is not listed (3 units): pool.g: a → b"),
    ],
)
def test_the_list_has_what_survives_and_nothing_else(result: Result, problem: str | None) -> None:
    known = {"pool.f: a → b", "pool.g: a → b"}
    assert [*survivors.wrong(REASONS, known, [result])] == ([problem] if problem else [])


def test_what_is_listed_exists() -> None:
    assert [*survivors.wrong(REASONS, set(), [])] == ["is listed, and no mutant: pool.f: a → b"]


def test_nothing_is_listed_twice() -> None:
    listed = [name for reason in survivors.load() for name in reason["mutants"]]
    assert len({*listed}) == len(listed)


def test_the_page_is_up_to_date_with_the_list() -> None:
    page = (survivors.ROOT / "docs" / "mutants.md").read_text(encoding="utf-8")
    assert page[page.index(survivors.HEADING) :] == survivors.list_of(survivors.load()), (
        "run: tox -e mutants -- --page docs/mutants.md"
    )
