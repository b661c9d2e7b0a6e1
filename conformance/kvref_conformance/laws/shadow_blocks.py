"""The shadow: the content of every block, computed only from a scheduler's calls and their answers.

The shadow sees only what a model runner sees of an implementation: the block tables. A step writes its tokens
to the slots in these tables, and reads from these slots what the tokens attend to. It must find the request's
own content there. A slot holds a *mark*: a number that stands for a prefix of tokens with its salt and
adapter. Requests with the same prefix have the same mark, and all other content has other marks.

Steps run in the order in which the engine submits them, each as late as possible: when its first output is
reported. Loads run in the same order. Drafts have marks of their own until they are accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvref_conformance.laws.cache_steps import Cache, Group, cache_of
from kvref_conformance.laws.core import Event

Tables = list[list[int]]


class Reading(NamedTuple):
    """A wrong read or write of a step."""

    what: str
    """What is wrong: `"missing"` if the block table has no block there, `"freed"` if it has the null block,
    `"other"` if the block has other content, `"written"` if another request still reads what the step
    overwrites."""
    stay: Stay
    group: Group
    position: int
    """The position of the token that is read or written."""
    block: int | None
    observed: str
    step: int
    """The number of the step that reads or writes."""
    again: bool = False
    """Whether the step computes the last token again, because all tokens were loaded."""


class Marks:
    """The marks of prefixes and of all other content, with their meaning in words."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._meanings: dict[int, str] = {0: "nothing ever written"}

    def of_token(self, before: int, token: int, request: str, position: int) -> int:
        """The mark of the prefix with the mark `before` and one more token."""
        mark = self._numbers.get((before, token))
        if mark is None:
            mark = self._numbers[before, token] = len(self._meanings)
            self._meanings[mark] = f"position {position} of {request}"
        return mark

    def of_beginning(self, *what: Any) -> int:
        """The mark of an empty prefix with this salt and adapter, or of a position of encoder output."""
        mark = self._numbers.get(what)
        if mark is None:
            mark = self._numbers[what] = len(self._meanings)
            self._meanings[mark] = " ".join(map(str, what))
        return mark

    def of_its_own(self, meaning: str) -> int:
        mark = len(self._meanings)
        self._meanings[mark] = meaning
        return mark

    def in_words(self, mark: int) -> str:
        return self._meanings[mark]


class ShadowRequest:
    """A request with its tokens and the number of tokens in flight."""

    def __init__(self, marks: Marks, name: str, beginning: int, tokens: list[int]) -> None:
        self.name, self._marks, self._last = name, marks, beginning
        self.stays = 0
        self.in_flight = 0
        self.stale = 0
        """How many of the tokens in flight were submitted before the request lost its blocks."""
        self.known: list[int] = []
        """The mark of the prefix up to each token."""
        self.extend(tokens)

    def extend(self, tokens: list[int]) -> None:
        for token in tokens:
            self._last = self._marks.of_token(self._last, token, self.name, len(self.known))
            self.known.append(self._last)


@dataclass(eq=False)
class Stay:
    """The time of a request from its admission until it loses its blocks."""

    request: ShadowRequest
    since: int
    """The number of the step that admitted the request."""
    number: int
    """The number of this stay: 1 for the request's first, and one more after each resumption."""
    found: int
    """How many tokens its prefix hit has."""
    position: int
    """How many tokens are computed or loaded, as far as is known; also the next position to compute."""
    loads: tuple[int, int] = (0, 0)
    """The first and the end position of the tokens that are still to be loaded, before or with the first step
    of the stay. Once they are loaded, both are the end position."""
    loading: bool = False
    """Whether the request waits for an asynchronous load."""
    encoder: int = 0
    encoded: bool = False
    excused: bool = False
    """Whether tokens that were reported as right turned out wrong. From then on the shadow does not judge
    what the request reads, because blocks that it needs again may be freed."""
    tables: Tables = field(default_factory=list)
    expected: list[int] = field(default_factory=list)
    """The expected mark of each position, including drafts."""
    there: int = 0
    """How many tokens have their content in the cache, as far as steps and loads have run."""
    bad_from: int | None = None
    """The first wrong position of an asynchronous load; None if all are right."""
    states: dict[int, int] = field(default_factory=dict)
    """For each group of recurrent layers, the block with the current state."""

    def __post_init__(self) -> None:
        self.expected, self.there = list(self.request.known), self.found


