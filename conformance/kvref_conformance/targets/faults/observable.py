"""Whether a generated fault changes an answer of its rule. If it changes none, no law can catch it."""

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
    """Whether the rule answers differently with the fault, for legal specs that differ in the fault's field.

    The other fields have their simplest values, but for one of them at a time.
    """
    register_all_kvcache_specs()
    asked = list(_questions(fault))
    true = [_answer(fault.rule, specs) for specs in asked]
    with ExitStack() as stack:
        for owner, name, replacement in list(fault.replacements()):
            stack.enter_context(mock.patch.object(owner, name, replacement))
        return any(_answer(fault.rule, specs) != answer for specs, answer in zip(asked, true, strict=True))


def _questions(fault: FieldFault) -> Iterator[list[SpecDescriptor]]:
    """Lists of legal specs to ask the rule about."""
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
    """Values of a field: those that the strategies know for the class, and others that its type allows."""
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
    """What the rule answers; None if it refuses."""
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
