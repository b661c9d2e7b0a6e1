"""`kvref check --coverage`: which lines of a target's own files were reached, and by which laws."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coverage
import pytest
from conftest import TARGETS, Kvref
from rich.console import Console

import kvref as package
from kvref_conformance.documents.results import FileReached, Reached, Result
from kvref_conformance.processes.line_tracer import Measured
from kvref_conformance.report.coverage import coverage_page, percent, places
from kvref_conformance.report.files import write_report
from kvref_conformance.report.terminal import render
from kvref_conformance.running.exploring.stage import SwiftStage
from kvref_conformance.running.line_coverage import add_up, ranges
from kvref_conformance.targets import TargetRefused
from kvref_conformance.targets.own import NOTHING, REFERENCE, VLLM, Own, find, own_of

POSITIVE, IDENTITY, UNEQUAL = "spec.page-positive", "spec.merge-identity", "spec.merge-refuses-unequal"

TOY = """
import threading
from itertools import pairwise

import vendor_toy


class Unequal(ValueError):
    def __str__(self):
        return "not equal"  # UNEQUAL


def target():
    return vendor_toy.target(build=build, merge=merge)  # never


def build(spec):
    built = vendor_toy.build(  # POSITIVE IDENTITY UNEQUAL
        spec
    )
    return built  # POSITIVE IDENTITY UNEQUAL


def merge(specs):
    thread = threading.Thread(target=aside, args=(specs,))  # IDENTITY UNEQUAL
    thread.start()  # IDENTITY UNEQUAL
    thread.join()  # IDENTITY UNEQUAL
    for one, other in pairwise(specs):  # IDENTITY UNEQUAL
        if one != other:  # IDENTITY UNEQUAL
            raise Unequal  # UNEQUAL
    if specs:  # IDENTITY
        specs = list(specs)  # IDENTITY
    return vendor_toy.merge(specs)  # IDENTITY


def aside(specs):
    return [  # IDENTITY UNEQUAL
        spec for spec in specs
    ]


def out_of_reach():
    found = [  # never
        1,
    ]
    return found  # never
"""
"""The source of a target. The comment behind each line that counts names the laws that must reach it."""


def marked(mark: str) -> set[int]:
    return {number for number, line in enumerate(TOY.splitlines(), 1) if mark in line.partition("#")[2]}


def lines_in(stretches: list[list[int]], among: set[int]) -> set[int]:
    return {line for first, last in stretches for line in range(first, last + 1)} & among


DRAWABLE = ("--subjects", "[!L]*")
"""All subjects but LanesSpec. kvref knows no values for one of its fields, so a check would be incomplete."""


@pytest.fixture
def check(kvref: Kvref, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A function that checks the toy, in a package with another module that is never loaded."""
    folder = tmp_path / "vendor" / "measured"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "toy.py").write_text(TOY)
    (folder / "unused.py").write_text("def unused():\n    return 1\n")
    laws = [*DRAWABLE, *(word for law in (POSITIVE, IDENTITY, UNEQUAL) for word in ("--laws", law))]

    def run(*arguments: object, code: int = 0) -> dict[str, Any]:
        ran, report = kvref.report("measured.toy:target", "--path", folder.parent, *laws, *arguments)
        assert ran.code == code, ran.err
        found: dict[str, Any] = report
        return found

    return run


def test_each_line_is_told_with_the_laws_that_reach_it(check: Callable[..., dict[str, Any]]) -> None:
    told = check("--coverage")["coverage"]
    assert told["modules"] == ["measured"]
    assert (told["not_loaded"], told["unread"], told["ended_early"]) == (["measured/unused.py"], [], [])
    (file,) = told["files"]
    every = marked("never") | marked("POSITIVE") | marked("IDENTITY") | marked("UNEQUAL")
    assert file["name"] == "measured/toy.py"
    assert (file["lines"], file["reached"]) == (len(every), len(every - marked("never")))
    assert lines_in(file["unreached"], every) == marked("never")
    assert {law: lines_in(stretches, every) for law, stretches in file["laws"].items()} == {
        POSITIVE: marked("POSITIVE"),
        IDENTITY: marked("IDENTITY"),
        UNEQUAL: marked("UNEQUAL"),
    }
    (test,) = [number for number, line in enumerate(TOY.splitlines(), 1) if "if specs:" in line]
    assert file["unreached_branches"] == [[test, test + 2]]


