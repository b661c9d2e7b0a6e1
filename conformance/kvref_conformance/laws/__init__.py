"""The catalogue of laws, in the order in which they are reported."""

from kvref_conformance.laws import (
    admission,
    construction,
    coordinator,
    drift,
    events,
    hashes,
    manager,
    plan,
    pool,
    registry,
    spec,
    spec_groups,
    spec_held,
    spec_pages,
)
from kvref_conformance.laws.core import Event, Law, LawBroken, Runs
from kvref_conformance.laws.target import ANSWERS

__all__ = ["ANSWERS", "LAWS", "Event", "Law", "LawBroken", "Runs"]

LAWS: dict[str, Law] = {
    law.id: law
    for law in (
        *registry.LAWS,
        *construction.LAWS,
        plan.UNREGISTERED_REFUSED,
        *spec.LAWS,
        *spec_pages.LAWS,
        *spec_groups.LAWS,
        *spec_held.LAWS,
        *plan.LAWS,
        *hashes.LAWS,
        *pool.LAWS,
        *events.LAWS,
        *manager.LAWS,
        *coordinator.LAWS,
        *admission.LAWS,
        *drift.LAWS,
        ANSWERS,
    )
}
