"""Write stand-alone programs. A program shows a broken law to people who have only the target.

A program has three parts: the source of the native functions that it needs, the operations as literal data,
and the source of the law's check. A native function performs an operation through the target's own API. kvref
calls the same functions and the same check, so program and kvref cannot differ. The program exits with 1 if
the law is broken and with 0 if it holds. It exits with 2 if it cannot find out, for example because the
target cannot be imported.

The writer copies definitions from kvref's modules into the program: it *inlines* these modules. Imports of
other modules stay. The writer reads source and never imports it, because modules with native functions import
the target. It understands only plain code at the top level of a module, and leaves out calls there, such as
registrations. It raises `ProgramError` in these cases:

* an inlined module is imported as a whole, or inside a function;
* a module has a star import;
* two modules give one name different meanings.
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import importlib.util
import itertools
import json
import math
import re
import symtable
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvref_conformance.documents.results import Trace
from kvref_conformance.laws.core import Law

__all__ = ["ProgramError", "Source", "collect", "stand_alone_program"]

FUTURE = "from __future__ import annotations"
INLINE = ("kvref_conformance",)
RUNTIME = "kvref_conformance.running.programs.runtime"
PLUGINS = "kvref_conformance.targets.plugins"
WIDTH = 100
MODULE_NAMES = {"__name__", "__file__"}
# Dataclasses look for these in annotations, even if annotations are strings.
MEANT_IN_ANNOTATIONS = {"ClassVar", "InitVar", "KW_ONLY"}


class ProgramError(ValueError):
    """No program can be written from this source or trace."""


@dataclass(frozen=True)
class Source:
    """Where to find the source of a function, class or constant: its module, and its name there."""

    module: str
    name: str


def collect(sources: Sequence[Source], *, inline: Sequence[str] = INLINE) -> str:
    """The source of these definitions, and of everything that they use.

    Definitions from the packages in `inline` are copied. Other modules stay imported.
    """
    closure = _Closure(inline)
    for source in sources:
        closure.add(source.module, source.name)
    closure.settle({})
    return _join(FUTURE, closure.imports(True), closure.imports(False), f"\n{closure.body(closure.chosen)}")


def stand_alone_program(
    *,
    title: str,
    law: Law,
    target_name: str,
    target_version: str,
    operations: Mapping[str, Source] | Callable[[str], Source] | str,
    trace: Trace,
    isolated: bool = False,
    timeout: float = 30,
    setup: Mapping[str, Any] | None = None,
    inline: Sequence[str] = INLINE,
) -> str:
    """The source of a program that performs the trace and judges it with the law.

    `operations` maps the name of an operation to its native function, and raises `LookupError` for an unknown
    name. For a target whose parts can be called directly, it is `"pkg.module:factory"`. If two things in the
    program would have the same name, a native function is renamed to `<part>_<function>`.

    Each run gets a process of its own if there are several runs, if a run has interpreter flags, or if
    `isolated` is set. Then an operation that ends its process, or takes more than `timeout` seconds, has the
    outcome `died`.

    `setup` holds the arguments of `use_plugin`. The program calls this function before it imports the target.
    If `setup` is None, the program does not call it.
    """
    runs = [
        (
            list(run.get("flags", [])),
            [(operation["op"], dict(operation["args"])) for operation in run["operations"]],
        )
        for run in json.loads(json.dumps(trace["runs"]))
    ]
    apart = isolated or len(runs) != 1 or bool(runs[0][0])
    used = sorted({name for _, run in runs for name, _ in run})
    for name in used:
        if not re.fullmatch(r"[^\W\d]\w*\.[^\W\d]\w*", name):
            raise ProgramError(f"the operation {name!r} is not of the form part.function")
    check = _source_of(law.check)
    law_arguments = [_literal(law.id), _literal(law.statement), check.name]

    # First the code that judges, which needs no target, ...
    closure = _Closure((*inline, *INLINE), reserved=("OPERATIONS", "RUNS", "RUN"))
    closure.add(check.module, check.name)
    for name in ("main_in_children", "run_as_child") if apart else ("main_in_process",):
        closure.add(RUNTIME, name)
    if setup is not None:
        closure.add(PLUGINS, "use_plugin")
    closure.use(_Import("os"))
    closure.use(_Import("sys"))
    try:
        json.dumps(runs, allow_nan=False)
    except ValueError:
        closure.use(_Import("math", "nan"))
        closure.use(_Import("math", "inf"))
    if packages := closure.packages():
        raise ProgramError(
            f"the check of {law.id} may only use the standard library, not {', '.join(packages)}"
        )
    judging = set(closure.chosen)

    # ... then the code that calls the target.
    own = {module.partition(".")[0] for module in (setup or {}).get("modules", ())}
    if isinstance(operations, str):
        module, factory = _factory(operations)
        own.add(module)
        first, _, attribute = factory.partition(".")
        alias = "new_target" if first == "target" else ""
        closure.use(_Import(module, first, alias))
        closure.bind("target", "the target")
        make_target = f"target = {'.'.join(filter(None, (alias or first, attribute)))}()"
        closure.settle({})
        called = {name: f"target.{name}" for name in used}
    else:
        functions = {name: _look_up(operations, name) for name in used}
        for source in functions.values():
            closure.add(source.module, source.name)
        make_target = ""
        called = closure.settle(functions)
    asking = [
        "# Exit code 1 only means a broken law.\n"
        "sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stderr.flush(), os._exit(2))",
        _call("use_plugin", [f"{name}={_literal(value)}" for name, value in (setup or {}).items()])
        if setup is not None
        else "",
        closure.imports(False),
        f"\n{closure.body(closure.chosen.keys() - judging)}\n",
        make_target,
        "\n".join(["OPERATIONS = {", *(f"    {_literal(name)}: {called[name]}," for name in used), "}"]),
    ]

    if apart:
        arguments = [*law_arguments, "RUNS", f"timeout={timeout!r}"]
        rest = [
            f"RUNS = {_literal(runs)}",
            _main("main_in_children", arguments, ' and "--run" not in sys.argv'),
            "# Only the children run this part, so only they import the target.",
            *asking,
            _main("run_as_child", ["OPERATIONS", "RUNS"]),
        ]
    else:
        run = f"RUN = {_literal(runs[0][1])}"
        rest = [*asking, run, _main("main_in_process", [*law_arguments, "OPERATIONS", "RUN"])]
    where = f"{' and '.join(sorted(own))} must be installed, or in a folder of PYTHONPATH.\n" if own else ""
    docstring = _docstring(
        f"{title}\n\n"
        f"Law {law.id}: {law.statement}\n"
        f"Why: {law.why}\n"
        f"Found with {target_name} {target_version}; made by kvref.\n\n"
        f"Needs: {', '.join(closure.packages()) or 'Python'}. Run: python THIS_FILE\n"
        f"{where}"
        "Exit code: 1 the law is broken, 0 it holds, 2 the program could not find out."
    )
    program = _join(docstring, FUTURE, closure.imports(True), f"\n{closure.body(judging)}\n", *rest)
    try:
        compile(program, "<program>", "exec")  # Python's exit code for a syntax error is 1
    except (SyntaxError, ValueError) as error:
        raise ProgramError(f"the program for {law.id} is no Python: {error}") from error
    return program


def _look_up(operations: Mapping[str, Source] | Callable[[str], Source], name: str) -> Source:
    try:
        return operations[name] if isinstance(operations, Mapping) else operations(name)
    except LookupError as error:
        raise ProgramError(f"no native function for the operation {name!r}") from error


def _factory(path: str) -> tuple[str, str]:
    """Split `"pkg.module:factory"` into the module and the factory."""
    module, _, factory = path.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *factory.split("."))):
        raise ProgramError(f"{path!r} is not of the form pkg.module:factory")
    return module, factory


def _source_of(function: Callable[..., Any]) -> Source:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not module or not name.isidentifier():
        raise ProgramError(f"{function!r} is not a top-level function, so its source cannot be copied")
    return Source(module, name)


def _join(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part.strip()) + "\n"


def _main(function: str, arguments: Sequence[str], condition: str = "") -> str:
    return f'if __name__ == "__main__"{condition}:\n{_call(function, arguments, "    ")}'


def _call(function: str, arguments: Sequence[str], margin: str = "") -> str:
    call = f"{margin}{function}({', '.join(arguments)})"
    if len(call) <= WIDTH:
        return call
    inner = [f"{margin}    {argument}," for argument in arguments]
    return "\n".join([f"{margin}{function}(", *inner, f"{margin})"])


def _docstring(text: str) -> str:
    safe = "".join(
        char if char == "\n" or char.isprintable() else char.encode("unicode_escape").decode()
        for char in text.replace("\\", "\\\\").replace('"""', r"\"\"\"")
    )
    lines = [textwrap.fill(line, WIDTH, break_long_words=False) for line in safe.split("\n")]
    return '"""' + "\n".join(lines) + '\n"""'