def test_the_rows_are_those_of_a_check_without(check: Callable[..., dict[str, Any]]) -> None:
    def judged(report: dict[str, Any]) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if "seconds" not in k} for row in report["laws"]]

    measured, plain = check("--coverage"), check()
    assert judged(measured) == judged(plain)
    assert (measured["verdict"], measured["totals"]) == (plain["verdict"], plain["totals"])
    assert "coverage" not in plain


def test_programs_are_those_of_a_check_without(kvref: Kvref, tmp_path: Path) -> None:
    options = ("--laws", IDENTITY, "--report")
    for name, more in (("plain", ()), ("measured", ("--coverage",))):
        assert kvref.check("hostile_operations:merge_loses_field", *options, tmp_path / name, *more).code == 1
    programs = [
        {
            path.name: path.read_bytes()
            for folder in ("repro", "traces")
            for path in (tmp_path / name / folder).iterdir()
        }
        for name in ("plain", "measured")
    ]
    assert programs[0]
    assert programs[0] == programs[1]


def test_examples_in_processes_of_their_own(kvref: Kvref) -> None:
    """These examples also use other interpreter flags."""
    options = ("--coverage", "--laws", "registry.order-free", "--laws", "registry.refusals-survive-O")
    ran, report = kvref.report("hostile_toy:target", *options, "-n", 2)
    assert ran.code == 0
    (file,) = report["coverage"]["files"]
    assert file["name"] == "hostile_toy.py"
    assert {*file["laws"]} == {"registry.order-free", "registry.refusals-survive-O"}
    source = (TARGETS / "hostile_toy.py").read_text().splitlines()
    lookup = next(number for number, line in enumerate(source, 1) if line.startswith("def lookup(")) + 1
    for stretches in file["laws"].values():
        assert any(first <= lookup <= last for first, last in stretches)


def test_alone_the_law_that_every_operation_feeds(kvref: Kvref) -> None:
    _, report = kvref.report("vendor_toy:good", "--coverage", "--laws", "target.answers", "--profile", "none")
    assert {law for file in report["coverage"]["files"] for law in file["laws"]} == {"target.answers"}


def test_a_target_that_dies(kvref: Kvref) -> None:
    ran, report = kvref.report("vendor_toy:ends", "--coverage", "--profile", "none", "--laws", "spec.*")
    assert ran.code != 0
    assert "specs.merge-equal [PaddedSpec]" in report["coverage"]["ended_early"]
    assert report["coverage"]["reached"] > 0


def test_what_time_was_left_for_is_told(kvref: Kvref) -> None:
    """A unit reports what it has reached while it runs, so a unit that is cut off still counts."""
    options = ("--laws", "pool.partition", "--depth", "deep", "--budget", "3", "--json")
    ran = kvref("check", "reference", "--coverage", *options)
    told = json.loads(ran.out)["coverage"]
    assert (ran.code, told["ended_early"]) == (3, ["pool.machine [pool]"])
    (pool,) = [file for file in told["files"] if file["name"] == "kvref/pool.py"]
    assert pool["reached"] > 50


def test_on_a_terminal(kvref: Kvref) -> None:
    ran = kvref.check("vendor_toy:good", "--coverage", "--laws", "spec.*", "--profile", "none")
    lines = ran.out.splitlines()
    start = lines.index("lines no law reached: vendor_toy")
    assert lines[start + 1].split() == ["file", "lines", "reached", "%", "unreached"]
    name, total, reached, share, *unreached = lines[start + 2].split()
    assert (name, share) == ("vendor_toy.py", f"{100 * int(reached) // int(total)}%")
    assert unreached
    assert re.search(rf"^spec +{reached} +{reached} *$", ran.out, re.MULTILINE)


