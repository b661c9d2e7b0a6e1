"""The code of the how-to guides runs, and their commands print what the guides show."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvref_conformance.commands.cli import cli

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def consoles(page: str) -> list[list[str]]:
    """Each command that a page shows, followed by the output lines that it shows."""
    shown: list[list[str]] = []
    for line in "".join(blocks(page, "console")).splitlines():
        if line.startswith("$ "):
            shown.append([line.removeprefix("$ ")])
        else:
            shown[-1].append(line)
    return shown


def check(shown: list[str], code: int) -> None:
    """Run a command. It must print the shown lines in this order; `...` stands for any other lines."""
    command, *lines = shown
    program, *arguments = shlex.split(command)
    assert program == "kvref"
    done = CliRunner().invoke(cli, arguments, prog_name=program)
    said = iter([line.rstrip() for line in done.output.splitlines()])
    missing = [line for line in lines if line != "..." and line not in said]
    assert not missing, done.output
    assert done.exit_code == code, done.output


def profile(text: str) -> None:
    Path("kvref.toml").write_text(text, encoding="utf-8")


def test_check_a_target_that_is_not_vllm() -> None:
    (module,) = blocks("check-your-own.md", "python")
    (mended,) = re.findall(r"^ *self\.evict\(taken\)\n", module, re.MULTILINE)
    loaded, conformant, broken = consoles("check-your-own.md")
    file = Path("mypool.py")
    file.write_text(module)
    check(loaded, 0)
    check(conformant, 0)
    file.write_text(module.replace(mended, ""))
    check(broken, 1)
    (program,) = Path("report/repro").iterdir()
    environment = {**os.environ, "PYTHONPATH": ".", "PYTHONDONTWRITEBYTECODE": "1"}
    for text, code in ((module.replace(mended, ""), 1), (module, 0)):
        file.write_text(text)
        assert subprocess.run([sys.executable, program], env=environment).returncode == code


def test_declare_a_capability() -> None:
    (module,) = blocks("check-your-own.md", "python")
    Path("mypool.py").write_text(module)
    right, misspelt, untrue = blocks("declare-a-capability.md", "toml")
    explained, declared, judged, refused, broken = consoles("declare-a-capability.md")
    check(explained, 0)
    profile(right)
    check(declared, 0)
    check(judged, 0)
    profile(misspelt)
    check(refused, 2)
    profile(untrue)
    check(broken, 1)


def test_write_a_strategy() -> None:
    module, values = blocks("write-a-strategy.md", "python")
    (strategies,) = blocks("write-a-strategy.md", "toml")
    without, declared, judged = consoles("write-a-strategy.md")
    Path("lanes.py").write_text(module)
    check(without, 3)
    profile(strategies)
    check(declared, 0)
    check(judged, 0)
    Path("kvref.toml").unlink()
    Path("lanes.py").write_text(module + values)
    check([without[0], judged[-1]], 0)


def test_add_a_law() -> None:
    files = [*(ROOT / "conformance").rglob("*.py"), *(ROOT / "strategies").rglob("*.py")]
    sources = [
        unindented(file.read_text(encoding="utf-8")) for file in [*files, *(ROOT / "tests").glob("*.py")]
    ]
    shown = blocks("add-a-law.md", "python")
    assert len(shown) == 5
    assert [block for block in shown if not any(unindented(block) in source for source in sources)] == []
    (found,) = consoles("add-a-law.md")
    check(found, 1)


def unindented(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())
