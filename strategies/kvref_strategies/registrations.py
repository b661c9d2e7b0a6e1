"""Registration programs: trees of spec classes, managers, and the calls that register them.

What a target without the capability `override` lacks, it is not asked for.
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
"""Spec classes defined in one example: enough for a chain of four beside a diamond."""

CALLS = ["registry.register", "registry.decorate"]
"""Ways to register a class at once, as opposed to a platform's hook."""


@dataclass
class ClassTree:
    """Plain model of the spec classes of a process: the target's own and those defined on top.

    Classes that a plugin derives from two unrelated kinds of attention have no meaning, so every class
    keeps to one line of descent among the target's own classes.
    """

    description: Description
    bases: dict[str, list[str]] = field(default_factory=dict)
    """Of the classes that are defined on top. They are added to, and never changed."""
    _ancestors: dict[str, set[str]] = field(default_factory=dict)
    _kinds: dict[str, SpecClassInfo] = field(default_factory=dict)
    _fields: dict[str, dict[str, Any]] = field(default_factory=dict)
    _possible_bases: dict[int, list[list[str]]] = field(default_factory=dict)
    """By the number of classes that were defined."""

    @cached_property
    def stock(self) -> list[SpecClassInfo]:
        """The target's own classes that describe a layer and that specs can be drawn for."""
        infos = self.description["classes"]
        return [info for info in infos if info["role"] == "layer" and missing_menu(info) is None]

    def kind(self, name: str) -> SpecClassInfo:
        """The most derived of the target's own classes among the ancestors of `name`."""
        if name not in self._kinds:
            kinds = [self.kind(base) for base in self.bases.get(name, ())]
            own = [] if kinds else [class_info(self.description, name)]
            self._kinds[name] = max(own + kinds, key=lambda info: len(info["mro"]))
        return self._kinds[name]

    def joinable(self, bases: list[str]) -> bool:
        """Whether the classes can be bases of one class: one line of descent, none twice over."""
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
        """Defined classes, newest first, then the target's own."""
        return [*reversed(self.bases), *(info["name"] for info in self.stock)]

    def possible_bases(self) -> list[list[str]]:
        """One base (a chain), or two of one line of descent (a diamond)."""
        number = len(self.bases)
        if number not in self._possible_bases:
            names = self.names()
            diamonds = [list(pair) for pair in itertools.permutations(names, 2) if self.joinable(list(pair))]
            self._possible_bases[number] = [[name] for name in names] + diamonds
        return self._possible_bases[number]

    def draw_bases(self, draw: Draw) -> list[str]:
        return draw(st.sampled_from(self.possible_bases()))

    def named_ancestors(self, name: str) -> list[str]:
        """The class and its ancestors, those that can be a uniform base."""
        return [n for n in self.names() if n in self.ancestors(name)]

    def strangers(self, name: str) -> list[str]:
        """Classes that are no ancestors of `name`."""
        return [n for n in self.names() if n not in self.ancestors(name)]


