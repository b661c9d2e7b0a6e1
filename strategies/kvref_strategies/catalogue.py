"""Collects the workloads of all modules, by name."""

from kvref_strategies import (
    caches,
    canonical,
    connector,
    contents,
    deployments,
    drift,
    loads,
    models,
    pools,
    registrations,
    shadow,
    shadow_tensors,
    sharing,
    spec_groups,
    spec_objects,
    spec_pages,
    specs,
    substitutes,
    tensors,
    variants,
    withdrawn,
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
        *deployments.WORKLOADS,
        *substitutes.WORKLOADS,
        *pools.WORKLOADS,
        *caches.WORKLOADS,
        *variants.WORKLOADS,
        *tensors.WORKLOADS,
        *canonical.WORKLOADS,
        *sharing.WORKLOADS,
        *connector.WORKLOADS,
        *loads.WORKLOADS,
        *withdrawn.WORKLOADS,
        *shadow.WORKLOADS,
        *shadow_tensors.WORKLOADS,
        *drift.WORKLOADS,
    )
}