def _literal(value: Any, indent: int = 0, width: float = WIDTH) -> str:
    """Plain data as Python code, with double quotes if possible. Long code is broken into several lines."""
    if isinstance(value, str):
        text = repr(value)
        return text if '"' in text or "\\'" in text else f'"{text[1:-1]}"'
    if not value or not isinstance(value, dict | list | tuple):
        return repr(value)

    def items(indent: int, width: float) -> list[str]:
        if isinstance(value, dict):
            return [f"{_literal(k)}: {_literal(item, indent, width)}" for k, item in value.items()]
        return [_literal(item, indent, width) for item in value]

    opening, closing = {dict: ("{", "}"), list: ("[", "]"), tuple: ("(", ")")}[type(value)]
    flat = f"{opening}{', '.join(items(0, math.inf))}{closing}"
    if len(flat) + indent < width:
        return flat
    lines = [f"{' ' * (indent + 4)}{item}," for item in items(indent + 4, width)]
    return "\n".join([opening, *lines, f"{' ' * indent}{closing}"])


# -- reading source ------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class _Import:
    """`from module import name as alias`. If `name` is empty, `import module as alias`."""

    module: str
    name: str = ""
    alias: str = ""

    @property
    def binds(self) -> str:
        return self.alias or self.name or self.module.partition(".")[0]

    @property
    def origin(self) -> str:
        if self.name:
            return f"{self.module}.{self.name}"
        return self.module if self.alias else self.binds


