"""Benchmarks: what is timed and how, what is reported, and which calls are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TARGETS, Kvref

from kvref_conformance.bench import comparison
from kvref_conformance.bench.benchmark import Benchmark, Case, Prepared, Subject
from kvref_conformance.bench.comparison import (
    BENCHMARKS,
    CannotTime,
    Contender,
    Timed,
    choose,
    compare,
    document,
)
from kvref_conformance.bench.serving import BY_OPERATIONS, NATIVE, Timing, subject_of
from kvref_conformance.documents.schemas import validate
from kvref_conformance.processes.host import describe
from kvref_conformance.report.benching import in_words, page, section
from kvref_conformance.report.plotting import CannotPlot, check
from kvref_conformance.running.progress import Silence
from kvref_conformance.targets.bench_models import SMALL, layers_of
from kvref_conformance.targets.reference.bench import FAST
from kvref_conformance.targets.reference.target import ReferenceTarget

JOIN = ("--quick", "--only", "sharing.join", "--rounds", "5")


def bench(kvref: Kvref, *targets: str, options: tuple[object, ...] = JOIN) -> tuple[Any, dict[str, Any]]:
    """Run `kvref bench` on targets of tests/targets. Returns the document that it prints as well."""
    ran = kvref("bench", *targets, "--path", TARGETS, *options, "--json")
    told = json.loads(ran.out)
    validate(told, "bench")
    return ran, told


# -- what is timed -------------------------------------------------------------------------------------------


def test_a_round_is_long_enough_and_only_passes_are_timed() -> None:
    now = 0.0
    calls: list[str] = []

    def take(name: str, seconds: float) -> Callable[[], None]:
        def act() -> None:
            nonlocal now
            now += seconds
            calls.append(name)

        return act

    prepared = Prepared(take("run", 0.25), 5, take("reset", 0.5), did=lambda: calls[-1], memory=lambda: 7)
    timing = Timing(prepared, clock=lambda: now)
    begun = timing.begin(1.0)
    assert begun == {"did": "run", "passes": 4, "bytes": 7}
    calls.clear()
    assert timing.run(4) == 0.05
    assert calls == ["reset", "run"] * 4


def test_preparing_anew_for_each_pass_does_not_take_for_ever() -> None:
    now = 0.0

    def reset() -> None:
        nonlocal now
        now += 100.0

    def run() -> None:
        nonlocal now
        now += 0.001

    assert Timing(Prepared(run, reset=reset), clock=lambda: now).begin(1.0)["passes"] <= 10


@pytest.fixture(scope="module")
def subjects() -> Iterator[list[Subject]]:
    target: Any = ReferenceTarget()
    description: Any = {**describe(target), "device": "cpu"}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield [subject_of(target, description, way) for way in (NATIVE, BY_OPERATIONS)]
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", [name for name, each in BENCHMARKS.items() if not each.here])
def test_both_ways_of_calling_the_reference_do_the_same(name: str, subjects: list[Subject]) -> None:
    case = next(BENCHMARKS[name].cases("cpu", quick=True))
    did = []
    for subject in subjects:
        prepared = case.benchmark.prepare(subject, **case.params)
        for _ in range(2):
            prepared.reset()
            prepared.run()
        did.append(prepared.did())
        prepared.close()
        assert prepared.operations > 0
    assert did[0] == did[1]


def test_a_pool_that_is_half_hashed_loses_its_keys_in_a_pass(subjects: list[Subject]) -> None:
    """A pass takes blocks with keys, and `reset` gives all the lost keys back before the next pass."""
    [case] = [
        each
        for each in BENCHMARKS["pool.take-free"].cases("cpu", quick=False)
        if each.params == {"state": "half hashed", "events": True, "batch": 16, "num_blocks": 10_000}
    ]
    prepared = case.benchmark.prepare(subjects[0], **case.params)
    for _ in range(3):
        assert prepared.did() == {"free": 4992, "keys lost": 16 * prepared.operations}
        prepared.reset()
        prepared.run()
    assert prepared.operations == 256


def test_a_pool_takes_memory_for_each_block(subjects: list[Subject]) -> None:
    """The reported memory is that of one pool, even if pools were made before."""
    told: list[int] = []
    for num_blocks in (1_000, 100_000):
        prepared = BENCHMARKS["pool.create"].prepare(subjects[0], num_blocks=num_blocks)
        for _ in range(3):
            prepared.reset()
            prepared.run()
        assert prepared.did() == {"free": num_blocks - 1}
        told.append(prepared.memory() or 0)
    small, large = told
    assert 50 < large / small < 150


def test_what_is_copied_is_there(subjects: list[Subject]) -> None:
    """The timed calls do real work: here, a block's bytes arrive in another block."""
    layers = layers_of([SMALL], 3)
    call = FAST.allocate(layers, 4, "LBNHC", "one", "cpu")
    assert call.size(call.run(call.fresh())) == 3 * 4 * 512
    made: list[Any] = []
    register = FAST.register_kv_caches
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FAST, "register_kv_caches", lambda caches: made.append(register(caches)) or made[-1])
        copy = FAST.copy(layers, 4, "LBNHC", "cpu", [(1, 3)])
    for each in made[0].tensors:
        each.tensor[1] = 7
    copy.run(copy.fresh())
    assert all(torch.equal(each.tensor[3], each.tensor[1]) for each in made[0].tensors)
    assert copy.size(None) == 3 * 512


