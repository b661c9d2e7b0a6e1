"""The laws, one module per area. `LAWS` lists them in the order of the reports."""

from kvref_conformance.laws import (
    admission,
    canonical,
    connector,
    coordinator,
    deployments,
    drift,
    events,
    hashes,
    manager,
    plan,
    pool,
    registry,
    shadow,
    sharing,
    spec,
    spec_groups,
    spec_held,
    spec_pages,
    substitutes,
    tensors,
)
from kvref_conformance.laws.core import Event, Law, LawBroken, Runs
from kvref_conformance.laws.target import ANSWERS

__all__ = ["ANSWERS", "LAWS", "Event", "Law", "LawBroken", "Runs"]

LAWS: dict[str, Law] = {
    law.id: law
    for law in (
        *registry.LAWS,
        substitutes.SUBSTITUTE,
        plan.UNREGISTERED_REFUSED,
        deployments.CONSTRUCTIBLE,
        *spec.LAWS,
        *spec_pages.LAWS,
        *spec_groups.LAWS,
        *spec_held.LAWS,
        *plan.LAWS,
        *deployments.LAWS,
        *hashes.LAWS,
        *pool.LAWS,
        *events.LAWS,
        *manager.LAWS,
        *coordinator.LAWS,
        *admission.LAWS,
        *tensors.LAWS,
        *canonical.LAWS,
        *sharing.LAWS,
        *connector.LAWS,
        *shadow.LAWS,
        *drift.LAWS,
        ANSWERS,
    )
}
