"""Runs the benchmarks of `kvref bench` on the reference. Without `--benchmark-enable`, only small ones, once.

pytest benchmarks/test_workloads.py --benchmark-enable -n 0 --benchmark-columns=median,iqr,rounds

Each time is for one pass over all operations. `operations` in the extra information is the number of
operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kvref_conformance.bench.benchmark import Case, Subject
from kvref_conformance.bench.comparison import BENCHMARKS
from kvref_conformance.bench.serving import NATIVE, subject_of
from kvref_conformance.processes.host import describe
from kvref_conformance.targets.reference.target import ReferenceTarget

ROUNDS = 7
DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    quick = not metafunc.config.getoption("benchmark_enable")
    every = [case for each in BENCHMARKS.values() for device in DEVICES for case in each.cases(device, quick)]
    cases = {str(case): case for case in every}
    metafunc.parametrize("case", cases.values(), ids=cases)


@pytest.fixture(scope="module")
def subject() -> Iterator[Subject]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the processes of `kvref bench`
    target: Any = ReferenceTarget()
    description: Any = {**describe(target), "device": "cpu"}
    yield subject_of(target, description, NATIVE)
    torch.set_num_threads(threads)


def test_workload(benchmark: Any, subject: Subject, case: Case) -> None:
    about = () if case.benchmark.here else (subject,)
    prepared = case.benchmark.prepare(*about, **case.params)

    def reset() -> None:
        prepared.reset()

    try:
        benchmark.extra_info["operations"] = prepared.operations
        benchmark.pedantic(prepared.run, setup=reset, rounds=ROUNDS)
    finally:
        prepared.close()
