"""The worked numbers of docs/managers.md equal what the reference does.

Above a table, the page shows as code the specs of the groups and the settings of the engine. The first cell
of the table names what its columns vary. The first cell of each further row names the compared value.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import kvref.managers
from kvref import specs
from kvref.cache import KVCacheManager
from kvref.hashing import BlockHasher
from kvref.managers import SingleTypeKVCacheManager
from kvref.planning import KVCacheConfig, KVCacheGroupSpec
from kvref.pool import NULL_BLOCK
from kvref.request import Request

PAGE = (Path(__file__).parent.parent / "docs/managers.md").read_text(encoding="utf-8")

FIELDS = {
    "num_kv_heads": 1,
    "head_size": 8,
    "dtype": torch.float16,
    "shapes": ((2, 3),),
    "dtypes": (torch.float32,),
}
"""Fields that the page leaves out, because they do not change the numbers."""

STEPS = (48, 48, 32, 1, 1)
TOKENS = sum(STEPS)
NOTHING = "\N{EN DASH}"


class Table(NamedTuple):
    setting: tuple[str, ...]
    columns: str
    values: tuple[str, ...]
    rows: dict[str, tuple[str, ...]]


def tables() -> Iterator[Table]:
    """Each table with its setting, which stands above it or above an earlier table."""
    setting: tuple[str, ...] = ()
    for part in PAGE.split("\n\n"):
        if re.match(r"`\w+Spec\(", part):
            setting = tuple(re.findall("`([^`]+)`", part))
        elif part.startswith("|"):
            lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.strip().splitlines()]
            (columns, *values), _, *rows = lines
            if columns != "kind":
                yield Table(setting, columns, tuple(values), {label: tuple(cells) for label, *cells in rows})


def maker(spec_class: type[specs.KVCacheSpec]) -> Callable[..., specs.KVCacheSpec]:
    known = {field.name for field in dataclasses.fields(spec_class)}
    return functools.partial(spec_class, **{name: FIELDS[name] for name in FIELDS if name in known})


SPECS = {name: maker(vars(specs)[name]) for name in specs.__all__ if name.endswith("Spec")}


class Cache:
    """A new cache with one setting of the page, and the examples that the page runs on it."""

    def __init__(self, setting: Sequence[str], **more: int) -> None:
        groups = [eval(each, SPECS) for each in setting if "Spec(" in each]
        settings: dict[str, Any] = {}
        for each in setting[len(groups) :]:
            name, _, value = each.partition("=")
            settings[name] = eval(value)
        self.lookahead = settings.pop("num_lookahead_tokens", 0)
        self.encoder = settings.pop("num_encoder_tokens", 0)
        sizes = [spec.block_size for spec in groups]
        engine = {"max_model_len": 1024, "scheduler_block_size": math.lcm(*sizes), **settings, **more}
        self.block_size = min(sizes)
        self.manager = KVCacheManager(
            KVCacheConfig(100, [], [KVCacheGroupSpec([str(spec)], spec) for spec in groups]),
            hash_block_size=self.block_size,
            **engine,
        )

    @property
    def group(self) -> SingleTypeKVCacheManager:
        (manager,) = self.manager.coordinator.single_type_managers
        return manager

    def request(self, name: str, tokens: int) -> Request:
        return Request(name, range(tokens), BlockHasher(self.block_size))

    def compute(self, steps: Sequence[int]) -> Iterator[list[int]]:
        """Yields the block table of a request while each of its steps runs."""
        request = self.request("first", sum(steps))
        for step in steps:
            self.manager.new_step_starts()
            encoder = 0 if request.num_computed_tokens else self.encoder
            added = self.manager.allocate_slots(
                request, step, num_lookahead_tokens=self.lookahead, num_encoder_tokens=encoder
            )
            assert added is not None
            yield self.manager.get_block_ids("first")[0]
            request.num_computed_tokens += step
        self.manager.free(request)

    def find(self, tokens: int) -> tuple[int, list[int]]:
        """The hit of another request that begins with the same tokens: its length, and its block table."""
        for _ in self.compute(STEPS):
            pass
        blocks, hit = self.manager.get_computed_blocks(self.request("second", tokens))
        return hit, list(blocks.blocks[0])

    def has_key(self, block: int) -> bool:
        return bool(self.manager.block_pool.get_keys(block))


def listed(blocks: Sequence[int]) -> str:
    return " ".join(str(block) if block != NULL_BLOCK else NOTHING for block in blocks) or NOTHING


def of_counts(ask: Callable[[Cache, int], Any]) -> Callable[[Table], list[str]]:
    return lambda table: [str(ask(Cache(table.setting), int(value))) for value in table.values]


def of_steps(ask: Callable[[Cache, list[int]], str]) -> Callable[[Table], list[str]]:
    def cells(table: Table) -> list[str]:
        cache = Cache(table.setting)
        return [ask(cache, blocks) for blocks in cache.compute([int(value) for value in table.values])]

    return cells


def cached_indices(table: Table) -> list[str]:
    cells = []
    for size in table.values:
        cache = Cache(table.setting, scheduler_block_size=int(size))
        (blocks,) = cache.compute([128])
        cells.append(" ".join(str(n) for n, block in enumerate(blocks) if cache.has_key(block)) or NOTHING)
    return cells


def caps(table: Table) -> list[str]:
    made = [Cache(table.setting, max_in_flight_tokens=int(value)) for value in table.values]
    return [str(cache.group.max_admission_blocks_per_request) for cache in made]


EXPECTED: dict[tuple[str, str], Callable[[Table], list[str]]] = {
    ("computed", "skipped tokens"): of_counts(lambda cache, n: cache.group.get_num_skipped_tokens(n)),
    ("computed", "skipped blocks"): of_counts(
        lambda cache, n: cache.group.get_num_skipped_tokens(n) // cache.block_size
    ),
    ("step", "table"): of_steps(lambda cache, blocks: listed(blocks)),
    ("step", "cached"): of_steps(
        lambda cache, blocks: listed([block for block in blocks if cache.has_key(block)])
    ),
    ("tokens", "hit"): of_counts(lambda cache, n: cache.find(n)[0]),
    ("tokens", "table of the hit"): of_counts(lambda cache, n: listed(cache.find(n)[1])),
    ("scheduler block size", "cached indices"): cached_indices,
    ("max_in_flight_tokens", "cap"): caps,
}


@pytest.mark.parametrize(
    "table", [pytest.param(table, id=f"{table.setting}-{table.columns}") for table in tables()]
)
def test_the_reference_agrees_with_the_page(table: Table) -> None:
    assert table.rows
    assert {label: EXPECTED[table.columns, label](table) for label in table.rows} == {
        label: list(cells) for label, cells in table.rows.items()
    }


def test_each_kind_has_examples() -> None:
    managers = {name for name in kvref.managers.__all__ if name != "SingleTypeKVCacheManager"}
    shown = {type(Cache(table.setting[:1], enable_caching=False).group).__name__ for table in tables()}
    assert shown == managers
    assert all(f"`{name}`" in PAGE for name in managers)


def test_a_wrong_number_is_noticed() -> None:
    table = next(table for table in tables() if table.columns == "computed")
    wrong = table._replace(values=tuple(str(int(value) + 16) for value in table.values))
    assert [*table.rows["skipped blocks"]] != EXPECTED["computed", "skipped blocks"](wrong)
