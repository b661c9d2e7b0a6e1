"""Names and messages of a target stay text wherever they are shown."""

from __future__ import annotations

import io
import json
import re
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings, strategies as st
from rich.console import Console
from sample_results import HOSTILE, broken, op, result_of, trace_of

from kvref_conformance.documents.names import slug
from kvref_conformance.documents.results import Result, Row, Status
from kvref_conformance.documents.schemas import validate
from kvref_conformance.laws.core import Level
from kvref_conformance.report.files import write_report
from kvref_conformance.report.terminal import render
from kvref_conformance.report.text import visible


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_strings_stay_text_everywhere(tmp_path: Path, text: str) -> None:
    _check_hostile(tmp_path / "report", text)
    assert list(tmp_path.iterdir()) == [tmp_path / "report"]


@settings(deadline=None, max_examples=60)
@given(st.text(st.characters(exclude_categories=()), max_size=30))
def test_any_string_stays_text_everywhere(text: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        _check_hostile(Path(directory), text)


def _check_hostile(directory: Path, text: str) -> None:
    law = text or "x"
    rows = [
        broken(law, level, text, text, message=text, expected=text, observed=text)
        for level in (Level.SAFETY, Level.ROBUSTNESS)
    ]
    for row in rows:
        row.trace = trace_of(
            row, [op("specs.build", spec={"class": text, "fields": {text: text}}), op("a.b", x=text)]
        )
    rows += [
        Row(law, Level.SAFETY, text, status, text, message=text)
        for status in Status
        if status is not Status.BROKEN
    ]
    result = result_of(*rows, notes=[text], depth=text, baseline=text, profile=text, environment={text: text})
    result.target |= {"name": law, "version": text, "plugin": text, "capabilities": {text: text}}

    for path in write_report(result, directory):
        assert path.resolve().is_relative_to(directory.resolve())
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,120}", path.name)
    report = json.loads((directory / "report.json").read_text())
    validate(report, "report")
    assert report["laws"][0]["subject"] == text
    for path in (directory / "traces").iterdir():
        validate(json.loads(path.read_text()), "trace")
    for path in directory.glob("*.json"):
        assert path.read_bytes().isascii()

    suites = ElementTree.parse(directory / "junit.xml").getroot()
    assert [len(suites.findall(f".//{tag}")) for tag in ("failure", "error", "skipped")] == [2, 2, 4]
    assert max(len(case.attrib["name"]) for case in suites.iter("testcase")) < 5_000

    for encoding in ("utf-8", "ascii"):
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
        console = Console(file=stream, width=80, force_terminal=True, color_system="truecolor")
        plain = re.sub(r"\x1b\[[0-9;]*m", "", _captured(result, console, stream, raw, encoding))
        assert [char for char in plain if not char.isprintable() and char != "\n"] == []
        assert len(plain) < 50_000
        if len(text) < 60 and text.isascii() and text.isprintable() and text.strip():
            assert f"note: {' '.join(text.split())}" in " ".join(plain.split())


def _captured(
    result: Result, console: Console, stream: io.TextIOWrapper, raw: io.BytesIO, encoding: str
) -> str:
    render(result, console)
    stream.flush()
    return raw.getvalue().decode(encoding)


def test_rich_never_sees_codes_of_the_target() -> None:
    """Markup stays as typed, and the only escape sequences are those of our own styles."""
    output = io.StringIO()
    console = Console(file=output, width=200, force_terminal=True, color_system="standard")
    result = result_of(broken("spec.x", Level.SAFETY, "[blink]A[/blink]", "\x1b[5mB"))
    render(result, console)
    assert "spec.x [[blink]A[/blink]: \\x1b[5mB]" in output.getvalue()
    assert "\x1b[5m" not in output.getvalue()


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_text_helpers(text: str) -> None:
    assert visible(text, 50).isprintable()
    assert len(visible(text, 50)) <= 50 * len("\\U0001f4a9")
    assert visible(visible(text, 50), 1_000) == visible(text, 50)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,79}", slug(text))


def test_visible_leaves_ordinary_text_alone() -> None:
    assert visible("spec.merge-identity [日本語] é") == "spec.merge-identity [日本語] é"
    assert visible("é", encoding="ascii") == "\\xe9"
    assert visible("abcdefghij", 8) == "abcde..."