def test_the_limits_of_what_is_chosen_are_timed_first() -> None:
    cases = choose(["pool.touch"], "cpu", quick=True)
    names = [name for name, _ in groupby(case.benchmark.name for case in cases)]
    assert names == ["limit.dict", "pool.touch"]
    sizes = {case.params["num_blocks"] for case in cases if case.benchmark.name == "pool.touch"}
    assert {case.params["size"] for case in cases if case.benchmark.name == "limit.dict"} == sizes


def test_the_whole_grid_is_there_but_for_what_does_not_fit() -> None:
    found = [case.params for case in choose(["pool.take-free"], "cpu", quick=False)[4:]]
    assert {each["batch"] for each in found} == {1, 16, 256, 4096}
    assert {each["num_blocks"] for each in found} == {10**3, 10**4, 10**5, 10**6}
    assert {each["state"] for each in found} == {"fresh", "churning", "half hashed"}
    assert all(4 * each["batch"] <= each["num_blocks"] for each in found)
    layers = {case.params["layers"] for case in choose(["plan.*"], "cpu", quick=False)}
    assert layers == {10, 100, 1000}
    devices = {case.params["device"] for case in choose(["tensors.*", "canonical.*"], "cuda", quick=False)}
    assert devices == {"cuda"}


def test_faults_have_to_be_asked_for() -> None:
    assert "faults.catch" not in {case.benchmark.name for case in choose([], "cpu", quick=True)}
    every = choose(["faults.*"], "cpu", quick=False)
    assert len(every) > 100
    assert {case.benchmark.name for case in every} == {"faults.catch"}


# -- two targets ---------------------------------------------------------------------------------------------


class Scripted:
    """Stands in for a target's process, and answers with the work and the times that the test sets."""

    def __init__(self, did: Any, seconds: list[float], order: list[str], label: str) -> None:
        self._did, self._seconds, self._order, self._label = did, iter(seconds), order, label

    def begin(self, seconds: float) -> Any:
        if isinstance(self._did, CannotTime):
            raise self._did
        return {"did": self._did, "bytes": None}

    def run(self) -> float:
        self._order.append(self._label)
        return next(self._seconds)

    def close(self) -> None:
        self._order.append(f"close {self._label}")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Timed, list[str]]]:
    """Returns a function that times one case of two scripted targets."""

    def time(first: Any, second: Any) -> tuple[Timed, list[str]]:
        order: list[str] = []
        scripts = {"A": first, "B": second}
        monkeypatch.setattr(comparison, "way_of", lambda contenders: NATIVE)
        monkeypatch.setattr(
            comparison, "_runner", lambda case, each, way: Scripted(*scripts[each.label], order, each.label)
        )
        contenders: Any = [Contender(label, None) for label in scripts]  # type: ignore[arg-type]
        case = Case(BENCHMARKS["sharing.join"], {"chain": 1, "layers": 10})
        [timed] = compare([case], contenders, 5, 0.05, Silence())
        return timed, order

    return time


