"""Runs the tutorial, command by command in an empty folder, and with it the example plugin.

Each command must print what the tutorial shows. `...` there stands for any text.
"""

from __future__ import annotations

import datetime
import doctest
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from running import PYTHON, facets, rows

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = (DOCS / "tutorial.md").read_text(encoding="utf-8")
PLUGIN = DOCS / "example-plugin"

UNTIL = "2027-03-31"
"""A date in the tutorial's profile. The test replaces it by one that is still to come."""

WHOLE = "kvref check"
PART = f"{WHOLE} --laws 'spec.[cimu]*' --laws manager.window-kept --laws drift.signature --report shipped"
"""The part of `kvref check` that the test runs: laws of the plugin's own classes, without slow ones."""


@dataclass
class Step:
    """A command, or lines to add to the profile, with the output that the tutorial shows."""

    command: str
    answer: str


def steps() -> Iterator[Step]:
    for kind, text in re.findall(r"^```(\w+)\n(.*?)^```", TUTORIAL, re.MULTILINE | re.DOTALL):
        if kind == "toml":
            yield Step(f"cat >> kvref.toml <<'END'\n{text}END", "")
        elif kind == "console":
            for one in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                yield Step(*one.split("\n", 1))


@dataclass
class Ran:
    folder: Path
    answers: list[tuple[Step, str]]
    errors: str

    def report(self, name: str) -> dict[str, Any]:
        report: dict[str, Any] = json.loads((self.folder / name / "report.json").read_text())
        return report


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The tutorial, run by one shell, as a reader would."""
    folder = tmp_path_factory.mktemp("tutorial")
    later = str(datetime.date.today() + datetime.timedelta(days=30))
    # `mark` keeps `$?`, which the next command may read.
    script = ["mark() { local code=$?; printf '\\n<%s>\\n' \"$1\"; return $code; }"]
    told = list(steps())
    for number, step in enumerate(told):
        command = PART if step.command == WHOLE else step.command.replace(UNTIL, later)
        script += [f"mark {number}", command]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "PYTHONPATH")}
    environment |= {"VLLM": PYTHON, "EXAMPLE": str(PLUGIN)}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    said = re.split(r"^<\d+>\n", done.stdout.replace(later, UNTIL), flags=re.MULTILINE)[1:]
    return Ran(folder, list(zip(told, said, strict=True)), done.stderr)


def test_the_tutorial_is_true(ran: Ran) -> None:
    checker, false = doctest.OutputChecker(), []
    for step, said in ran.answers:
        # A mark begins with a newline, which is not part of the output.
        if not checker.check_output(step.answer.rstrip("\n"), said.rstrip("\n"), doctest.ELLIPSIS):
            false.append(f"$ {step.command}\n{said}--- instead of ---\n{step.answer}")
    assert not false, "\n\n".join([*false, ran.errors])


def test_as_shipped_it_conforms(ran: Ran) -> None:
    report = ran.report("shipped")
    assert report["verdict"] == "conformant"
    assert {row["status"] for row in report["laws"]} == {"holds", "known", "inherited"}
    for law, subjects in {
        "spec.merge-identity": {"BankedSpec", "BankedWindowSpec"},
        "spec.copy-consistent": {"BankedSpec", "BankedWindowSpec"},
        "manager.window-kept": {"BankedSpec", "BankedWindowSpec"},
        "drift.signature": {"BankedSpec", "BankedWindowSpec", "BankedWindowManager"},
    }.items():
        assert facets(report, law, "holds") == {(subject, "") for subject in subjects}
        assert all(row["examples"] for row in rows(report, law))


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("report", ("spec.merge-identity", "BankedSpec", "bank_bytes")),
        ("window", ("manager.window-kept", "BankedWindowSpec", "freed")),
    ],
)
def test_each_fault_is_found_by_the_law_that_is_told(
    ran: Ran, fault: str, found: tuple[str, str, str]
) -> None:
    """The finding has a program, which names the plugin that it needs."""
    report = ran.report(fault)
    (row,) = [row for row in report["laws"] if row["status"] not in ("holds", "not-applicable")]
    assert (row["id"], row["subject"], row["facet"], row["status"]) == (*found, "broken")
    program = (ran.folder / fault / row["repro"]).read_text(encoding="utf-8")
    assert "vllm_bankdev must be installed, or in a folder of PYTHONPATH." in program
