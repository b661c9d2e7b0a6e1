"""Mutants of the reference. mutmut makes them, and each gets a name that says what it changes, and where.

mutmut itself only numbers its mutants. Our names stay valid when other code in the function changes.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parent.parent

SOURCES = ROOT / "kvref"

_CLASS = "ǁ"  # mutmut puts it around the class name of a method
_ORIGINAL = "__mutmut_orig"


@dataclass(frozen=True)
class Mutant:
    """One change of one function. `key` is mutmut's own name for it."""

    key: str
    where: str
    change: str
    text_alone: bool
    """Whether it only changes text, such as an exception's message, or the `strict` of a `zip`."""

    @property
    def function(self) -> str:
        """mutmut's name of the mutated function."""
        return self.key.rpartition("__mutmut_")[0]

    @property
    def module(self) -> str:
        return self.key.rpartition(".")[0].partition(".")[2]

    @property
    def name(self) -> str:
        return f"{self.where}: {self.change}"


def mutate(folder: Path) -> list[Mutant]:
    """Write a copy of the reference that contains all mutants into the folder. Returns the mutants."""
    from mutmut.configuration import config
    from mutmut.mutation.file_mutation import mutate_file_contents

    mutants: list[Mutant] = []
    for path in sorted(SOURCES.rglob("*.py")):
        within = path.relative_to(SOURCES)
        named = str(path.relative_to(ROOT))
        if not config().should_mutate(named):
            continue
        mutated = mutate_file_contents(named, path.read_text())
        goal = folder / within
        goal.parent.mkdir(parents=True, exist_ok=True)
        goal.write_text(mutated.code)
        module = ".".join(within.with_suffix("").parts).removesuffix(".__init__")
        mutants += mutants_in(mutated.code, module)
    return mutants


def mutants_in(code: str, module: str) -> Iterator[Mutant]:
    """All mutants in the code that mutmut made of a module."""
    functions = {node.name: node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef)}
    seen: Counter[str] = Counter()
    for name, function in functions.items():
        base, marked, number = name.partition("__mutmut_")
        if not marked or not number.isdecimal():
            continue
        original = functions[base + _ORIGINAL]
        where = f"{module}.{base[2:] if base[1] == '_' else base[2:].replace(_CLASS, '.')}"
        change = _change(_lines(original), _lines(function))
        seen[f"{where}: {change}"] += 1
        if (times := seen[f"{where}: {change}"]) > 1:
            change += f" ({times})"
        before = _Silent(guarded="strict=False" not in ast.unparse(original))
        after = _Silent(before.guarded)
        silent = before.visit(_anonymous(original)), after.visit(_anonymous(function))
        yield Mutant(f"kvref.{module}.{name}", where, change, _are_same(before.said | after.said, *silent))


def _anonymous(function: ast.FunctionDef) -> ast.FunctionDef:
    copy = ast.parse(ast.unparse(function)).body[0]
    assert isinstance(copy, ast.FunctionDef)
    copy.name = "_"
    copy.decorator_list = []
    return copy


def _lines(function: ast.FunctionDef) -> list[str]:
    """The function's source, one line for each statement. The text in its f-strings becomes "…"."""
    return ast.unparse(_Shortened().visit(_anonymous(function))).splitlines()


class _Shortened(ast.NodeTransformer):
    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        self.generic_visit(node)
        for part in node.values:
            if isinstance(part, ast.Constant):
                part.value = "…"
        return node


def _change(before: list[str], after: list[str]) -> str:
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
    before, after = before[same:], after[same:]
    while before and after and before[-1] == after[-1]:
        before, after = before[:-1], after[:-1]
    return " → ".join("; ".join(line.strip() for line in lines) for lines in (before, after))


def _are_same(said: set[str], *functions: ast.AST) -> bool:
    """Whether the functions are equal apart from code that only serves messages.

    `said` has the names that messages use. An assignment to such a name is ignored if nothing else reads it.
    """
    while True:
        before = [*map(ast.dump, functions)]
        forgotten = [_Forgotten(said - _loaded(function)) for function in functions]
        functions = tuple(each.visit(function) for each, function in zip(forgotten, functions, strict=True))
        said = said.union(*(each.said for each in forgotten))
        if before == [*map(ast.dump, functions)]:
            return len({*before}) == 1


def _loaded(function: ast.AST) -> set[str]:
    names = (node for node in ast.walk(function) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Load)}


class _Silent(ast.NodeTransformer):
    """Removes strings, messages of exceptions, and the bodies of functions that return strings.

    Each f-string becomes None, because it is a message.
    """

    def __init__(self, guarded: bool) -> None:
        self.guarded = guarded
        """Whether the function uses `strict` of a `zip` only as a guard against future mistakes."""
        self.said: set[str] = set()
        """Names that the removed code reads."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call):
            self.said |= {name for argument in node.exc.args for name in _loaded(argument)}
            node.exc.args = []
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if self.guarded and isinstance(node.func, ast.Name) and node.func.id == "zip":
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "strict"]
        return self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        self.said |= _loaded(node)
        return ast.Constant(None)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        if isinstance(node.body, ast.JoinedStr):
            return ast.Constant(None)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if isinstance(node.returns, ast.Name) and node.returns.id == "str":
            node.body = [ast.Pass()]
        return self.generic_visit(node)


class _Forgotten(ast.NodeTransformer):
    """Removes assignments to the unused names."""

    def __init__(self, unused: set[str]) -> None:
        self.unused = unused
        self.said: set[str] = set()
        """Names that the removed assignments read."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        match node.targets:
            case [ast.Name(name)] if name in self.unused:
                self.said |= _loaded(node.value)
                return ast.Pass()
        return node


def sample(mutants: Iterable[Mutant], size: int, least: int) -> list[Mutant]:
    """Draws `size` mutants, from each module in proportion, but at least `least` (or all that it has).

    A hash of a mutant's name decides whether it is drawn. So if a function changes, its other mutants stay in
    the sample.
    """
    modules: defaultdict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        modules[mutant.module].append(mutant)
    total = sum(map(len, modules.values()))
    chosen: list[Mutant] = []
    floors = {module: min(least, len(there)) for module, there in modules.items()}
    shares = {module: size * len(there) / total for module, there in modules.items()}
    # Small modules get more than their share, so the large ones get less, in proportion.
    small = {module for module in modules if shares[module] <= floors[module]}
    left = size - sum(floors[module] for module in small)
    rest = sum(len(there) for module, there in modules.items() if module not in small)
    for module, there in modules.items():
        share = floors[module] if module in small else round(left * len(there) / rest)
        chosen += sorted(there, key=_lot)[:share]
    return chosen


def _lot(mutant: Mutant) -> bytes:
    return hashlib.sha256(mutant.name.encode()).digest()
