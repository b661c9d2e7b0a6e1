"""The shadow on real memory: an engine writes content through each layer's views, and reads it back.

The shadow checks whether requests read what they computed (see docs/architecture.md). Here the engine has one
step at a time, and the step runs as soon as it is submitted. The engine compares the content of blocks layer
by layer. It skips positions without a block, because the laws of the workload `shadow.machine` report those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from kvref.target import CacheGroup, SpecDescriptor
from kvref_strategies.caches import kind_of
from kvref_strategies.engine import CHOICES, GRANTED, NEEDED, Engine, Pick, Request, Setup, Step
from kvref_strategies.specs import class_info, declares
from kvref_strategies.tensors import draw_arguments, draw_layers, tensor_subjects
from kvref_strategies.workload import Description, Draw, Stage, Subjects, Workload

WINDOWED = ("SlidingWindowSpec", "SlidingWindowMLASpec")
"""The spec classes of layers with a sliding window."""


class TensorEngine(Engine):
    """An engine that also writes and reads memory as a model runner does, with marks in place of content.

    A mark is a number that stands for the content of one token: it depends on the token's layer and on all
    tokens up to this one. Different layers and different prefixes have different marks.

    Args:
        layers: for each group, the layers that own a cache, each with a list of the layers that share it.
    """

    def __init__(
        self, stage: Stage, setup: Setup, operations: list[str], layers: list[dict[str, list[str]]]
    ) -> None:
        super().__init__(stage, setup, operations, tables_only=True)
        self.layers = layers
        names = [name for group in layers for name in group]
        self._layer_number = {name: place for place, name in enumerate(names)}
        self._prefixes: dict[tuple[Any, ...], int] = {}
        self._salts: dict[str, list[str | None]] = {}
        self._tables: dict[str, list[list[int]]] = {}
        self._content: dict[str, list[int]] = {}
        self._states: dict[tuple[str, int], int] = {}
        self._loads: dict[str, tuple[int, int]] = {}
        self._awaited: set[str] = set()
        """The requests whose loaded tokens the engine has not yet written to memory."""
        self._copies: list[dict[str, int]] = []
        self._excused: set[str] = set()
        """The requests that the engine does not check, because a load of theirs failed."""
        self._tried: set[str] = set()
        """The layers that the engine has once compared with wrong marks, to see that the target reports
        them."""

    # The engine notes what it needs from the answers of operations.

    def ask(self, operation: str, **arguments: Any) -> Any:
        answer = super().ask(operation, **arguments)
        name = arguments.get("request", "")
        if operation == "add":
            self._salts[name] = [arguments["salt"], arguments.get("adapter")]
        elif operation == "free":
            self._forget(name)
        elif operation == "take_copies":
            self._copies = answer or []
        elif operation == "block_ids" and answer is not None:
            self._tables[name] = answer
        elif operation == "allocate" and arguments.get("hit") and answer and answer["added"] is not None:
            found = arguments["hit"]["tokens"]
            self._loads[name] = (found, found + arguments["external"])
            self._awaited.add(name)
        return answer

    def _forget(self, name: str) -> None:
        for known in (self._tables, self._content, self._loads):
            known.pop(name, None)
        self._states = {key: block for key, block in self._states.items() if key[0] != name}
        self._excused.discard(name)
        self._awaited.discard(name)

    def _ask_table(self, request: Request) -> None:
        super()._ask_table(request)
        if request.loading and self.possible:
            self._load(request)

    def _bad_load(self, step: Step, pick: Pick) -> tuple[Request | None, bool]:
        request, ends = super()._bad_load(step, pick)
        if request is not None:
            self._excused.add(request.name)
        return request, ends

    def fail(self, request: Request, pick: Pick) -> None:
        super().fail(request, pick)
        self._excused.add(request.name)

    # What a step writes and reads.

    def close(self, step: Step, pick: Pick) -> None:
        starts = [(each.request, each.request.computed, each.tokens) for each in step.scheduled]
        super().close(step, pick)
        if not self.possible:
            return
        self._copy()
        for request, start, tokens in starts:
            self._load(request)
            self._compute(request, start, start + tokens)
        for request, start, tokens in starts:
            if request.name not in self._excused:
                self._check(request, start, start + tokens)
        for request, start, tokens in starts:
            self._keep_states(request, start, start + tokens)

    def _settle(self, request: Request, each: Any, stale: bool, pick: Pick) -> None:
        before = len(request.tokens)
        super()._settle(request, each, stale, pick)
        # Accepted draft tokens have become output tokens.
        content = self._content.get(request.name)
        if content is not None and self.possible and not stale:
            end = min(request.computed, len(request.tokens), len(content))
            true = self._prefix_marks(request)
            if content[before:end] != true[before:end]:
                content[before:end] = true[before:end]
                self._write(request, before, end)

    def _prefix_marks(self, request: Request) -> list[int]:
        mark = self._mark("salt", *self._salts[request.name])
        marks = []
        for token in request.tokens:
            mark = self._mark(mark, token)
            marks.append(mark)
        return marks

    def _mark(self, *what: Any) -> int:
        return self._prefixes.setdefault(what, len(self._prefixes) + 1)

    def _compute(self, request: Request, start: int, end: int) -> None:
        marks = self._prefix_marks(request)[:end]
        drafts = [self._mark("draft", self.number, len(self._prefixes)) for _ in range(len(marks), end)]
        self._content[request.name] = [*marks, *drafts]
        self._write(request, start, end)

    def _load(self, request: Request) -> None:
        first, end = self._loads.get(request.name, (0, 0))
        if request.name in self._awaited and first < end:
            self._awaited.discard(request.name)
            self._content[request.name] = self._prefix_marks(request)
            self._write(request, first, end)
            for number, group in enumerate(self.setup.groups):
                if _is_recurrent(group):
                    for place, _, high in _places(group, first, end):
                        self._write_state(request, number, place, high)

    def _write(self, request: Request, first: int, end: int) -> None:
        for number, group in enumerate(self.setup.groups):
            if _is_recurrent(group):
                continue
            slots, marks = self._slots(request, number, first, end)
            for layer in self.layers[number] if slots else ():
                self._perform("write_slots", layer, slots, self._in_layer(layer, marks))

    def _check(self, request: Request, start: int, end: int) -> None:
        for number, group in enumerate(self.setup.groups):
            if _is_recurrent(group):
                self._check_state(request, number, start)
                continue
            first = _first_read(group, start)
            slots, marks = self._slots(request, number, first, end)
            note = f"{request.name}, positions {first} to {end - 1}, {group['spec']['class']}"
            self._compare(number, slots, marks, note)

    def _compare(self, number: int, slots: list[int], marks: list[int], note: str) -> None:
        for owner, sharers in self.layers[number].items() if slots else ():
            for layer in (owner, *sharers):
                true = self._in_layer(owner, marks)
                self._perform("compare_slots", layer, slots, true, told=note)
                if layer not in self._tried:
                    # Marks with a different first byte: a slot may have only one byte.
                    self._tried.add(layer)
                    self._perform("compare_slots", layer, slots, [mark + 1 for mark in true], told="nobody")

    def _slots(self, request: Request, number: int, first: int, end: int) -> tuple[list[int], list[int]]:
        """The slots and the marks of these positions in a group, without positions that have no block."""
        group, table = self.setup.groups[number], self._tables[request.name][number]
        content, size = self._content[request.name], _size(group)
        slots, marks = [], []
        for place, low, high in _places(group, first, end):
            if place < len(table) and table[place] != self.shape["null"]:
                slots += [table[place] * size + position % size for position in range(low, high)]
                marks += content[low:high]
        return slots, marks

    def _copy(self) -> None:
        """Make the copies of the step, in each group in which a block table has the destination."""
        for copy in self._copies:
            for number, group in enumerate(self.setup.groups):
                if any(copy["destination"] in table[number] for table in self._tables.values()):
                    slots = [0] if _is_recurrent(group) else list(range(_size(group)))
                    source, destination = (
                        [copy[name] * len(slots) + slot for slot in slots]
                        for name in ("source", "destination")
                    )
                    for layer in self.layers[number]:
                        self.stage.perform(
                            "tensors.copy_slots", layer=layer, source=source, destination=destination
                        )
        self._copies = []

    # Recurrent states: there is one for each block.

    def _write_state(self, request: Request, number: int, place: int, end: int) -> None:
        table, content = self._tables[request.name][number], self._content[request.name]
        if place < len(table) and table[place] != self.shape["null"]:
            for layer in self.layers[number]:
                marks = self._in_layer(layer, [content[end - 1]])
                self._perform("write_slots", layer, [table[place]], marks)

    def _check_state(self, request: Request, number: int, start: int) -> None:
        group, table = self.setup.groups[number], self._tables[request.name][number]
        place = (start - 1) // _size(group)
        again = start < self._loads.get(request.name, (0, 0))[1]
        block = self._states.get((request.name, number), table[place] if 0 <= place < len(table) else -1)
        if start and not again and block >= 0 and block != self.shape["null"]:
            note = f"{request.name}, state behind position {start - 1}, {group['spec']['class']}"
            self._compare(number, [block], [self._content[request.name][start - 1]], note)

    def _keep_states(self, request: Request, start: int, end: int) -> None:
        for number, group in enumerate(self.setup.groups):
            if _is_recurrent(group):
                self._write_state(request, number, (end - 1) // _size(group), end)
                table = self._tables[request.name][number]
                if (end - 1) // _size(group) < len(table):
                    self._states[request.name, number] = table[(end - 1) // _size(group)]

    def _in_layer(self, layer: str, marks: list[int]) -> list[int]:
        number, layers = self._layer_number[layer], len(self._layer_number)
        return [mark * layers + number for mark in marks]

    def _perform(self, operation: str, layer: str, slots: list[int], marks: list[int], **more: str) -> None:
        self.stage.perform(f"tensors.{operation}", layer=layer, slots=slots, marks=marks, **more)


def _is_recurrent(group: CacheGroup) -> bool:
    return group.get("kind") == "MambaSpec"


def _size(group: CacheGroup) -> int:
    return int(group["spec"]["fields"]["block_size"])


def _places(group: CacheGroup, first: int, end: int) -> Iterable[tuple[int, int, int]]:
    """The blocks of these positions, each as (index in the block table, first position, end position)."""
    size = _size(group)
    for place in range(first // size, -(-end // size)):
        yield place, max(first, place * size), min(end, (place + 1) * size)


def _first_read(group: CacheGroup, position: int) -> int:
    """The first position that the token at `position` attends to."""
    if group.get("kind") in WINDOWED:
        return max(0, position - int(group["spec"]["fields"]["sliding_window"]) + 1)
    return 0


def shadow_engine(
    stage: Stage, description: Description, arguments: dict[str, Any], options: dict[str, Any]
) -> TensorEngine | None:
    """Allocate memory, and make an engine for the allocated groups.

    Returns None if the target refuses, or if the planner gave a group pages of another size.

    Args:
        arguments: the arguments of `tensors.allocate`.
        options: settings of the engine: `batch` is the most tokens of a step; `drafts`, `loads` and `whole`
            are as in `Setup`.
    """
    made = stage.perform("tensors.allocate", **arguments)
    if "value" not in made:
        return None
    owners, sharing = arguments["layers"], dict(arguments["sharing"])
    layers = [
        {owner: [name for name in group if sharing.get(name) == owner] for owner in group if owner in owners}
        for group in made["value"]["groups"]
    ]
    groups: list[CacheGroup] = []
    for group in layers:
        first = next(iter(group))
        built = stage.perform("specs.build", spec=owners[first])
        page = made["value"]["layers"][first]["page_size_bytes"]
        if "value" not in built or built["value"]["page_size_bytes"] != page:
            return None  # the planner has changed the spec
        kind = kind_of(class_info(description, owners[first]["class"])) or ""
        groups.append({"spec": owners[first], "eagle": False, "kind": kind})
    sizes = [_size(group) for group in groups]
    recurrent = any(_is_recurrent(group) for group in groups)
    block_size = math.lcm(*sizes)
    setup = Setup(
        groups=groups,
        num_blocks=arguments["num_blocks"],
        scheduler_block_size=block_size,
        hash_block_size=math.gcd(*sizes),
        max_model_len=3 * block_size + 1,
        max_num_batched_tokens=max(block_size, options["batch"]),
        drafts=0 if recurrent else options["drafts"],
        align=block_size if recurrent else None,
        loads=options["loads"],
        whole=options["whole"],
        salts="salt" in description["capabilities"].get("contents", ()),
        adapters="adapter" in description["capabilities"].get("contents", ()),
    )
    return TensorEngine(stage, setup, description["parts"], layers)


def _with_kept_states(
    description: Description, layers: dict[str, SpecDescriptor]
) -> dict[str, SpecDescriptor]:
    """The same layers. Recurrent layers get the mode "align", which caches states at the ends of steps."""
    return {
        name: {**spec, "fields": {**spec["fields"], "mamba_cache_mode": "align"}}
        if declares(class_info(description, spec["class"]), "mamba_cache_mode")
        else spec
        for name, spec in layers.items()
    }


def subjects(description: Description) -> Subjects:
    modes = description["capabilities"].get("mamba_cache_modes", ["align"])
    no_states = None if "align" in modes else "its engine caches no states at the ends of steps"
    known = tensor_subjects(description)
    return {
        name: reason or (no_states if name == "recurrent states" else None) for name, reason in known.items()
    }


def on_memory(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Allocate memory, and let an engine take 20 to 60 actions."""
    layers = _with_kept_states(description, draw_layers(draw, stage, description, subject))
    if not layers:
        return
    states = subject != "recurrent states" or description["capabilities"].get("loads_states", True)
    num_blocks = draw(st.sampled_from([8, 12, 24]))
    arguments = {**draw_arguments(draw, description, layers), "num_blocks": num_blocks}
    options = {
        "batch": draw(st.sampled_from([32, 8, 5])),
        "drafts": draw(st.sampled_from([0, 0, 2])),
        "loads": bool(states) and draw(st.booleans()),
        "whole": draw(st.booleans()),
    }
    engine = shadow_engine(stage, description, arguments, options)
    if engine is not None:
        for choice in draw(st.lists(st.integers(0, CHOICES - 1), min_size=20, max_size=60)):
            engine.go_on(choice)


_MEMORY = ("allocate", "write_slots", "compare_slots", "copy_slots")

WORKLOADS = [
    Workload(
        "shadow.memory",
        (
            "specs",
            "cache",
            *(f"cache.{name}" for name in (*NEEDED, "block_ids", "evict", "reset")),
            "tensors",
            *(f"tensors.{name}" for name in _MEMORY),
        ),
        subjects,
        on_memory,
        weight=0.4,
        unobserved="the target did not allocate these layers, or made no cache for them",
        proof=GRANTED,
    ),
]
