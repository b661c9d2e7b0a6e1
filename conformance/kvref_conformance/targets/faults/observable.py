"""Find out whether a generated fault changes any answer of its rule. If not, no law can catch the fault."""

from __future__ import annotations

import enum
import typing
from collections.abc import Iterator
from contextlib import ExitStack
from fractions import Fraction
from itertools import pairwise
from typing import Any
from unittest import mock

from kvref.registry import register_all_kvcache_specs
from kvref.target import SpecDescriptor
from kvref_conformance.targets.codec import encode
from kvref_conformance.targets.faults.fields import FieldFault, infos
from kvref_conformance.targets.reference import specs as reference
from kvref_strategies.specs import KINDS, menu, minimal, with_field

_INTS = (1, 2, 4, 64, 4096, 1 << 16)
_BLOCK_SIZES = (16, 64)


def changes_an_answer(fault: FieldFault) -> bool:
    """Whether the fault changes the rule's answer for any of the specs that this module tries.

    These specs are legal and differ in the fault's field. Their other fields have the simplest values, or all
    but one of them.
    """
    register_all_kvcache_specs()
    asked = list(_questions(fault))
    true = [_answer(fault.rule, specs) for specs in asked]
    with ExitStack() as stack:
        for owner, name, replacement in list(fault.replacements()):
            stack.enter_context(mock.patch.object(owner, name, replacement))
        return any(_answer(fault.rule, specs) != answer for specs, answer in zip(asked, true, strict=True))


def _questions(fault: FieldFault) -> Iterator[list[SpecDescriptor]]:
    """Yield the lists of legal specs to which the rule is applied."""
    info = infos()[fault.spec_class]
    simplest = minimal(info)["fields"]
    others = [name for name in (field["name"] for field in info["fields"]) if name != fault.field]
    varied = {name: values[-1] for name in others if (values := _values(fault, name))}
    contexts = [simplest, *({**simplest, name: value} for name, value in varied.items())]
    for fields in contexts:
        simple: SpecDescriptor = {"class": fault.spec_class, "fields": fields}
        changed = [with_field(simple, fault.field, value) for value in _values(fault, fault.field)]
        specs = [spec for spec in [simple, *changed] if _is_legal(spec)]
        yield from ([spec, spec] for spec in specs)
        yield from ([one, other] for one, other in pairwise(specs))


def _values(fault: FieldFault, field: str) -> list[Any]:
    """Values to try for a field: those that examples use, and for some fields more that their type allows."""
    info = infos()[fault.spec_class]
    values = list(menu(info, field))
    if any(field in KINDS.get(ancestor, {}) for ancestor in info["mro"]):
        return values
    hint = typing.get_type_hints(reference.CLASSES[fault.spec_class])[field]
    for kind in typing.get_args(hint) or (hint,):
        match kind:
            case type() if issubclass(kind, enum.Enum):
                values += kind
            case type() if kind is int:
                values += _INTS
            case type() if kind is str:
                values += ["other"]
            case type() if kind is Fraction:
                values += [Fraction(1, 2)]
            case _:
                pass
    return [encode(value) for value in values]


def _is_legal(spec: SpecDescriptor) -> bool:
    try:
        reference.make(spec)
    except ValueError:
        return False
    return True


def _answer(rule: str, specs: list[SpecDescriptor]) -> Any:
    """The rule's answer for these specs. None if the rule refuses them."""
    try:
        match rule:
            case "merge" | "merge_first":
                return reference.merge(specs)
            case "copy":
                return [reference.copy(specs[0], block_size) for block_size in _BLOCK_SIZES]
            case "page":
                return reference.build(specs[0])
            case _:
                return reference.uniform(specs)
    except ValueError:
        return None
