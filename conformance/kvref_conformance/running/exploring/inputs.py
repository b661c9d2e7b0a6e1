"""Find out which inputs an example had: fields of specs, contents of requests, calls of a pool, setups.

Each input has an entry, a string of the form `GROUP: WHAT`. (The code calls it a key.) `OPERATIONS` lists the
groups that are about specs, for example `plan`. Their entries have these forms:

* `plan: MambaSpec`: a layer of this class took part in an operation of the group.
* `plan: MambaSpec.block_size`: the field was not at its default. If it has no default, it was not at the
  first value of its menu. A menu lists the values from which kvref draws a field.
* `plan: MambaSpec.block_size lowest`, `... highest`: the field was at this end of its menu, or beyond.
* `plan: MambaSpec beside SlidingWindowSpec`: both classes took part in one operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from kvref.target import FieldInfo, SpecClassInfo, SpecDescriptor
from kvref_strategies.specs import is_required, menu
from kvref_strategies.workload import Description

Event = Mapping[str, Any]

OPERATIONS: dict[str, tuple[str, ...]] = {
    "build": ("specs.build", "specs.twins", "specs.pickled", "specs.mutable_fields"),
    "copy": ("specs.copy",),
    "merge with itself": ("specs.merge",),
    "merge": ("specs.merge",),
    "uniform": ("specs.uniform",),
    "memory": ("specs.max_memory",),
    "group": ("planner.groups", "planner.one_group"),
    "plan": (
        "planner.config",
        "planner.workers",
        "planner.block_sizes",
        "planner.construct",
        "planner.capacity",
    ),
    "unify pages": ("planner.groups", "planner.config"),
    "allocate": ("tensors.allocate",),
    "cache": ("cache.create",),
}
"""The groups that are about specs, each with the operations of a target that belong to it."""

ALONE = ("build", "copy", "merge with itself", "memory")
"""The groups whose operations get a single spec."""

OWN_SIZES = ("cache",)
"""The groups whose workloads do not draw fields from the menus. `undrawn` does not ask for entries `lowest`
and `highest` there."""


def inputs_of(events: Sequence[Event], description: Description) -> set[str]:
    """The entries of all inputs in one run."""
    classes = {info["name"]: info for info in description["classes"]}
    seen: set[str] = set()
    for event in events:
        if event["op"] in _SPECS:
            for group, specs in _specs(event):
                seen.update(_of_specs(group, specs, classes))
    seen.update(f"content: {what}" for what in _contents(events))
    seen.update(f"pool: {what}" for what in _Pool().follow(events))
    seen.update(f"engine: {what}" for what in _engine(events))
    return seen


_SPECS = {operation for operations in OPERATIONS.values() for operation in operations}


def _specs(event: Event) -> Iterator[tuple[str, list[SpecDescriptor]]]:
    """Yield each group that the operation belongs to, with the specs in the operation's arguments."""
    operation, arguments = event["op"], event["args"]
    specs: list[SpecDescriptor]
    if "spec" in arguments:
        specs = [arguments["spec"]]
    elif "specs" in arguments:
        specs = arguments["specs"]
    elif "workers" in arguments:
        specs = [spec for worker in arguments["workers"] for spec in worker["layers"].values()]
    elif "layers" in arguments:
        specs = [*arguments["layers"].values()]
    else:
        specs = [group["spec"] for group in arguments["groups"]]
    if operation == "specs.merge":
        yield ("merge" if any(spec != specs[0] for spec in specs) else "merge with itself"), specs
        return
    for group, operations in OPERATIONS.items():
        if operation in operations and (group != "unify pages" or _unequal_pages(event)):
            yield group, specs


def _unequal_pages(event: Event) -> bool:
    """Whether the layers of a plan had different page sizes before the planner made them equal."""
    plan = event["outcome"].get("value")
    given = plan.get("given", {}) if isinstance(plan, Mapping) else {}
    return len({facts["page_size_bytes"] for facts in given.values()}) > 1


def _of_specs(
    group: str, specs: Iterable[SpecDescriptor], classes: Mapping[str, SpecClassInfo]
) -> Iterator[str]:
    counts = Counter(spec["class"] for spec in specs if spec["class"] in classes)
    for name, count in counts.items():
        yield f"{group}: {name}"
        if group not in ALONE:
            yield from (f"{group}: {name} beside {other}" for other in counts if other != name or count > 1)
    for spec in specs:
        if info := classes.get(spec["class"]):
            for field in info["fields"]:
                yield from (
                    f"{group}: {info['name']}.{field['name']}{end}" for end in _places(info, field, spec)
                )


