"""Defines spec classes and manager classes, and registers, overrides and looks up spec classes.

Examples override a registration only if the target declares the capability `override`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from hypothesis.strategies import SearchStrategy

from kvref.target import Registration, RegistryEntry, SpecClassInfo, SpecDescriptor, Step
from kvref_strategies.specs import class_info, minimal, missing_menu
from kvref_strategies.workload import Description, Draw, Machine, Stage, Subjects, Workload

MAX_CLASSES = 6
"""The most spec classes that one example defines."""

CALLS = ["registry.register", "registry.decorate"]
"""The operations that register a class at once. The platform's hook registers only when it runs."""


@dataclass
class ClassTree:
    """The spec classes of a process: the target's own classes, and those that the example defines.

    A class that derives from two unrelated kinds of attention would be meaningless. So the target's own
    classes among the ancestors of a class always form one chain.
    """

    description: Description
    bases: dict[str, list[str]] = field(default_factory=dict)
    """The bases of each class that the example has defined. Entries are added and never changed."""
    _ancestors: dict[str, set[str]] = field(default_factory=dict)
    _kinds: dict[str, SpecClassInfo] = field(default_factory=dict)
    _fields: dict[str, dict[str, Any]] = field(default_factory=dict)
    _possible_bases: dict[int, list[list[str]]] = field(default_factory=dict)
    """Results of `possible_bases`, by the number of classes that were defined at the time."""

    @cached_property
    def stock(self) -> list[SpecClassInfo]:
        """The target's own classes that describe a layer and for which specs can be drawn."""
        infos = self.description["classes"]
        return [info for info in infos if info["role"] == "layer" and missing_menu(info) is None]

    def kind(self, name: str) -> SpecClassInfo:
        """The most derived of the target's own classes among `name` and its ancestors."""
        if name not in self._kinds:
            kinds = [self.kind(base) for base in self.bases.get(name, ())]
            own = [] if kinds else [class_info(self.description, name)]
            self._kinds[name] = max(own + kinds, key=lambda info: len(info["mro"]))
        return self._kinds[name]

    def joinable(self, bases: list[str]) -> bool:
        """Whether a class can derive from all of these bases.

        The kinds of the bases must form one chain, and no base may be an ancestor of another base.
        """
        kinds = sorted((self.kind(base) for base in bases), key=lambda info: len(info["mro"]))
        in_line = all(low["name"] in high["mro"] for low, high in itertools.pairwise(kinds))
        return in_line and not any(
            other in self.ancestors(base) for base in bases for other in bases if other != base
        )

    def ancestors(self, name: str) -> set[str]:
        if name not in self._ancestors:
            known = [self.ancestors(base) for base in self.bases.get(name, ())]
            own = {name} if known else set(class_info(self.description, name)["mro"])
            self._ancestors[name] = own.union(*known)
        return self._ancestors[name]

    def spec(self, name: str) -> SpecDescriptor:
        """The simplest spec of the class."""
        if name not in self._fields:
            self._fields[name] = minimal(self.kind(name))["fields"]
        return {"class": name, "fields": dict(self._fields[name])}

    def names(self) -> list[str]:
        """The names of all classes: those that the example defined, newest first, then the target's own."""
        return [*reversed(self.bases), *(info["name"] for info in self.stock)]

    def possible_bases(self) -> list[list[str]]:
        """All lists of bases that a new class can have: any single class, or two `joinable` classes."""
        number = len(self.bases)
        if number not in self._possible_bases:
            names = self.names()
            diamonds = [list(pair) for pair in itertools.permutations(names, 2) if self.joinable(list(pair))]
            self._possible_bases[number] = [[name] for name in names] + diamonds
        return self._possible_bases[number]

    def draw_bases(self, draw: Draw) -> list[str]:
        return draw(st.sampled_from(self.possible_bases()))

    def named_ancestors(self, name: str) -> list[str]:
        """The names that the class can have as its uniform base: its own, and those of its ancestors."""
        return [n for n in self.names() if n in self.ancestors(name)]

    def strangers(self, name: str) -> list[str]:
        """The classes that are not ancestors of `name`."""
        return [n for n in self.names() if n not in self.ancestors(name)]