def test_modules_to_measure_instead(kvref: Kvref) -> None:
    laws = ("--laws", "pool.partition", "--json")
    ran = kvref("check", "--coverage-source", "kvref.pool", "--coverage-source", "kvref.manag*", *laws)
    told = json.loads(ran.out)["coverage"]
    assert told["modules"] == ["kvref.pool", "kvref.manag*"]
    names = {file["name"] for file in told["files"]}
    assert "kvref/pool.py" in names
    assert all(re.match(r"kvref/(pool\.py|managers/)", name) for name in names)


@pytest.mark.parametrize("module", ["no_such_package", "kvref.no.such"])
def test_modules_that_are_not_there(kvref: Kvref, module: str) -> None:
    ran = kvref.check("vendor_toy:good", "--coverage-source", module, "--profile", "none")
    assert (ran.code, ran.out) == (2, "")
    assert f"the module {module!r}, to be measured" in ran.told
    assert ran.told.count("\n") == 0


def test_without_the_library(kvref: Kvref, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "coverage", None)
    ran = kvref.check("vendor_toy:good", "--coverage", "--report", tmp_path / "report")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert "pip install 'kvref[coverage]'" in ran.err
    assert not (tmp_path / "report").exists()
    laws = ("--laws", IDENTITY, "--profile", "none", *DRAWABLE)
    assert kvref.check("vendor_toy:good", *laws).code == 0


