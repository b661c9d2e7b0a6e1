"""Registration programs: trees of spec classes, managers, and the calls that register them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from kvref.target import Registration, SpecClassInfo, SpecDescriptor
from kvref_strategies.specs import class_info, minimal, missing_menu
from kvref_strategies.workload import Description, Draw, Machine, Stage, Subjects, Workload

MAX_CLASSES = 6
"""Spec classes defined in one example: enough for a chain of four beside a diamond."""


@dataclass
class ClassTree:
    """Plain model of the spec classes of a process: the target's own and those defined on top.

    Classes that a plugin derives from two unrelated kinds of attention have no meaning, so every class
    keeps to one line of descent among the target's own classes.
    """

    description: Description
    bases: dict[str, list[str]] = field(default_factory=dict)

    @property
    def stock(self) -> list[SpecClassInfo]:
        """The target's own classes that describe a layer and that specs can be drawn for."""
        infos = self.description["classes"]
        return [info for info in infos if info["role"] == "layer" and missing_menu(info) is None]

    def kind(self, name: str) -> SpecClassInfo:
        """The most derived of the target's own classes among the ancestors of `name`."""
        if name not in self.bases:
            return class_info(self.description, name)
        return max((self.kind(base) for base in self.bases[name]), key=lambda info: len(info["mro"]))

    def joinable(self, bases: list[str]) -> bool:
        """Whether the classes can be bases of one class: one line of descent, none twice over."""
        kinds = sorted((self.kind(base) for base in bases), key=lambda info: len(info["mro"]))
        in_line = all(low["name"] in high["mro"] for low, high in itertools.pairwise(kinds))
        return in_line and not any(
            other in self.ancestors(base) for base in bases for other in bases if other != base
        )

    def ancestors(self, name: str) -> set[str]:
        if name not in self.bases:
            return set(class_info(self.description, name)["mro"])
        return {name}.union(*(self.ancestors(base) for base in self.bases[name]))

    def spec(self, name: str) -> SpecDescriptor:
        """The simplest spec of the class."""
        return {"class": name, "fields": minimal(self.kind(name))["fields"]}

    def names(self) -> list[str]:
        """Defined classes, newest first, then the target's own."""
        return [*reversed(self.bases), *(info["name"] for info in self.stock)]

    def draw_bases(self, draw: Draw) -> list[str]:
        """One base (a chain), or two of one line of descent (a diamond)."""
        bases: list[str] = [draw(st.sampled_from(self.names()))]
        others = [name for name in self.names() if name not in bases and self.joinable([*bases, name])]
        diamond: bool = draw(st.booleans())
        if others and diamond:
            bases.append(draw(st.sampled_from(others)))
        return bases

    def draw_uniform_base(self, draw: Draw, name: str) -> str | None:
        """None (the class itself) or one of its ancestors."""
        ancestors = [n for n in self.names() if n in self.ancestors(name)]
        return draw(st.none() | st.sampled_from(ancestors))

    def draw_stranger(self, draw: Draw, name: str) -> str:
        """A class that is no ancestor of `name`."""
        return draw(st.sampled_from([n for n in self.names() if n not in self.ancestors(name)]))


class RegistrationMachine(Machine):
    """Registration against a plain model: classes, what is registered, and nothing else.

    The model knows which registrations are legal; whether the target agrees is for the laws.
    """

    def __init__(self, stage: Stage, description: Description, subject: str) -> None:
        super().__init__(stage, description, subject)
        self.tree = ClassTree(description)
        self.managers = list(description["managers"])
        self.registered: dict[str, Registration] = {}

    @initialize()
    def initialise(self) -> None:
        self.stage.perform("registry.initialise")
        for info in self.tree.stock:
            self.stage.perform("registry.lookup", spec=self.tree.spec(info["name"]))

    @precondition(lambda self: len(self.tree.bases) < MAX_CLASSES)
    @rule(data=st.data())
    def define_spec(self, data: st.DataObject) -> None:
        name, bases = f"Vendor{len(self.tree.bases)}", self.tree.draw_bases(data.draw)
        if "value" in self.stage.perform("registry.define_spec", name=name, bases=bases):
            self.tree.bases[name] = bases

    @precondition(lambda self: len(self.managers) < len(self.description["managers"]) + 2)
    @rule(data=st.data())
    def define_manager(self, data: st.DataObject) -> None:
        base = data.draw(st.sampled_from(self.managers))
        name = f"VendorManager{len(self.managers) - len(self.description['managers'])}"
        self.stage.perform("registry.define_manager", name=name, base=base)
        self.managers.append(name)

    @precondition(lambda self: len(self.tree.bases) > len(self.registered))
    @rule(data=st.data())
    def register(self, data: st.DataObject) -> None:
        new = [name for name in self.tree.bases if name not in self.registered]
        name = data.draw(st.sampled_from(new))
        registration = draw_registration(data.draw, self.tree, self.managers, name)
        call = data.draw(st.sampled_from(["registry.register", "registry.decorate"]))
        if "value" in self.stage.perform(call, **registration):
            self.registered[name] = registration

    @precondition(lambda self: self.registered)
    @rule(data=st.data())
    def register_again(self, data: st.DataObject) -> None:
        self.stage.perform("registry.register", **self._draw_registered(data.draw))

    @precondition(lambda self: self.registered)
    @rule(data=st.data())
    def register_in_conflict(self, data: st.DataObject) -> None:
        registration = self._draw_registered(data.draw)
        conflicting = draw_conflict(data.draw, self.tree, self.managers, registration)
        spec = self.tree.spec(registration["spec_class"])
        self.stage.perform("registry.lookup", spec=spec)
        self.stage.perform("registry.register", **conflicting)
        self.stage.perform("registry.lookup", spec=spec)

    @precondition(lambda self: self.tree.bases)
    @rule(data=st.data())
    def lookup(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.tree.names()))
        self.stage.perform("registry.lookup", spec=self.tree.spec(name))

    def _draw_registered(self, draw: Draw) -> Registration:
        return self.registered[draw(st.sampled_from(list(self.registered)))]


