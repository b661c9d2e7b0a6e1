"""The folder of a report: its files, and the results for JUnit."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from sample_results import BUILD_AND_MERGE, broken, contents, op, result_of, small, trace_of

from kvref_conformance.documents.folder import ForeignDirectory, claim
from kvref_conformance.documents.names import repro_name, trace_digest, trace_name
from kvref_conformance.documents.results import Row, Status
from kvref_conformance.documents.schemas import InvalidDocument, validate
from kvref_conformance.laws.core import Level
from kvref_conformance.report.files import write_report


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
