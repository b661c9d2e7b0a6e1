"""Which changes between two reports `kvref diff` reports."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Kvref
from rich.console import Console

from kvref_conformance.documents.diff import Diff, Kind, compare
from kvref_conformance.documents.results import Result, Row, Status
from kvref_conformance.documents.schemas import validate
from kvref_conformance.laws.core import Level
from kvref_conformance.report.diff import markdown, render_diff
from kvref_conformance.report.files import report_document

HOLDS, BROKEN, KNOWN, GAP = Status.HOLDS, Status.BROKEN, Status.KNOWN, Status.DECLARED_GAP
NA, OPEN, UNCONFIRMED, STALE = Status.NOT_APPLICABLE, Status.INCOMPLETE, Status.UNCONFIRMED, Status.STALE


def row(status: Status, facet: str = "", law: str = "pool.reset", subject: str = "pool", **told: str) -> Row:
    return Row(law, Level.SAFETY, subject, status, facet, **told)


def report(*rows: Row, **fields: Any) -> dict[str, Any]:
    told: dict[str, Any] = {
        "target": {"name": "toy", "version": "1", "plugin": None, "capabilities": {}},
        "seed": 0,
        "depth": "quick",
        "strict": False,
        "baseline": None,
        "environment": {"python": "3.11.2", "torch": "2.13.0"},
    }
    document = report_document(Result(**{**told, **fields}, rows=list(rows)))
    validate(document, "report")
    return document


def changes(old: list[Row], new: list[Row]) -> list[tuple[str, str, bool]]:
    diff = compare(report(*old), report(*new))
    return [(change.kind, change.facet, change.worse) for change in diff.changes]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([row(HOLDS)], [row(HOLDS)], []),
        ([row(BROKEN)], [row(BROKEN)], []),
        ([row(KNOWN, "a")], [row(Status.INHERITED, "a")], []),
        ([row(NA)], [row(GAP)], []),
        # Worse.
        ([row(HOLDS)], [row(BROKEN)], [("broken", "", True)]),
        ([row(HOLDS)], [row(BROKEN, "a"), row(BROKEN, "b")], [("broken", "a", True), ("broken", "b", True)]),
        ([row(BROKEN, "a")], [row(BROKEN, "a"), row(BROKEN, "b")], [("broken", "b", True)]),
        ([row(KNOWN, "a")], [row(BROKEN, "a")], [("broken", "a", True)]),
        ([row(NA)], [row(BROKEN, "a")], [("broken", "a", True)]),
        ([], [row(BROKEN, "a")], [("broken", "a", True)]),
        ([row(KNOWN, "a")], [row(STALE, "a")], [("stale", "a", True)]),
        ([row(HOLDS)], [row(STALE)], [("stale", "", True)]),
        ([row(HOLDS)], [row(OPEN)], [("open", "", True)]),
        ([row(KNOWN, "a")], [row(UNCONFIRMED, "a")], [("open", "a", True)]),
        ([], [row(OPEN)], [("open", "", True)]),
        ([row(HOLDS)], [row(KNOWN, "a")], [("known", "a", True)]),
        ([row(HOLDS)], [row(GAP)], [("unjudged", "", True)]),
        ([row(HOLDS)], [], [("gone", "", True)]),
        # The row of the whole subject changed, and the facet did not.
        ([row(KNOWN, "a")], [row(KNOWN, "a"), row(OPEN)], [("open", "", True)]),
        ([row(KNOWN, "a"), row(OPEN)], [row(KNOWN, "a")], [("judged", "", False)]),
        ([row(NA), row(KNOWN, "a")], [row(KNOWN, "a"), row(OPEN)], [("open", "", True)]),
        # No worse than it was.
        ([row(BROKEN, "a")], [row(KNOWN, "a")], [("known", "a", False)]),
        ([], [row(KNOWN, "a")], [("known", "a", False)]),
        ([row(BROKEN, "a")], [row(OPEN)], [("open", "a", False)]),
        ([row(STALE, "a")], [row(BROKEN, "a")], [("broken", "a", False)]),
        ([row(BROKEN, "a")], [row(GAP)], [("unjudged", "a", False)]),
        ([row(NA)], [], [("gone", "", False)]),
        ([row(BROKEN)], [], [("gone", "", False)]),
        ([], [row(HOLDS)], [("new", "", False)]),
        ([], [row(NA)], [("new", "", False)]),
        # Better.
        ([row(BROKEN)], [row(HOLDS)], [("mended", "", False)]),
        ([row(BROKEN, "a")], [row(HOLDS)], [("mended", "a", False)]),
        ([row(KNOWN, "a"), row(KNOWN, "b")], [row(KNOWN, "b")], [("mended", "a", False)]),
        ([row(STALE, "a")], [row(HOLDS)], [("mended", "a", False)]),
        ([row(UNCONFIRMED, "a")], [row(HOLDS)], [("judged", "a", False)]),
        ([row(OPEN)], [row(HOLDS)], [("judged", "", False)]),
        ([row(GAP)], [row(HOLDS)], [("judged", "", False)]),
    ],
)
def test_what_became_of_a_law(old: list[Row], new: list[Row], expected: list[tuple[str, str, bool]]) -> None:
    assert changes(old, new) == expected


def test_a_way_that_was_seen_and_not_reduced_was_not_mended() -> None:
    before = [row(BROKEN, "a"), row(BROKEN, "b")]
    assert changes(before, [row(BROKEN, "a", message="; also breaks in: b, c")]) == []
    assert changes(before, [row(BROKEN, "a", message="b")]) == [("mended", "b", False)]
    assert changes([row(BROKEN, "a", message="x; also breaks in: b")], before) == []


def test_laws_and_subjects_are_told_apart_and_the_worst_is_first() -> None:
    old = [row(BROKEN), row(HOLDS, law="pool.partition"), row(HOLDS, subject="other"), row(HOLDS, law="x.y")]
    new = [row(HOLDS), row(KNOWN, law="pool.partition"), row(BROKEN, subject="other"), row(HOLDS, law="x.y")]
    diff = compare(report(*old), report(*new))
    assert [(each.kind, each.row["id"], each.row["subject"], each.worse) for each in diff.changes] == [
        (Kind.BROKEN, "pool.reset", "other", True),
        (Kind.KNOWN, "pool.partition", "pool", True),
        (Kind.MENDED, "pool.reset", "pool", False),
    ]


def test_what_was_different_is_said() -> None:
    other = {
        "target": {"name": "toy", "version": "2", "plugin": None, "capabilities": {"zeroed": True}},
        "seed": 3,
        "depth": "deep",
        "strict": True,
        "baseline": "toy-2",
        "profile": "kvref.toml",
        "environment": {"python": "3.11.2"},
    }
    diff = compare(report(row(HOLDS)), report(row(HOLDS), **other))
    assert {each.what: (each.old, each.new) for each in diff.conditions} == {
        "target version": ("1", "2"),
        "target capabilities": ({}, {"zeroed": True}),
        "seed": (0, 3),
        "depth": ("quick", "deep"),
        "strict": (False, True),
        "baseline": (None, "toy-2"),
        "profile": (None, "kvref.toml"),
        "version of torch": ("2.13.0", None),
    }
    assert not diff.worse
    for told in (rendered(diff), markdown(diff)):
        assert 'depth: "quick" -> "deep"' in told
        assert 'baseline: not given -> "toy-2"' in told
    assert list(compare(report(row(HOLDS)), report(row(BROKEN))).conditions) == []


def rendered(diff: Diff) -> str:
    output = io.StringIO()
    render_diff(diff, Console(file=output, width=200))
    return output.getvalue()


def test_how_it_is_told() -> None:
    old = report(row(HOLDS), row(BROKEN, "a", law="x.y"), row(HOLDS, law="z.z"))
    new = report(
        row(BROKEN, "reset", expected="no key", observed="a key"),
        row(HOLDS, law="x.y"),
        row(OPEN, law="z.z", message="cut by the budget"),
    )
    told = rendered(compare(old, new))
    assert told.splitlines() == [
        "newly broken: 1",
        "  pool.reset [pool: reset]  holds -> broken",
        "    expected  no key",
        "    observed  a key",
        "",
        "not judged completely: 1",
        "  z.z [pool]  holds -> incomplete",
        "    reason    cut by the budget",
        "",
        "fixed: 1",
        "  x.y [pool: a]  broken -> holds",
        "",
        "broken                1 -> 1",
        "incomplete            0 -> 1",
        "holds                 2 -> 1",
        "",
        "2 got worse, 1 changed otherwise",
        "verdict: not conformant -> not conformant",
        "next: kvref explain pool.reset",
    ]
    assert markdown(compare(old, new)).splitlines()[:9] == [
        "### kvref: not conformant",
        "",
        "`toy 1`, before: not conformant. 2 got worse, 1 changed otherwise.",
        "",
        "#### Newly broken: 1",
        "",
        "* `pool.reset [pool: reset]` holds -> broken",
        "  * expected: `no key`",
        "  * observed: `a key`",
    ]
    assert "nothing changed" in rendered(compare(new, new))


def test_hostile_text_stays_text_and_a_summary_short() -> None:
    hostile = "`@all` <b>|</b>\n# x\x1b[31m\u202e" + "y" * 100_000
    many = [row(BROKEN, str(i), message=hostile, expected=hostile, observed=hostile) for i in range(200)]
    diff = compare(report(row(HOLDS)), report(*many, row(NA, subject=hostile, message=hostile)))
    told = markdown(diff)
    assert len(told) < 65_536
    assert "* and 160 more" in told
    for text in (told, rendered(diff)):
        assert not {"\x1b", "\u202e"} & {*text}
        assert "\n# x" not in text
    for line in told.splitlines():
        outside = "".join(line.split("`")[::2])
        assert line.count("`") % 2 == 0
        assert not {*"<>@"} & {*outside.replace("->", "")}


def test_only_what_both_were_to_judge_is_compared() -> None:
    whole = [row(HOLDS), row(HOLDS, law="pool.partition"), row(HOLDS, law="spec.x", subject="A")]
    part = report(row(BROKEN, "a"), selected={"laws": ["pool.reset", "spec.x"], "subjects": ["B*"]})
    for old, new, worse in ((report(*whole), part, True), (part, report(*whole), False)):
        diff = compare(old, new)
        assert [(change.row["id"], change.worse) for change in diff.changes] == [("pool.reset", worse)]
        told = {condition.what: (condition.old, condition.new) for condition in diff.conditions}
        assert {*told["laws"]} == {"all", "2 of them"}
        assert {*told["subjects"]} == {"all", "B*"}
    assert compare(part, part).conditions == []


# -- the command ---------------------------------------------------------------------------------------------


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(report(row(HOLDS))))
    return path


@pytest.fixture
def new(tmp_path: Path) -> Path:
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(report(row(BROKEN, "a"))))
    return folder


def test_the_command(kvref: Kvref, old: Path, new: Path) -> None:
    ran = kvref("diff", old, new)
    assert (ran.code, ran.err) == (1, "")
    assert "newly broken: 1" in ran.out
    assert kvref("diff", new, old).code == 0
    assert kvref("diff", new, new).code == 0
    ran = kvref("diff", old, new, "--json")
    told = json.loads(ran.out)
    validate(told, "diff")
    assert (ran.code, told["worse"], told["changes"][0]["kind"]) == (1, True, "broken")
    ran = kvref("diff", old, new, "--markdown")
    assert (ran.code, ran.out.startswith("### kvref: ")) == (1, True)


def _changed(**fields: Any) -> bytes:
    return json.dumps({**report(row(HOLDS)), **fields}).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b"[]", "names no schema"),
        (b"{}", "names no schema"),
        (b'{"schema": 1}', "names no schema"),
        (_changed(schema="kvref.report/2"), "it is of the schema kvref.report/2, and this kvref reads"),
        (_changed(schema="kvref.fuzz/1"), "it is of the schema kvref.fuzz/1"),
        (_changed(schema="\x1b[31m"), "\\x1b[31m"),
        (_changed(verdict="fine"), "invalid report at $.verdict"),
        (_changed(laws=[{}]), "invalid report at $.laws[0]"),
    ],
)
def test_what_is_no_report_is_refused(
    kvref: Kvref, old: Path, tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    for arguments in ((old, path), (path, old)):
        ran = kvref("diff", *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert f"cannot use the report '{path}'" in ran.err
        assert words in ran.err
        assert ran.err.count("\n") == 1


def test_a_file_that_is_not_there_is_refused(kvref: Kvref, old: Path, tmp_path: Path) -> None:
    assert kvref("diff", old, tmp_path / "none.json").code == 2
    ran = kvref("diff", old, tmp_path)
    assert (ran.code, "report.json': it cannot be read (No such file" in ran.err) == (2, True)


def test_reports_are_not_changed(old: Path) -> None:
    one = json.loads(old.read_text())
    kept = copy.deepcopy(one)
    compare(one, one)
    assert one == kept
