"""What is installed, what it imports, and that all files with version numbers agree."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.resources
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kvref

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {
    "kvref": ROOT / "kvref",
    "kvref_strategies": ROOT / "strategies/kvref_strategies",
    "kvref_conformance": ROOT / "conformance/kvref_conformance",
}
PLAIN = [each for each in SOURCES["kvref"].rglob("*.py") if each.parent.name != "fast"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def loaded_by(statement: str, of: set[str]) -> set[str]:
    """The packages among `of` that a fresh interpreter has loaded after the statement."""
    script = f"{statement}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True)
    return of & {name.partition(".")[0] for name in json.loads(done.stdout)}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    entries = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in entries}


def requirements() -> list[Requirement]:
    project = PROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    groups += PROJECT["dependency-groups"].values()
    groups.append(PROJECT["build-system"]["requires"])
    found = [Requirement(item) for group in groups for item in group if isinstance(item, str)]
    return [requirement for requirement in found if requirement.name != "kvref"]


def imported(source: Path) -> set[str]:
    """Top-level names of all modules that a file imports anywhere, relative imports aside."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def test_importing_the_reference_loads_nothing_heavy() -> None:
    heavy = {"torch", "hypothesis", "pytest", "kvref_strategies", "kvref_conformance"}
    assert loaded_by("import kvref, kvref.target", heavy) == set()


def test_the_pytest_plugin_is_cheap_to_import() -> None:
    # pytest imports the plugin in every run if kvref is installed.
    assert loaded_by("import kvref_conformance.plugin", {"torch", "hypothesis"}) == set()


def test_crosshair_is_not_loaded_unless_it_is_asked_for() -> None:
    modules = "kvref_conformance.commands.cli, kvref_conformance.processes.host"
    imports = f"import {modules}, kvref_conformance.proofs as proofs"
    assert loaded_by(f"{imports}; proofs.contracts()", {"crosshair", "z3"}) == set()
    assert loaded_by("import kvref_conformance.proofs.prover", {"crosshair", "z3"}) == {"crosshair", "z3"}


def test_the_check_for_loaded_modules_sees_them() -> None:
    assert loaded_by("import hypothesis", {"torch", "hypothesis"}) == {"hypothesis"}


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("kvref", {"kvref", "torch"}),
        ("kvref_strategies", {"kvref", "kvref_strategies", "hypothesis"}),
    ],
)
def test_arrows_between_packages_point_one_way(package: str, allowed: set[str]) -> None:
    strangers = {
        str(source.relative_to(ROOT)): names
        for source in SOURCES[package].rglob("*.py")
        if (names := imported(source) - allowed - sys.stdlib_module_names)
    }
    # Triton comes with the torch for CUDA devices. Only code for these devices imports this module.
    kernel = {"kvref/fast/device_kernel.py": {"triton"}} if package == "kvref" else {}
    assert strangers == kernel


@pytest.mark.parametrize("package", SOURCES)
def test_every_source_file_is_installed(package: str) -> None:
    installed = importlib.resources.files(package)
    files = [
        file.relative_to(SOURCES[package])
        for file in SOURCES[package].rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    ]
    assert Path("py.typed") in files
    assert [str(file) for file in files if not installed.joinpath(*file.parts).is_file()] == []


def test_the_schemas_are_valid_json() -> None:
    schemas = list(SOURCES["kvref_conformance"].rglob("*.schema.json"))
    assert schemas
    for schema in schemas:
        assert json.loads(schema.read_text())["$schema"]


def test_entry_points_can_be_loaded() -> None:
    points = importlib.metadata.distribution("kvref").entry_points
    names = {(point.group, point.name) for point in points}
    assert names == {("console_scripts", "kvref"), ("pytest11", "kvref")}
    for point in points:
        point.load()


def test_the_version_is_the_same_everywhere() -> None:
    assert importlib.metadata.version("kvref") == kvref.__version__
    newest = re.search(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest
    assert newest[1] in ("Unreleased", kvref.__version__)


def test_constraints_satisfy_the_declared_ranges() -> None:
    pinned = pins()
    assert pinned["torch"] == "2.13.0"
    for requirement in requirements():
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} and {version}"


def test_every_range_has_a_lower_bound() -> None:
    for requirement in requirements():
        assert any(clause.operator == ">=" for clause in requirement.specifier), str(requirement)


def test_the_readme_has_one_test_command_for_ci() -> None:
    # .ci/run takes the command from the README, so CI tests what the README says.
    readme = (ROOT / "README.md").read_text()
    assert len(re.findall(r"^python3\.11 -m venv .* && [^ ]*/pytest$", readme, re.MULTILINE)) == 1


def test_the_plain_half_stays_compact() -> None:
    """Counts statements, without docstrings and without `kvref.fast`."""
    statements = 0
    for source in PLAIN:
        for node in ast.walk(ast.parse(source.read_text())):
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            statements += isinstance(node, ast.stmt) and not docstring
    assert 1_000 < statements < 3_000
    assert len((SOURCES["kvref"] / "pool.py").read_text().splitlines()) < 220


def test_the_plain_half_does_not_know_the_fast_one() -> None:
    assert [
        source.name for source in PLAIN if re.search(r"import.*\bfast\b|from kvref\.fast", source.read_text())
    ] == []
