"""The shipped baselines, and how they share entries."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvref_conformance.documents import baseline, schemas
from kvref_conformance.documents.causes import Severity, by_cause, shipped_causes
from kvref_conformance.documents.results import Result, Row, Status
from kvref_conformance.laws import LAWS
from kvref_conformance.laws.core import Level
from kvref_conformance.processes import releases as hosts

NEWEST = f"vllm-{hosts.BASE}"
TOLD = ("pool.bad-input-refused", "pool", "negative number")


def document(**fields: Any) -> dict[str, Any]:
    return {"schema": "kvref.baseline/1", "target": "toy", "version": "1", "known": [], **fields}


def write(path: Path, **fields: Any) -> Path:
    path.write_text(json.dumps(document(**fields)))
    return path


def as_in(name: str, law: str, subject: str, facet: str) -> dict[str, Any]:
    return {name: {law: {subject: [facet]}}}


@pytest.mark.parametrize("version", hosts.VERSIONS)
def test_every_release_has_one(version: str) -> None:
    known = baseline.shipped("vllm", version).known
    assert known
    assert [entry.title for entry in known if entry.law not in LAWS] == []
    assert [entry.title for entry in known if entry.cause is None or "NOT REVIEWED" in entry.reason] == []
    assert [title for title, times in Counter(entry.title for entry in known).items() if times > 1] == []


def test_every_cause_is_used_and_says_what_to_do() -> None:
    used = {
        entry.cause.id
        for name in baseline._shipped_files()
        for entry in baseline._own_entries(name)
        if entry.cause
    }
    assert used == set(shipped_causes())
    for cause in shipped_causes().values():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", cause.id)
        # One sentence that fits into two lines of a terminal.
        assert re.fullmatch(r"[^.]+(\.\w+[^.]*)*\.", cause.title), cause.title
        assert 40 < len(cause.title) <= 115
        assert cause.title not in cause.detail
        assert not cause.link or cause.link.startswith("https://github.com/")


def test_the_worst_cause_comes_first() -> None:
    causes = by_cause(baseline.shipped("vllm", hosts.BASE).known)
    severities = [cause.severity for cause in causes]
    assert severities == sorted(severities, key=list(Severity).index)
    assert len(causes) < 40
    assert sum(map(len, causes.values())) == len(baseline.shipped("vllm", hosts.BASE).known)


def entry(**fields: str) -> dict[str, Any]:
    law, subject, facet = TOLD
    runs = [{"flags": [], "operations": []}]
    return {"law": law, "subject": subject, "facet": facet, "trace": {"runs": runs}, **fields}


def test_a_users_entry_needs_a_cause_or_a_reason(tmp_path: Path) -> None:
    cause = shipped_causes()["free-unchecked"]
    path = write(tmp_path / "toy-1.json", known=[entry(cause=cause.id), entry(reason="issue 1")])
    one, other = baseline.load(path).known
    assert (one.cause, one.message) == (cause, cause.title)
    assert (other.cause, other.message) == (None, "issue 1")
    with pytest.raises(baseline.BaselineError, match="names the cause 'no-such'"):
        baseline.load(write(path, known=[entry(cause="no-such")]))
    with pytest.raises(baseline.BaselineError, match=r"invalid baseline at \$.known\[0\]"):
        baseline.load(write(path, known=[entry()]))


def test_none_is_of_a_release_that_cannot_be_had() -> None:
    assert set(baseline._shipped_files()) == {f"vllm-{version}" for version in hosts.VERSIONS}


def test_an_entry_told_elsewhere(tmp_path: Path) -> None:
    path = write(tmp_path / "toy-1.json", as_in=as_in(NEWEST, *TOLD))
    [entry] = baseline.load(path).known
    assert entry in baseline.shipped("vllm", hosts.BASE).known
    assert (entry.law, entry.subject, entry.facet) == TOLD


@pytest.mark.parametrize(
    ("elsewhere", "words"),
    [
        (
            as_in(NEWEST, *TOLD[:2], "nothing"),
            "toy-1 lists pool.bad-input-refused [pool: nothing] as in vllm-0.",
        ),
        (as_in("vllm-0.1", *TOLD), "there is no shipped baseline vllm-0.1"),
        (as_in("../../vllm-0.1", *TOLD), "invalid baseline at $.as_in"),
        ({NEWEST: {TOLD[0]: {"pool": []}}}, "invalid baseline at $.as_in"),
    ],
)
def test_an_entry_told_nowhere(tmp_path: Path, elsewhere: dict[str, Any], words: str) -> None:
    path = write(tmp_path / "toy-1.json", as_in=elsewhere)
    with pytest.raises(baseline.BaselineError) as refused:
        baseline.load(path)
    assert words in str(refused.value)


def test_what_is_told_elsewhere_is_not_told_again(tmp_path: Path) -> None:
    """The baseline refers to an entry of another version only if cause, reason and trace are the same."""
    told = {entry.title: entry for entry in baseline._own_entries(NEWEST)}
    same = next(entry for entry in told.values() if entry.reason)
    assert same.cause is not None
    other = {"runs": [{"flags": [], "operations": [{"op": "specs.classes", "args": {}}]}]}

    def row(facet: str, status: Status, message: str, trace: dict[str, Any]) -> Row:
        made = Row(same.law, Level.SAFETY, same.subject, status, facet, message=message)
        made.trace = trace
        made.cause = same.cause if status is Status.KNOWN else None
        return made

    rows = [
        row(same.facet, Status.KNOWN, same.reason, same.trace),
        row("other", Status.KNOWN, same.reason, other),
        row("plain", Status.KNOWN, same.cause.title, other),
        row("new", Status.BROKEN, "", other),
    ]
    result = Result({"name": "vllm", "version": "0.1"}, 0, "quick", False, None, {}, rows=rows)
    path = tmp_path / "vllm-0.1.json"
    baseline.save(result, path)
    saved = json.loads(path.read_text())
    schemas.validate(saved, "baseline")
    assert saved["as_in"] == as_in(NEWEST, same.law, same.subject, same.facet)
    assert [(each["facet"], each.get("cause"), each.get("reason")) for each in saved["known"]] == [
        ("other", same.cause.id, same.reason),
        ("plain", same.cause.id, None),
        ("new", None, "NOT REVIEWED"),
    ]
    assert {each.facet for each in baseline.load(path).known} == {same.facet, "other", "plain", "new"}
    # A baseline never refers to its own version.
    result.target["version"] = hosts.BASE
    baseline.save(result, path)
    assert "as_in" not in json.loads(path.read_text())