class RegistrationMachine(Machine):
    """Registration against a plain model: classes, what is registered, and nothing else.

    The model knows which registrations are legal; whether the target agrees is for the laws. Look-ups next to
    a call on both sides tell what it changed.

    There is one rule, which draws what to do and then one of all the ways to do it: Hypothesis leaves rules
    out of an example, and a step of few draws out of one that it reduces.
    """

    def __init__(self, stage: Stage, description: Description, subject: str) -> None:
        super().__init__(stage, description, subject)
        self.tree = ClassTree(description)
        self.managers = list(description["managers"])
        self.registered: dict[str, Registration] = {}
        self.stock: dict[str, RegistryEntry] = {}
        """What the target's own classes were looked up as at first."""
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
        """A spec class, followed by look-ups of what it may follow, or a manager class."""
        if len(self.tree.bases) == MAX_CLASSES:
            return []
        name = f"Vendor{len(self.tree.bases)}"
        manager = f"VendorManager{len(self.managers) - len(self.description['managers'])}"
        new = [info["name"] for info in self.tree.stock if info["name"] not in self.stock]
        ways = []
        for bases in self.tree.possible_bases():
            ancestors = set[str]().union(*(self.tree.ancestors(base) for base in bases))
            asked = look_ups(self.tree, [own for own in new if own in ancestors])
            ways.append([step("registry.define_spec", name=name, bases=bases), *asked])
        return ways + [[step("registry.define_manager", name=manager, base=base)] for base in self.managers]

    def ways_to_register(self) -> list[list[Step]]:
        new = [r for name in self.unregistered for r in registrations(self.tree, self.managers, name)]
        return [[call, *self.asked(call)] for call in calls(new)]

    def ways_to_look_up(self) -> list[list[Step]]:
        return [look_ups(self.tree, [name]) for name in self.tree.names()]

    def ways_to_contradict(self) -> list[list[Step]]:
        """Register in conflict with what is registered, if need be just before."""
        ways = []
        for name in self.tree.bases:
            first: Registration = {"spec_class": name, "manager": self.managers[0], "base": None}
            before = [] if name in self.registered else calls([first])[:1]
            conflicting = conflicts(self.tree, self.managers, self.registered.get(name, first))
            ways += [[*before, *self.between_look_ups(call)] for call in calls(conflicting)]
        return ways

    def ways_to_name_a_strange_base(self) -> list[list[Step]]:
        """Register or override with a base that is no ancestor."""
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
        """A class of the target's own is taken to be registered as it is looked up."""
        known = list(self.registered.values())
        for name, entry in self.stock.items():
            if entry["manager"] is not None:
                known.append({"spec_class": name, "manager": entry["manager"], "base": entry["base"]})
        # The class itself as its base is said by its name, or by none.
        named: list[Registration] = [{**r, "base": r["spec_class"]} for r in known if r["base"] is None]
        unnamed: list[Registration] = [{**r, "base": None} for r in known if r["base"] == r["spec_class"]]
        return [self.between_look_ups(call) for call in calls(known + named + unnamed)]

    def ways_to_override(self) -> list[list[Step]]:
        """A class that has an entry or, wrongly, one that has none."""
        possible = [o for name in self.tree.names() for o in overrides(self.tree, self.managers, name)]
        return [self.between_look_ups(step("registry.override", **override)) for override in possible]

    @property
    def unregistered(self) -> list[str]:
        return [name for name in self.tree.bases if name not in self.registered]

    def between_look_ups(self, call: Step) -> list[Step]:
        asked = self.asked(call)
        return [*asked, call, *asked]

    def asked(self, call: Step) -> list[Step]:
        """Look-ups of the class, and of one that may follow it."""
        name = call["args"]["spec_class"]
        followers = [other for other in self.tree.bases if name in self.tree.ancestors(other) - {other}]
        return look_ups(self.tree, [name, *followers[-1:]])

    def perform(self, steps: Iterable[Step]) -> None:
        """Perform the steps and keep the model."""
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
    """Each registration in each of the ways to call for it."""
    return [step(call, **registration) for registration in registrations for call in CALLS]


def registrations(tree: ClassTree, managers: list[str], name: str) -> list[Registration]:
    """Every legal registration of the class, the simplest first."""
    bases = [None, *tree.named_ancestors(name)]
    return [{"spec_class": name, "manager": manager, "base": base} for base in bases for manager in managers]


def strange(tree: ClassTree, managers: list[str], name: str) -> list[Registration]:
    """Registrations of the class with a uniform base that is no ancestor."""
    bases = tree.strangers(name)
    return [{"spec_class": name, "manager": manager, "base": base} for base in bases for manager in managers]


def conflicts(tree: ClassTree, managers: list[str], first: Registration) -> list[Registration]:
    """Registrations of the same class with another manager, or with another uniform base."""
    own = first["base"] or first["spec_class"]
    bases = [base for base in tree.named_ancestors(first["spec_class"]) if base != own]
    other: list[Registration] = [{**first, "manager": manager} for manager in managers]
    return [r for r in other if r != first] + [{**first, "base": base} for base in bases]


def overrides(tree: ClassTree, managers: list[str], name: str) -> list[dict[str, Any]]:
    """Every legal replacement of manager, uniform base, or both; the base alone as often as others."""
    bases = [None, *tree.named_ancestors(name)]
    both = [(manager, base) for base in bases for manager in [*managers, None] if manager or base]
    both += [(None, base) for base in bases[1:] for _ in managers]
    return [{"spec_class": name, "manager": manager, "base": base} for manager, base in both]


