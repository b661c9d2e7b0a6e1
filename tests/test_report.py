from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings, strategies as st
from rich.console import Console

from kvref_conformance.documents import baseline as baselines
from kvref_conformance.documents.baseline import Known
from kvref_conformance.documents.causes import Cause, Severity
from kvref_conformance.documents.folder import ForeignDirectory, claim
from kvref_conformance.documents.names import repro_name, slug, trace_digest, trace_name
from kvref_conformance.documents.results import Result, Row, Status, Trace
from kvref_conformance.documents.schemas import InvalidDocument, validate
from kvref_conformance.laws import LAWS
from kvref_conformance.laws.core import Law, Level
from kvref_conformance.report.files import write_report
from kvref_conformance.report.narrate import describe_operation, describe_outcome, narrate
from kvref_conformance.report.progress import is_live, progress
from kvref_conformance.report.terminal import Invocation, open_console, render, render_laws, render_setup
from kvref_conformance.report.text import visible

MLA: dict[str, Any] = {
    "class": "MLAAttentionSpec",
    "fields": {"block_size": 16, "num_kv_heads": 1, "dtype": "torch.float16", "alignment": 576},
}
FULL = {"class": "FullAttentionSpec", "fields": {"block_size": 16}}

HOSTILE = [
    "\x1b[31mred\x1b[0m\x1b]8;;http://evil\x07link",
    "[bold red]markup[/bold red] [/] [link=http://evil]x[/link] :boom:",
    "<script>alert('x')</script> & ]]> \" '",
    "line one\nline two\r\nthree\tfour\x00\x08\x85\u2028\ufffe\ud800",
    "\u202eright to left\u2066\u200b\u200d",
    "x" * 1_000_000,
    "",
    "../../../../etc/passwd",
    "/etc/passwd",
    "C:\\Windows\\..\\x",
    "....//....//",
    ".hidden",
    "-rf",
    "日本語 \N{PILE OF POO} e\u0301",
]


def op(name: str, /, **args: Any) -> dict[str, Any]:
    return {"op": name, "args": args}


BUILD_AND_MERGE = [op("specs.build", spec=MLA), op("specs.merge", specs=[MLA])]


def trace_of(row: Row, *runs: list[dict[str, Any]], flags: tuple[str, ...] = ()) -> Trace:
    return {
        "schema": "kvref.trace/1",
        "law": row.law,
        "subject": row.subject,
        "facet": row.facet,
        "target": {"name": "vllm", "version": "0.32.0"},
        "runs": [{"flags": list(flags), "operations": operations} for operations in runs],
    }


def broken(law: str, level: Level, subject: str, facet: str = "", **fields: Any) -> Row:
    row = Row(law, level, subject, Status.BROKEN, facet, examples=37, seconds=0.41, **fields)
    row.trace = trace_of(row, BUILD_AND_MERGE)
    row.program = "raise SystemExit(1)\n"
    return row


def result_of(*rows: Row, **fields: Any) -> Result:
    target = {"name": "vllm", "version": "0.32.0", "plugin": None, "capabilities": {"b": 1, "a": [2]}}
    settings = {
        "seed": 0,
        "depth": "quick",
        "strict": False,
        "baseline": "vllm-0.32.0",
        "environment": {"torch": "2.13.0", "python": "3.11"},
        "elapsed_seconds": 41.2,
    }
    return Result(**{"target": target, **settings, **fields}, rows=list(rows))


def small() -> Result:
    rows = [
        Row(
            "spec.merge-identity",
            Level.SAFETY,
            "FullAttentionSpec",
            Status.HOLDS,
            examples=100,
            steps=300,
            seconds=0.4,
            exploring_seconds=0.2,
        ),
        broken(
            "spec.refusals",
            Level.ROBUSTNESS,
            "MLAAttentionSpec",
            observed="accepted with -O",
            message="no such refusal is in the plan either",
        ),
        broken(
            "spec.merge-identity",
            Level.SAFETY,
            "MLAAttentionSpec",
            "alignment",
            expected="merge([s]) == s",
            observed="alignment is None, was 576",
            message="expected merge([s]) == s; observed alignment is None, was 576",
        ),
        Row(
            "spec.merge-identity",
            Level.SAFETY,
            "MLAAttentionSpec",
            Status.KNOWN,
            "padding",
            examples=37,
            seconds=0.41,
            message="vLLM issue 12345: the padding of a merged spec is that of the first",
        ),
        Row(
            "registry.order-free",
            Level.SAFETY,
            "registry",
            Status.INCOMPLETE,
            examples=7,
            seconds=10.0,
            message="the budget was spent",
        ),
        Row("registry.hook-once", Level.SAFETY, "A", Status.NOT_APPLICABLE, message="no part 'registry'"),
        Row("registry.hook-once", Level.SAFETY, "B", Status.NOT_APPLICABLE, message="no part 'registry'"),
    ]
    return result_of(*rows, notes=["a known deviation of spec.x [Y] no longer breaks"])