FIRST, SECOND = [1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 4.0, 12.0, 8.0, 10.0]


def test_rounds_alternate_and_the_ratio_is_that_of_medians(scripted: Any) -> None:
    timed, order = scripted(({"size": 10}, FIRST), ({"size": 10}, SECOND))
    assert order == ["A", "B"] * 5 + ["close B", "close A"]
    assert (timed.median("A"), timed.median("B"), timed.ratio) == (3.0, 8.0, 8 / 3)
    assert (timed.iqr("A"), timed.spread) == (2.0, (2.0, 2.0))  # the ratios are 2, 2, 4, 2, 2


def test_there_is_no_ratio_of_unequal_work(scripted: Any) -> None:
    timed, _ = scripted(({"size": 10}, FIRST), ({"size": 9}, SECOND))
    assert (timed.ratio, timed.spread, timed.unequal) == (None, None, "A: size 10; B: size 9")
    assert timed.median("B") == 8.0


def test_what_one_cannot_do_is_timed_of_the_other(scripted: Any) -> None:
    timed, order = scripted((CannotTime("no such thing"), []), ({"size": 10}, SECOND))
    assert (timed.ratio, timed.left_out, [*timed.rounds]) == (None, {"A": "no such thing"}, ["B"])
    assert order == ["B"] * 5 + ["close B", "close A"]
    assert timed.labels == ["A", "B"]


def test_two_targets_are_timed_in_turn(kvref: Kvref, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("KVREF_TEST_BENCH_LOG", str(log))
    ran, told = bench(kvref, "bench_toy:quick", "bench_toy:slow")
    assert ran.code == 0
    assert [*told["environment"]["targets"]] == ["bench_toy:quick", "bench_toy:slow"]
    assert told["environment"]["way"] == "bench"
    for each in told["benchmarks"]:
        first, second = (timed["median_seconds"] for timed in each["targets"].values())
        assert each["ratio"] == pytest.approx(second / first)
        assert first >= 0.002
        assert second >= 0.006
    # Each target is begun once and has five rounds, in four cases.
    turns = [name for name, _ in groupby(log.read_text().split())]
    assert turns == ["quick", "slow"] * 6 * 4


def test_the_same_target_twice_has_two_names(kvref: Kvref) -> None:
    _, told = bench(kvref, "bench_toy:quick", "bench_toy:quick")
    assert [*told["environment"]["targets"]] == ["bench_toy:quick", "bench_toy:quick (again)"]
    assert all(0.2 < each["ratio"] < 5 for each in told["benchmarks"])


def test_one_target_alone_has_no_ratio(kvref: Kvref) -> None:
    ran, told = bench(kvref, options=("--quick", "--only", "pool.lookup", "--rounds", "5"))
    assert (ran.code, [*told["environment"]["targets"]]) == (0, ["reference"])
    assert {each["name"] for each in told["benchmarks"]} == {"limit.dict", "pool.lookup"}
    assert {each["ratio"] for each in told["benchmarks"]} == {None}


def test_without_the_part_both_are_timed_by_operations(kvref: Kvref) -> None:
    """The reference has the part, but is timed by operations, too: both sides must pay for conversion."""
    ran = kvref("bench", "bench_toy:by_operations", "reference", "--path", TARGETS, *JOIN)
    assert ran.code == 0
    assert "timed through the operations of the parts" in ran.out
    ran, told = bench(kvref, "bench_toy:by_operations", "reference")
    assert told["environment"]["way"] == "operations"
    assert all(0 < each["ratio"] < 1 for each in told["benchmarks"])


def test_unequal_work_is_told_and_is_no_success(kvref: Kvref) -> None:
    ran, told = bench(kvref, "bench_toy:quick", "bench_toy:loses_a_layer")
    assert (ran.code, {each["ratio"] for each in told["benchmarks"]}) == (1, {None})
    ran = kvref("bench", "bench_toy:quick", "bench_toy:loses_a_layer", "--path", TARGETS, *JOIN)
    assert ran.code == 1
    assert (
        "no ratio at chain=1, layers=10, since the targets did different work: bench_toy:quick: size 10;"
        in (" ".join(ran.out.split()))
    )


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("bench_toy:ends", "is left out: its process ended: exit code 3"),
        ("bench_toy:by_operations", "is left out: it does not implement the part pool"),
        ("bench_toy:quick", "is left out: there is no pool here"),
    ],
)
def test_what_cannot_be_timed_is_left_out_with_its_reason(kvref: Kvref, target: str, words: str) -> None:
    only = "sharing.join" if target.endswith("ends") else "pool.lookup"
    ran = kvref("bench", target, "--path", TARGETS, "--quick", "--only", only)
    text = " ".join(ran.out.split())
    # The limit of pool.lookup is timed for every target, so that run measures something.
    assert (ran.code, words in text) == (3 if only == "sharing.join" else 0, True), text