def draw_registration(draw: Draw, tree: ClassTree, managers: list[str], name: str) -> Registration:
    """A legal registration of the class."""
    return {
        "spec_class": name,
        "manager": draw(st.sampled_from(managers)),
        "base": tree.draw_uniform_base(draw, name),
    }


def draw_conflict(draw: Draw, tree: ClassTree, managers: list[str], first: Registration) -> Registration:
    """A registration of the same class with another manager, or another uniform base."""
    name = first["spec_class"]
    own = first["base"] or name
    bases = [n for n in tree.names() if n in tree.ancestors(name) and n != own]
    if draw(st.booleans()) and bases:
        return {**first, "base": draw(st.sampled_from(bases))}
    return {**first, "manager": draw(st.sampled_from([m for m in managers if m != first["manager"]]))}


Step = tuple[str, dict[str, Any]]
"""An operation and its arguments."""


def orders(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """The same registrations twice: built-ins first, then in another order, each in its own process.

    In the second process nobody may have asked for the built-ins at all: the first look-up brings them.
    """
    tree = ClassTree(description)
    setup: list[Step] = []
    registrations: list[Step] = []
    hooked: list[Registration] = []
    for number in range(draw(st.integers(1, 3))):
        name, bases = f"Vendor{number}", tree.draw_bases(draw)
        tree.bases[name] = bases
        setup.append(("registry.define_spec", {"name": name, "bases": bases}))
        registration = draw_registration(draw, tree, description["managers"], name)
        way = draw(st.sampled_from(["registry.register", "registry.decorate", "hook"]))
        if way == "hook":
            hooked.append(registration)
        else:
            registrations.append((way, dict(registration)))
    if hooked:
        setup.append(("registry.install_hook", {"registrations": hooked}))
    asked = draw(st.lists(st.sampled_from(tree.names()), min_size=1, max_size=4, unique=True))
    initialise: Step = ("registry.initialise", {})
    other_order = list(draw(st.permutations(registrations)))
    place = draw(st.none() | st.integers(0, len(registrations)))
    if place is not None:
        other_order.insert(place, initialise)
    for order in ([initialise, *registrations], other_order):
        stage.fresh()
        for operation, arguments in (*setup, *order):
            stage.perform(operation, **arguments)
        for name in asked:
            stage.perform("registry.lookup", spec=tree.spec(name))


def refusals(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """A legal registration and one thing to refuse, with asserts and, in another process, without."""
    tree = ClassTree(description)
    tree.bases["Vendor0"] = tree.draw_bases(draw)
    legal = draw_registration(draw, tree, description["managers"], "Vendor0")
    steps: list[Step] = [
        ("registry.initialise", {}),
        ("registry.define_spec", {"name": "Vendor0", "bases": tree.bases["Vendor0"]}),
        ("registry.register", dict(legal)),
    ]
    match draw(st.sampled_from(["conflict", "base", "unregistered"])):
        case "conflict":
            conflict = draw_conflict(draw, tree, description["managers"], legal)
            steps.append(("registry.register", dict(conflict)))
        case "base":
            tree.bases["Vendor1"] = tree.draw_bases(draw)
            steps.append(("registry.define_spec", {"name": "Vendor1", "bases": tree.bases["Vendor1"]}))
            stranger = tree.draw_stranger(draw, "Vendor1")
            steps.append(("registry.register", {**legal, "spec_class": "Vendor1", "base": stranger}))
        case _:
            tree.bases["Stray"] = ["AttentionSpec"]
            steps.append(("registry.define_spec", {"name": "Stray", "bases": ["AttentionSpec"]}))
            steps.append(("registry.check", {"layers": {"layer.0": tree.spec("Stray")}}))
    for flags in ((), ("-O",)):
        stage.fresh(*flags)
        for operation, arguments in steps:
            stage.perform(operation, **arguments)


def _one_subject(description: Description) -> Subjects:
    return {"registry": None}


WORKLOADS = [
    Workload("registry.machine", ("registry",), _one_subject, RegistrationMachine, isolated=True, weight=0.4),
    Workload("registry.orders", ("registry",), _one_subject, orders, isolated=True, weight=0.4),
    Workload(
        "registry.refusals", ("registry",), _one_subject, refusals, isolated=True, flags=("-O",), weight=0.2
    ),
]