@dataclass(eq=False)
class Part:
    """The tokens of one request that a step computes."""

    stay: Stay
    step: int
    tokens: int
    tables: Tables
    start: int = 0
    drafts: int = 0
    reported: bool = False

    @property
    def end(self) -> int:
        return self.start + self.tokens

    @property
    def again(self) -> bool:
        return self.start < self.stay.loads[1]


@dataclass(eq=False)
class Batch:
    """The parts and copies of one step."""

    number: int
    copies: list[dict[str, int]] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    executed: bool = False


@dataclass(eq=False)
class Load:
    """An asynchronous load of a request's content."""

    number: int
    """The number of the step that began it."""
    stay: Stay
    tables: Tables


class Row:
    """The content of a block in its group: one mark for each token, or one for a state."""

    __slots__ = ("group", "last", "marks", "writers")

    def __init__(self, group: int, size: int) -> None:
        self.group, self.marks = group, [0] * size
        self.last: tuple[str, int] = ("nobody", 0)
        """The request that wrote to the block last, and the number of the step."""
        self.writers: list[tuple[str, int]] = [self.last] * size


class Write(NamedTuple):
    """Marks to be written to a block."""

    group: Group
    block: int
    offset: int
    """The first slot in the block; 0 for a state."""
    marks: list[int]
    stay: Stay
    position: int
    """The position of the first token whose mark is written."""
    step: int

    @property
    def end(self) -> int:
        return self.offset + len(self.marks)


