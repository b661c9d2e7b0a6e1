"""The reference, but its comparison of memory never reports a difference."""

from kvref_conformance.targets.reference import tensors
from kvref_conformance.targets.reference.target import ReferenceTarget


def target() -> ReferenceTarget:
    tensors.compare_slots = lambda layer, slots, marks, told: []
    return ReferenceTarget()
