"""The catalogue of laws, in the order in which they are reported."""

from kvref_conformance.laws import (
    drift,
    engines,
    hashes,
    plan,
    pool,
    registry,
    spec,
    spec_groups,
    spec_pages,
    substitutes,
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
        engines.CONSTRUCTIBLE,
        *spec.LAWS,
        *spec_pages.LAWS,
        *spec_groups.LAWS,
        *plan.LAWS,
        *engines.LAWS,
        *hashes.LAWS,
        *pool.LAWS,
        *drift.LAWS,
        ANSWERS,
    )
}