@dataclass
class _Definition:
    """A statement at the top level of a module that defines names."""

    node: ast.stmt
    text: str
    binds: set[str]
    touches: set[str]
    """Names whose value the statement changes, as in `TABLE[key] = value`."""
    uses: set[str]


class _Module:
    """The imports and definitions at the top level of a module, read from its source."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        self.name = name
        self.package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self.lines = text.splitlines()
        self.items: list[_Import | _Definition] = []
        body = ast.parse(text, str(path)).body
        for node, following in itertools.zip_longest(body, body[1:]):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.items += self.imports(node)
            elif not isinstance(node, ast.Expr) and not _is_type_checking(node):
                binds, uses = _names(node)
                self.items.append(_Definition(node, self.text(node, following), binds, _touched(node), uses))
        self.binding: dict[str, list[int]] = {}
        for index, item in enumerate(self.items):
            for bound in {item.binds} if isinstance(item, _Import) else item.binds | item.touches:
                self.binding.setdefault(bound, []).append(index)

    def imports(self, node: ast.Import | ast.ImportFrom) -> Iterator[_Import]:
        for alias in node.names:
            renamed = alias.asname or ""
            if isinstance(node, ast.Import):
                yield _Import(alias.name, "", renamed)
            else:
                relative = "." * node.level + (node.module or "")
                module = importlib.util.resolve_name(relative, self.package)
                yield _Import(module, alias.name, "" if renamed == alias.name else renamed)

    def text(self, node: ast.stmt, following: ast.stmt | None) -> str:
        """The source of a statement, with the comment above it and, for a constant, the docstring below."""
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)]) - 1
        while first and self.lines[first - 1].startswith("#"):
            first -= 1
        last = node.end_lineno
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(following, ast.Expr):
            last = following.end_lineno if isinstance(following.value, ast.Constant) else last
        return "\n".join(self.lines[first:last])


_read = functools.lru_cache(maxsize=64)(_Module)

_Place = tuple[str, int]
"""Where a definition is: the name of its module, and its index in `_Module.items`."""


class _Closure:
    """Definitions from several modules, with everything that they use. A program is written from these."""

    def __init__(self, inline: Sequence[str], reserved: Sequence[str] = ()) -> None:
        self.inline = tuple(inline)
        self.modules: dict[str, _Module] = {}
        self.needs: dict[str, list[str]] = {}
        self.chosen: dict[_Place, str] = {}
        self.kept: set[_Import] = set()
        self.origins: dict[str, set[str]] = {name: {"a name of the program"} for name in reserved}
        self.users: dict[str, set[str]] = {}

    def module(self, name: str) -> _Module:
        if name not in self.modules:
            path = _find(name)
            self.modules[name] = _read(name, path, path.read_text(encoding="utf-8"))
            self.needs[name] = []
        return self.modules[name]

    def add(self, module_name: str, name: str, user: str = "") -> None:
        """Add a definition, and everything that it uses.

        `user` is the definition that uses this one. It is empty if the program itself needs this definition.
        """
        module = self.module(module_name)
        if name not in module.binding:
            why = f"{user} uses" if user else "a program needs"
            raise ProgramError(f"{why} {name!r}, which {module_name} does not define at its top level")
        if user:
            self.users.setdefault(f"{module_name}.{name}", set()).add(user)
        for index in module.binding[name]:
            item = module.items[index]
            if isinstance(item, _Import):
                self.use(item, module, index)
            elif (module_name, index) not in self.chosen:
                self.chosen[module_name, index] = item.text
                self.refuse_inner_imports(module, item)
                for bound in item.binds:
                    self.bind(bound, f"{module_name}.{bound}")
                for used in sorted(item.uses):
                    if used not in module.binding and (hasattr(builtins, used) or used in MODULE_NAMES):
                        self.bind(used, f"builtins.{used}")
                    else:
                        self.add(module_name, used, f"{module_name}.{name}")

    def use(self, imported: _Import, module: _Module | None = None, index: int = 0) -> None:
        """Keep an import as it is. If its module is to be inlined, add the imported definition instead."""
        if module is None or not self.inlines(imported.module):
            self.kept.add(imported)
            self.bind(imported.binds, imported.origin)
            return
        where = f"{module.name}, `import {imported.module}`"
        if not imported.name:
            raise ProgramError(f"{where}: import the names, not the module, so that they can be inlined")
        self.needs[module.name].append(imported.module)
        self.add(imported.module, imported.name, module.name)
        if imported.alias:
            self.chosen[module.name, index] = f"{imported.alias} = {imported.name}"
            self.bind(imported.alias, imported.origin)

    def bind(self, name: str, origin: str) -> None:
        self.origins.setdefault(name, set()).add(origin)

    def inlines(self, module: str) -> bool:
        return any(module == package or module.startswith(f"{package}.") for package in self.inline)

    def refuse_inner_imports(self, module: _Module, item: _Definition) -> None:
        for node in ast.walk(item.node):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for imported in module.imports(node):
                    if self.inlines(imported.module):
                        raise ProgramError(
                            f"{module.name}, line {node.lineno}: import {imported.module} at the top level, "
                            "so that it can be inlined"
                        )

    def settle(self, functions: Mapping[str, Source]) -> dict[str, str]:
        """Resolve name clashes. Returns the name that the function of each operation has in the program.

        If the function of an operation shares its name with something else, the function is renamed. Raises
        `ProgramError` if names still clash.
        """
        clashing = {name for name, origins in self.origins.items() if len(origins) > 1}
        called: dict[Source, str] = {}
        for operation, source in functions.items():
            if source not in called:
                renamed = source.name in clashing and self.rename(source, operation.replace(".", "_"))
                called[source] = operation.replace(".", "_") if renamed else source.name
        for name, origins in sorted(self.origins.items()):
            if len(origins) > 1:
                raise ProgramError(f"{name!r} means {' and '.join(sorted(origins))}: rename one of them")
        return {operation: called[source] for operation, source in functions.items()}

    def rename(self, source: Source, name: str) -> bool:
        """Rename a function. Returns False, and changes nothing, if another definition uses the function."""
        module, origin = self.modules[source.module], f"{source.module}.{source.name}"
        indexes = module.binding[source.name]
        item = module.items[indexes[0]]
        plain = isinstance(item, _Definition) and isinstance(item.node, ast.FunctionDef) and len(indexes) == 1
        if not plain or origin in self.users:
            return False
        place = source.module, indexes[0]
        self.chosen[place] = re.sub(
            rf"^def {source.name}\b", f"def {name}", self.chosen[place], count=1, flags=re.MULTILINE
        )
        self.origins[source.name].remove(origin)
        self.bind(name, f"{origin}, renamed")
        return True

    def packages(self) -> list[str]:
        """The packages that the definitions import, without the standard library."""
        roots = {imported.module.partition(".")[0] for imported in self.kept}
        return sorted(roots - sys.stdlib_module_names)

    def imports(self, standard: bool) -> str:
        """The import statements: those of the standard library if `standard`, otherwise all others."""
        kept = sorted(
            imported
            for imported in self.kept
            if (imported.module.partition(".")[0] in sys.stdlib_module_names) is standard
        )
        lines = [f"import {i.module}{i.alias and f' as {i.alias}'}" for i in kept if not i.name]
        for module in dict.fromkeys(imported.module for imported in kept if imported.name):
            names = [f"{i.name}{i.alias and f' as {i.alias}'}" for i in kept if i.name and i.module == module]
            line = f"from {module} import {', '.join(names)}"
            if len(line) > WIDTH:
                line = "\n    ".join([f"from {module} import (", *(f"{name}," for name in names)]) + "\n)"
            lines.append(line)
        return "\n".join(lines)

    def body(self, places: Collection[_Place]) -> str:
        """The source of the definitions at these places.

        The definitions of a module come after those of the modules that it needs. Within a module, they keep
        their order.
        """
        order: dict[str, int] = {}
        visited: set[str] = set()

        def visit(module: str) -> None:
            if module not in visited:
                visited.add(module)
                for needed in self.needs[module]:
                    visit(needed)
                order[module] = len(order)

        for module in self.modules:
            visit(module)
        text, spaced = "", True
        for module, index in sorted(places, key=lambda place: (order[place[0]], place[1])):
            node = getattr(self.modules[module].items[index], "node", None)
            block = isinstance(node, ast.FunctionDef | ast.ClassDef)
            text += ("\n\n\n" if block or spaced else "\n\n") + self.chosen[module, index]
            spaced = block
        return text.strip("\n")


def _find(name: str) -> Path:
    """The source file of a module. Nothing is imported to find it."""
    root, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(root)
    except (ImportError, ValueError):
        spec = None
    if spec is not None and not rest and spec.origin and spec.origin.endswith(".py"):
        return Path(spec.origin)
    for location in (spec and spec.submodule_search_locations) or ():
        path = Path(location, *rest)
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                return candidate
    raise ProgramError(f"cannot find the source of module {name!r}")


def _is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING"


def _touched(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    touched = set()
    for target in targets:
        place = target
        while isinstance(place, ast.Subscript | ast.Attribute):
            place = place.value
        if place is not target and isinstance(place, ast.Name):
            touched.add(place.id)
    return touched


def _names(node: ast.stmt) -> tuple[set[str], set[str]]:
    """The module-level names that a statement defines, and those that the statement or its functions use."""
    bare = ast.unparse(_WithoutAnnotations().visit(copy.deepcopy(node)))
    table = symtable.symtable(bare, "<statement>", "exec")
    symbols = table.get_symbols()
    binds = {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
    uses = {symbol.get_name() for symbol in symbols if symbol.is_referenced()}
    inner = list(table.get_children())
    while inner:
        table = inner.pop()
        uses |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
        inner += table.get_children()
    # From Python 3.12 on, the loop variables of a comprehension are names of the scope around it (PEP 709).
    own = {
        name.id
        for each in ast.walk(node)
        if isinstance(each, ast.comprehension)
        for name in ast.walk(each.target)
        if isinstance(name, ast.Name)
    }
    return binds - own, uses - own


class _WithoutAnnotations(ast.NodeTransformer):
    """Removes annotations from a statement.

    A program never evaluates annotations. So it does not need names that only annotations use.
    """

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        meant = {name.id for name in ast.walk(node.annotation) if isinstance(name, ast.Name)}
        node.annotation = ast.Tuple(
            [ast.Name(name, ast.Load()) for name in sorted(meant & MEANT_IN_ANNOTATIONS)], ast.Load()
        )
        return self.generic_visit(node)
