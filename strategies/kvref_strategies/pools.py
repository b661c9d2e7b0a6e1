"""An engine that drives a pool. With few blocks and few different contents, requests often share blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from kvref.target import Outcome
from kvref_strategies.workload import Description, Draw, Machine, Stage, Subjects, Workload

BLOCK_SIZE = 2
"""Tokens in a block."""

GROUPS = (0, 1)

MAX_BLOCKS = 12
"""The most blocks of a pool, the null block included."""

CHOICE = st.integers(0, 2**12 - 1)
"""The number that decides an action: four bits each for which action, on what, and how.

Hypothesis reduces a single number best. The number is an argument of the rule, because Hypothesis draws these
fastest. So its range cannot depend on which actions are possible.
"""

CONTENTS = ([0, 0], [0, 1])
"""The possible tokens of a block. Both have the same first token."""


@dataclass
class Table:
    """The blocks of a request in one group."""

    group: int
    blocks: list[int]
    tokens: list[int] = field(default_factory=list)
    """The tokens of the first blocks. The tokens of later blocks are not chosen yet."""
    keyed: int = 0
    """How many of the first blocks have been cached."""

    def fill(self, end: int, content: int) -> list[int]:
        """Return the tokens of the first `end` blocks.

        Blocks whose tokens are not chosen yet get the tokens `CONTENTS[content]`.
        """
        while len(self.tokens) < end * BLOCK_SIZE:
            self.tokens += CONTENTS[content]
        return self.tokens[: end * BLOCK_SIZE]


class Engine:
    """Calls the part `pool` of a target as an engine does. After each change it calls `pool.state`.

    Three numbers decide an action: which action, on which of the possible objects (the newest first), and
    how.
    """

    def __init__(self, draw: Draw, stage: Stage, description: Description) -> None:
        self.stage = stage
        self.operations = description["parts"]
        declared = description["capabilities"]
        self.numbers: list[str] = declared.get("block_numbers", [])
        self.tables: list[Table] = []
        self.prompts: list[tuple[int, list[int]]] = []
        """The group and the tokens of everything that has been cached. The last block may not be full."""
        self.keyed: set[int] = set()
        """The cached blocks."""
        self.num_blocks = draw(st.integers(3, MAX_BLOCKS))
        self.enable_caching = draw(st.sampled_from([True, True, True, False]))
        partial_keys, order = declared.get("partial_keys"), declared.get("reuse_order")
        created = self.do(
            "create",
            num_blocks=self.num_blocks,
            enable_caching=self.enable_caching,
            block_size=BLOCK_SIZE,
            hash_block_size=1 if partial_keys else BLOCK_SIZE,
            **({"declared": {"reuse_order": order}} if order else {}),
        )
        shape = created.get("value") or {"null": None, "reserved": list(range(self.num_blocks))}
        self.null: int | None = shape["null"]
        self.usable = [n for n in range(self.num_blocks) if n not in (self.null, *shape["reserved"])]
        kinds: list[tuple[str, Callable[[], list[Any]], Callable[[Any, int], None]]] = [
            ("get_new_blocks", self.new_tables, self.allocate),
            ("cache", self.tables_to_cache, self.cache),
            ("free", self.all_tables, self.free),
            ("lookup", self.all_prompts, self.hit),
            ("get_new_blocks", self.tables_to_extend, self.allocate),
            ("free", self.tables_to_leave_behind, self.leave_behind),
            ("cache", self.tables_to_cache, self.cache),
            ("lookup", self.all_prompts, self.hit),
            ("evict", self.keyed_blocks, self.evict),
            ("lookup", self.all_prompts, self.look_up),
            *([("cache_partial", self.tables_to_cache_in_part, self.cache_partial)] if partial_keys else []),
            ("reset", self.the_pool, self.reset),
            ("usage", self.the_pool, self.usage),
        ]
        with_caching = ("cache", "cache_partial", "lookup", "evict")
        self.kinds = [
            kind
            for kind in kinds
            if f"pool.{kind[0]}" in self.operations and (self.enable_caching or kind[0] not in with_caching)
        ]

    def go_on(self, choice: int) -> None:
        """Take one possible action. The bits of `choice` decide which one, on what, and how."""
        what, which, how = choice % 16, choice // 16 % 16, choice // 256
        possible = [(these, act) for _, choices, act in self.kinds if (these := choices())]
        these, act = possible[what % len(possible)]
        act(these[-1 - which % len(these)], how)

    def do(self, operation: str, **arguments: Any) -> Outcome:
        outcome = self.ask(operation, **arguments)
        if "pool.state" in self.operations:
            self.stage.perform("pool.state")
        return outcome

    def ask(self, operation: str, **arguments: Any) -> Outcome:
        return self.stage.perform(f"pool.{operation}", **arguments)

    # The objects that each action can act on. If the list is empty, the action is not possible.

    @property
    def held(self) -> Counter[int]:
        return Counter(block for table in self.tables for block in self.real(table.blocks))

    @property
    def free_count(self) -> int:
        return len(self.usable) - len(self.held.keys() & set(self.usable))

    def real(self, blocks: list[int]) -> list[int]:
        return [block for block in blocks if block != self.null]

    def the_pool(self) -> list[None]:
        return [None]

    def new_tables(self) -> list[Table]:
        return [Table(group, []) for group in reversed(GROUPS)] if self.free_count else []

    def tables_to_extend(self) -> list[Table]:
        return self.tables if self.free_count else []

    def all_tables(self) -> list[Table]:
        return self.tables

    def tables_to_leave_behind(self) -> list[Table]:
        return [table for table in self.tables if self.null is not None and self.real(table.blocks[:-1])]

    def tables_to_cache(self) -> list[Table]:
        return [table for table in self.tables if table.keyed < len(table.blocks)]

    def tables_to_cache_in_part(self) -> list[Table]:
        return [table for table in self.tables if self.real(table.blocks[: table.keyed + 1])]

    def all_prompts(self) -> list[tuple[int, list[int]]]:
        return self.prompts

    def keyed_blocks(self) -> list[int]:
        return sorted(self.keyed)

    # The actions.

    def allocate(self, table: Table, how: int) -> None:
        """Allocate blocks to a new request, or more blocks to a running one."""
        taken = self.do("get_new_blocks", num_blocks=1 + how % self.free_count).get("value") or []
        if not table.blocks:
            self.tables.append(table)
        table.blocks += taken
        self.keyed -= set(taken)

    def free(self, table: Table, how: int) -> None:
        """Free all blocks of a request in a group, the last one first."""
        self.tables.remove(table)
        self.do("free", blocks=table.blocks[::-1])

    def leave_behind(self, table: Table, how: int) -> None:
        """Free the blocks that a sliding window has left, and put the null block in their place."""
        ends = [end for end in range(1, len(table.blocks)) if table.blocks[end - 1] != self.null]
        end = ends[how % len(ends)]
        behind = self.real(table.blocks[:end])
        table.blocks[:end] = [self.null or 0] * end
        self.do("free", blocks=behind[::-1])

    def cache(self, table: Table, how: int) -> None:
        """Cache blocks that are full now."""
        start = table.keyed
        more, content = divmod(how % (2 * (len(table.blocks) - start)), 2)
        table.keyed = end = start + 1 + more
        tokens, blocks = table.fill(end, content), table.blocks[:end]
        self.do("cache", tokens=tokens, blocks=blocks, start=start, group=table.group)
        self.keyed.update(self.real(blocks[start:]))
        self.remember(table.group, tokens)

    def cache_partial(self, table: Table, how: int) -> None:
        """Give a block a key for its first token.

        The block is cached, or is the first that is not yet cached.
        """
        within = table.blocks[: table.keyed + 1]
        places = [place for place, block in enumerate(within) if block != self.null]
        which, content = divmod(how % (2 * len(places)), 2)
        place = places[-1 - which]
        tokens = table.fill(place + 1, content)[:-1]
        self.do("cache_partial", tokens=tokens, block=table.blocks[place], group=table.group)
        self.keyed.add(table.blocks[place])
        self.remember(table.group, tokens)

    def remember(self, group: int, tokens: list[int]) -> None:
        if (group, tokens) not in self.prompts:
            self.prompts.append((group, tokens))

    def look_up(self, prompt: tuple[int, list[int]], how: int) -> None:
        """Look up the last block of a known prompt, and do nothing with the answer."""
        group, tokens = prompt
        self.ask("lookup", tokens=tokens, groups=[[group], [1 - group], list(GROUPS)][how % 3])

    def hit(self, prompt: tuple[int, list[int]], how: int) -> None:
        """Add a request with a known prompt, and touch the blocks of its prefix hit."""
        group, tokens = prompt
        groups = [[group], list(GROUPS)][how % 2]
        tables = [Table(group, []) for group in groups]
        for end in range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE):
            found = self.ask("lookup", tokens=tokens[:end], groups=groups).get("value")
            if found is None:
                break
            for table, block in zip(tables, found, strict=False):
                table.blocks.append(block)
                table.tokens, table.keyed = tokens[:end], end // BLOCK_SIZE
        for table in tables:
            if table.blocks:
                self.tables.append(table)
                self.do("touch", blocks=table.blocks)

    def evict(self, block: int, how: int) -> None:
        """Evict cached blocks, as an engine does if their content is bad. They may be free or referenced."""
        known = self.keyed_blocks()
        null = [] if self.null is None else [self.null]
        blocks = [[block], known[:2], known, [block, *null]][how % 4]
        self.do("evict", blocks=blocks)
        self.keyed.difference_update(blocks)

    def reset(self, nothing: None, how: int) -> None:
        if self.do("reset").get("value"):
            self.keyed.clear()

    def usage(self, nothing: None, how: int) -> None:
        self.ask("usage")

    def misuse(self, draw: Draw) -> Outcome:
        """Make an illegal call. If it has a list of blocks, legal blocks may precede the illegal ones."""
        foreign = [f"{operation} foreign" for operation in self.numbers]
        kind = draw(st.sampled_from(["too few", "too many", "free too often", *foreign]))
        if kind == "too few":
            return self.do("get_new_blocks", num_blocks=draw(st.sampled_from([-1, -2, -self.num_blocks])))
        if kind == "too many":
            return self.do("get_new_blocks", num_blocks=self.free_count + draw(st.integers(1, 3)))
        held = self.held
        if kind == "free too often":
            operation, block = "free", draw(st.sampled_from(self.usable))
            wrong = [block] * (held[block] + 1)
        else:
            operation = kind.partition(" ")[0]
            wrong = [draw(st.sampled_from([self.num_blocks, self.num_blocks + 7, -1]))]
        right = [block for block in held if block not in wrong]
        return self.do(operation, blocks=[*draw(st.sampled_from([[], right[:1], right[-2:]])), *wrong])


class PoolMachine(Machine):
    """Runs an engine. Each call of the rule makes the engine take one of the possible actions.

    The machine has only one rule: if it had several, Hypothesis would leave some of them out of an example.
    The rule draws only one number, because Hypothesis reduces steps with few draws best.
    """

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.engine = Engine(data.draw, self.stage, self.description)

    @rule(choice=CHOICE)
    def go_on(self, choice: int) -> None:
        self.engine.go_on(choice)


def misuse(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Take a few legal actions, then make illegal calls.

    Stop if the pool accepts an illegal call, because then the pool's state is unknown.
    """
    engine = Engine(draw, stage, description)
    for choice in draw(st.lists(CHOICE, max_size=6)):
        engine.go_on(choice)
    for _ in range(draw(st.integers(1, 4))):
        if "error" not in engine.misuse(draw):
            return


def _one_subject(description: Description) -> Subjects:
    return {"pool": None}


_USED = ("state", "get_new_blocks", "touch", "free", "cache", "lookup", "evict", "reset", "usage")

WORKLOADS = [
    Workload(
        "pool.machine",
        ("pool", *(f"pool.{name}" for name in _USED)),
        _one_subject,
        PoolMachine,
        weight=3.0,
    ),
    Workload("pool.misuse", ("pool", "pool.get_new_blocks", "pool.free"), _one_subject, misuse, weight=2.0),
]
