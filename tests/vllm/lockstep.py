"""The reference and vLLM perform the same operations, and their answers are compared.

Block numbers and keys differ between the two, so they are compared up to renaming: blocks at the same
positions of block tables and of the free list are the same block, and keys of the same blocks are the same
key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvref.target import Outcome
from kvref_strategies.engine import Setup

Perform = Callable[[str, dict[str, Any]], Outcome]


@dataclass(frozen=True)
class Told:
    """A request's numbers of tokens at the time of an operation."""

    tokens: int
    prompt: int
    computed: int = 0
    in_flight: int = 0


@dataclass(frozen=True)
class Deviation:
    """Two answers that differ.

    Attributes:
        facet: in what they differ.
        operation: the operation; if a state differs, the last operation before it.
        ours: the facet in the reference's answer; `theirs` has vLLM's.
        setup: how the cache was made; None for planning.
        request: the request that the operation is about, as it was before the operation.
        before: the state before the operation, with the reference's block numbers and keys.
    """

    facet: str
    operation: str
    arguments: Mapping[str, Any]
    ours: Any
    theirs: Any
    setup: Setup | None = None
    request: Told | None = None
    before: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kinds(self) -> set[str]:
        return {group.get("kind", "") for group in self.setup.groups} if self.setup else set()


class Parted(Exception):
    """The reference and vLLM are in different states, so nothing more is compared."""


STEERING = ("refused", "tokens", "hit", "room")
"""Facets of answers on which the next operation depends."""