def _places(info: SpecClassInfo, field: FieldInfo, spec: SpecDescriptor) -> Iterator[str]:
    """Yield how a field's entry ends for the value that a spec has.

    It is "" if the value is not the default, " lowest" if it is at the lower end of the menu, and " highest"
    if it is at the upper end.
    """
    values = menu(info, field["name"])
    usual = (values[0] if values else None) if is_required(field) else field.get("default")
    value: Any = spec["fields"].get(field["name"], usual)
    if value != usual:
        yield ""
    if (found := ends(values)) and isinstance(value, int):
        if value <= found[0]:
            yield " lowest"
        if value >= found[1]:
            yield " highest"


def ends(values: Sequence[Any]) -> tuple[int, int] | None:
    """The lowest and the highest value of a menu. None unless the menu consists of two or more integers."""
    if len(values) < 2 or not all(isinstance(value, int) for value in values):
        return None
    return min(values), max(values)


def _contents(events: Sequence[Event]) -> Iterator[str]:
    """Yield the entries of `CONTENTS` that the contents of requests had."""
    adapters: list[str] = []
    salts: list[str] = []
    texts: set[int] = set()
    placeholders: set[int] = set()
    for event in events:
        operation, arguments = event["op"], event["args"]
        if operation == "cache.add":
            content, size = {**arguments, "items": []}, 0
        elif operation in ("hashing.block_hashes", "hashing.keys"):
            content, size = arguments["content"], arguments["hash_block_size"]
        else:
            continue
        adapters += [content["adapter"]] if content.get("adapter") else []
        salts += [content["salt"]] if content.get("salt") else []
        items, embeddings = content.get("items", []), content.get("embeddings", {})
        replaced = {int(place) for place in embeddings}
        for item in items:
            mask = item["is_embed"] or [True] * item["length"]
            replaced.update(item["offset"] + place for place, embedded in enumerate(mask) if embedded)
            first, last = item["offset"], item["offset"] + item["length"] - 1
            if size and first // size != last // size:
                yield "an item over several blocks"
            if item["is_embed"] and not all(item["is_embed"]):
                yield "an item with separators"
        for place, token in enumerate(content["tokens"]):
            (placeholders if place in replaced else texts).add(token)
        if any(one["offset"] + one["length"] > two["offset"] for one, two in pairwise(items)):
            yield "several items in one range"
        if embeddings and len(embeddings) < len(content["tokens"]) - content.get("generated", 0):
            yield "embeddings beside tokens"
        for name in ("adapter", "salt"):
            for others in ("items", "embeddings"):
                if content.get(name) and content.get(others):
                    yield f"{name} beside {others}"
    if texts & placeholders:
        yield "a text token equal to a placeholder"
    if len(adapters) > len({*adapters}):
        yield "two requests with one adapter"
    if len(salts) > len({*salts}):
        yield "two requests with one salt"
    if {*adapters} & {*salts}:
        yield "an adapter with the name of a salt"


CONTENTS: dict[str, tuple[str, ...]] = {
    "a text token equal to a placeholder": ("items",),
    "an item over several blocks": ("items",),
    "an item with separators": ("items",),
    "several items in one range": ("interleaved items",),
    "embeddings beside tokens": ("embeddings",),
    "two requests with one adapter": ("adapter",),
    "two requests with one salt": ("salt",),
    "an adapter with the name of a salt": ("adapter", "salt"),
    "adapter beside items": ("adapter", "items"),
    "adapter beside embeddings": ("adapter", "embeddings"),
    "salt beside items": ("salt", "items"),
    "salt beside embeddings": ("salt", "embeddings"),
}
"""The inputs in contents of requests. With each, the kinds of content that a target must support to get
it."""


