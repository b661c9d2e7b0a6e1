"""The shadow: what every block holds, by what a scheduler asked and was answered, and nothing else.

Nothing is known of an implementation but the tables that the model runner is told. What a step computes is
written where they say, whatever a token attends to is read from there, and all that is read must be the
request's own. What a place holds is a *mark*: a number for a prefix of tokens, the same for all requests that
begin with it, with its salt and adapter, and another one for everything else.

Steps run in the order in which they are handed over, each at the latest moment: when the first of its output
comes back. Loads run in that order, too. Drafts have marks of their own until they are accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvref_conformance.laws.cache_steps import Cache, Group, cache_of
from kvref_conformance.laws.core import Event

Tables = list[list[int]]


class Reading(NamedTuple):
    """What is wrong with a place that a step reads or writes."""

    what: str
    """`"freed"` or `"missing"` for a place without a block, `"other"` for one with other content, `"written"`
    for one that somebody else still reads."""
    stay: Stay
    group: Group
    position: int
    """The token whose content is concerned."""
    block: int | None
    observed: str
    step: int
    """Number of the step that reads, or writes."""
    again: bool = False
    """Whether it computes the last token again of a request for which all were loaded."""


class Marks:
    """Numbers for prefixes, and for all that is none."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._meanings: dict[int, str] = {0: "nothing ever written"}

    def of_token(self, before: int, token: int, request: str, position: int) -> int:
        """That of a prefix with one token more."""
        mark = self._numbers.get((before, token))
        if mark is None:
            mark = self._numbers[before, token] = len(self._meanings)
            self._meanings[mark] = f"position {position} as {request} has it"
        return mark

    def of_beginning(self, *what: Any) -> int:
        """That of no token at all, with this salt and adapter; or of what an encoder made."""
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
    """A request, and how much of it is under way."""

    def __init__(self, marks: Marks, name: str, beginning: int, tokens: list[int]) -> None:
        self.name, self._marks, self._last = name, marks, beginning
        self.stays = 0
        self.in_flight = 0
        self.stale = 0
        """Tokens in flight since before its blocks were taken."""
        self.known: list[int] = []
        """The mark of each token: of all up to it."""
        self.extend(tokens)

    def extend(self, tokens: list[int]) -> None:
        for token in tokens:
            self._last = self._marks.of_token(self._last, token, self.name, len(self.known))
            self.known.append(self._last)


@dataclass(eq=False)
class Stay:
    """A request from when it is let in until its blocks are taken."""

    request: ShadowRequest
    since: int
    """The step that let it in."""
    number: int
    """Of the stays of the request, from 1 on."""
    found: int
    """Tokens found in the cache."""
    position: int
    """Tokens computed, or loaded, of which the output is known: the next one to compute."""
    loads: tuple[int, int] = (0, 0)
    """The tokens that come from elsewhere, with its first step or before."""
    loading: bool = False
    """Whether it waits for them, beside the steps."""
    encoder: int = 0
    encoded: bool = False
    excused: bool = False
    """Whether something was wrong that it had been told was right: blocks may be gone that it now needs."""
    tables: Tables = field(default_factory=list)
    expected: list[int] = field(default_factory=list)
    """The mark of each position, drafts included."""
    there: int = 0
    """Tokens whose content is there, as far as steps and loads have run."""
    bad_from: int | None = None
    """Where what is loaded aside begins to be wrong."""
    states: dict[int, int] = field(default_factory=dict)
    """By group of recurrent layers, the block with the state to go on from."""

    def __post_init__(self) -> None:
        self.expected, self.there = list(self.request.known), self.found


@dataclass(eq=False)
class Part:
    """What a step computes of a request."""

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
    """What is handed over together."""

    number: int
    copies: list[dict[str, int]] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    executed: bool = False


@dataclass(eq=False)
class Load:
    """Content that comes from elsewhere, beside the steps."""

    number: int
    """Of the step that began it."""
    stay: Stay
    tables: Tables


class Row:
    """What a block holds of a group: a mark for each token, or one for a state."""

    __slots__ = ("group", "last", "marks", "writers")

    def __init__(self, group: int, size: int) -> None:
        self.group, self.marks = group, [0] * size
        self.last: tuple[str, int] = ("nobody", 0)
        """Who wrote to it, and in which step."""
        self.writers: list[tuple[str, int]] = [self.last] * size