# -- what is reported ----------------------------------------------------------------------------------------


def timed_at(num_blocks: int, first: float, second: float | None = None, **params: Any) -> Timed:
    case = Case(BENCHMARKS["pool.touch"], {"batch": 1, "num_blocks": num_blocks, **params})
    rounds = {"A": [first] * 5} | ({"B": [second] * 5} if second else {})
    left_out = {} if second else {"B": "it has <none>"}
    return Timed(case, ["A", "B"], rounds, left_out, bytes={"A": 2_500_000} if params else {})


SOME = [timed_at(1_000, 2e-6, 1e-6), timed_at(10_000, 3e-6, 4e-6), timed_at(10_000, 3e-5, batch=16)]


def limits() -> dict[str, Timed]:
    cases = [Case(BENCHMARKS["limit.dict"], {"size": size}) for size in (1_000, 10_000)]
    return {case.key: Timed(case, ["A", "B"], {"A": [1e-7] * 5, "B": [5e-8] * 5}) for case in cases}


def test_the_tables_tell_ratio_limit_growth_and_what_was_left_out() -> None:
    told = section(BENCHMARKS["pool.touch"], SOME, limits())
    figures, growth = told.tables
    assert figures.head == ["batch", "num_blocks", "A", "B", "ratio", "x limit.dict"]
    assert figures.rows[0] == ["1", "1,000", "2 us ±0%", "1 us ±0%", "0.50 [0.50, 0.50]", "10.0 / 10.0"]
    assert figures.rows[2] == ["16", "10,000", "30 us ±0%", "-", "-", "9.38 / -"]
    assert growth.head == ["growth by num_blocks", "1,000", "10,000"]
    assert growth.rows == [["A, batch=1", "1.00", "1.50"], ["B, batch=1", "1.00", "4.00"]]
    assert told.notes == [
        "B is left out at batch=16, num_blocks=10,000: it has <none>",
        "memory at batch=16, num_blocks=10,000: A 2.5 MB",
    ]


