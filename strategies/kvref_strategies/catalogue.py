"""Every workload, by name."""

from kvref_strategies import registrations, specs
from kvref_strategies.workload import Workload

WORKLOADS: dict[str, Workload] = {
    workload.name: workload for workload in (*specs.WORKLOADS, *registrations.WORKLOADS)
}
