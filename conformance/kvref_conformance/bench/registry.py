"""All benchmarks that run in the process of a target."""

from kvref_conformance.bench import cache, limits, memory, planning, pool, suite
from kvref_conformance.bench.benchmark import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        *limits.BENCHMARKS,
        *pool.BENCHMARKS,
        *cache.BENCHMARKS,
        *planning.BENCHMARKS,
        *memory.BENCHMARKS,
        *suite.BENCHMARKS,
    )
}