def rendered(result: Result, width: int = 80, **options: Any) -> str:
    output = io.StringIO()
    render(result, Console(file=output, width=width), **options)
    return output.getvalue()


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


# ---- files


def test_files_are_complete_valid_and_named(tmp_path: Path) -> None:
    result = small()
    written = write_report(result, tmp_path / "new" / "report")
    files = contents(tmp_path / "new" / "report")
    assert sorted(files) == sorted(
        path.relative_to(tmp_path / "new" / "report").as_posix() for path in written
    )
    assert written[0].name == "report.json"
    report = json.loads(files["report.json"])
    validate(report, "report")
    assert [(row["id"], row["subject"], row["facet"]) for row in report["laws"]] == [
        (row.law, row.subject, row.facet) for row in result.rows
    ]
    assert report["verdict"] == "not conformant"
    assert report["totals"] == result.totals
    assert list(report["environment"]) == ["python", "torch"]
    assert list(report["target"]["capabilities"]) == ["a", "b"]
    for row, told in zip(result.rows, report["laws"], strict=True):
        assert (told["trace"], told["repro"]) == (trace_name(row), repro_name(row))
        if row.trace is not None:
            stem = f"{row.law}-{trace_digest(row.trace)}"
            assert (told["trace"], told["repro"]) == (f"traces/{stem}.json", f"repro/{stem}.py")
            trace = json.loads(files[told["trace"]])
            validate(trace, "trace")
            assert trace == row.trace
            assert files[told["repro"]].decode() == row.program


def test_the_same_run_gives_the_same_files_apart_from_times(tmp_path: Path) -> None:
    slower = small()
    slower.elapsed_seconds *= 2
    for row in slower.rows:
        row.seconds *= 2
    write_report(small(), tmp_path / "one")
    write_report(small(), tmp_path / "two")
    write_report(slower, tmp_path / "slower")
    one, two, other = (contents(tmp_path / name) for name in ("one", "two", "slower"))
    assert one == two
    assert one != other

    def timeless(document: bytes) -> str:
        return re.sub(
            r'("(?:elapsed_|exploring_)?seconds": )[0-9.]+|time="[0-9.]+"|[0-9.]+ s(?=</dd>)',
            r"\1",
            document.decode(),
        )

    assert {n: timeless(c) for n, c in one.items()} == {n: timeless(c) for n, c in other.items()}


def test_the_digest_tells_traces_apart_and_nothing_else() -> None:
    row = broken("spec.merge-identity", Level.SAFETY, "MLAAttentionSpec", "alignment")
    trace = trace_of(row, BUILD_AND_MERGE)
    assert re.fullmatch("[0-9a-f]{8}", trace_digest(trace))
    same = [
        {**trace, "target": {"name": "vllm", "version": "0.33.0"}},
        dict(reversed(trace.items())),
    ]
    different = [
        {**trace, "law": "spec.other"},
        {**trace, "subject": "Other"},
        {**trace, "facet": ""},
        trace_of(row, BUILD_AND_MERGE, flags=("-O",)),
        trace_of(row, BUILD_AND_MERGE, []),
        trace_of(row, BUILD_AND_MERGE[::-1]),
    ]
    assert {trace_digest(t) for t in same} == {trace_digest(trace)}
    assert len({trace_digest(t) for t in [trace, *different]}) == 1 + len(different)


def test_a_second_report_replaces_the_first_and_spares_what_is_not_its_own(tmp_path: Path) -> None:
    write_report(small(), tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "repro" / "README").write_text("mine")
    (tmp_path / "repro" / "mine.py").write_text("mine")
    (tmp_path / "traces" / ".spec.x-12345678.json.0badc0de.tmp").write_text("half")
    healed = result_of(Row("spec.merge-identity", Level.SAFETY, "A", Status.HOLDS, examples=1))
    write_report(healed, tmp_path)
    assert set(contents(tmp_path)) == {
        "report.json",
        "badge.json",
        "report.html",
        "junit.xml",
        "notes.txt",
        "repro/README",
        "repro/mine.py",
    }
    assert json.loads((tmp_path / "report.json").read_text())["verdict"] == "conformant"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("thesis.tex", "years of work"),
        (".gitignore", "*"),
        ("report.json", "{}"),
        ("report.json", "[]"),
        ("report.json", "not json"),
        ("report.json", '{"schema": "kvref.report/2"}'),
        ("report.json", '{"schema": "pytest-json-report"}'),
    ],
)
def test_a_foreign_directory_is_left_alone(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "x-12345678.json").write_text("precious")
    before = contents(tmp_path)
    with pytest.raises(ForeignDirectory, match="name a new or empty directory") as caught:
        write_report(small(), tmp_path)
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(ForeignDirectory):
        claim(tmp_path)
    assert contents(tmp_path) == before


