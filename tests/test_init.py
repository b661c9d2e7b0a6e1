"""The files that `kvref init` writes work unchanged, and it overwrites no existing file."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvref_conformance.commands.cli import cli
from kvref_conformance.commands.init.starter import WORKFLOW, Wanted, badge, profile, workflow
from kvref_conformance.documents.profile import choose_profile
from kvref_conformance.running.loading import prepare

TARGETS = Path(__file__).parent / "targets"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which has a target and nothing else."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lib").mkdir()
    for path in TARGETS.glob("vendor_toy.py"):
        (tmp_path / "lib" / path.name).write_text(path.read_text())
    return tmp_path


def kvref(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def described(*fields: str, name: str = "AcmeSpec", role: str = "layer") -> Any:
    infos = [{"name": field, "type": "int", "required": True} for field in fields]
    info = {"name": name, "mro": [name], "role": role, "fields": infos, "origin": "plugin"}
    return {"classes": [info], "plugin": None}


def test_a_check_then_needs_no_options() -> None:
    ran = kvref("init", "vendor_toy:good", "--path", "lib")
    written = [line for line in ran.output.splitlines() if line.startswith("written")]
    assert (ran.exit_code, written) == (0, ["written      kvref.toml", f"written      {WORKFLOW}"])
    assert badge() in ran.output
    worker, declared = prepare(None, None, python=None, paths=(), stubs=())
    assert (worker.target, worker.paths, declared.name) == ("vendor_toy:good", ("lib",), "kvref.toml")
    assert kvref("check", "--laws", "spec.merge-identity", "--subjects", "FullAttentionSpec").exit_code == 0


def test_what_is_there_is_left_as_it_is() -> None:
    mine = 'target = "vendor_toy:good"\npath = ["lib"]\n'
    Path("kvref.toml").write_text(mine)
    ran = kvref("init")
    assert (ran.exit_code, "left as is   kvref.toml" in ran.output) == (0, True)
    assert Path("kvref.toml").read_text() == mine
    WORKFLOW.write_text("mine")
    ran = kvref("init")
    assert (ran.exit_code, f"left as is   {WORKFLOW}" in ran.output, "written" in ran.output) == (
        0,
        True,
        False,
    )
    assert WORKFLOW.read_text() == "mine"


def test_a_profile_in_pyproject_is_one() -> None:
    Path("pyproject.toml").write_text('[tool.kvref]\ntarget = "vendor_toy:good"\npath = ["lib"]\n')
    assert "left as is   pyproject.toml" in kvref("init").output
    assert not Path("kvref.toml").exists()


def test_a_target_that_cannot_be_loaded_leaves_nothing_behind(folder: Path) -> None:
    assert kvref("init", "nowhere:target").exit_code == 2
    assert [path.name for path in folder.iterdir()] == ["lib"]


def test_what_has_to_be_filled_in_is_said() -> None:
    wanted = Wanted("vllm==0.32.0:acme", ("acmert",), ("build/plugin",))
    text = profile(wanted, described("lanes", "head_size"))
    assert tomllib.loads(text) == {
        "target": "vllm==0.32.0:acme",
        "stubs": ["acmert"],
        "path": ["build/plugin"],
    }
    assert "# [strategies.AcmeSpec]\n# lanes = []\n\n" in text
    # With its gaps filled in and its examples uncommented, the file is a valid profile.
    filled = text.replace("# [", "[").replace("\n# lanes = []", "\nlanes = [4]")
    for line in ("block_sizes", "law", "subject", "issue", "until"):
        filled = filled.replace(f"# {line} = ", f"{line} = ")
    Path("kvref.toml").write_text(filled.replace('"https://..."', '"https://example.org/1"'))
    Path("build/plugin").mkdir(parents=True)
    declared = choose_profile("kvref.toml", None)
    assert declared.strategies == {"AcmeSpec": {"lanes": [4]}}
    assert declared.capabilities == {"block_sizes": [128, 256]}
    assert [entry.law for entry in declared.known] == ["spec.merge-identity"]


def test_no_name_gets_out_of_a_comment() -> None:
    text = profile(Wanted('a"b\n:c', (), ("x\ny",)), described("f\ng = 1", name="A\nB = 2"))
    assert tomllib.loads(text) == {"target": 'a"b\n:c', "path": ["x\ny"]}
    assert not profile(Wanted("a:b"), described("f", role="group")).count("strategies")


STEP = "      - name: "


@pytest.mark.parametrize(
    ("wanted", "steps"),
    [
        (
            Wanted("vllm==0.32.0:acme", (), ("build/plugin",)),
            ["Prepare vLLM", "Install the target where"],
        ),
        (Wanted("vllm==0.32.0"), ["Prepare vLLM", "Install the target\n"]),
        (Wanted("acme.kv:target"), ["Install the target\n"]),
    ],
)
def test_the_workflow(wanted: Wanted, steps: list[str]) -> None:
    text = workflow(wanted)
    assert ("Prepare vLLM" in text) == ("Prepare vLLM" in steps)
    places = [text.index(STEP + step) for step in ["Install kvref", *steps, "Check"]]
    assert places == sorted(places)
    assert "{%" not in text
    assert "${{ github.token }}" in text


def test_the_steps_of_the_workflow_are_commands_that_there_are() -> None:
    """The shell can parse each step, and the commands have the options that the steps use."""
    text = workflow(Wanted("vllm==0.32.0:acme", (), ("build/my plugin",)))
    assert "--target 'build/my plugin' ." in text
    commands = [line.partition("run: ")[2] for line in text.splitlines() if "run: " in line]
    block = text.partition("run: |\n")[2].partition("      - uses")[0]
    for command in [*commands, block]:
        if command != "|":
            subprocess.run(["bash", "-n", "-c", command], check=True)
    help_of = {name: kvref(name, "--help").output for name in ("check", "diff")}
    assert "--report" in help_of["check"]
    assert "--markdown" in help_of["diff"]
