"""Stand-alone programs: the source that they contain, how they end, and that hostile values stay values."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvref.target import perform
from kvref_conformance.laws import LAWS
from kvref_conformance.laws.core import Law, Level
from kvref_conformance.processes.answers import PARTS
from kvref_conformance.running.programs.runtime import perform_operation
from kvref_conformance.running.programs.writer import (
    ProgramError,
    Source,
    collect,
    stand_alone_program,
)
from kvref_conformance.targets import operations_module

INLINE = ("fake",)

ENGINE = """
import os, signal, sys, time

class Refused(Exception): ...

def respond(kind, value):
    if kind == "refuse":
        raise Refused(value)
    if kind == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "end":
        os._exit(value)
    if kind == "leave":
        sys.exit(value)
    if kind == "hang":
        time.sleep(600)
    if kind == "flood":
        os.write(1, b"x" * value)
    if kind == "debug":
        return __debug__
    if kind == "mutate":
        value.append(1)
    return object() if kind == "opaque" else value
"""

NATIVE = """
from collections.abc import Mapping
import engine

def echo(kind: str, value: object = None) -> Mapping:
    return engine.respond(kind, value)
"""

OTHER = """
def echo(value):
    return ["other", value]
"""

LAW_SOURCE = """
from kvref_conformance.laws.core import Event, LawBroken, Runs

def judged(event: Event) -> bool:
    return "value" in event["outcome"] and event["args"].get("kind") == "echo"

def echoes(runs: Runs) -> int:
    events = [event for run in runs for event in run if judged(event)]
    for event in events:
        if event["outcome"]["value"] != event["args"]["value"]:
            raise LawBroken(repr(event["args"]["value"]), repr(event["outcome"]["value"]))
    return len(events)

def always_broken(runs: Runs) -> int:
    raise LawBroken("nothing", ascii([[event["outcome"] for event in run] for run in runs]))

def quoted(runs: Runs) -> int:
    raise LawBroken(runs[0][0]["args"]["value"], runs[0][0]["outcome"]["value"])

def mistaken(runs: Runs) -> int:
    return runs[0]["no such key"]

def with_torch(runs: Runs) -> int:
    return torch.zeros(1)