def test_a_claimed_directory_takes_a_report(tmp_path: Path) -> None:
    for _ in range(2):
        claim(tmp_path / "report")
        write_report(small(), tmp_path / "report")


def test_a_file_or_a_linked_folder_is_no_report_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ForeignDirectory, match="not a directory"):
            write_report(small(), place)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x-12345678.json").write_text("precious")
    write_report(result_of(), tmp_path / "report")
    (tmp_path / "report" / "traces").symlink_to(elsewhere)
    with pytest.raises(ForeignDirectory, match="traces"):
        write_report(small(), tmp_path / "report")
    assert contents(elsewhere) == {"x-12345678.json": b"precious"}


def test_files_that_are_links_are_replaced_not_followed(tmp_path: Path) -> None:
    directory = tmp_path / "report"
    write_report(small(), directory)
    (tmp_path / "outside").write_text("precious")
    (directory / "junit.xml").unlink()
    (directory / "junit.xml").symlink_to(tmp_path / "outside")
    write_report(small(), directory)
    assert (tmp_path / "outside").read_text() == "precious"
    assert not (directory / "junit.xml").is_symlink()


def test_an_interrupted_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(small(), tmp_path)
    before = contents(tmp_path)

    def fail(source: object, destination: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(result_of(), tmp_path)
    assert contents(tmp_path) == before


def test_an_invalid_trace_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    result = small()
    row = broken("spec.x", Level.SAFETY, "A")
    row.trace = {**trace_of(row, []), "runs": [{"flags": ["-c"], "operations": []}]}
    result.rows.append(row)
    with pytest.raises(InvalidDocument, match=r"\$\.runs\[0\]\.flags\[0\]"):
        write_report(result, tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_values_json_cannot_say_become_opaque(tmp_path: Path) -> None:
    row = broken("spec.x", Level.SAFETY, "A")
    row.trace = trace_of(
        row, [op("specs.build", spec={"cap": float("inf"), "pair": (1, 2), "map": {3: {4}}})]
    )
    result = result_of(row)
    result.target["capabilities"] = {"limit": float("nan")}
    write_report(result, tmp_path)

    def refuse(token: str) -> None:
        raise AssertionError(token)

    report = json.loads((tmp_path / "report.json").read_text(), parse_constant=refuse)
    assert report["target"]["capabilities"] == {"limit": {"opaque": "nan"}}
    trace = json.loads((tmp_path / report["laws"][0]["trace"]).read_text(), parse_constant=refuse)
    assert trace["runs"][0]["operations"][0]["args"]["spec"] == {
        "cap": {"opaque": "inf"},
        "pair": [1, 2],
        "map": {"3": {"opaque": "{4}"}},
    }


def test_a_program_without_a_trace_is_written(tmp_path: Path) -> None:
    row = broken("spec.x", Level.SAFETY, "A")
    row.trace, row.program = None, "print('\ud800')\n"
    write_report(result_of(row), tmp_path)
    (program,) = (tmp_path / "repro").iterdir()
    assert program.read_text() == "print('\\ud800')\n"
    assert json.loads((tmp_path / "report.json").read_text())["laws"][0]["trace"] is None


# ---- hostile names


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


# ---- junit


def test_junit_tells_what_the_verdict_tells(tmp_path: Path) -> None:
    write_report(small(), tmp_path)
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    counts = ("tests", "failures", "errors", "skipped")
    assert [root.get(kind) for kind in counts] == ["7", "1", "1", "3"]
    suites = {suite.attrib["name"]: [suite.get(kind) for kind in counts] for suite in root}
    assert suites == {"spec": ["4", "1", "0", "1"], "registry": ["3", "0", "1", "2"]}
    cases = {(case.get("classname"), case.get("name")): case for case in root.iter("testcase")}
    failed = cases["spec.merge-identity", "MLAAttentionSpec: alignment"]
    (failure,) = failed
    assert failure.tag == "failure"
    assert failure.get("message") == "expected merge([s]) == s; observed alignment is None, was 576"
    assert "merge [the spec]" in (failure.text or "")
    (reported,) = cases["spec.refusals", "MLAAttentionSpec"]
    assert reported.tag == "system-out"
    assert "--strict" in (reported.text or "")
    (error,) = cases["registry.order-free", "registry"]
    assert (error.tag, error.get("type")) == ("error", "incomplete")
    (skipped,) = cases["spec.merge-identity", "MLAAttentionSpec: padding"]
    assert (skipped.get("message") or "").startswith("known: vLLM issue 12345")
    assert len(cases["spec.merge-identity", "FullAttentionSpec"]) == 0


def test_with_strict_a_robustness_law_fails_its_case(tmp_path: Path) -> None:
    write_report(dataclasses.replace(small(), strict=True), tmp_path)
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert root.get("failures") == "2"
    assert root.findall(".//system-out") == []


# ---- terminal

SNAPSHOT = """\
broken  spec.merge-identity [MLAAttentionSpec: alignment]  safety
  expected  merge([s]) == s
  observed  alignment is None, was 576
  trace     build MLAAttentionSpec(block_size=16, num_kv_heads=1,
                dtype=float16, alignment=576)
            merge [the spec]
  program   out/repro/spec.merge-identity-{merge}.py
  explain   kvref explain spec.merge-identity
  replay    kvref replay out/traces/spec.merge-identity-{merge}.json

broken  spec.refusals [MLAAttentionSpec]  robustness: counts with --strict
    only
  observed  accepted with -O
  remark    no such refusal is in the plan either
  trace     build MLAAttentionSpec(block_size=16, num_kv_heads=1,
                dtype=float16, alignment=576)
            merge [the spec]
  program   out/repro/spec.refusals-{refusals}.py
  explain   kvref explain spec.refusals
  replay    kvref replay out/traces/spec.refusals-{refusals}.json

incomplete  registry.order-free [registry]
  the budget was spent

area     laws subjects holds known broken open n.a. examples seconds
spec        2        2     1     1      2    -    -      174     1.2
registry    1        1     -     -      -    1    2        7    10.0
all         3        3     1     1      2    1    2      181    11.2

known: accepted, does not count; reasons: add -v
open: unconfirmed or incomplete
n.a.: not applicable; reasons: kvref doctor

note: a known deviation of spec.x [Y] no longer breaks

page: out/report.html
2 broken, 1 incomplete, 1 known, 1 holds, 2 not-applicable; depth quick,
    41.2 s
verdict: not conformant
next: kvref explain spec.merge-identity
"""

VERBOSE = """\
broken  spec.merge-identity [MLAAttentionSpec: alignment]  safety
  expected  merge([s]) == s
  observed  alignment is None, was 576
  trace     build MLAAttentionSpec(block_size=16, num_kv_heads=1,
                dtype=float16, alignment=576)
            merge [the spec]
  program   out/repro/spec.merge-identity-{merge}.py
  explain   kvref explain spec.merge-identity
  replay    kvref replay out/traces/spec.merge-identity-{merge}.json

broken  spec.refusals [MLAAttentionSpec]  robustness: counts with --strict
    only
  observed  accepted with -O
  remark    no such refusal is in the plan either
  trace     build MLAAttentionSpec(block_size=16, num_kv_heads=1,
                dtype=float16, alignment=576)
            merge [the spec]
  program   out/repro/spec.refusals-{refusals}.py
  explain   kvref explain spec.refusals
  replay    kvref replay out/traces/spec.refusals-{refusals}.json

incomplete  registry.order-free [registry]
  the budget was spent

known  spec.merge-identity [MLAAttentionSpec: padding]  vLLM issue 12345:
    the padding of a merged spec is that of the first

law                 level  holds broken open n.a. examples steps/s  time
spec.merge-identity safety     1      1    -    -      137    1500  0.8s
spec.refusals       robust     -      1    -    -       37       -  0.4s
registry.order-free safety     -      -    1    -        7       - 10.0s
registry.hook-once  safety     -      -    -    2        0       -  0.0s
open: unconfirmed or incomplete

not applicable: no part 'registry': registry.hook-once (2 subjects)

note: a known deviation of spec.x [Y] no longer breaks

page: out/report.html
2 broken, 1 incomplete, 1 known, 1 holds, 2 not-applicable; depth quick,
    41.2 s
verdict: not conformant
next: kvref explain spec.merge-identity
"""


def test_the_rendering_at_80_columns() -> None:
    result = small()
    digests = {row.law: trace_digest(row.trace) for row in result.rows if row.trace is not None}
    names = {"merge": digests["spec.merge-identity"], "refusals": digests["spec.refusals"]}
    assert rendered(result, directory=Path("out")) == SNAPSHOT.format(**names)
    assert rendered(result, directory=Path("out"), verbose=True) == VERBOSE.format(**names)


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_nothing_is_wider_than_the_console(width: int) -> None:
    for verbose in (False, True):
        lines = rendered(small(), width, verbose=verbose).splitlines()
        # Commands are not wrapped, so that you can copy them.
        assert max(len(line) for line in lines if "kvref " not in line) <= max(width, 36)


def test_the_path_of_a_program_stays_whole() -> None:
    directory = Path("/tmp") / ("long" * 40)
    lines = rendered(small(), directory=directory).splitlines()
    assert f"  program   {directory / str(repro_name(small().rows[2]))}" in lines
    assert f"  replay    kvref replay {directory / str(trace_name(small().rows[2]))}" in lines


def test_an_empty_result_and_a_clean_one_end_with_their_verdict() -> None:
    assert rendered(result_of()).splitlines() == [
        "no law was run; depth quick, 41.2 s",
        "verdict: incomplete",
        "next: kvref doctor",
    ]
    clean = result_of(Row("spec.x", Level.SAFETY, "A", Status.HOLDS, examples=3), strict=True)
    assert rendered(clean).splitlines()[-2:] == [
        "verdict: conformant",
        "next: kvref check --depth standard",
    ]
    assert set_up(clean).endswith(", strict\n\n")
    assert "program" not in rendered(small())


def test_what_is_set_up_is_one_line() -> None:
    assert (
        set_up(result_of(baseline=None)) == "vllm 0.32.0, Python 3.11, torch 2.13.0, depth quick, seed 0\n\n"
    )
    plugged = result_of(profile="kvref.toml")
    plugged.target["plugin"] = "acme (1.0)"
    assert set_up(plugged, 200) == (
        "vllm 0.32.0 with acme (1.0), Python 3.11, torch 2.13.0, depth quick, seed 0, "
        "baseline vllm-0.32.0, profile kvref.toml\n\n"
    )


def set_up(result: Result, width: int = 80) -> str:
    output = io.StringIO()
    render_setup(result, Console(file=output, width=width))
    return output.getvalue()


TYPED = Invocation(
    ["vllm==0.32.0", "--path", "a b"],
    [("--laws", "spec.*"), ("--laws", "pool.*"), ("--seed", "3"), ("--depth", "deep"), ("--strict",)],
)


@pytest.mark.parametrize(
    ("status", "more", "expected"),
    [
        (Status.HOLDS, {}, "check vllm==0.32.0 --path 'a b' --seed 3 --strict --depth standard"),
        (Status.HOLDS, {"depth": "standard"}, "fuzz vllm==0.32.0 --path 'a b' --seed 3"),
        (
            Status.HOLDS,
            {"selected": {"laws": ["spec.x"]}},
            "check vllm==0.32.0 --path 'a b' --seed 3 --depth deep --strict",
        ),
        (
            Status.BROKEN,
            {},
            "check vllm==0.32.0 --path 'a b' --seed 3 --depth deep --strict --laws spec.x"
            " --report kvref-report",
        ),
        (Status.UNCONFIRMED, {"directory": Path("out")}, "explain spec.x"),
        (Status.INCOMPLETE, {}, "doctor vllm==0.32.0 --path 'a b'"),
    ],
)
def test_the_next_command_fits(status: Status, more: dict[str, Any], expected: str) -> None:
    directory = more.pop("directory", None)
    result = result_of(Row("spec.x", Level.SAFETY, "A", status, examples=3), **more)
    typed = TYPED if result.selected or status in (Status.BROKEN, Status.INCOMPLETE) else WITHOUT_LAWS
    lines = rendered(result, directory=directory, invocation=typed).splitlines()
    assert lines[-1] == f"next: kvref {expected}"


WITHOUT_LAWS = dataclasses.replace(TYPED, options=[each for each in TYPED.options if each[0] != "--laws"])


def of_all_laws(*accepted: Known) -> Result:
    """A row for each law and each of ten classes, and a row for each accepted finding."""
    rows = []
    for law in LAWS.values():
        known = [each for each in accepted if each.law == law.id]
        rows += [
            Row(
                law.id,
                law.level,
                each.subject,
                Status.KNOWN,
                each.facet,
                90,
                seconds=2.0,
                message=each.message,
                cause=each.cause,
            )
            for each in known
        ]
        for number in range(10):
            status = Status.NOT_APPLICABLE if number == 9 else Status.HOLDS
            rows.append(Row(law.id, law.level, f"Class{number}Spec", status, examples=12345, seconds=1234.5))
    return result_of(*rows)


@pytest.mark.parametrize(
    ("accepted", "most"), [((), 40), (baselines.shipped("vllm", "0.32.0").known, 60)], ids=["none", "vllm"]
)
def test_what_is_in_order_takes_a_line_for_each_area(accepted: tuple[Known, ...], most: int) -> None:
    result = of_all_laws(*accepted)
    result.notes = ["kvref does not know the kind of these classes: " + "SomeVendorSpec, " * 6]
    lines = (set_up(result) + rendered(result, directory=Path("kvref-report"))).splitlines()
    assert len(lines) < most
    assert max(map(len, lines)) <= 80
    for area in {law.area for law in LAWS.values()}:
        assert sum(line.startswith(f"{area} ") for line in lines) == 1
    causes = {each.cause.id for each in accepted if each.cause}
    assert all(len(re.findall(rf"(?<![\w-]){cause}(?![\w-])", "\n".join(lines))) == 1 for cause in causes)
    assert len(rendered(result, verbose=True).splitlines()) > len(LAWS)


CAUSE = Cause("merge-drops", "merge drops a field.", Severity.CRASH, "Copies lack it.", "https://x.org/1")
OTHER = Cause("hash-lost", "The hash is lost.", Severity.WRONG_OUTPUT)


def caused(cause: Cause | None, facet: str, message: str = "") -> Row:
    message = message or (cause.title if cause else "issue 1")
    return Row("spec.x", Level.SAFETY, "A", Status.KNOWN, facet, 9, message=message, cause=cause)


def test_what_is_known_is_grouped_by_cause() -> None:
    rows = [caused(CAUSE, "f"), caused(CAUSE, "g", "It drops g."), caused(OTHER, "h"), caused(None, "i")]
    result = result_of(*rows)
    lines = rendered(
        result, invocation=Invocation(["toy"], [("--baseline", "b"), ("--strict",)])
    ).splitlines()
    place = lines.index("2 known causes, worst first; all of them: kvref causes --baseline b toy")
    assert lines[place + 1 : place + 4] == [
        "wrong output  hash-lost (1): The hash is lost.",
        "crash  merge-drops (2): merge drops a field.",
        "",
    ]
    assert "verdict: conformant, with 2 known causes in vllm 0.32.0" in lines
    full = rendered(result, verbose=True).splitlines()
    place = full.index("known  spec.x [A: i]  issue 1")
    assert full[place + 1 : place + 10] == [
        "",
        "wrong output  hash-lost (1): The hash is lost.",
        "  spec.x [A: h]",
        "",
        "crash  merge-drops (2): merge drops a field.",
        "  Copies lack it.",
        "  https://x.org/1",
        "  spec.x [A: f]",
        "  spec.x [A: g]: It drops g.",
    ]


def test_only_a_verdict_without_findings_names_known_causes() -> None:
    assert "verdict: not conformant" in rendered(result_of(*small().rows, caused(CAUSE, "f"))).splitlines()
    assert "verdict: conformant" in rendered(result_of(caused(None, "f"))).splitlines()


def test_machines_read_the_causes(tmp_path: Path) -> None:
    write_report(result_of(caused(CAUSE, "f"), caused(CAUSE, "g"), caused(None, "h")), tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["causes"] == [
        {
            "id": "merge-drops",
            "title": "merge drops a field.",
            "severity": "crash",
            "detail": "Copies lack it.",
            "link": "https://x.org/1",
            "rows": 2,
        }
    ]
    assert [row.get("cause") for row in report["laws"]] == ["merge-drops", "merge-drops", None]
    assert (
        'message="known (crash, merge-drops): merge drops a field."' in (tmp_path / "junit.xml").read_text()
    )


def test_many_findings_of_a_law_take_a_line_each() -> None:
    rows = [broken("spec.x", Level.SAFETY, f"Class{n}") for n in range(30)]
    rows += [broken("spec.y", Level.SAFETY, "Class0")]
    lines = rendered(result_of(*rows)).splitlines()
    assert sum(line.startswith("broken  spec.x [") for line in lines) == 30
    assert lines.count("  explain   kvref explain spec.x") == 3
    assert lines.count("  explain   kvref explain spec.y") == 1
    assert "These 27 in full: add -v" in lines
    assert rendered(result_of(*rows), verbose=True).count("  explain   ") == 31


def test_of_a_long_trace_the_end_is_shown() -> None:
    row = broken("spec.x", Level.SAFETY, "A")
    row.trace = trace_of(row, [op("pool.touch", blocks=[n]) for n in range(20)])
    lines = rendered(result_of(row)).splitlines()
    assert "  trace     ... 12 operations; -v shows them" in lines
    assert [line.strip() for line in lines if "touch block" in line] == [
        f"touch block {n}" for n in range(12, 20)
    ]
    assert rendered(result_of(row), verbose=True).count("touch block") == 20


def test_without_colour_there_are_no_control_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TERM", "dumb"), ("NO_COLOR", "1")):
        with monkeypatch.context() as patch:
            patch.setenv("TERM", "xterm-256color")
            patch.setenv("FORCE_COLOR", "1")  # rich takes the output for a terminal
            patch.delenv("NO_COLOR", raising=False)
            patch.setenv(name, value)
            plain = open_console()
            assert plain.is_terminal
            assert not is_live(plain)
            plain.file = io.StringIO()
            render(small(), plain)
            assert "\x1b" not in plain.file.getvalue()
            patch.setenv("TERM", "xterm-256color")
            patch.delenv("NO_COLOR", raising=False)
            coloured = open_console()
            coloured.file = io.StringIO()
            render(small(), coloured)
            assert "\x1b" in coloured.file.getvalue()
            assert is_live(coloured)


def test_render_laws() -> None:
    law = Law(
        "spec.x", Level.SAFETY, "[b]It[/b] holds.", "Else it breaks.", ("issue 1",), "w", lambda runs: 0
    )
    output = io.StringIO()
    render_laws([law], Console(file=output, width=80))
    end = "\n1 law in 1 area\nnext: kvref explain spec.x\n"
    assert output.getvalue() == f"spec.x  safety\n  [b]It[/b] holds.\n{end}"
    render_laws([law], Console(file=output, width=80), verbose=True)
    assert output.getvalue().endswith(f"  why: Else it breaks.\n  source: issue 1\n{end}")


# ---- narration


@pytest.mark.parametrize(
    ("operation", "told"),
    [
        (op("specs.build", spec=FULL), "build FullAttentionSpec(block_size=16)"),
        (
            op("specs.copy", spec=FULL, block_size=32),
            "copy FullAttentionSpec(block_size=16) with block_size=32",
        ),
        (op("specs.merge", specs=[FULL, FULL]), "merge [FullAttentionSpec(block_size=16), the same]"),
        (op("specs.merge", specs=[]), "merge []"),
        (op("registry.define_spec", name="A", bases=["B", "C"]), "define class A(B, C)"),
        (op("registry.define_manager", name="M", base="N"), "define class M(N)"),
        (op("registry.initialise"), "initialise the registry, as an engine does at start"),
        (
            op("registry.install_hook", registrations=[{"spec_class": "A", "manager": "M", "base": "B"}]),
            "install a platform hook that registers A -> M (base B)",
        ),
        (op("registry.install_hook", registrations=[]), "install a platform hook that registers nothing"),
        (op("registry.register", spec_class="A", manager="M", base=None), "register A -> M"),
        (
            op("registry.decorate", spec_class="A", manager="M", base="B"),
            "register A -> M (base B) with the decorator",
        ),
        (op("registry.lookup", spec=FULL), "look up FullAttentionSpec(block_size=16)"),
        (op("registry.table"), "look up every spec class"),
        (
            op("registry.check", layers={"layer.0": FULL}),
            "check that the layers layer.0: FullAttentionSpec(block_size=16) are registered",
        ),
        (
            op(
                "tensors.allocate",
                layers={"a": FULL},
                num_blocks=3,
                layout="LBNHC",
                kernel_block_size=None,
                sharing=[["b", "a"]],
            ),
            "allocate the layers a: FullAttentionSpec(block_size=16) with num_blocks=3, layout='LBNHC'; "
            "b shares with a",
        ),
        (
            op("sharing.join", groups=[["a"]], sharing=[["b", "a"], ["c", "b"]], times=2),
            "let layers join the groups [['a']], 2 times: b shares with a, c shares with b",
        ),
        (
            op("sharing.join", groups=[["a"]], sharing=[], times=1),
            "let layers join the groups [['a']], once: none",
        ),
        (op("other.free", blocks=[1, 2], dtype="torch.int8"), "other.free(blocks=[1, 2], dtype=int8)"),
        (op("specs.merge", things=3), "specs.merge(things=3)"),
        (op("specs.merge", specs=3), "specs.merge(specs=3)"),
    ],
)
def test_operations_are_told(operation: dict[str, Any], told: str) -> None:
    assert describe_operation(operation) == told


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        ({"value": None}, "done"),
        ({"value": [0, 1]}, "[0, 1]"),
        ({"value": list(range(20))}, "[0, 1, 2, 3, 4, 5, 6, 7, ... 12 more]"),
        ({"value": {"manager": "M", "base": "A"}}, "manager M, base A"),
        ({"value": {"manager": None, "base": None}}, "not registered"),
        ({"value": {**FULL, "page_size_bytes": 64}}, "FullAttentionSpec(block_size=16), 64 bytes a page"),
        ({"value": {"enum": "KVQuantMode", "name": "NONE"}}, "KVQuantMode.NONE"),
        ({"value": "0f" * 32}, repr("0f" * 32)),
        ({"value": "0f" * 33}, "0f" * 32 + "... (33 bytes)"),
        (
            {"value": {"buffers": [96], "groups": [["a"]], "layers": {"a": {}}}},
            "allocations of [96] bytes, layers in groups [['a']]",
        ),
        (
            {"value": {"tensors": [{"shape": [3, 32]}], "groups": [[{"tensor": 0}], []]}},
            "tensors of shape [[3, 32]], those of each group [[0], []]",
        ),
        ({"value": {"groups": [["a", "b"]]}}, "{groups: [['a', 'b']]}"),
        ({"value": {"fraction": [1, 4]}}, "1/4"),
        ({"value": {"opaque": "<x>"}}, "<x>"),
        ({"value": {"a": "torch.float16", "b": "text"}}, "{a: float16, b: 'text'}"),
        ({"error": {"type": "ValueError", "message": "no"}}, "raises ValueError: no"),
        ({"error": {"type": "AssertionError", "message": ""}}, "raises AssertionError"),
        ({"died": "killed by SIGSEGV"}, "the process died: killed by SIGSEGV"),
        ({"odd": 1}, "{'odd': 1}"),
    ],
)
def test_outcomes_are_told(outcome: dict[str, Any], told: str) -> None:
    assert describe_outcome(outcome) == told


def test_built_specs_are_referred_to() -> None:
    one = {"flags": [], "operations": [op("specs.build", spec=FULL), op("specs.merge", specs=[FULL, MLA])]}
    assert list(narrate([one]))[1].startswith("merge [the spec, MLAAttentionSpec(")
    two = {"flags": [], "operations": [op("specs.build", spec=FULL), op("specs.build", spec=MLA)]}
    two["operations"].append(op("specs.merge", specs=[MLA, MLA, FULL]))
    lines = list(narrate([two]))
    assert lines[0] == "build FullAttentionSpec(block_size=16) as s1"
    assert lines[2] == "merge [s2, s2, s1]"


def test_processes_are_told_apart() -> None:
    run = [op("registry.initialise")]
    told = "initialise the registry, as an engine does at start"
    plain, optimised = {"flags": [], "operations": run}, {"flags": ["-O"], "operations": run}
    assert list(narrate([plain])) == [told]
    assert list(narrate([optimised])) == ["in a fresh process, python -O:", told]
    assert list(narrate([plain, optimised])) == [
        "in a fresh process, python:",
        told,
        "in a fresh process, python -O:",
        told,
    ]


def test_events_are_told_with_what_they_answered() -> None:
    answer = {"value": {**FULL, "page_size_bytes": 64}}
    events = [
        {**op("specs.build", spec=FULL), "outcome": answer},
        {**op("specs.merge", specs=[FULL]), "outcome": answer},
    ]
    assert list(narrate([{"flags": [], "operations": events}])) == [
        "build FullAttentionSpec(block_size=16)",
        "merge [the spec]  -> FullAttentionSpec(block_size=16), 64 bytes a page",
    ]


def test_a_refused_build_says_so() -> None:
    refused = {**op("specs.build", spec=FULL), "outcome": {"error": {"type": "ValueError", "message": "no"}}}
    assert list(narrate([{"flags": [], "operations": [refused]}])) == [
        "build FullAttentionSpec(block_size=16)  -> raises ValueError: no"
    ]


# ---- progress


def test_without_a_terminal_progress_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    output = io.StringIO()
    with progress(Console(file=output), clock=lambda: now) as p:
        p.phase("loading vllm")
        p.unit_started("spec [A\x1b]")
        for examples in range(100):
            now += 1
            p.unit_progress("spec [A\x1b]", examples)
        p.unit_done("spec [A\x1b]")
        p.phase("running laws", units=2)
        now += 31
        p.unit_done("spec [B]")
    assert output.getvalue() == ""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "kvref: loading vllm",
        *(f"kvref: 0 units done; running spec [A\\x1b] ({n} examples)" for n in (29, 59, 89)),
        "kvref: running laws",
        "kvref: 2 of 2 units done",
    ]