class Write(NamedTuple):
    """What is put into a block."""

    group: Group
    block: int
    offset: int
    """From the start of the block; 0 for a state."""
    marks: list[int]
    stay: Stay
    position: int
    """Of the first token."""
    step: int

    @property
    def end(self) -> int:
        return self.offset + len(self.marks)


class Shadow:
    """Follows the operations on a cache manager. `readings` counts, `wrong` tells what was not right."""

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
        """Take the next operation in."""
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
                # By now all output of what has run is there.
                self._drain(self.cache)
                self._step += 1
                self._open = Batch(self._step)
            case "cache.allocate" if value["added"] is not None:
                self._allocated(arguments)
            case "cache.cache_blocks" if stay := self._stays.get(arguments["request"]):
                stay.loading = False
            case "cache.block_ids" if stay := self._stays.get(arguments["request"]):
                if stay.loading and not stay.tables:
                    # It comes behind all steps that are under way.
                    self._queue.append(Load(self._step, stay, value))
                stay.tables = value
                self._drain(self.cache)
            case "cache.take_copies":
                self._open.copies += value
                self._hand_over()
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

    def _hand_over(self) -> None:
        if self._open not in self._queue:
            self._queue.append(self._open)

    def _progress(self, cache: Cache, request: str, computed: int, in_flight: int, output: list[int]) -> None:
        known, stay = self._requests[request], self._stays.get(request)
        position = computed - (in_flight - known.stale)
        if in_flight > known.in_flight and stay is not None:
            self._hand_over()
            tokens = in_flight - known.in_flight
            self._open.parts.append(Part(stay, self._open.number, tokens, stay.tables))
        elif in_flight < known.in_flight:
            self._came_back(cache, known, computed, in_flight, output)
        elif stay is not None and in_flight == known.stale:
            if position < stay.position and not self._again(stay, position):
                self._spoil(cache, stay, position)
            stay.position = position
        elif stay is not None and position < stay.position:
            # Something of what is computed from was wrong; the step had it all the same.
            self._execute_next(cache, known)
            stay.excused, stay.position = True, position
        known.in_flight = in_flight

    def _again(self, stay: Stay, computed: int) -> bool:
        """Whether no more than the last token is computed again, because all of them were loaded."""
        return computed == stay.position - 1 == len(stay.request.known) - 1 == stay.loads[1] - 1

    def _came_back(
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
        # At its limit a request takes less than what was right.
        stay.position = stay.there = min(position, len(request.known))
        self._settle(cache, part)

    def _settle(self, cache: Cache, part: Part) -> None:
        """Now it is known which drafts were right."""
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
        """Run steps up to the first one that has something of the request that did not come back yet."""
        for place, each in enumerate(self._queue):
            if isinstance(each, Batch):
                for part in each.parts:
                    if part.stay.request is request and not part.reported:
                        for earlier in self._queue[: place + 1]:
                            self._run(cache, earlier)
                        # Whoever else was in earlier steps has left, and is not told of any more.
                        self._queue = self._queue[place:]
                        return part
        return None

    def _drain(self, cache: Cache) -> None:
        """Run what does not wait for a step."""
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
            # What the next step of the request goes on from, as far as it is known.
            part.stay.position = part.stay.there = part.end - part.drafts
            self.resumed += part.stay.number > 1
            self.hits += part.start == part.stay.found > 0
            if self._stays.get(part.stay.request.name) is not part.stay:
                # Nobody may be told what became of its drafts; what is certain is kept all the same.
                self._settle(cache, part)

    def _extend(self, part: Part) -> None:
        """Let the request expect what the step computes: tokens it knows, and others."""
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
                # Into each block there is, the state behind its last token. That of a load that was wrong is
                # nothing that an engine could go on from: it goes back to where there is none.
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
        return self._marks.of_its_own("what was loaded wrong")

    def _spoil(self, cache: Cache, stay: Stay, computed: int) -> None:
        """Not all that it had been told was there is right.

        What is loaded aside has no keys before it is known to be right. What a running request loaded does:
        whoever finds it before it is computed again finds what is wrong, and no cache manager can help that.
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
        """Write to a block, which then holds nothing of another group any more."""
        group, block = write.group, write.block
        if block < 0 or block == cache.shape["null"]:
            return  # whoever reads there finds out
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
        """Nobody else must read there what is then no more."""
        if write.block in cache.shape["reserved"]:
            self._written(write, "it is kept for what all requests read")
        row = self._rows.get(write.block)
        if row is None:
            return
        for other in self._stays.values():
            if other is write.stay or other.excused or other.since > write.step:
                continue  # who came later has blocks that were others' then
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
                        continue  # elsewhere; or wrong already, or not written yet
                    if their.number != write.group.number or new[read] != wanted:
                        self._written(
                            write, f"{other.request.name} reads positions {low} to {high - 1} there"
                        )

    def _written(self, write: Write, told: str) -> None:
        reading = Reading("written", write.stay, write.group, write.position, write.block, told, write.step)
        self.wrong.append(reading)

    def _wanted(self, group: Group, stay: Stay, low: int, high: int) -> list[int]:
        if group.kind == "CrossAttentionSpec":
            return [self._encoder_mark(stay, position) for position in range(low, high)]
        return stay.expected[low:high]

    def _read(self, cache: Cache, group: Group, part: Part, step: int) -> None:
        """All positions that the tokens of the step attend to."""
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
        """What a block holds from an offset on with what it should."""
        self.readings += 1
        row, what = self._rows.get(block), "other"
        if block < 0 or block == cache.shape["null"]:
            what, told = ("missing", "no block") if block < 0 else ("freed", "the null block")
        elif row is None:
            told = "nothing ever written"
        elif row.group != group.number:
            told = f"a block of group {row.group}, {_written_by(row.last)}"
        else:
            there = row.marks[offset : offset + len(wanted)]
            if there == wanted:
                return
            differs = next(n for n, mark in enumerate(there) if mark != wanted[n])
            position += differs
            told = self._marks.in_words(there[differs])
            if there[differs]:
                told += f", {_written_by(row.writers[offset + differs])}"
        where = block if what == "other" else None
        self.wrong.append(Reading(what, part.stay, group, position, where, told, step, part.again))

    # States of recurrent layers: one for each block, that of the last token that it covers.

    def _read_state(self, cache: Cache, group: Group, part: Part, step: int) -> None:
        """The state that the step goes on from."""
        stay, start = part.stay, part.start
        if not start or stay.excused or part.again or start > len(stay.request.known):
            return
        block = stay.states.get(group.number)
        if block is None:
            block = _at(part.tables[group.number], (start - 1) // group.block_size)
        self._compare(cache, group, part, block, 0, [stay.request.known[start - 1]], start - 1, step)

    def _write_state(self, cache: Cache, group: Group, part: Part, step: int) -> None:
        """The state behind the step, those behind its drafts, and in mode `all` one for each block."""
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
            mark = self._marks.of_its_own(f"a state behind {draft} drafts of {stay.request.name}")
            self._put(
                cache, Write(group, _at(table, last + draft), 0, [mark], stay, certain - 1 + draft, step)
            )
        stay.states[group.number] = _at(table, last)

    def _state(self, stay: Stay, end: int) -> int:
        """The mark of the state behind so many tokens."""
        if end <= len(stay.request.known):
            return stay.request.known[end - 1]
        return self._marks.of_its_own(f"a state of {stay.request.name} behind what nobody was told")

    def _settle_state(self, cache: Cache, group: Group, part: Part) -> None:
        """Go on from the state behind the last draft that was accepted, and keep that at a block's end."""
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


def _written_by(who: tuple[str, int]) -> str:
    return f"written by {who[0]} in step {who[1]}"


def _at(table: list[int], place: int) -> int:
    return table[place] if place < len(table) else -1


def _places(group: Group, first: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The places of a table that positions lie in, each with those of them that lie there."""
    size = group.block_size
    for place in range(first // size, -(-end // size)):
        yield place, max(first, place * size), min(end, (place + 1) * size)


def _attended(group: Group, stay: Stay) -> tuple[int, int]:
    if group.kind == "CrossAttentionSpec":
        return 0, stay.encoder
    return group.first_read(stay.position), min(stay.position, stay.there)


_LAST: dict[str, Any] = {}
"""What was followed last: all laws look at an example before there is another."""


def shadow_of(events: list[Event]) -> Shadow:
    """The shadow behind all of these operations."""
    if _LAST.get("events") is not events or _LAST["number"] != len(events):
        shadow = Shadow()
        for event in events:
            shadow.follow(event)
        _LAST.update(events=events, number=len(events), shadow=shadow)
    followed: Shadow = _LAST["shadow"]
    return followed