def test_where_its_extension_cannot_be_loaded(
    kvref: Kvref, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """coverage.py falls back to pure Python, as in a version of Python for which it has no extension."""
    options = ("--path", TARGETS, "--coverage", "--laws", IDENTITY, "--profile", "none", "--json", *DRAWABLE)
    usual = json.loads(kvref("check", "vendor_toy:good", *options).out)["coverage"]
    source = Path(coverage.__file__).parent
    shutil.copytree(source, tmp_path / "lib/coverage", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    process = kvref.start("check", "vendor_toy:good", *options)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["coverage"]["reached"] == usual["reached"] > 0


def test_the_report_of_a_check_with_it(kvref: Kvref, tmp_path: Path) -> None:
    folder = tmp_path / "report"
    options = ("--laws", IDENTITY, "--profile", "none", "--report", folder, *DRAWABLE)
    assert kvref.check("vendor_toy:good", "--coverage", *options).code == 0
    page = (folder / "coverage.md").read_text()
    assert "| `vendor_toy.py` | " in page
    assert f"* {IDENTITY}: " in page
    assert kvref.check("vendor_toy:good", *options).code == 0
    assert not (folder / "coverage.md").exists()


# -- which files ---------------------------------------------------------------------------------------------

PLUGIN: Any = {"packages": ["acme", "acme_kernels"]}


@pytest.mark.parametrize(
    ("target", "plugin", "own"),
    [
        ("reference", None, REFERENCE),
        ("kvref_conformance.targets.faults.spec:alignment_lost_in_merge", None, REFERENCE),
        ("vllm", None, VLLM),
        ("vllm:acme", PLUGIN, Own(("acme", "acme_kernels"))),
        ("vllm:acme", None, NOTHING),  # as in the process that runs stock vLLM for comparison
        ("engine.kv.target:make", None, Own(("engine",))),
        ("single:make", None, Own(("single",))),
    ],
)
def test_what_is_a_targets_own(target: str, plugin: Any, own: Own) -> None:
    assert own_of(target, plugin) == own
    assert own_of(target, plugin, ["x.y"]) == Own(("x.y",))


def test_the_files_of_the_reference() -> None:
    found = find(REFERENCE)
    root = Path(package.__file__).resolve().parent
    names = {file.name for file in found.files.values()}
    assert {"kvref/pool.py", "kvref/managers/base.py"} <= names
    assert not any(name.startswith("kvref/target/") for name in names)
    assert found.files[str(root / "__init__.py")].loaded
    assert found.measured == [f"{root}/*"]
    assert found.left_out == [f"{root}/target/*"]


def test_files_by_pattern() -> None:
    names = {
        file.name
        for file in find(Own(("kvref.ha*", "kvref.managers"), ("kvref.managers.base",))).files.values()
    }
    assert "kvref/hashing.py" in names
    assert "kvref/managers/full.py" in names
    assert not names & {"kvref/managers/base.py", "kvref/pool.py"}


def test_modules_in_c_have_no_files() -> None:
    assert find(Own(("math",))).files == {}
    with pytest.raises(TargetRefused, match="'no_such'"):
        find(Own(("no_such",)))


# -- what is reported ----------------------------------------------------------------------------------------


def test_operations_are_measured_as_long_as_that_is_on() -> None:
    class Fake:
        on = True
        performed: list[str]

        def perform(self, target: Any, operation: str, arguments: Any) -> Any:
            self.performed.append(operation)
            return {"value": 1}

    fake: Any = Fake()
    fake.performed = []
    target: Any = type("Target", (), {"name": "x", "pool": type("Pool", (), {"usage": lambda self: 2})()})()
    stage = SwiftStage(Measured(target, fake))
    assert stage.perform("pool.usage") == {"value": 1}
    fake.on = False
    assert stage.perform("pool.usage") == {"value": 2}
    assert fake.performed == ["pool.usage"]


def test_ranges() -> None:
    among = [2, 3, 5, 8, 9, 12]
    assert ranges({2, 3, 8}, among) == [(2, 3), (8, 8)]
    assert ranges({3, 5, 8, 12}, among) == [(3, 8), (12, 12)]
    assert ranges({*among}, among) == [(2, 12)]
    assert ranges(set(), among) == []


def test_places_and_percent() -> None:
    file = FileReached("x.py", [2, 3, 5, 8], frozenset({3, 5}), [(2, 8), (8, -1)], {})
    assert places(file) == ["2->8", "3-5", "8->exit"]
    assert (percent(1000, 999), percent(3, 3), percent(0, 0)) == ("99%", "100%", "-")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    paths = {}
    for name, text in (("bad.py", "def f(:\n"), ("good.py", "def f():\n    return 1\n")):
        (tmp_path / name).write_text(text)
        paths[str((tmp_path / name).resolve())] = {"name": name, "loaded": True}
    own = {"own": {"modules": ["x"], "without": []}, "files": paths}
    told = add_up(own, [(["a", "b"], {str((tmp_path / "good.py").resolve()): {(-1, 2), (2, -1)}})])
    assert told.unread == ["bad.py"]
    (file,) = told.files
    assert (file.name, file.lines, file.reached) == ("good.py", [2], 1)
    assert file.laws == {"a": {2}, "b": {2}}


NAMES = ["\x1b[31mred\x1b[0m.py", "[bold]x[/].py", "a|b`c.py", "line\nbreak\u202e.py", "\udc80.py", "日本.py"]


def hostile() -> Result:
    files = [
        FileReached(name, range(1, 200), frozenset(range(1, 200, 2)), [], {"pool.partition": frozenset({2})})
        for name in NAMES * 10
    ]
    told = Reached([*NAMES], [], files, [*NAMES], [*NAMES], [*NAMES])
    target = {"name": "x", "version": "1", "plugin": "\x1b[31m", "capabilities": {}}
    return Result(target, 0, "quick", False, None, {}, coverage=told)


def test_hostile_names_and_long_lists_on_a_terminal() -> None:
    for encoding in ("utf-8", "ascii"):
        output = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        render(hostile(), Console(file=output, width=100))
        output.flush()
        shown = output.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
        assert "lines of your plugin no law reached: \\x1b[31mred" in shown
        assert not re.search("[^\n -~日本]", shown)
        assert "[bold]x[/].py" in shown
        assert "and 40 more files with lines that no law reached" in shown
        assert "and 88 more" in shown
        assert "all of it: add --report DIR, or --json" in shown
        assert len(shown.splitlines()) < 150


def test_hostile_names_in_a_report(tmp_path: Path) -> None:
    write_report(hostile(), tmp_path / "report")
    told = json.loads((tmp_path / "report/report.json").read_bytes())["coverage"]
    assert [file["name"] for file in told["files"]] == NAMES * 10
    page = coverage_page(hostile(), hostile().coverage or Reached([], [], [], [], [], []))
    assert (tmp_path / "report/coverage.md").read_text() == page
    assert "\x1b" not in page
    assert "| `a\\|b'c.py` | 199 | 99 | 49% | 1, 3, 5, " in page
    assert page.count("### ") == len(NAMES) * 10