class Shadow:
    """Follows the operations on a cache manager. Counts the `readings`, and collects what is `wrong`."""

    def __init__(self) -> None:
        self.cache: Cache | None = None
        self.readings = self.hits = self.resumed = 0
        self.wrong: list[Reading] = []
        self._start()

    def _start(self) -> None:
        self._marks = Marks()
        self._rows: dict[int, Row] = {}
        self._requests: dict[str, ShadowRequest] = {}
        self._stays: dict[str, Stay] = {}
        self._queue: list[Batch | Load] = []
        self._open = Batch(0)
        self._step = 0

    def follow(self, event: Event) -> None:
        """Apply the next operation."""
        arguments, outcome = event["args"], event["outcome"]
        if event["op"] == "cache.create":
            self.cache = cache_of(event)
            self._start()
        if self.cache is None or "value" not in outcome:
            return
        value = outcome["value"]
        match event["op"]:
            case "cache.add":
                name = arguments["request"]
                beginning = self._marks.of_beginning("salt", arguments["salt"], arguments.get("adapter"))
                self._requests[name] = ShadowRequest(self._marks, name, beginning, arguments["tokens"])
            case "cache.new_step":
                # By now the output of all steps that have run is reported.
                self._drain(self.cache)
                self._step += 1
                self._open = Batch(self._step)
            case "cache.allocate" if value["added"] is not None:
                self._allocated(arguments)
            case "cache.cache_blocks" if stay := self._stays.get(arguments["request"]):
                stay.loading = False
            case "cache.block_ids" if stay := self._stays.get(arguments["request"]):
                if stay.loading and not stay.tables:
                    # The load runs after all steps in flight.
                    self._queue.append(Load(self._step, stay, value))
                stay.tables = value
                self._drain(self.cache)
            case "cache.take_copies":
                self._open.copies += value
                self._submit()
            case "cache.progress":
                self._progress(self.cache, **arguments)
            case "cache.free" if stay := self._stays.pop(arguments["request"], None):
                stay.request.stale = stay.request.in_flight

    def _allocated(self, arguments: dict[str, Any]) -> None:
        request = self._requests.get(arguments["request"])
        if request is None or request.name in self._stays:
            return
        request.stays += 1
        found, external = (arguments.get("hit") or {"tokens": 0})["tokens"], arguments.get("external", 0)
        self._stays[request.name] = Stay(
            request,
            self._step,
            request.stays,
            found,
            found + external,
            (found, found + external),
            bool(arguments.get("delay")),
            arguments.get("encoder", 0),
        )

    def _submit(self) -> None:
        if self._open not in self._queue:
            self._queue.append(self._open)

    def _progress(self, cache: Cache, request: str, computed: int, in_flight: int, output: list[int]) -> None:
        known, stay = self._requests[request], self._stays.get(request)
        position = computed - (in_flight - known.stale)
        if in_flight > known.in_flight and stay is not None:
            self._submit()
            tokens = in_flight - known.in_flight
            self._open.parts.append(Part(stay, self._open.number, tokens, stay.tables))
        elif in_flight < known.in_flight:
            self._reported(cache, known, computed, in_flight, output)
        elif stay is not None and in_flight == known.stale:
            if position < stay.position and not self._again(stay, position):
                self._spoil(cache, stay, position)
            stay.position = position
        elif stay is not None and position < stay.position:
            # The tokens from `position` on were wrong, but a step in flight has read them.
            self._execute_next(cache, known)
            stay.excused, stay.position = True, position
        known.in_flight = in_flight

    def _again(self, stay: Stay, computed: int) -> bool:
        """Whether `computed` fell by one only because the last token of a complete load is computed again."""
        return computed == stay.position - 1 == len(stay.request.known) - 1 == stay.loads[1] - 1

    def _reported(
        self, cache: Cache, request: ShadowRequest, computed: int, in_flight: int, output: list[int]
    ) -> None:
        part = self._execute_next(cache, request)
        before = len(request.known)
        request.extend(output)
        request.stale = max(0, request.stale - (request.in_flight - in_flight))
        if part is None:
            return
        part.reported = True
        stay = part.stay
        if stay is self._stays.get(request.name):
            position = computed - (in_flight - request.stale)
            stay.excused |= position < part.start
        else:
            position = len(request.known) - 1 if output else min(part.end, before)
        # At its limit of tokens, a request keeps fewer tokens than the model accepted.
        stay.position = stay.there = min(position, len(request.known))
        self._settle(cache, part)

    def _settle(self, cache: Cache, part: Part) -> None:
        """Give the accepted drafts the marks of the request's own tokens."""
        stay = part.stay
        expected, known = stay.expected, stay.request.known
        for position in range(part.end - part.drafts, min(part.end, stay.position)):
            mark, expected[position] = expected[position], known[position]
            for group in cache.groups:
                if group.kind not in ("MambaSpec", "CrossAttentionSpec", "own"):
                    place, offset = divmod(position, group.block_size)
                    row = self._rows.get(_at(part.tables[group.number], place))
                    if row is not None and row.group == group.number and row.marks[offset] == mark:
                        row.marks[offset] = known[position]
        for group in cache.groups:
            if group.kind == "MambaSpec":
                self._settle_state(cache, group, part)

    # Memory.

    def _execute_next(self, cache: Cache, request: ShadowRequest) -> Part | None:
        """Run all steps up to the first one with an unreported part of the request. Return this part."""
        for place, each in enumerate(self._queue):
            if isinstance(each, Batch):
                for part in each.parts:
                    if part.stay.request is request and not part.reported:
                        for earlier in self._queue[: place + 1]:
                            self._run(cache, earlier)
                        # All other requests in earlier steps have left, so no output will be reported for
                        # them.
                        self._queue = self._queue[place:]
                        return part
        return None

    def _drain(self, cache: Cache) -> None:
        """Run the loads that do not wait for a step."""
        for each in self._queue:
            if isinstance(each, Batch) and not each.executed:
                break
            self._run(cache, each)
        self._queue = [each for each in self._queue if isinstance(each, Batch) or not self._is_done(each)]

    def _is_done(self, load: Load) -> bool:
        return load.stay.loads[0] >= load.stay.loads[1]

    def _run(self, cache: Cache, each: Batch | Load) -> None:
        if isinstance(each, Load):
            if not self._is_done(each):
                self._load(cache, each.stay, each.tables, each.number)
            return
        if each.executed:
            return
        each.executed = True
        for copy in each.copies:
            if (source := self._rows.get(copy["source"])) is not None:
                row = self._rows[copy["destination"]] = Row(source.group, 0)
                row.marks, row.writers, row.last = [*source.marks], [*source.writers], source.last
        for part in each.parts:
            part.start = part.stay.position
            part.drafts = max(0, part.end - len(part.stay.request.known))
            if part.stay.loads[0] < part.stay.loads[1]:
                self._load(cache, part.stay, part.tables, each.number)
            self._extend(part)
            for group in cache.groups:
                if group.kind == "CrossAttentionSpec":
                    self._encode(cache, group, part, each.number)
                elif group.kind not in ("MambaSpec", "own"):
                    self._write(cache, group, part, each.number)
            part.stay.encoded = True
        for part in each.parts:
            for group in cache.groups:
                if group.kind == "MambaSpec":
                    self._read_state(cache, group, part, each.number)
                elif group.kind != "own" and not part.stay.excused:
                    self._read(cache, group, part, each.number)
        for part in each.parts:
            for group in cache.groups:
                if group.kind == "MambaSpec":
                    self._write_state(cache, group, part, each.number)
            # The next step of the request starts here, as far as it is known.
            part.stay.position = part.stay.there = part.end - part.drafts
            self.resumed += part.stay.number > 1
            self.hits += part.start == part.stay.found > 0
            if self._stays.get(part.stay.request.name) is not part.stay:
                # The result of its drafts may never be reported, but its certain tokens are kept.
                self._settle(cache, part)

    def _extend(self, part: Part) -> None:
        """Add the marks of the step's tokens to what the request expects: known tokens, then drafts."""
        stay = part.stay
        stay.expected[part.start :] = stay.request.known[part.start : part.end]
        stay.expected += [
            self._marks.of_its_own(f"a draft of {stay.request.name} at position {position}")
            for position in range(len(stay.expected), part.end)
        ]

    def _load(self, cache: Cache, stay: Stay, tables: Tables, step: int) -> None:
        first, end = stay.loads
        stay.loads, stay.there = (end, end), end
        known = stay.request.known[:end]
        if stay.bad_from is not None:
            known[stay.bad_from :] = [self._wrong_load()] * (end - stay.bad_from)
        for group in cache.groups:
            if group.kind == "MambaSpec":
                # Each block gets the state after its last token. After a wrong load, an engine cannot
                # continue from such a state and goes back to a position without one.
                for place, _, high in _places(group, first, end):
                    block = _at(tables[group.number], place)
                    self._put(
                        cache, Write(group, block, 0, [stay.request.known[high - 1]], stay, high - 1, step)
                    )
            elif group.kind not in ("CrossAttentionSpec", "own"):
                for place, low, high in _places(group, first, end):
                    block = _at(tables[group.number], place)
                    offset = low - place * group.block_size
                    self._put(cache, Write(group, block, offset, known[low:high], stay, low, step))

    def _wrong_load(self) -> int:
        return self._marks.of_its_own("wrong loaded content")

    def _spoil(self, cache: Cache, stay: Stay, computed: int) -> None:
        """Mark the content from position `computed` on as wrong, if it comes from an asynchronous load.

        Blocks that are loaded asynchronously get their keys only when they are known to be right. Blocks that
        a running request loads have keys before. So another request may hit them before they are computed
        again. No cache manager can prevent that, so the shadow leaves their content as it is.
        """
        stay.excused = True
        if not stay.loading:
            return
        if stay.loads[0] < stay.loads[1]:
            stay.bad_from = max(computed, stay.found)
            return
        for group in cache.groups:
            for place, low, high in _places(group, max(computed, stay.found), stay.position):
                row = self._rows.get(_at(stay.tables[group.number], place)) if stay.tables else None
                if row is not None and row.group == group.number and group.kind != "MambaSpec":
                    offset = low - place * group.block_size
                    row.marks[offset : offset + high - low] = [self._wrong_load()] * (high - low)

    def _write(self, cache: Cache, group: Group, part: Part, step: int) -> None:
        table, expected = part.tables[group.number], part.stay.expected
        for place, low, high in _places(group, part.start, part.end):
            offset = low - place * group.block_size
            self._put(
                cache, Write(group, _at(table, place), offset, expected[low:high], part.stay, low, step)
            )

    def _encode(self, cache: Cache, group: Group, part: Part, step: int) -> None:
        stay = part.stay
        if not stay.encoded:
            for place, low, high in _places(group, 0, stay.encoder):
                block = _at(part.tables[group.number], place)
                marks = [self._encoder_mark(stay, position) for position in range(low, high)]
                self._put(cache, Write(group, block, low - place * group.block_size, marks, stay, low, step))

    def _encoder_mark(self, stay: Stay, position: int) -> int:
        return self._marks.of_beginning("the encoder's output for", stay.request.name, position)

    def _put(self, cache: Cache, write: Write) -> None:
        """Write marks to a block. If the block has content of another group, all of it is lost."""
        group, block = write.group, write.block
        if block < 0 or block == cache.shape["null"]:
            return  # a later read reports this
        row = self._rows.get(block)
        if row is None or row.group != group.number:
            self._check_readers(cache, write)
            row = self._rows[block] = Row(group.number, 1 if group.kind == "MambaSpec" else group.block_size)
        elif row.marks[write.offset : write.end] != write.marks:
            self._check_readers(cache, write)
        row.marks[write.offset : write.end] = write.marks
        row.last = (write.stay.request.name, write.step)
        row.writers[write.offset : write.end] = [row.last] * len(write.marks)

    def _check_readers(self, cache: Cache, write: Write) -> None:
        """Report the write if another request still reads what it overwrites."""
        if write.block in cache.shape["reserved"]:
            self._add_foreign_write(write, "it is reserved for content that all requests read")
        row = self._rows.get(write.block)
        if row is None:
            return
        for other in self._stays.values():
            if other is write.stay or other.excused or other.since > write.step:
                continue  # a request that was admitted later got the block after this step
            for their, table in zip(cache.groups, other.tables, strict=False):
                if (
                    their.kind in ("own", "MambaSpec")
                    or write.block not in table
                    or row.group != their.number
                ):
                    continue
                new = list(row.marks)
                new[write.offset : write.end] = write.marks
                for place, low, high in _places(their, *_attended(their, other)):
                    first, wanted = low - place * their.block_size, self._wanted(their, other, low, high)
                    read = slice(first, first + high - low)
                    if table[place] != write.block or row.marks[read] != wanted:
                        continue  # in another block, wrong already, or not written yet
                    if their.number != write.group.number or new[read] != wanted:
                        self._add_foreign_write(
                            write, f"{other.request.name} reads positions {low} to {high - 1} there"
                        )

    def _add_foreign_write(self, write: Write, why: str) -> None:
        reading = Reading("written", write.stay, write.group, write.position, write.block, why, write.step)
        self.wrong.append(reading)

    def _wanted(self, group: Group, stay: Stay, low: int, high: int) -> list[int]:
        if group.kind == "CrossAttentionSpec":
            return [self._encoder_mark(stay, position) for position in range(low, high)]
        return stay.expected[low:high]

    def _read(self, cache: Cache, group: Group, part: Part, step: int) -> None:
        """Read all positions that the tokens of the step attend to."""
        stay, table = part.stay, part.tables[group.number]
        first, end = group.first_read(part.start), part.end
        if group.kind == "CrossAttentionSpec":
            first, end = 0, stay.encoder
        for place, low, high in _places(group, first, end):
            block, offset = _at(table, place), low - place * group.block_size
            self._compare(cache, group, part, block, offset, self._wanted(group, stay, low, high), low, step)

    def _compare(
        self,
        cache: Cache,
        group: Group,
        part: Part,
        block: int,
        offset: int,
        wanted: list[int],
        position: int,
        step: int,
    ) -> None:
        """Compare the content of a block from an offset on with the expected marks."""
        self.readings += 1
        row, what = self._rows.get(block), "other"
        if block < 0 or block == cache.shape["null"]:
            what, observed = ("missing", "no block") if block < 0 else ("freed", "the null block")
        elif row is None:
            observed = "nothing ever written"
        elif row.group != group.number:
            observed = f"a block of group {row.group}, {_written_by(row.last)}"
        else:
            there = row.marks[offset : offset + len(wanted)]
            if there == wanted:
                return
            differs = next(n for n, mark in enumerate(there) if mark != wanted[n])
            position += differs
            observed = self._marks.in_words(there[differs])
            if there[differs]:
                observed += f", {_written_by(row.writers[offset + differs])}"
        where = block if what == "other" else None
        self.wrong.append(Reading(what, part.stay, group, position, where, observed, step, part.again))

    # A recurrent layer has one state for each block: the state after the last token of the block.

    def _read_state(self, cache: Cache, group: Group, part: Part, step: int) -> None:
        """Read the state that the step starts from."""
        stay, start = part.stay, part.start
        if not start or stay.excused or part.again or start > len(stay.request.known):
            return
        block = stay.states.get(group.number)
        if block is None:
            block = _at(part.tables[group.number], (start - 1) // group.block_size)
        self._compare(cache, group, part, block, 0, [stay.request.known[start - 1]], start - 1, step)

    def _write_state(self, cache: Cache, group: Group, part: Part, step: int) -> None:
        """Write the states after the step's certain tokens and after each of its drafts.

        In mode `all`, each block of the step's tokens gets a state.
        """
        stay, table, size = part.stay, part.tables[group.number], group.block_size
        certain = part.end - part.drafts
        last = (part.end - 1) // size
        ends = {last: certain}
        if group.fields.get("mamba_cache_mode") == "all":
            ends = {place: min((place + 1) * size, part.end) for place in range(part.start // size, last + 1)}
        for place, end in ends.items():
            self._put(
                cache, Write(group, _at(table, place), 0, [self._state(stay, end)], stay, end - 1, step)
            )
        for draft in range(1, min(part.drafts, group.further_blocks) + 1):
            mark = self._marks.of_its_own(f"a state after {draft} drafts of {stay.request.name}")
            self._put(
                cache, Write(group, _at(table, last + draft), 0, [mark], stay, certain - 1 + draft, step)
            )
        stay.states[group.number] = _at(table, last)

    def _state(self, stay: Stay, end: int) -> int:
        """The mark of the recurrent state after the request's first `end` tokens.

        If some of these tokens are not known yet, a mark of its own.
        """
        if end <= len(stay.request.known):
            return stay.request.known[end - 1]
        return self._marks.of_its_own(f"a state of {stay.request.name} after unreported tokens")

    def _settle_state(self, cache: Cache, group: Group, part: Part) -> None:
        """Continue from the state after the last accepted draft, and keep the state at a block's end."""
        stay, table, size = part.stay, part.tables[group.number], group.block_size
        certain, last = part.end - part.drafts, (part.end - 1) // size
        accepted = min(stay.position - certain, group.further_blocks)
        if accepted < 0:
            return
        for draft in range(accepted + 1):
            block, end = _at(table, last + draft), certain + draft
            row = self._rows.get(block)
            if draft and row is not None and row.group == group.number:
                row.marks[0] = self._state(stay, end)
            if group.fields.get("mamba_cache_mode") == "align" and end % size == 0 and group.further_blocks:
                block = _at(table, end // size - 1)
                self._put(cache, Write(group, block, 0, [self._state(stay, end)], stay, end - 1, part.step))
        stay.states[group.number] = _at(table, last + accepted)


def _written_by(writer: tuple[str, int]) -> str:
    return f"written by {writer[0]} in step {writer[1]}"


def _at(table: list[int], place: int) -> int:
    return table[place] if place < len(table) else -1


def _places(group: Group, first: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The blocks of these positions, each as (index in the block table, first position, end position)."""
    size = group.block_size
    for place in range(first // size, -(-end // size)):
        yield place, max(first, place * size), min(end, (place + 1) * size)


def _attended(group: Group, stay: Stay) -> tuple[int, int]:
    if group.kind == "CrossAttentionSpec":
        return 0, stay.encoder
    return group.first_read(stay.position), min(stay.position, stay.there)


_LAST: dict[str, Any] = {}
"""The shadow of the last example, kept because several laws judge the same example in turn."""


def shadow_of(events: list[Event]) -> Shadow:
    """The shadow after all of these operations."""
    if _LAST.get("events") is not events or _LAST["number"] != len(events):
        shadow = Shadow()
        for event in events:
            shadow.follow(event)
        _LAST.update(events=events, number=len(events), shadow=shadow)
    followed: Shadow = _LAST["shadow"]
    return followed