class _Pool:
    """Follows the reference counts and groups of a pool's blocks, to see on which blocks its calls act."""

    def __init__(self) -> None:
        self._references: Counter[int] = Counter()
        self._groups: dict[int, set[int]] = {}
        self._null: int | None = None

    def follow(self, events: Sequence[Event]) -> Iterator[str]:
        for event in events:
            part, _, function = event["op"].partition(".")
            if part != "pool":
                continue
            arguments = event["args"]
            if function in ("touch", "free", "evict", "cache"):
                yield from self._lists(function, arguments["blocks"])
            if function == "lookup" and len(arguments["groups"]) > 1:
                yield "lookup in several groups"
            if function == "create":
                if not arguments["enable_caching"]:
                    yield "create without caching"
                if arguments["hash_block_size"] < arguments["block_size"]:
                    yield "create with hash blocks smaller than blocks"
            if "value" not in event["outcome"]:
                return
            self._apply(function, arguments, event["outcome"]["value"])

    def _lists(self, function: str, blocks: Sequence[int]) -> Iterator[str]:
        own = [block for block in blocks if block != self._null]
        if len({*own}) < len(own):
            yield f"{function} of a block twice in one list"
        if self._null in blocks:
            yield f"{function} of the null block"
        if len(set().union(*(self._groups.get(block, ()) for block in own))) > 1:
            yield f"{function} of blocks of several groups"
        if function in ("touch", "evict"):
            if any(self._references[block] for block in own):
                yield f"{function} of a referenced block"
            if any(not self._references[block] for block in own):
                yield f"{function} of a free block"

    def _apply(self, function: str, arguments: Mapping[str, Any], value: Any) -> None:
        if function == "create":
            self._references.clear()
            self._groups.clear()
            self._null = value["null"]
        elif function == "get_new_blocks":
            self._references.update(value)
        elif function == "touch":
            self._references.update(arguments["blocks"])
        elif function == "free":
            self._references.subtract(arguments["blocks"])
        elif function == "cache":
            for block in arguments["blocks"]:
                self._groups.setdefault(block, set()).add(arguments["group"])


POOL = (
    "create without caching",
    "create with hash blocks smaller than blocks",
    *(f"{call} of a block twice in one list" for call in ("touch", "free", "evict", "cache")),
    *(f"{call} of the null block" for call in ("touch", "free", "cache")),
    *(f"{call} of blocks of several groups" for call in ("touch", "free", "evict")),
    *(f"{call} of a {block} block" for call in ("touch", "evict") for block in ("referenced", "free")),
    "lookup in several groups",
)
"""The inputs of a pool's calls."""

_SETUP: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "several groups": lambda setup: len(setup["groups"]) > 1,
    "groups with unequal block sizes": lambda setup: len({*_block_sizes(setup)}) > 1,
    "scheduler_block_size above a group's": lambda setup: any(
        size < setup["scheduler_block_size"] for size in _block_sizes(setup)
    ),
    "hash_block_size below a group's": lambda setup: any(
        size > setup["hash_block_size"] for size in _block_sizes(setup)
    ),
    "max_model_len within a block": lambda setup: any(
        setup["max_model_len"] % size for size in _block_sizes(setup)
    ),
    "max_in_flight_tokens below max_model_len": lambda setup: (
        setup["max_in_flight_tokens"] < setup["max_model_len"]
    ),
    "max_in_flight_tokens above max_model_len": lambda setup: (
        setup["max_in_flight_tokens"] > setup["max_model_len"]
    ),
    "num_blocks for less than a request": lambda setup: (
        (setup["num_blocks"] - 1) * max(_block_sizes(setup)) < setup["max_model_len"]
    ),
    "enable_caching off": lambda setup: not setup["enable_caching"],
    "use_eagle on": lambda setup: bool(setup["use_eagle"]),
    "eagle in some of the groups": lambda setup: len({group["eagle"] for group in setup["groups"]}) > 1,
    "max_encoder_tokens above 0": lambda setup: setup["max_encoder_tokens"] > 0,
}

_ALLOCATE = ("hit", "lookahead", "external", "delay", "encoder", "whole")

ENGINE = (*_SETUP, *(f"allocate with {name}" for name in _ALLOCATE))
"""The inputs in an engine's setup, and in the arguments of `cache.allocate`."""


def _block_sizes(setup: Mapping[str, Any]) -> list[int]:
    return [group["spec"]["fields"].get("block_size", 1) for group in setup["groups"]]


def _engine(events: Sequence[Event]) -> Iterator[str]:
    for event in events:
        if event["op"] == "cache.create":
            yield from (what for what, has in _SETUP.items() if has(event["args"]))
        elif event["op"] == "cache.allocate":
            yield from (f"allocate with {name}" for name in _ALLOCATE if event["args"].get(name))