class Lockstep:
    """A stage that has both perform each operation. The engine gets the reference's answers."""

    def __init__(self, ours: Perform, theirs: Perform, setup: Setup) -> None:
        self.ours, self.theirs, self.setup = ours, theirs, setup
        self.compared = Counter[str]()
        self.deviations: list[Deviation] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.requests: dict[str, Told] = {}
        self.hits: dict[str, Any] = {}
        self.names = Names()
        self.before: dict[str, Any] = {}
        self.asked: tuple[str, dict[str, Any], Told | None] = ("", {}, None)

    def fresh(self, *flags: str) -> None:
        raise NotImplementedError

    def perform(self, operation: str, /, **arguments: Any) -> Outcome:
        name = operation.removeprefix("cache.")
        self.events.append((operation, arguments))
        if name == "create":
            self.names = Names()
        if name != "state":
            self.asked = (name, arguments, self.requests.get(arguments.get("request", "")))
        ours = self.ours(operation, arguments)
        theirs = self.theirs(operation, self._in_their_words(name, arguments))
        self._note(name, arguments, theirs)
        found = self._differing(name, ours, theirs)
        self.compared[name] += 1
        for facet, one, other in found:
            asked, given, request = self.asked
            self.deviations.append(
                Deviation(facet, asked, given, one, other, self.setup, request, self.before)
            )
        if name == "state" and "value" in ours:
            self.before = ours["value"]
        if any(facet in STEERING or name == "state" for facet, _, _ in found):
            raise Parted
        return ours

    def _in_their_words(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if name == "allocate" and arguments.get("hit"):
            found = self.hits[arguments["request"]]["blocks"]
            ours = arguments["hit"]
            blocks = [group[: len(used)] for group, used in zip(found, ours["blocks"], strict=True)]
            return {**arguments, "hit": {**ours, "blocks": blocks}}
        if name == "evict":
            return {"blocks": [self.names.blocks[block] for block in arguments["blocks"]]}
        return arguments

    def _note(self, name: str, arguments: dict[str, Any], theirs: Outcome) -> None:
        if name == "add":
            tokens = len(arguments["tokens"])
            self.requests[arguments["request"]] = Told(tokens, tokens)
        if name == "progress":
            told = self.requests[arguments["request"]]
            self.requests[arguments["request"]] = Told(
                told.tokens + len(arguments["output"]),
                told.prompt,
                arguments["computed"],
                arguments["in_flight"],
            )
        if name == "lookup":
            self.hits[arguments["request"]] = theirs.get("value")

    def _differing(self, name: str, ours: Outcome, theirs: Outcome) -> list[tuple[str, Any, Any]]:
        if "value" not in ours or "value" not in theirs:
            if ("value" in ours) == ("value" in theirs):
                return []
            return [("refused", ours.get("error"), theirs.get("error") or theirs.get("died"))]
        one, other = ours["value"], theirs["value"]
        if name == "state":
            return self.names.differing(one, other)
        told = TOLD.get(name, whole)
        # A side that has no room answers with fewer facets.
        pairs = zip(told(one).items(), told(other).values(), strict=False)
        found = [(facet, a, b) for (facet, a), b in pairs if a != b]
        # Once the next operation would differ, the other facets are only consequences.
        return [each for each in found if each[0] in STEERING][:1] or found


def whole(value: Any) -> dict[str, Any]:
    return {"answer": value}


def number(value: Any) -> dict[str, Any]:
    return {"number": len(value)}


def shape(value: Any) -> dict[str, Any]:
    return {
        "reserved": len(value["reserved"]),
        "alignment": value["alignment"],
        "caps": value["caps"],
        "reports_new": value["reports_new"],
    }


def events(value: Any) -> dict[str, Any]:
    told = Counter[str]()
    for event in value:
        told[event["what"]] += len(event["hashes"]) or 1
    return {"events": dict(told)}


def hit(value: Any) -> dict[str, Any]:
    return {"tokens": value["tokens"], "hit": nulls(value["blocks"])}


def nulls(tables: list[list[int]]) -> list[list[bool]]:
    """For each group, which entries of the block table are the null block."""
    return [[block == 0 for block in table] for table in tables]


def allocation(value: Any) -> dict[str, Any]:
    added = value["added"]
    if added is None:
        return {"room": False}
    return {"room": True, "added": nulls(added), "needed": value["needed"], "taken": len(value["taken"])}


TOLD: dict[str, Callable[[Any], dict[str, Any]]] = {
    "create": shape,
    "lookup": hit,
    "allocate": allocation,
    "take_new_block_ids": number,
    "take_events": events,
}
"""By operation, the part of an answer that is compared. Any other answer is compared as a whole."""


class Plans:
    """A stage that has both make each plan."""

    def __init__(self, ours: Perform, theirs: Perform) -> None:
        self.ours, self.theirs = ours, theirs
        self.compared = Counter[str]()
        self.deviations: list[Deviation] = []

    def fresh(self, *flags: str) -> None:
        raise NotImplementedError

    def perform(self, operation: str, /, **arguments: Any) -> Outcome:
        ours, theirs = self.ours(operation, arguments), self.theirs(operation, arguments)
        self.compared[operation] += 1
        facet, one, other = operation, None, None
        if ("value" in ours) != ("value" in theirs):
            facet, one, other = "refused", ours.get("error"), theirs.get("error") or theirs.get("died")
        elif "value" in ours and operation.startswith("planner."):
            facet, one, other = "plan", plan(ours["value"]), plan(theirs["value"])
        elif "value" in ours and operation == "specs.build":
            one, other = (outcome["value"]["page_size_bytes"] for outcome in (ours, theirs))
        if one != other:
            self.deviations.append(Deviation(facet, operation, arguments, one, other))
        return ours


def plan(value: Any) -> dict[str, Any]:
    layers = {layer["name"]: layer for group in value["groups"] for layer in group["layers"]}
    return {
        "groups": sorted(sorted(layer["name"] for layer in group["layers"]) for group in value["groups"]),
        "managers": {name: layer["manager"] for name, layer in layers.items()},
        "block_sizes": {name: layer["spec"]["fields"]["block_size"] for name, layer in layers.items()},
        "pages": {name: layer["spec"]["page_size_bytes"] for name, layer in layers.items()},
        "num_blocks": value.get("num_blocks"),
    }


class Names:
    """Maps the block numbers and keys of the reference to those of vLLM."""

    def __init__(self) -> None:
        self.blocks: dict[int, int] = {}
        self.keys: dict[str, str] = {}

    def differing(self, ours: dict[str, Any], theirs: dict[str, Any]) -> list[tuple[str, Any, Any]]:
        """The facets in which two states differ. If they do not differ, the maps are updated from them."""
        tables = [
            {name: nulls(groups) for name, groups in state["tables"].items()} for state in (ours, theirs)
        ]
        found = [("free_count", ours["free_count"], theirs["free_count"])]
        found.append(("tables", *tables))
        found = [each for each in found if each[1] != each[2]]
        if found:
            return found
        pairs: dict[int, int] = {0: 0}
        for name, groups in ours["tables"].items():
            for table, other in zip(groups, theirs["tables"][name], strict=True):
                for a, b in zip(table, other, strict=True):
                    if pairs.setdefault(a, b) != b:
                        return [("shared", ours["tables"], theirs["tables"])]
        if len({*pairs.values()}) < len(pairs):
            return [("shared", ours["tables"], theirs["tables"])]
        for a, b in zip(ours["free"], theirs["free"], strict=False):
            pairs[a] = b
        keyed = [[str(block) in state["keys"] for block in state["free"]] for state in (ours, theirs)]
        if len(ours["free"]) != len(theirs["free"]):
            return [("free", len(ours["free"]), len(theirs["free"]))]
        held = [
            {a: ours["refs"][a] for a in pairs if a},
            {a: theirs["refs"][b] for a, b in pairs.items() if a},
        ]
        if held[0] != held[1]:
            return [("refs", *held)]
        if keyed[0] != keyed[1]:
            return [("keys", *keyed)] if sum(keyed[0]) != sum(keyed[1]) else [("order", *keyed)]
        names = dict(self.keys)
        for a, b in pairs.items():
            one, other = ours["keys"].get(str(a), []), theirs["keys"].get(str(b), [])
            if Counter(map(group_of, one)) != Counter(map(group_of, other)):
                return [("keys", {a: one}, {b: other})]
            known = {names[key] for key in one if key in names}
            if not known <= {*other}:
                return [
                    (
                        "order" if a in ours["free"] else "keys",
                        {a: [names.get(key) for key in one]},
                        {b: other},
                    )
                ]
            new, theirs_new = (
                [key for key in one if key not in names],
                [key for key in other if key not in known],
            )
            for key in new:
                same = [each for each in theirs_new if group_of(each) == group_of(key)]
                if len([each for each in new if group_of(each) == group_of(key)]) == 1 == len(same):
                    names[key] = same[0]
        for key, served in ours["found"].items():
            if key in names and [pairs.get(block) for block in served] != theirs["found"].get(names[key]):
                return [("served", {key: served}, theirs["found"].get(names[key]))]
        self.blocks, self.keys = pairs, {key: name for key, name in names.items() if key in ours["found"]}
        return []


def group_of(key: str) -> str:
    return key.partition("/")[2]