class RegistrationMachine(Machine):
    """Defines, registers, overrides and looks up classes.

    The machine remembers what it has registered, so it knows which registrations are legal. The laws judge
    whether the target agrees. Look-ups before and after a call show what the call changed.

    The machine has only one rule: if it had several, Hypothesis would leave some of them out of an example.
    The rule makes only two draws: the kind of action, and one of the ways to do it. Hypothesis reduces steps
    with few draws best. Each method `ways_to_...` returns the ways of one kind. A way is a list of
    operations.
    """

    def __init__(self, stage: Stage, description: Description, subject: str) -> None:
        super().__init__(stage, description, subject)
        self.tree = ClassTree(description)
        self.managers = list(description["managers"])
        self.registered: dict[str, Registration] = {}
        self.stock: dict[str, RegistryEntry] = {}
        """For each of the target's own classes, the answer of its first look-up."""
        self.ways = [
            self.ways_to_define,
            self.ways_to_register,
            self.ways_to_look_up,
            self.ways_to_contradict,
            self.ways_to_name_a_strange_base,
            self.ways_to_register_again,
            *([self.ways_to_override] if can_override(description) else []),
        ]

    @initialize()
    def initialise(self) -> None:
        self.perform([INITIALISE])

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        ways = data.draw(st.sampled_from(self.ways))()
        if ways:
            self.perform(data.draw(st.sampled_from(ways)))

    def ways_to_define(self) -> list[list[Step]]:
        """Define a spec class and look up its ancestors for the first time, or define a manager class."""
        if len(self.tree.bases) == MAX_CLASSES:
            return []
        name = f"Vendor{len(self.tree.bases)}"
        manager = f"VendorManager{len(self.managers) - len(self.description['managers'])}"
        new = [info["name"] for info in self.tree.stock if info["name"] not in self.stock]
        ways = []
        for bases in self.tree.possible_bases():
            ancestors = set[str]().union(*(self.tree.ancestors(base) for base in bases))
            after = look_ups(self.tree, [own for own in new if own in ancestors])
            ways.append([step("registry.define_spec", name=name, bases=bases), *after])
        return ways + [[step("registry.define_manager", name=manager, base=base)] for base in self.managers]

    def ways_to_register(self) -> list[list[Step]]:
        new = [r for name in self.unregistered for r in registrations(self.tree, self.managers, name)]
        return [[call, *self.look_ups_for(call)] for call in calls(new)]

    def ways_to_look_up(self) -> list[list[Step]]:
        return [look_ups(self.tree, [name]) for name in self.tree.names()]

    def ways_to_contradict(self) -> list[list[Step]]:
        """Register a class, then register it again with another manager or another uniform base."""
        ways = []
        for name in self.tree.bases:
            first: Registration = {"spec_class": name, "manager": self.managers[0], "base": None}
            before = [] if name in self.registered else calls([first])[:1]
            conflicting = conflicts(self.tree, self.managers, self.registered.get(name, first))
            ways += [[*before, *self.between_look_ups(call)] for call in calls(conflicting)]
        return ways

    def ways_to_name_a_strange_base(self) -> list[list[Step]]:
        """Register or override a class with a uniform base that is not its ancestor."""
        ways = []
        for name in self.unregistered:
            wrong = strange(self.tree, self.managers[:1], name)
            ways += [self.between_look_ups(call) for call in calls(wrong)]
        for name in self.registered if can_override(self.description) else ():
            for base in self.tree.strangers(name):
                call = step("registry.override", spec_class=name, manager=None, base=base)
                ways.append(self.between_look_ups(call))
        return ways

    def ways_to_register_again(self) -> list[list[Step]]:
        """Repeat a registration.

        For the target's own classes, register the entry that their look-up returned.
        """
        known = list(self.registered.values())
        for name, entry in self.stock.items():
            if entry["manager"] is not None:
                known.append({"spec_class": name, "manager": entry["manager"], "base": entry["base"]})
        # A class that is its own uniform base can be registered with its name as the base, or with None.
        named: list[Registration] = [{**r, "base": r["spec_class"]} for r in known if r["base"] is None]
        unnamed: list[Registration] = [{**r, "base": None} for r in known if r["base"] == r["spec_class"]]
        return [self.between_look_ups(call) for call in calls(known + named + unnamed)]

    def ways_to_override(self) -> list[list[Step]]:
        """Override the entry of a class. If the class has no entry, the target should refuse."""
        possible = [o for name in self.tree.names() for o in overrides(self.tree, self.managers, name)]
        return [self.between_look_ups(step("registry.override", **override)) for override in possible]

    @property
    def unregistered(self) -> list[str]:
        return [name for name in self.tree.bases if name not in self.registered]

    def between_look_ups(self, call: Step) -> list[Step]:
        around = self.look_ups_for(call)
        return [*around, call, *around]

    def look_ups_for(self, call: Step) -> list[Step]:
        """Look-ups of the class that a call registers or overrides, and of one class derived from it."""
        name = call["args"]["spec_class"]
        followers = [other for other in self.tree.bases if name in self.tree.ancestors(other) - {other}]
        return look_ups(self.tree, [name, *followers[-1:]])

    def perform(self, steps: Iterable[Step]) -> None:
        """Perform the operations, and remember what they define, register and return."""
        for each in steps:
            arguments, outcome = each["args"], self.stage.perform(each["op"], **each["args"])
            if each["op"] == "registry.define_spec":
                self.tree.bases[arguments["name"]] = arguments["bases"]
            elif each["op"] == "registry.define_manager":
                self.managers.append(arguments["name"])
            elif each["op"] in CALLS and "value" in outcome and arguments["spec_class"] in self.tree.bases:
                name, manager, base = (arguments[key] for key in ("spec_class", "manager", "base"))
                self.registered.setdefault(name, {"spec_class": name, "manager": manager, "base": base})
            elif each["op"] == "registry.lookup" and arguments["spec"]["class"] not in self.tree.bases:
                unknown: RegistryEntry = {"manager": None, "base": None}
                self.stock.setdefault(arguments["spec"]["class"], outcome.get("value") or unknown)


