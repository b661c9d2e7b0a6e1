"""The time until a law notices a fault of the reference."""

from __future__ import annotations

from contextlib import ExitStack

from kvref_conformance.bench.benchmark import Benchmark, Prepared
from kvref_conformance.processes.launch import Launch
from kvref_conformance.running.fault_matrix import faults
from kvref_conformance.running.loading import loaded
from kvref_conformance.running.progress import Silence
from kvref_conformance.running.time_to_find import try_on

_FAULTS = {fault.name: fault for fault in faults()}


class NotCaught(RuntimeError):
    """A law did not notice its fault."""


def catch(fault: str) -> Prepared:
    """Run examples for the fault's law, as a check does, until the law breaks."""
    broken = _FAULTS[fault]
    with ExitStack() as stack:
        target = stack.enter_context(loaded(Launch(broken.target), [broken.law], Silence()))
        kept = stack.pop_all()

    def run() -> None:
        trial = try_on(target, [broken.law], until=[broken.law], depth=broken.depth)
        if broken.law not in trial.catches:
            raise NotCaught(f"{broken.law} did not notice the fault {fault} in {trial.examples} examples")

    return Prepared(run, close=kept.close)


CATCH = Benchmark(
    "faults.catch",
    "running examples until a law notices a fault",
    catch,
    {"fault": [*_FAULTS]},
    quick={"fault": ["spec:alignment_lost_in_merge", "pool:null_block_gets_a_key"]},
    here=True,
)