import torch
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes modules of a package `fake`, whose source is found but never imported."""

    def write(**modules: str) -> None:
        for name, text in modules.items():
            path = tmp_path / "fake" / f"{name.replace('_in_', '/')}.py"
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(textwrap.dedent(text))
        (tmp_path / "fake" / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path)

    return write


@pytest.fixture
def engine(write: Callable[..., None], tmp_path: Path) -> Path:
    """The folder of a target, `engine`, with native operations and laws for it."""
    write(native=NATIVE, other=OTHER, laws=LAW_SOURCE)
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "engine.py").write_text(ENGINE)
    return folder


def law(name: str, **texts: str) -> Law:
    def check(runs: Any) -> int:
        raise NotImplementedError

    check.__module__, check.__qualname__ = "fake.laws", name
    texts = {"id": "fake.law", "statement": "what is said is echoed", "why": "because"} | texts
    return Law(level=Level.SAFETY, sources=(), workload="", check=check, **texts)


def native(operation: str) -> Source:
    part, _, function = operation.partition(".")
    return {"part": Source("fake.native", function), "other": Source("fake.other", function)}[part]


def trace(*runs: list[tuple[str, dict[str, Any]]], flags: tuple[str, ...] = ()) -> dict[str, Any]:
    """A trace of these runs. The flags apply to the last run."""
    return {
        "runs": [
            {
                "flags": list(flags) if run is runs[-1] else [],
                "operations": [{"op": op, "args": args} for op, args in run],
            }
            for run in runs
        ]
    }


def saying(kind: str, value: Any = None) -> tuple[str, dict[str, Any]]:
    return ("part.echo", {"kind": kind, "value": value})


def program(check: str, trace: dict[str, Any], **options: Any) -> str:
    options = {"operations": native, "title": "An echo", "inline": INLINE, "law": law(check)} | options
    return stand_alone_program(target_name="engine", target_version="1.2", trace=trace, **options)


@dataclass(frozen=True)
class Ran:
    exit_code: int
    output: str


def run(source: str, *paths: Path) -> Ran:
    """Run a program in a new interpreter, as a user would."""
    env = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PATH": os.environ["PATH"]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.py")
        path.write_text(source, encoding="utf-8")
        ran = subprocess.run(
            [sys.executable, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            timeout=60,
            check=False,
        )
    return Ran(ran.returncode, ran.stdout.decode("utf-8", "replace"))


def outcomes(ran: Ran) -> list[list[dict[str, Any]]]:
    """The outcomes that a program of the law `always_broken` prints."""
    assert ran.exit_code == 1, ran.output
    observed: list[list[dict[str, Any]]] = ast.literal_eval(ran.output.rpartition("observed: ")[2])
    return observed


def defined(source: str) -> dict[str, Any]:
    """Execute collected source. Returns its names."""
    space: dict[str, Any] = {"__name__": "collected"}
    exec(compile(source, "collected", "exec"), space)
    return space


# -- what source is collected --------------------------------------------------------------------------------


def test_closure(write: Callable[..., None]) -> None:
    write(
        a="""
            from __future__ import annotations
            from fractions import Fraction
            from decimal import Decimal
            from typing import TYPE_CHECKING, Any
            from fake.b import Base, double, TABLE
            if TYPE_CHECKING:
                from fake.nowhere import Ghost

            Alias = dict[str, Any]
            UNUSED = 1 / 0

            # How many.
            COUNT = 3
            '''Three.'''

            def root(first: Alias, *, second: Ghost | None = None) -> Decimal:
                import json
                local: Alias = {}
                return Child(), [double(i) for i in range(COUNT)], json.dumps(Fraction(1, 2).numerator), TABLE

            class Child(Base):
                held: Alias
        """,
        b="""
            import functools as tools
            TABLE: dict[str, int] = {}
            TABLE["one"] = 1
            try:
                from nowhere_at_all import fast
            except ImportError:
                fast = None
            class Base:
                pass
            def unused(): ...
            @tools.cache
            def double(n): return 2 * n if fast is None else 0
        """,
    )
    source = collect([Source("fake.a", "root")], inline=INLINE)
    child, doubled, half, table = defined(source)["root"]({})
    assert type(child).__name__ == "Child"
    assert (doubled, half, table) == ([0, 2, 4], "1", {"one": 1})
    assert source.count("from __future__") == 1
    for absent in ("Decimal", "Any", "Ghost | None = None,", "UNUSED", "unused", "TYPE_CHECKING", "fake"):
        assert absent not in source.replace("-> Decimal", "").replace("dict[str, Any]", "")
    assert "# How many.\nCOUNT = 3\n'''Three.'''" in source
    assert source == collect([Source("fake.a", "root")], inline=INLINE)


def test_modules_are_read_not_imported(write: Callable[..., None]) -> None:
    write(a="import no_such_target\nraise SystemExit\ndef f(): return no_such_target.x")
    assert "import no_such_target\n" in collect([Source("fake.a", "f")], inline=INLINE)
    assert "fake" not in sys.modules


def test_alias_relative_import_and_reexport(write: Callable[..., None]) -> None:
    write(
        a="""
            from .sub import g as renamed
            from os.path import join as j
            def f(): return renamed() + j("a", "b")
        """,
        sub_in_c="def g(): return 'g'",
        sub_in___init__="from .c import g",
    )
    source = collect([Source("fake.a", "f")], inline=INLINE)
    assert "renamed = g" in source
    assert "from os.path import join as j" in source
    assert defined(source)["f"]() == "ga/b"


def test_annotations_that_dataclasses_read_stay_meaningful(write: Callable[..., None]) -> None:
    write(
        a="""
            from dataclasses import dataclass
            from typing import Any, ClassVar
            @dataclass
            class C:
                shared: ClassVar[Any] = []
                own: Any = 1
        """
    )
    source = collect([Source("fake.a", "C")], inline=INLINE)
    assert "from typing import ClassVar\n" in source
    assert run(f"{source}\nprint(C())").output == "C(own=1)\n"


@pytest.mark.parametrize(
    ("a", "message"),
    [
        ("from fake.b import h\ndef f(): return h, g\ndef g(): ...", "'g' means fake.a.g and fake.b.g"),
        ("import json as g\nfrom fake.b import h\ndef f(): return g, h", "'g' means fake.b.g and json"),
        ("from fake.b import h\ndef f(): return h, len\n", "'len' means builtins.len and fake.b.len"),
        ("import fake.b\ndef f(): return fake.b.h", "import the names, not the module"),
        ("from fake import b\ndef f(): return b.h", "'b', which fake does not define"),
        ("def f():\n  from fake.b import h\n  return h", "line 2: import fake.b at the top level"),
        ("from fake.b import *\ndef f(): return h", "fake.a.f uses 'h'"),
        ("def f(): return undefined", "fake.a.f uses 'undefined', which fake.a does not define"),
        ("from fake.gone import h\ndef f(): return h", "source of module 'fake.gone'"),
        ("", "a program needs 'f'"),
    ],
)  # fmt: skip
def test_refused_sources(write: Callable[..., None], a: str, message: str) -> None:
    write(a=a, b="def g(): ...\ndef h(): return g(), len()\ndef len(): ...")
    with pytest.raises(ProgramError, match=message):
        collect([Source("fake.a", "f")], inline=INLINE)


# -- how a program ends --------------------------------------------------------------------------------------


def test_broken(engine: Path) -> None:
    source = program("echoes", trace([saying("echo", 1), saying("refuse", "no"), saying("echo", [(2, 3)])]))
    ran = run(source, engine)
    assert (ran.exit_code, "judgements made: 2" in ran.output) == (0, True)
    assert "Refused" in ran.output

    lying = engine.parent / "lying"
    lying.mkdir()
    (lying / "engine.py").write_text("def respond(kind, value): return 'a lie'")
    ran = run(source, lying)
    assert ran.exit_code == 1
    for text in ("BROKEN fake.law: what is said is echoed", "expected: 1\n", "observed: 'a lie'\n"):
        assert text in ran.output


def test_program_needs_the_target_alone(engine: Path) -> None:
    source = program("echoes", trace([saying("echo", 1)]))
    imported = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names} == {"engine"}
    assert "Needs: engine." in source
    assert "PYTHONPATH" not in source
    assert "Found with engine 1.2" in source


def test_a_program_names_the_plugin_that_it_needs(engine: Path) -> None:
    setup = {"entry_points": ["vendor"], "stubs": [], "renamed": {}, "initialise": True}
    source = program(
        "echoes", trace([saying("echo", 1)]), setup={**setup, "modules": ["vendor.kv", "vendor"]}
    )
    assert "Needs: engine. Run: python THIS_FILE\nvendor must be installed, or in a folder of " in source


@pytest.mark.parametrize("isolated", [False, True])
def test_neither(engine: Path, isolated: bool) -> None:
    once = trace([saying("echo", 1)])
    assert run(program("always_broken", once, isolated=isolated)).exit_code == 2  # no target
    assert run(program("mistaken", once, isolated=isolated), engine).exit_code == 2
    opaque = run(program("always_broken", trace([saying("opaque")]), isolated=isolated), engine)
    assert opaque.exit_code == 2
    assert "not JSON serializable" in opaque.output


def test_exit_code_of_the_target_is_not_the_programs(engine: Path) -> None:
    assert run(program("echoes", trace([saying("leave", 1)])), engine).exit_code == 2
    with (engine / "engine.py").open("a") as file:
        file.write("import atexit\natexit.register(os._exit, 1)\n")
    assert run(program("echoes", trace([saying("echo", 1)])), engine).exit_code == 0


@pytest.mark.parametrize("isolated", [False, True])
def test_program_runs_inside_another_process(engine: Path, tmp_path: Path, isolated: bool) -> None:
    """The runner does not start an interpreter. It runs the program in a fork that already has the target."""
    path = tmp_path / "program.py"
    path.write_text(program("always_broken", trace([saying("echo", 1)]), isolated=isolated))
    ran = run(
        f"import runpy, os\ntry: runpy.run_path({str(path)!r}, run_name='__main__')\n"
        "except SystemExit as end: print('ended with', end.code, flush=True); os._exit(5)",
        engine,
    )
    assert (ran.exit_code, ran.output[-13:]) == (5, "ended with 1\n")


@pytest.mark.parametrize("isolated", [False, True])
def test_outcomes_are_those_of_perform(engine: Path, isolated: bool) -> None:
    target: Any = SimpleNamespace(name="engine", part=SimpleNamespace(echo=defined(ENGINE)["respond"]))
    operations = [saying("echo", {"1": (2, None)}), saying("refuse", "\ud800 \"'\n"), saying("mutate", [0])]
    expected = [json.loads(json.dumps(perform(target, *operation))) for operation in operations]
    operations[-1][1]["value"] = [0]  # the target changed the argument that `perform` gave it
    assert expected == [
        perform_operation(target.part.echo, arguments)  # checks the copy of `perform` that programs contain
        for _, arguments in operations
    ]
    source = program("always_broken", trace(operations), isolated=isolated)
    assert outcomes(run(source, engine)) == [expected]
    assert operations[-1][1]["value"] == [0]


def test_runs_have_their_own_flags(engine: Path) -> None:
    source = program("always_broken", trace([saying("debug")], [saying("debug")], flags=("-O", "-B")))
    assert outcomes(run(source, engine)) == [[{"value": True}], [{"value": False}]]
    source = program("always_broken", trace([saying("debug")], flags=("-O",)))
    assert outcomes(run(source, engine)) == [[{"value": False}]]


@pytest.mark.parametrize(
    ("operation", "died"),
    [
        (saying("crash"), "killed by SIGSEGV"),
        (saying("end", 3), "exit code 3"),
        (saying("end", 0), "exit code 0"),
        (saying("leave", 1), "exit code 1"),
        (saying("hang"), "no answer within 0.4 s"),
    ],
)
def test_death_is_an_outcome(engine: Path, operation: tuple[str, dict[str, Any]], died: str) -> None:
    operations = [saying("flood", 200_000), saying("echo", 1), operation, saying("echo", 2)]
    source = program("always_broken", trace(operations), isolated=True, timeout=0.4)
    assert outcomes(run(source, engine)) == [[{"value": 200_000}, {"value": 1}, {"died": died}]]


def test_hostile_strings_survive(engine: Path) -> None:
    hostile = [
        "'",
        '"',
        '"""',
        "'''",
        "\\",
        "\\'",
        "\n\r\t\0\x1b",
        "é漢\U0001f600",
        "\ud800",
        "{x}%s",
        "\\N{DASH}",
    ]
    text = "".join(hostile)
    value = {text: [*hostile, [], {}, True, None, 1e300, float("inf"), -0.0]}
    say = saying("echo", value)
    evil = law("echoes", id=text, statement=text, why=text)
    for isolated in (False, True):
        source = program("echoes", trace([say]), title=text + '"', law=evil, isolated=isolated)
        ran = run(source, engine)
        assert (ran.exit_code, "judgements made: 1" in ran.output) == (0, True), ran.output
    assert run(program("always_broken", trace([say]), title="\\"), engine).exit_code == 1


