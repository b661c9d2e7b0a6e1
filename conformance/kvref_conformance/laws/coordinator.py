"""Laws of the coordinators: the length of a hit, and what all groups agree on."""

from __future__ import annotations

from collections.abc import Iterator

from kvref_conformance.laws.cache_steps import Cache, Group, State, Step, steps
from kvref_conformance.laws.core import Law, LawBroken, Level, Runs


def lookups(runs: Runs) -> Iterator[tuple[Step, int]]:
    """Each look-up of a `readable` cache that returned, with the number of tokens of its request."""
    for step in steps(runs[0], "cache.lookup"):
        if step.done and step.request is not None and step.cache.readable:
            yield step, len(step.request.tokens)


def eagle_groups(cache: Cache) -> list[Group]:
    """The groups that read one token ahead: those marked `eagle`, or all groups if none is marked.

    A group with the same spec as a marked one counts as well: an implementation may look both up together.
    """
    if not cache.arguments["use_eagle"]:
        return []
    marked = [(group.name, group.fields) for group in cache.groups if group.eagle]
    return [group for group in cache.groups if not marked or (group.name, group.fields) in marked]


class Found:
    """The blocks that the prefix-cache index has for a request's keys."""

    def __init__(self, step: Step, state: State) -> None:
        self.cache = step.cache
        self.hashes: list[str] = step.value["hashes"]
        self.found: dict[str, list[int]] = state["found"]
        self.hash_block_size: int = step.cache.arguments["hash_block_size"]

    def blocks(self, group: Group, end: int) -> list[int]:
        """The blocks that the index finds for the tokens up to `end` in a group.

        If `end` is within a block, a block with more of the request's tokens counts as well. A recurrent
        state does not: it is the state after those further tokens.
        """
        last = end if group.kind == "MambaSpec" else -(-end // group.block_size) * group.block_size
        places = range(end // self.hash_block_size - 1, last // self.hash_block_size)
        names = [f"{each}/{group.number}" for each in self.hashes[places.start : places.stop]]
        return [block for name in names for block in self.found.get(name, ())]

    def ends(self, group: Group, length: int) -> list[int]:
        """The end positions of the blocks that the first token after a hit of this length reads."""
        first, size = group.first_read(length) // group.block_size, group.block_size
        ends = [(place + 1) * size for place in range(first, length // size)]
        return [*ends, length] if length % size else ends

    def lacks(self, length: int) -> str:
        """The first block that a hit of this length needs and the index lacks, in words; empty if none."""
        for group in self.cache.groups:
            for end in self.ends(group, length):
                if not self.blocks(group, end):
                    return f"group {group.number} has no block for the tokens up to {end}"
        return ""

    def lacks_ahead(self, length: int) -> str:
        """The first group that reads ahead but lacks the block after this hit, in words; empty if none."""
        for group in eagle_groups(self.cache):
            if group.kind != "MambaSpec" and not self.blocks(group, length + group.block_size):
                return f"group {group.number} has no block after {length} tokens"
        return ""


def hit_maximal(runs: Runs) -> int:
    """The hit is the longest one that every group can serve.

    The blocks that the look-up returns have the keys of the request's own tokens.
    """
    judged = 0
    for step, tokens in lookups(runs):
        cache, alignment = step.cache, step.cache.shape["alignment"]
        if step.before is None or not cache.arguments["enable_caching"]:
            continue
        found, hit = Found(step, step.before), step.value["tokens"]
        judged += 1
        if lacking := found.lacks(hit):
            raise LawBroken(
                f"every group has the blocks of the hit for the request of {tokens} tokens",
                f"a hit of {hit} tokens, but {lacking}",
                ("too long",),
            )
        judge_blocks(step, found, hit)
        for length in range((tokens - 1) // alignment * alignment, hit, -alignment):
            ahead = [group.block_size for group in eagle_groups(cache) if group.kind != "MambaSpec"]
            # Implementations differ in whether the block that is read ahead may contain the last token. So
            # the law requires no hit that needs this.
            if length + max(ahead, default=0) > tokens - (1 if ahead else 0):
                continue
            if not found.lacks(length) and not found.lacks_ahead(length):
                raise LawBroken(
                    f"a hit of {length} of {tokens} tokens, because the index has all blocks that it needs",
                    f"a hit of {hit} tokens",
                    ("too short",),
                )
    return judged


def judge_blocks(step: Step, found: Found, hit: int) -> None:
    """Raise `LawBroken` unless the blocks of a hit have the keys of the request's own tokens."""
    null = step.cache.shape["null"]
    for group in step.cache.groups:
        blocks = step.value["blocks"][group.number]
        for end in found.ends(group, hit):
            place = -(-end // group.block_size) - 1
            block = blocks[place] if place < len(blocks) else null
            if block not in found.blocks(group, end):
                raise LawBroken(
                    f"the hit of group {group.number} has, at index {place}, a block with the tokens up to "
                    f"{end}, one of {found.blocks(group, end)}",
                    f"block {block}, in {blocks}",
                    ("wrong block",),
                )


def hit_aligned(runs: Runs) -> int:
    """A hit is aligned, leaves a token to compute, and has the right number of blocks in every group."""
    judged = 0
    for step, tokens in lookups(runs):
        alignment, hit = step.cache.shape["alignment"], step.value["tokens"]
        judged += 1
        if hit % alignment:
            raise LawBroken(f"a hit of a multiple of {alignment} tokens", f"{hit}", ("alignment",))
        if not 0 <= hit < tokens:
            raise LawBroken(
                f"a hit of fewer than the request's {tokens} tokens, because at least one must be computed",
                f"{hit}",
                ("all",),
            )
        for group in step.cache.groups:
            expected, blocks = -(-hit // group.block_size), step.value["blocks"][group.number]
            if len(blocks) != expected:
                raise LawBroken(
                    f"{expected} blocks of {group.block_size} tokens in group {group.number}, for a hit of "
                    f"{hit} tokens",
                    f"{len(blocks)}: {blocks}",
                    ("list",),
                )
    return judged


def lookup_total(runs: Runs) -> int:
    """Every look-up succeeds."""
    judged = 0
    for step in steps(runs[0], "cache.lookup"):
        if "died" not in step.outcome:
            judged += 1
            if step.refused:
                raise LawBroken(f"{step.in_words()} succeeds", step.refused)
    return judged


def common_prefix(runs: Runs) -> int:
    """All requests share the blocks of the reported common prefix."""
    judged = 0
    last: State | None = None
    for step in steps(runs[0]):
        last = step.after or step.before or last
        if step.op != "cache.common_prefix" or not step.done or last is None:
            continue
        name = step.args["request"]
        for group in step.cache.groups:
            number: int = step.value[group.number]
            tables = {other: each[group.number] for other, each in last["tables"].items()}
            judged += number > 0
            for other, table in tables.items():
                if table[:number] != tables.get(name, [])[:number] or len(table) < number:
                    raise LawBroken(
                        f"the first {number} blocks of {name} are in every block table of group "
                        f"{group.number}",
                        f"{other} has {table}, {name} has {tables.get(name, [])}",
                    )
    return judged


class Resent:
    """Follows how much of the first prompt was computed, in a pool that never has to evict a block."""

    def __init__(self, step: Step) -> None:
        self.cache = step.cache
        self.prompt: list[int] = []
        self.computed = 0
        self.skipped = False
        self.steps: set[int] = set()

    def follow(self, step: Step) -> None:
        if step.op == "cache.add" and not self.prompt:
            self.prompt = step.args["tokens"]
        if step.allocated and step.hit["tokens"] and not self.computed:
            # Nothing is cached yet, so this hit needs no block: all its tokens are in chunks that have ended.
            self.skipped = True
        if step.allocated:
            self.computed = max(self.computed, min(step.end, len(self.prompt)))
            if step.end <= len(self.prompt):
                self.steps.add(step.end)

    def expected(self, tokens: list[int]) -> int:
        """The longest possible hit of a prompt if nothing was evicted."""
        if self.skipped:
            return 0
        shared = next(
            (n for n, (one, other) in enumerate(zip(tokens, self.prompt, strict=False)) if one != other),
            min(len(tokens), len(self.prompt)),
        )
        alignment = int(self.cache.shape["alignment"])
        longest = min(shared, self.computed, len(tokens) - 1) // alignment * alignment
        kept_at_ends = any(group.fields.get("mamba_cache_mode") == "align" for group in self.cache.groups)
        if not kept_at_ends:
            return longest
        sizes = [group.block_size for group in self.cache.groups if group.kind == "MambaSpec"]
        whole = (end for end in self.steps if end <= longest and not any(end % size for size in sizes))
        return max((end for end in whole if end % alignment == 0), default=0)


def resent(runs: Runs) -> Iterator[tuple[Step, int, int]]:
    """Each look-up after the first prompt was computed, with its hit and the longest possible hit."""
    first: Resent | None = None
    for step in steps(runs[0]):
        if step.op == "cache.create":
            first = Resent(step)
        if first is None or not step.cache.readable:
            continue
        first.follow(step)
        if step.op == "cache.lookup" and step.done and step.request is not None and first.computed:
            yield step, step.value["tokens"], first.expected(step.request.tokens)


def resend_hits(runs: Runs) -> int:
    """A look-up finds the beginning of a prompt that was computed before.

    Caches with layers that read ahead are left out: `coordinator.eagle-one-unit` judges them.
    """
    judged = 0
    for step, hit, expected in resent(runs):
        if step.cache.arguments["use_eagle"]:
            continue
        judged += expected > 0
        if hit < expected:
            raise LawBroken(
                f"a hit of at least {expected} tokens, because they were computed before and nothing was "
                "evicted since",
                f"{hit}",
            )
    return judged


def eagle_one_unit(runs: Runs) -> int:
    """Layers that read one token ahead shorten a hit by at most one unit of alignment.

    The example looks up the same prompts first in a cache that does not read ahead, then in one that does.
    Caches with recurrent layers are left out.
    """
    judged = 0
    hits: dict[bool, list[int]] = {False: [], True: []}
    for step, hit, _ in resent(runs):
        if any(group.kind == "MambaSpec" for group in step.cache.groups):
            # The state one unit earlier is kept only if a step ended there.
            continue
        eagle = bool(step.cache.arguments["use_eagle"])
        hits[eagle].append(hit)
        if not eagle or len(hits[True]) > len(hits[False]):
            continue
        judged += 1
        without, unit = hits[False][len(hits[True]) - 1], step.cache.shape["alignment"]
        if hit < without - unit:
            raise LawBroken(
                f"a hit of at least {without - unit} tokens, because it is {without} without layers that "
                f"read ahead, and hits are multiples of {unit}",
                f"{hit}",
            )
    return judged


def constructible(runs: Runs) -> int:
    """A cache manager can be created for the groups and sizes that an engine starts with.

    Groups with a refused spec are left out: other laws judge the refusal.
    """
    judged = 0
    refused = []
    for event in runs[0]:
        if event["op"] == "specs.build" and "error" in event["outcome"]:
            refused.append(event["args"]["spec"])
        if event["op"] != "cache.create" or "died" in event["outcome"]:
            continue
        if any(group["spec"] in refused for group in event["args"]["groups"]):
            continue
        judged += 1
        if error := event["outcome"].get("error"):
            groups = [
                f"{group['spec']['class']} (block_size={group['spec']['fields']['block_size']})"
                for group in event["args"]["groups"]
            ]
            sizes = ("scheduler_block_size", "hash_block_size", "num_blocks")
            raise LawBroken(
                f"a cache manager can be created for groups of {', '.join(groups)} with "
                + ", ".join(f"{name}={event['args'][name]}" for name in sizes),
                f"{error['type']}: {error['message']}",
                (error["type"],),
            )
    return judged


LAWS = [
    Law(
        id="coordinator.constructible",
        level=Level.SAFETY,
        statement=(
            "A cache manager can be created for every set of groups, block sizes and pool sizes that an "
            "engine may start with."
        ),
        why="Otherwise an engine with these groups does not start, and no other law has a cache to judge.",
        sources=("vLLM RFC 36668", "vLLM PR 44165"),
        workload="cache.machine",
        check=constructible,
    ),
    Law(
        id="coordinator.hit-maximal",
        level=Level.SAFETY,
        statement=(
            "A hit is the longest allowed one for which every group has all blocks that the next token "
            "reads, and groups that read ahead also have the block after the hit; the look-up returns "
            "exactly these blocks."
        ),
        why=(
            "If a hit is too short, prompts are computed again. If it is too long, tokens read what was "
            "never computed."
        ),
        sources=("vLLM RFC 36668", "vLLM PR 44165"),
        workload="cache.machine",
        check=hit_maximal,
    ),
    Law(
        id="coordinator.hit-aligned",
        level=Level.SAFETY,
        statement=(
            "A hit is a multiple of the cache's alignment and shorter than the request, and the list of each "
            "group has just the blocks of the hit."
        ),
        why=(
            "With a block too many, a request uses a block that was never computed, or all later blocks move "
            "to a wrong index."
        ),
        sources=("vLLM PR 44165",),
        workload="cache.machine",
        check=hit_aligned,
    ),
    Law(
        id="coordinator.resend-hits",
        level=Level.SAFETY,
        statement=(
            "If nothing was evicted, a prompt that begins like an earlier one hits up to the last common "
            "position that the cache keeps."
        ),
        why="Otherwise every turn of a conversation is computed again in spite of prefix caching.",
        sources=("vLLM issue 46453",),
        workload="cache.resend",
        check=resend_hits,
    ),
    Law(
        id="coordinator.eagle-one-unit",
        level=Level.SAFETY,
        statement=(
            "If nothing was evicted, layers that read ahead shorten a hit by at most one unit of "
            "alignment, for any number of groups and any windows."
        ),
        why=(
            "If each group drops one more block, the hit becomes shorter with every group until nothing is "
            "left."
        ),
        sources=("vLLM issue 32802",),
        workload="cache.resend",
        check=eagle_one_unit,
    ),
    Law(
        id="coordinator.lookup-total",
        level=Level.SAFETY,
        statement="Every look-up of a created cache manager succeeds.",
        why="An exception in a look-up ends a running engine.",
        sources=("the engine contract",),
        workload="cache.machine",
        check=lookup_total,
    ),
    Law(
        id="coordinator.common-prefix",
        level=Level.SAFETY,
        statement=(
            "If the common prefix has n blocks, the block tables of all requests begin with the same n "
            "blocks."
        ),
        why=(
            "Attention over the common prefix is computed once for all requests, so a wrong block spoils "
            "all of them."
        ),
        sources=("the engine contract",),
        workload="cache.machine",
        check=common_prefix,
    ),
]
