"""The subjects on which a law is judged for a target, and why it does not apply to others."""

from __future__ import annotations

from kvref.target import FieldInfo, SpecClassInfo
from kvref_conformance.laws import ANSWERS, Law
from kvref_strategies.catalogue import WORKLOADS
from kvref_strategies.specs import KINDS, KNOWN_KINDS, is_required, judged, menu, spec_subjects
from kvref_strategies.workload import Description, Subjects

ALL_OPERATIONS = "all operations"


def subjects_of(law: Law, description: Description) -> Subjects:
    """The subjects by name, each with the reason why the law does not apply to it, or None.

    If the law does not apply to the target at all, the only subject is "".
    """
    if law is ANSWERS:
        return {ALL_OPERATIONS: None}
    workload = WORKLOADS[law.workload]
    if lacking := [part for part in workload.parts if part not in description["parts"]]:
        # If a part is missing, so are its operations.
        named = [part for part in lacking if part.partition(".")[0] not in lacking or "." not in part]
        return {"": f"the target has no {', '.join(named)}"}
    if undeclared := [name for name in law.capabilities if not description["capabilities"].get(name)]:
        return {"": f"the target does not declare the capability {', '.join(undeclared)}"}
    return workload.subjects(description) or {"": "the target has no subject for it"}


def is_undrawable(subject: str, reason: str | None, description: Description) -> bool:
    """Whether the law applies to this class, but kvref can make no spec of it, as `reason` says."""
    return reason is not None and spec_subjects(description).get(subject) == reason


def of_unknown_kind(description: Description) -> list[str]:
    """The classes whose kind of attention kvref does not know. Only laws for any kind judge them."""
    return [info["name"] for info in judged(description) if not set(KNOWN_KINDS).intersection(info["mro"])]


def is_kept(info: SpecClassInfo, field: FieldInfo) -> bool:
    """Whether no example changes the field, because its class or the profile allows only one value."""
    listed = "values" in field or any(field["name"] in KINDS.get(each, {}) for each in info["mro"])
    values = menu(info, field["name"])
    return listed and len(values) < (2 if is_required(field) else 1)


def left_at_default(description: Description) -> list[str]:
    """A plugin's own fields that no example changes, because kvref knows no values for them."""
    if description["plugin"] is None:
        return []
    own = judged(description)
    stock = {f["name"] for info in description["classes"] if info not in own for f in info["fields"]}
    return [
        f"{info['name']}.{field['name']}"
        for info in own
        for field in info["fields"]
        if not (
            field["name"] in stock or "values" in field or is_required(field) or menu(info, field["name"])
        )
    ]