def can_override(description: Description) -> bool:
    return bool(description["capabilities"].get("override"))


def step(operation: str, **arguments: Any) -> Step:
    return {"op": operation, "args": arguments}


INITIALISE = step("registry.initialise")


def perform(stage: Stage, steps: Iterable[Step]) -> None:
    for each in steps:
        stage.perform(each["op"], **each["args"])


def look_ups(tree: ClassTree, names: Iterable[str]) -> list[Step]:
    return [step("registry.lookup", spec=tree.spec(name)) for name in names]


def calls(registrations: Iterable[Registration]) -> list[Step]:
    """The calls that make each of these registrations, one call for each operation in `CALLS`."""
    return [step(call, **registration) for registration in registrations for call in CALLS]


def registrations(tree: ClassTree, managers: list[str], name: str) -> list[Registration]:
    """Every legal registration of the class, the simplest first."""
    bases = [None, *tree.named_ancestors(name)]
    return [{"spec_class": name, "manager": manager, "base": base} for base in bases for manager in managers]


def strange(tree: ClassTree, managers: list[str], name: str) -> list[Registration]:
    """Illegal registrations of the class: their uniform bases are not ancestors of the class."""
    bases = tree.strangers(name)
    return [{"spec_class": name, "manager": manager, "base": base} for base in bases for manager in managers]


def conflicts(tree: ClassTree, managers: list[str], first: Registration) -> list[Registration]:
    """Registrations of the same class that conflict with `first`, in the manager or in the uniform base."""
    own = first["base"] or first["spec_class"]
    bases = [base for base in tree.named_ancestors(first["spec_class"]) if base != own]
    other: list[Registration] = [{**first, "manager": manager} for manager in managers]
    return [r for r in other if r != first] + [{**first, "base": base} for base in bases]


def overrides(tree: ClassTree, managers: list[str], name: str) -> list[dict[str, Any]]:
    """Every legal override of the class's manager, uniform base, or both.

    An override of only the base is listed once for each manager, so that it is drawn as often as the others.
    """
    bases = [None, *tree.named_ancestors(name)]
    both = [(manager, base) for base in bases for manager in [*managers, None] if manager or base]
    both += [(None, base) for base in bases[1:] for _ in managers]
    return [{"spec_class": name, "manager": manager, "base": base} for manager, base in both]


def partners(tree: ClassTree, first: str) -> list[str]:
    """The classes that are related to `first`, and one class that is not.

    Two classes are related if they have a common ancestor. Ancestors of role `base` do not count.
    """
    names = tree.names()
    layers = {name: tree.ancestors(name).intersection(names) for name in names}
    related = [name for name in names if layers[first] & layers[name]]
    return related + [name for name in names if name not in related][:1]


@dataclass
class Start:
    """The first operations in a process: they define classes and register them."""

    tree: ClassTree
    setup: list[Step] = field(default_factory=list)
    """Defines the classes, and installs the platform's hook."""
    calls: list[Step] = field(default_factory=list)
    """Registers classes directly."""
    hooked: list[str] = field(default_factory=list)
    """The names of the classes that the platform's hook registers."""


