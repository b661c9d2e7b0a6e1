"""What a law is judged on, for a target."""

from __future__ import annotations

from kvref_conformance.laws import ANSWERS, Law
from kvref_strategies.catalogue import WORKLOADS
from kvref_strategies.specs import KNOWN_KINDS, judged
from kvref_strategies.workload import Description, Subjects

ALL_OPERATIONS = "all operations"


def subjects_of(law: Law, description: Description) -> Subjects:
    """The subjects by name, each with the reason why the law does not apply to it, or None.

    The only one is "" where the law does not apply to the target at all.
    """
    if law is ANSWERS:
        return {ALL_OPERATIONS: None}
    workload = WORKLOADS[law.workload]
    if lacking := [part for part in workload.parts if part not in description["parts"]]:
        # Where a part is missing, so are its operations.
        named = [part for part in lacking if part.partition(".")[0] not in lacking or "." not in part]
        return {"": f"the target has no {', '.join(named)}"}
    if undeclared := [name for name in law.capabilities if not description["capabilities"].get(name)]:
        return {"": f"the target does not declare the capability {', '.join(undeclared)}"}
    return workload.subjects(description) or {"": "the target has nothing that it speaks of"}


def of_unknown_kind(description: Description) -> list[str]:
    """Classes that are judged by the laws for any kind alone."""
    return [info["name"] for info in judged(description) if not set(KNOWN_KINDS).intersection(info["mro"])]