def test_on_a_terminal_progress_is_live_and_shows_names_as_they_are() -> None:
    output = io.StringIO()
    console = Console(file=output, width=80, force_terminal=True, _environ={"TERM": "xterm"})
    with progress(console) as p:
        p.phase("loading vllm")
        p.unit_started("[bold]A[/bold]\x1b[5m")
        p.unit_progress("[bold]A[/bold]\x1b[5m", 12)
        p.unit_progress("never started", 12)
        p.unit_started("B")  # makes rich draw the display
        p.unit_done("[bold]A[/bold]\x1b[5m")
        p.unit_done("never started")
    text = output.getvalue()
    assert "loading vllm" in text
    assert "[bold]A[/bold]\\x1b[5m" in text
    assert "12 examples" in text
    assert "2 units done" in text
    assert "\x1b[5m" not in text


def test_the_report_needs_neither_torch_nor_hypothesis() -> None:
    script = (
        "import sys, kvref_conformance.report\n"
        "sys.exit(bool({'torch', 'hypothesis', 'pytest'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_names_of_laws_are_whole_where_rates_would_break_them() -> None:
    name = "registry.refusals-survive-O"
    rows = [
        Row(name, Level.SAFETY, each.value, each, "f", examples=1000, steps=10**7)
        for each in (Status.HOLDS, Status.KNOWN, Status.BROKEN)
    ]
    for row in rows:
        row.seconds = row.exploring_seconds = row.driven_seconds = 1.0
        row.driven_steps = 10**6
    assert "driven/s" in rendered(result_of(*rows), 200, verbose=True)
    narrow = rendered(result_of(*rows), 80, verbose=True)
    assert "driven/s" not in narrow
    assert any(line.startswith(f"{name} ") for line in narrow.splitlines())


def test_what_is_accepted_for_one_reason_is_told_once() -> None:
    def accepted(law: str, facet: str, status: Status, message: str) -> Row:
        return Row(law, Level.SAFETY, "A", status, facet, message=message)

    rows = [
        *(accepted("spec.x", facet, Status.KNOWN, "issue 1") for facet in "efgh"),
        accepted("spec.y", "c", Status.KNOWN, "issue 1"),
        accepted("spec.y", "d", Status.KNOWN, "issue 2"),
        accepted("spec.z", "", Status.INHERITED, "stock does"),
    ]
    assert rendered(result_of(*rows), verbose=True).splitlines()[:5] == [
        "inherited  spec.z [A]  stock does",
        "",
        "known  spec.x (4 rows), spec.y [A: c]  issue 1",
        "known  spec.y [A: d]  issue 2",
        "",
    ]