def partners(tree: ClassTree, first: str) -> list[str]:
    """Classes that share an ancestor with this one which describes a layer, and one that shares none."""
    names = tree.names()
    layers = {name: tree.ancestors(name).intersection(names) for name in names}
    related = [name for name in names if layers[first] & layers[name]]
    return related + [name for name in names if name not in related][:1]


@dataclass
class Start:
    """What a process does at its start: classes, then the calls that register them."""

    tree: ClassTree
    setup: list[Step] = field(default_factory=list)
    calls: list[Step] = field(default_factory=list)
    hooked: list[str] = field(default_factory=list)
    """Classes that the hook registers."""


def draw_start(draw: Draw, description: Description) -> Start:
    """One to three classes, each registered by a call, a decorator, or the platform's hook."""
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
    """A class that was defined, as often as one of the target's own, of which there are many more."""
    return st.sampled_from(list(tree.bases)) | st.sampled_from([info["name"] for info in tree.stock])


def define(start: Start, name: str, bases: list[str]) -> str:
    start.tree.bases[name] = bases
    start.setup.append(step("registry.define_spec", name=name, bases=bases))
    return name


def orders(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """The same registrations twice: built-ins first, then in another order, each in its own process.

    In the second process nobody may have asked for the built-ins at all: the first look-up brings them.
    An override of what is not registered yet is to be refused, and made again at the end.
    """
    start = draw_start(draw, description)
    replaced: list[Step] = []
    if can_override(description):
        called = [call["args"]["spec_class"] for call in start.calls]
        # A plugin's own classes are there only when the hook has run.
        stock = [info["name"] for info in start.tree.stock if info.get("origin") != "plugin"]
        for name in draw(st.lists(st.sampled_from([*called, *stock]), max_size=2, unique=True)):
            override = draw(st.sampled_from(overrides(start.tree, description["managers"], name)))
            replaced.append(step("registry.override", **override))
    asked = draw(st.lists(some_name(start.tree), min_size=1, max_size=4, unique=True))
    told = [*start.hooked, *(call["args"]["spec_class"] for call in replaced)]
    asked += [name for name in told if name not in asked]
    other_order = list(draw(st.permutations([*start.calls, *replaced])))
    early = [call for place, call in enumerate(other_order) if _is_early(call, other_order[place:])]
    place = draw(st.none() | st.integers(0, len(other_order)))
    if place is not None:
        other_order.insert(place, INITIALISE)
    for order in ([INITIALISE, *start.calls, *replaced], [*other_order, *early]):
        stage.fresh()
        perform(stage, [*start.setup, *order, *look_ups(start.tree, asked)])


def _is_early(call: Step, later: list[Step]) -> bool:
    """Whether the class that is overridden here is registered later."""
    registered = [other["args"]["spec_class"] for other in later if other["op"] in CALLS]
    return call["op"] == "registry.override" and call["args"]["spec_class"] in registered


def processes(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """The same start in two processes, the second of which has more of a life before it is initialised.

    It looks classes up while they are being registered, has other classes, and is initialised once more. So
    what a process remembers from before its start, and what depends on how many classes there are or where
    they lie in memory, differs; the registrations and their order do not.
    """
    start = draw_start(draw, description)
    asked = draw(st.lists(some_name(start.tree), min_size=1, max_size=4, unique=True))
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
        perform(stage, [*steps, *look_ups(start.tree, asked)])


def agreement(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Start a process, perhaps override something, and ask whether layers of two classes are uniform.

    Their fields are equal where the classes have the same ones.
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
"""Places at which a race interrupts a thread."""


def races(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """First look-ups from two or three threads, of which one may initialise or register something instead.

    What a thread asks for is a class of the target's own, one that the hook registers, or one that the same
    thread has registered before: in any order the answer is the same.
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
    """A legal registration and one thing to refuse, with asserts and, in another process, without."""
    start, managers = Start(ClassTree(description)), description["managers"]
    tree = start.tree
    define(start, "Vendor0", tree.draw_bases(draw))
    legal = draw(st.sampled_from(registrations(tree, managers, "Vendor0")))
    # Classes that only serve as a base describe no layer, and nothing is registered for them.
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