def test_the_page_has_all_of_it_and_no_markup_of_others() -> None:
    target = {"name": "a|b", "version": "1", "python": "3.11", "torch": "2"}
    environment: Any = {
        "targets": {"A": target, "B": target},
        "cpu": "chip",
        "cpus": 2,
        "load": 1.5,
        "device": "cpu",
        "rounds": 5,
        "way": "operations",
    }
    text = page(SOME, limits(), environment, "kvref bench A B")
    assert "Made by `kvref bench A B`" in text
    assert "| 1 | 1,000 | 2 us ±0% | 1 us ±0% | 0.50 [0.50, 0.50] | 10.0 / 10.0 |" in text
    assert "it has &lt;none>" in text
    assert "a\\|b 1" in text
    assert "ratio: B over A; below 1, B is faster" in text
    assert "timed through the operations of the parts" in text
    assert "the machine was busy when the benchmark began (load 1.5)" in text
    validate(document(SOME, environment), "bench")


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (1e-3, "1 ms"), (1.234e-5, "12.3 us"), (4.5e-10, "0.45 ns")]
)
def test_seconds_are_told_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert in_words(seconds) == text


def test_a_page_and_tables(kvref: Kvref, tmp_path: Path) -> None:
    output = tmp_path / "figures.md"
    ran = kvref("bench", "--quick", "--only", "pool.touch", "-o", output)
    assert ran.code == 0
    assert "pool.touch: touching and freeing a batch of free cached blocks" in ran.out
    assert "growth by num_blocks" in ran.out
    text = output.read_text()
    assert "Made by `kvref bench reference --only pool.touch --quick`" in text
    assert "## limit.dict: reading from a dictionary" in text


def test_a_fault_is_caught_and_that_takes_time(kvref: Kvref, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Benchmark(
        "faults.catch",
        "catching",
        BENCHMARKS["faults.catch"].prepare,
        {"fault": ["spec:alignment_lost_in_merge"]},
        here=True,
    )
    monkeypatch.setitem(comparison.BENCHMARKS, "faults.catch", one)
    ran, told = bench(kvref, options=("--only", "faults.catch", "--rounds", "5"))
    [caught] = told["benchmarks"]
    assert (ran.code, caught["params"]) == (0, {"fault": "spec:alignment_lost_in_merge"})
    assert 0 < caught["targets"]["reference"]["median_seconds"] < 60
    ran = kvref("bench", "bench_toy:quick", "--path", TARGETS, "--only", "faults.catch")
    assert (ran.code, "is left out: it times faults of the reference" in ran.out) == (3, True)


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a", "b", "c"), "name one target, or two to compare, not 3"),
        (("--only", "pol.*"), "no benchmark matches 'pol.*'; there are: limit.dict, limit.memset"),
        (("--rounds", "4"), "4 is not in the range x>=5"),
        (
            ("--plot", "growth.gif"),
            "--plot needs a file that ends in one of .svg, .png, .pdf, not 'growth.gif'",
        ),
        (("--plot", "/no/such/folder/x.svg"), "there is no folder '/no/such/folder'"),
        (("nonsense",), "unknown target 'nonsense'"),
    ],
)
def test_refused_before_anything_is_timed(kvref: Kvref, arguments: tuple[str, ...], words: str) -> None:
    ran = kvref("bench", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert words in " ".join(ran.err.split())
    assert "timing" not in ran.err


@pytest.fixture
def with_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = object()
    monkeypatch.setattr("kvref_conformance.report.plotting.find_spec", lambda name: found)


def test_a_plot_needs_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = choose(["pool.lookup"], "cpu", quick=True)
    monkeypatch.setattr("kvref_conformance.report.plotting.find_spec", lambda name: None)
    with pytest.raises(CannotPlot, match=r"pip install 'kvref\[plot\]'"):
        check(Path("growth.svg"), cases)


@pytest.mark.usefixtures("with_matplotlib")
def test_a_plot_needs_sizes() -> None:
    check(Path("growth.svg"), choose(["pool.lookup"], "cpu", quick=True))
    with pytest.raises(CannotPlot, match="none of these benchmarks"):
        check(Path("growth.svg"), choose(["suite.*"], "cpu", quick=True))