def draw_start(draw: Draw, description: Description) -> Start:
    """Draw one to three classes, each registered by a call, a decorator, or the platform's hook."""
    start = Start(ClassTree(description))
    hooked: list[Registration] = []
    for number in range(draw(st.integers(1, 3))):
        name = define(start, f"Vendor{number}", start.tree.draw_bases(draw))
        registration = draw(st.sampled_from(registrations(start.tree, description["managers"], name)))
        way = draw(st.sampled_from([*CALLS, "hook"]))
        if way == "hook":
            hooked.append(registration)
            start.hooked.append(name)
        else:
            start.calls.append(step(way, **registration))
    if hooked:
        start.setup.append(step("registry.install_hook", registrations=hooked))
    return start


def some_name(tree: ClassTree) -> SearchStrategy[str]:
    """Draws the name of a class: half of the time a class of the example, else one of the target's own."""
    return st.sampled_from(list(tree.bases)) | st.sampled_from([info["name"] for info in tree.stock])


def define(start: Start, name: str, bases: list[str]) -> str:
    start.tree.bases[name] = bases
    start.setup.append(step("registry.define_spec", name=name, bases=bases))
    return name


def orders(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Make the same registrations in two processes, then look up the same classes in both.

    The first process initialises the registry, registers, then overrides. The second process does the same in
    a drawn order. It may leave out the initialisation: then its first look-up registers the built-in classes.
    If the second process overrides a class before it registers the class, the target should refuse. So the
    second process repeats this override at the end.
    """
    start = draw_start(draw, description)
    replaced: list[Step] = []
    if can_override(description):
        called = [call["args"]["spec_class"] for call in start.calls]
        # A plugin's own classes are registered only after the hook has run.
        stock = [info["name"] for info in start.tree.stock if info.get("origin") != "plugin"]
        for name in draw(st.lists(st.sampled_from([*called, *stock]), max_size=2, unique=True)):
            override = draw(st.sampled_from(overrides(start.tree, description["managers"], name)))
            replaced.append(step("registry.override", **override))
    looked_up = draw(st.lists(some_name(start.tree), min_size=1, max_size=4, unique=True))
    affected = [*start.hooked, *(call["args"]["spec_class"] for call in replaced)]
    looked_up += [name for name in affected if name not in looked_up]
    other_order = list(draw(st.permutations([*start.calls, *replaced])))
    early = [call for place, call in enumerate(other_order) if _is_early(call, other_order[place:])]
    place = draw(st.none() | st.integers(0, len(other_order)))
    if place is not None:
        other_order.insert(place, INITIALISE)
    for order in ([INITIALISE, *start.calls, *replaced], [*other_order, *early]):
        stage.fresh()
        perform(stage, [*start.setup, *order, *look_ups(start.tree, looked_up)])


def _is_early(call: Step, later: list[Step]) -> bool:
    """Whether the call overrides a class that is registered later."""
    registered = [other["args"]["spec_class"] for other in later if other["op"] in CALLS]
    return call["op"] == "registry.override" and call["args"]["spec_class"] in registered


def processes(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Make the same registrations in the same order in two processes, then look up the same classes in both.

    The second process also looks up classes between the registrations, defines more classes, and may
    initialise the registry twice. So its classes have other memory addresses and another number, and look-ups
    came earlier.
    """
    start = draw_start(draw, description)
    looked_up = draw(st.lists(some_name(start.tree), min_size=1, max_size=4, unique=True))
    lived = list(start.calls)
    for name in draw(st.lists(some_name(start.tree), max_size=3)):
        lived[(place := draw(st.integers(0, len(lived)))) : place] = look_ups(start.tree, [name])
    lived = [*start.setup, *lived]
    for number in range(draw(st.integers(0, 2))):
        base = draw(st.sampled_from([info["name"] for info in start.tree.stock]))
        lived.insert(0, step("registry.define_spec", name=f"Other{number}", bases=[base]))
    initialised = [INITIALISE] * draw(st.integers(1, 2))
    for steps in ([*start.setup, *start.calls, INITIALISE], [*lived, *initialised]):
        stage.fresh()
        perform(stage, [*steps, *look_ups(start.tree, looked_up)])


def agreement(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Register some classes, perhaps override one, and ask whether specs of two classes are uniform.

    If the two classes have the same fields, the two specs have the same values.
    """
    start = draw_start(draw, description)
    tree = start.tree
    perform(stage, [*start.setup, INITIALISE, *start.calls])
    if can_override(description) and draw(st.booleans()):
        possible = overrides(tree, description["managers"], draw(some_name(tree)))
        perform(stage, [step("registry.override", **draw(st.sampled_from(possible)))])
    first = draw(some_name(tree))
    specs = [tree.spec(name) for name in (first, draw(st.sampled_from(partners(tree, first))))]
    if specs[0]["fields"].keys() == specs[1]["fields"].keys():
        specs[1]["fields"] = specs[0]["fields"]
    perform(stage, look_ups(tree, [spec["class"] for spec in specs]))
    stage.perform("registry.uniform", specs=specs)


RACE_POINTS = 12
"""The number of points at which a race interrupts the first thread."""


def races(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Look up classes in two or three threads, before anything else uses the registry.

    One thread may initialise the registry instead, or first register the class that it looks up. Other
    threads look up one of the target's own classes, or a class that the hook registers. So the order of the
    threads does not change what a correct registry answers.
    """
    start = Start(ClassTree(description))
    stock = [info["name"] for info in start.tree.stock]
    hooked: list[Registration] = []
    for number in range(draw(st.integers(1, 2))):
        name = define(start, f"Vendor{number}", [draw(st.sampled_from(stock))])
        manager = draw(st.sampled_from(description["managers"]))
        hooked.append({"spec_class": name, "manager": manager, "base": None})
    start.setup.append(step("registry.install_hook", registrations=hooked))
    certain = [*(registration["spec_class"] for registration in hooked), *reversed(stock)]
    threads = [look_ups(start.tree, [draw(st.sampled_from(certain))]) for _ in range(draw(st.integers(2, 3)))]
    match draw(st.sampled_from(["look up", "initialise", "register"])):
        case "initialise":
            threads[0] = [INITIALISE]
        case "register":
            name = define(start, "Racer", [draw(st.sampled_from(stock))])
            possible = calls(registrations(start.tree, description["managers"], name))
            register = draw(st.sampled_from(possible))
            threads[draw(st.integers(0, 1))] = [register, *look_ups(start.tree, [name])]
            certain.append(name)
    perform(stage, start.setup)
    after = look_ups(start.tree, certain)
    stage.perform("registry.race", threads=threads, after=after, points=RACE_POINTS)


def refusals(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Make a legal registration, then a call that the target must refuse.

    Do this in two processes: one with Python's asserts, and one without them (`-O`).
    """
    start, managers = Start(ClassTree(description)), description["managers"]
    tree = start.tree
    define(start, "Vendor0", tree.draw_bases(draw))
    legal = draw(st.sampled_from(registrations(tree, managers, "Vendor0")))
    # No manager is registered for classes of role `base`, because they describe no layer.
    abstract = [info["name"] for info in description["classes"] if info["role"] == "base"]
    match draw(st.sampled_from(["conflict", "base", *(["unregistered"] if abstract else [])])):
        case "conflict":
            refused = calls(conflicts(tree, managers, legal))
        case "base":
            stock = draw(st.sampled_from([info["name"] for info in tree.stock]))
            define(start, "Vendor1", [stock])
            refused = calls(strange(tree, managers, "Vendor1"))
        case _:
            define(start, "Stray", [draw(st.sampled_from(abstract))])
            refused = [step("registry.check", layers={"layer.0": tree.spec("Stray")})]
    steps = [INITIALISE, *start.setup, step("registry.register", **legal)]
    steps.append(draw(st.sampled_from(refused)))
    for flags in ((), ("-O",)):
        stage.fresh(*flags)
        perform(stage, steps)


def _one_subject(description: Description) -> Subjects:
    return {"registry": None}


_NEEDED = ("registry", "specs")

WORKLOADS = [
    Workload("registry.machine", _NEEDED, _one_subject, RegistrationMachine, isolated=True, weight=0.4),
    Workload("registry.orders", _NEEDED, _one_subject, orders, isolated=True, weight=0.4),
    Workload(
        "registry.agreement",
        (*_NEEDED, "registry.uniform"),
        _one_subject,
        agreement,
        isolated=True,
        weight=0.4,
    ),
    Workload("registry.processes", _NEEDED, _one_subject, processes, isolated=True, weight=0.4),
    Workload("registry.races", (*_NEEDED, "registry.race"), _one_subject, races, isolated=True, weight=0.04),
    Workload("registry.refusals", _NEEDED, _one_subject, refusals, isolated=True, flags=("-O",), weight=0.2),
]
