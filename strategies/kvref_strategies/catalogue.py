"""Every workload, by name."""

from kvref_strategies import (
    contents,
    drift,
    engines,
    models,
    pools,
    registrations,
    spec_groups,
    spec_objects,
    spec_pages,
    specs,
    substitutes,
)
from kvref_strategies.workload import Workload

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        *specs.WORKLOADS,
        *spec_objects.WORKLOADS,
        *spec_pages.WORKLOADS,
        *spec_groups.WORKLOADS,
        *registrations.WORKLOADS,
        *contents.WORKLOADS,
        *models.WORKLOADS,
        *engines.WORKLOADS,
        *substitutes.WORKLOADS,
        *pools.WORKLOADS,
        *drift.WORKLOADS,
    )
}