def test_what_a_target_says_does_nothing_to_a_terminal(engine: Path) -> None:
    text = "\x1b[31m\u202e\n::error::forged\nverdict: conformant"
    ran = run(program("quoted", trace([saying("echo", text)])), engine)
    assert ran.exit_code == 1
    assert r"  observed: \x1b[31m\u202e\n::error::forged\nverdict: conformant" in ran.output.splitlines()
    assert "\x1b" not in ran.output
    failed = run(program("mistaken", trace([saying("echo", text)])), engine)
    assert (failed.exit_code, "TypeError: list indices" in failed.output) == (2, True)


def test_same_name_in_two_parts(engine: Path) -> None:
    operations = [saying("echo", 1), ("other.echo", {"value": 1})]
    source = program("always_broken", trace(operations))
    assert '"part.echo": part_echo,' in source
    assert outcomes(run(source, engine)) == [[{"value": 1}, {"value": ["other", 1]}]]


def test_factory(engine: Path) -> None:
    factory = """
        import engine
        class T:
            class part:
                echo = engine.respond
            other = None
        class M:
            make = T
        target = T
    """
    (engine / "vendor.py").write_text(textwrap.dedent(factory))
    assert run(program("echoes", trace([saying("echo", 1)]), operations="vendor:T"), engine).exit_code == 0
    for isolated in (False, True):
        source = program(
            "always_broken", trace([saying("echo", 1)]), operations="vendor:M.make", isolated=isolated
        )
        assert outcomes(run(source, engine)) == [[{"value": 1}]]
        assert "vendor must be installed, or in a folder of PYTHONPATH.\n" in source
    # A factory may have the name `target`, although the program uses that name for the target itself.
    usual = program("always_broken", trace([saying("echo", 1)]), operations="vendor:target")
    assert run(usual, engine).exit_code == 1
    lacking = program("always_broken", trace([("other.echo", {})]), operations="vendor:T")
    assert run(lacking, engine).exit_code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trace": trace([("part.none", {})])}, "'none', which fake.native does not define"),
        ({"trace": trace([("no.such", {})])}, "no native function for the operation 'no.such'"),
        ({"trace": trace([("no.such", {})]), "operations": {}}, "no native function"),
        ({"trace": trace([("print()", {})]), "operations": "vendor:T"}, "not of the form part.function"),
        ({"trace": trace([("part.class", {})]), "operations": "vendor:T"}, "is no Python"),
        ({"operations": "vendor"}, "not of the form pkg.module:factory"),
        ({"law": law("test.<locals>.check")}, "not a top-level function"),
        ({"law": law("with_torch")}, "only use the standard library, not torch"),
    ],
)
def test_refused_programs(engine: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        program("echoes", **{"trace": trace([saying("echo", 1)])} | options)


def test_same_inputs_same_program() -> None:
    making = """
        from kvref_conformance.laws import LAWS
        from kvref_conformance.running.programs.writer import Source, stand_alone_program
        run = {"operations": [{"op": "specs.build", "args": {}}, {"op": "specs.copy", "args": {}}]}
        for runs in [run], [run, run]:
            print(stand_alone_program(
                title="", law=LAWS["spec.merge-identity"], target_name="", target_version="",
                operations=lambda op: Source("kvref_conformance.targets.vllm.specs", op[6:]),
                trace={"runs": runs},
            ))
    """
    path = os.pathsep.join(sys.path)
    first, second = (
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(making)],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": path},
            check=True,
            capture_output=True,
        ).stdout
        for seed in "12"
    )
    assert first == second
    assert b"def build" in first


TOGETHER = ("specs registry planner pool", "specs registry sharing tensors canonical", "specs cache")
"""Parts that one example may need together."""


@pytest.mark.parametrize("together", TOGETHER)
@pytest.mark.parametrize("target", ["reference", "vllm"])
@pytest.mark.parametrize("isolated", [False, True])
def test_every_law_and_operation_fits_into_one_program(target: str, isolated: bool, together: str) -> None:
    def source(operation: str) -> Source:
        part, _, function = operation.partition(".")
        return Source(operations_module(target, part) or "", function)

    parts = {name: PARTS[name] for name in together.split()}
    every = [f"{name}.{f}" for name, part in parts.items() for f in vars(part) if not f.startswith("_")]
    assert "specs.build" in every
    for each in LAWS.values():
        stand_alone_program(
            title="all", law=each, target_name=target, target_version="", operations=source,
            trace=trace([(operation, {}) for operation in every]), isolated=isolated,
        )  # fmt: skip


# -- running -------------------------------------------------------------------------------------------------
