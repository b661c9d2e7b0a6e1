"""Generated faults: in each, one rule of one spec class gets one field wrong.

The rules are things that a spec can do, such as merge and copy: see `RULES`. There is a fault for each spec
class that a layer can have, each field of that class, and each rule. Each fault is a target:
`kvref check kvref_conformance.targets.faults.fields:CLASS__FIELD__RULE`. The fault is only in CLASS. Classes
that derive from CLASS stay correct.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import kvref.specs
from kvref import uniform
from kvref.errors import InvalidSpecError
from kvref.specs import KVCacheSpec
from kvref.target import SpecClassInfo
from kvref_conformance.targets.codec import decode
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference import specs as reference
from kvref_conformance.targets.reference.target import ReferenceTarget
from kvref_strategies.specs import menu

_PAGE_SIZES = ("unpadded_page_size_bytes", "page_size_bytes")


class FieldFault(NamedTuple):
    """A rule of a spec class that gets one field wrong."""

    spec_class: str
    field: str
    rule: str
    """One of `RULES`."""

    @property
    def name(self) -> str:
        """The fault's name, as in `fields:NAME`."""
        return "__".join(self)

    def replacements(self) -> Iterator[tuple[object, str, object]]:
        """The attributes that the fault replaces: for each, its owner, its name and the new value."""
        return RULES[self.rule](_Field(self.spec_class, self.field))


class _Field:
    """A field of a spec class. The methods return specs with a wrong value in the field."""

    def __init__(self, spec_class: str, field: str) -> None:
        self.owner: Any = reference.CLASSES[spec_class]
        self.name = field
        info = infos()[spec_class]
        default = next(each for each in info["fields"] if each["name"] == field)
        values = [default["default"]] if "default" in default else menu(info, field)
        self._values = [decode(value, kvref.specs) for value in values]

    def forgotten(self, spec: Any) -> Any:
        """The spec as if nobody had set the field.

        The field has its default or, if there is none, the first legal value that examples use. A spec of
        another class, even of a derived one, stays as it is.
        """
        for value in self._values if type(spec) is self.owner else ():
            if getattr(spec, self.name) == value:
                break
            try:
                return dataclasses.replace(spec, **{self.name: value})
            except InvalidSpecError:
                continue
        return spec

    def of_the_first(self, specs: Sequence[Any]) -> list[Any]:
        """Return the specs. In those of this class, the field has the value of the first one, if legal."""
        own = [spec for spec in specs if type(spec) is self.owner]
        return [self._changed(spec, own[0]) if type(spec) is self.owner else spec for spec in specs]

    def _changed(self, spec: Any, first: Any) -> Any:
        try:
            return dataclasses.replace(spec, **{self.name: getattr(first, self.name)})
        except InvalidSpecError:
            return spec


_Replacements = Iterator[tuple[object, str, object]]


def _merge(field: _Field) -> _Replacements:
    """A merged spec loses the field."""
    merge = field.owner.merge.__func__
    yield field.owner, "merge", classmethod(lambda cls, specs: field.forgotten(merge(cls, specs)))


def _merge_first(field: _Field) -> _Replacements:
    """A merged spec has the first spec's value of the field, although other specs have other values."""
    merge = field.owner.merge.__func__
    yield field.owner, "merge", classmethod(lambda cls, specs: merge(cls, field.of_the_first(specs)))


def _copy(field: _Field) -> _Replacements:
    """A copy with another block size loses the field."""
    copy = field.owner.copy_with_new_block_size
    yield (
        field.owner,
        "copy_with_new_block_size",
        lambda spec, block_size: field.forgotten(copy(spec, block_size)),
    )


def _page(field: _Field) -> _Replacements:
    """The page size does not depend on the field."""
    within: list[bool] = []

    def without(size: Callable[[Any], int]) -> property:
        def forgetful(spec: Any) -> int:
            if within:  # the size of a spec that has lost the field already, or is being checked
                return size(spec)
            within.append(True)
            try:
                return size(field.forgotten(spec))
            finally:
                within.clear()

        return property(forgetful)

    for name in _PAGE_SIZES:
        yield field.owner, name, without(getattr(field.owner, name).fget)


def _uniform(field: _Field) -> _Replacements:
    """Specs are uniform although they differ in the field."""
    is_type, with_collection = uniform.is_uniform_type, uniform.is_uniform_with_collection

    def alike(specs: Mapping[str, KVCacheSpec]) -> dict[str, KVCacheSpec]:
        return dict(zip(specs, field.of_the_first(list(specs.values())), strict=True))

    def is_uniform_with_collection(spec: KVCacheSpec, specs: Mapping[str, KVCacheSpec]) -> bool:
        own, *others = field.of_the_first([spec, *specs.values()])
        return with_collection(own, dict(zip(specs, others, strict=True)))

    yield uniform, "is_uniform_with_collection", is_uniform_with_collection
    yield uniform, "is_uniform_type", lambda specs: is_type(alike(specs))


RULES: dict[str, Callable[[_Field], _Replacements]] = {
    "merge": _merge,
    "merge_first": _merge_first,
    "copy": _copy,
    "page": _page,
    "uniform": _uniform,
}
"""The rules, by name. Each function returns the replacements that make the rule get a field wrong."""


def infos() -> dict[str, SpecClassInfo]:
    """Descriptions of the spec classes that a layer can have, by name."""
    return {info["name"]: info for info in reference.classes() if info["role"] == "layer"}


def generated() -> list[FieldFault]:
    """All generated faults: one for each spec class of a layer, each field of the class and each rule."""
    return [
        FieldFault(name, field["name"], rule)
        for name, info in infos().items()
        for field in info["fields"]
        for rule in RULES
    ]


def __getattr__(name: str) -> Callable[[], ReferenceTarget]:
    """Return the factory of the generated fault with this name, as if the module defined that factory."""
    fault = next((each for each in generated() if each.name == name), None)
    if fault is None:
        raise AttributeError(f"no generated fault is called {name!r}: name one as CLASS__FIELD__RULE")

    def factory() -> ReferenceTarget:
        for owner, attribute, replacement in list(fault.replacements()):
            break_it(owner, attribute, replacement)
        return ReferenceTarget()

    return factory
