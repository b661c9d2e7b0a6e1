"""The HTML page of a report: its content, its size, and that no text of a target becomes markup."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conftest import Kvref
from hypothesis import given, settings, strategies as st

from kvref_conformance.documents.causes import Cause, Severity
from kvref_conformance.documents.results import FileReached, Reached, Result, Row, Status
from kvref_conformance.documents.schemas import TRACE
from kvref_conformance.laws import LAWS
from kvref_conformance.laws.core import Level
from kvref_conformance.report.files import report_document, write_report
from kvref_conformance.report.page import page

MOST = 2_000_000
VOID = {"meta", "input", "br", "line", "rect"}
TAGS = VOID | {
    *("html", "head", "title", "style", "body", "header", "main", "section", "article", "form", "script"),
    *(
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "p",
        "nav",
        "caption",
        "ins",
        "span",
        "code",
        "pre",
        "a",
        "ul",
        "ol",
        "li",
        "dl",
        "dt",
        "dd",
        "div",
    ),
    *("table", "thead", "tbody", "tr", "th", "td", "details", "summary", "figure", "figcaption", "meter"),
    *("svg", "g", "text", "select", "option", "fieldset", "legend", "label", "output", "button"),
}

HOSTILE = [
    "<script>document.title='owned'</script>",
    "</title></style></script><img src=x onerror=alert(1)>",
    "\"' onmouseover=alert(1) x='",
    "{{ 7*7 }}{% include 'x' %}",
    "<!-- ]]> --> &lt;&amp; &#x0;",
    "\x1b[31mred\x1b[0m\x07\x9b",
    "nul\x00 and\x08 back\x7f",
    "\u202eright to left\u2066\u200b\u200f",
    "line one\nline two\r\n\u2028three",
    "\ud800 lone, \ufffe none",
    "../../x",
    "/etc/passwd",
    "javascript:alert(1)",
    "",
    "x" * 1_000_000,
    '"' * 1_000_000,
    "\U000e0001" * 1_000_000,
]


class Page(HTMLParser):
    """Parses a page. Fails if tags are not closed in the right order."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.shown: list[str] = []
        self._open: list[str] = []
        self.feed(content.decode("utf-8"))
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag in ("dt", "dd", "td", "th", "li", "p", "div", "h2", "h3", "h4", "h5", "caption"):
            self.shown.append(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] not in (["script"], ["style"]):
            self.shown.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.shown).split())

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [
            found
            for name, found in self.elements
            if name == tag and attributes.items() <= {(key, value or "") for key, value in found.items()}
        ]


def harmless(content: bytes) -> Page:
    """Parse the page, and fail if it contains anything but our own tags, scripts and links."""
    assert len(content) < MOST
    parsed = Page(content)
    assert {tag for tag, _ in parsed.elements} <= TAGS
    assert len(parsed.all("script")) == len(parsed.all("style")) == 1
    for tag, attributes in parsed.elements:
        assert not any(name.startswith("on") or name in ("style", "src") for name in attributes)
        for name in ("href", "action", "srcset", "data", "xlink:href"):
            if name in attributes:
                assert (tag, name) == ("a", "href")
                assert re.fullmatch(
                    r"(traces|repro)/[A-Za-z0-9_][A-Za-z0-9._-]*|coverage\.md|#[a-z]+(=[A-Za-z0-9%._/~-]*)?",
                    attributes["href"] or "",
                )
    text = content.decode("utf-8")
    assert not [char for char in text if not char.isprintable() and char != "\n"]
    return parsed


def op(name: str, outcome: Any = None, **args: Any) -> dict[str, Any]:
    return {"op": name, "args": args, "outcome": {"value": outcome}}


def state(free: list[int], refs: list[int], tables: dict[str, list[list[int]]]) -> dict[str, Any]:
    return op("cache.state", {"free": free, "refs": refs, "keys": {}, "found": {}, "tables": tables})


EVENTS = [
    op("cache.create", {"null": 0, "reserved": []}, num_blocks=4),
    op("cache.allocate", {"added": [[1, 2]], "needed": 2, "taken": [1, 2]}, request="r1", new=2),
    state([3], [0, 1, 1, 0], {"r1": [[1, 2]]}),
    op("cache.free", request="r1"),
    state([1, 2, 3], [0, 0, 0, 0], {}),
]


def broken(law: str = "pool.reset", subject: str = "pool", facet: str = "", **told: Any) -> Row:
    row = Row(law, Level.SAFETY, subject, Status.BROKEN, facet, examples=7, **told)
    traced(row, EVENTS)
    return row


def traced(row: Row, events: list[dict[str, Any]]) -> None:
    row.trace = {
        "schema": TRACE,
        "law": row.law,
        "subject": row.subject,
        "facet": row.facet,
        "target": {"name": "toy", "version": "1"},
        "runs": [{"flags": [], "operations": [{"op": each["op"], "args": each["args"]} for each in events]}],
    }
    row.events = [events]
    row.program = row.program or f"# {row.law}\nraise SystemExit(1)\n"


def result(*rows: Row, **fields: Any) -> Result:
    told: dict[str, Any] = {
        "target": {"name": "toy", "version": "1", "plugin": None, "capabilities": {"zeroed": True}},
        "seed": 0,
        "depth": "quick",
        "strict": False,
        "baseline": None,
        "environment": {"python": "3.11.2", "torch": "2.13.0"},
        "elapsed_seconds": 41.25,
    }
    return Result(**{**told, **fields}, rows=list(rows))


def test_what_is_on_the_page() -> None:
    rows = [
        broken(facet="key left", expected="no key", observed="a <key>", message="seen twice"),
        Row("pool.reset", Level.SAFETY, "other", Status.HOLDS, examples=100),
        Row("pool.partition", Level.SAFETY, "pool", Status.HOLDS, examples=100),
        Row("spec.copy-consistent", Level.SAFETY, "A", Status.KNOWN, "x", message="vLLM issue 1"),
        Row("hash.total", Level.SAFETY, "", Status.NOT_APPLICABLE, message="the target has no hashing"),
        Row("plan.partition", Level.SAFETY, "A", Status.DECLARED_GAP, message="there is no planner yet"),
        Row("spec.page-positive", Level.SAFETY, "A", Status.INCOMPLETE, message="cut by the budget"),
    ]
    parsed = harmless(page(result(*rows, notes=["a note"])))
    head = parsed.text.partition("Areas")[0]
    assert head.startswith("kvref: toy 1, not conformant kvref check toy 1 not conformant broken 1 ")
    for words in ("holds 2", "known 1", "depth quick", "took 41.2 s", "python 3.11.2", "zeroed = true"):
        assert words in head
    assert "Broken: 1 finding, 1 cause Not judged to the end: 1 finding, 1 cause Known: 1 finding, 1" in head
    assert "pool 3 1 broken, 2 holds spec 2 1 incomplete, 1 known hash 1 1 not-applicable" in parsed.text
    assert [found["data-status"] for found in parsed.all("article")] == ["broken", "incomplete", "known"]
    for words in (
        "pool.reset: key left 1 finding",
        LAWS["pool.reset"].statement,
        LAWS["pool.reset"].why,
        "expected no key observed a <key>",
        "seen twice",
        "cut by the budget",
        "vLLM issue 1",
        "the target has no hashing: hash.total",
        "there is no planner yet: plan.partition [A]",
        "a note",
    ):
        assert words in parsed.text
    rows_of_laws = [found for found in parsed.all("tr") if "data-area" in found]
    assert [(found["data-area"], found["data-status"]) for found in rows_of_laws] == [
        ("pool", "broken holds"),
        ("pool", "holds"),
        ("spec", "known"),
        ("spec", "incomplete"),
        ("hash", "not-applicable"),
        ("plan", "declared-gap"),
    ]
    chosen = ["", "pool", "spec", "hash", "plan", "", "safety", "robustness"]
    assert [found["value"] for found in parsed.all("option")] == chosen
    assert [found["value"] for found in parsed.all("input", type="checkbox")] == [*result(*rows).totals]


def test_a_broken_law_has_a_timeline_its_program_and_its_files(tmp_path: Path) -> None:
    row = broken(program="import vllm\nassert 1 < 2 & 3\n")
    write_report(result(row), tmp_path)
    content = (tmp_path / "report.html").read_bytes()
    parsed = harmless(content)
    assert len(parsed.all("svg", role="img")) == 1
    assert "block 1, step 2: r1" in parsed.text
    told = "block tables after step 2 r1 1 2 free the blocks of r1"
    assert f"request r1 is scheduled for 2 new tokens r1 gets blocks 1 and 2 {told}" in parsed.text
    assert "import vllm\nassert 1 < 2 & 3\n" in "".join(parsed.shown)
    links = [href for found in parsed.all("a") if not (href := found["href"] or "").startswith("#")]
    assert len(links) == 2
    assert all((tmp_path / link).is_file() for link in links)


def test_without_tables_the_operations_are_told() -> None:
    row = broken()
    traced(row, [op("specs.merge", {"class": "A", "fields": {}}, specs=[])])
    parsed = harmless(page(result(row)))
    assert parsed.all("svg", role="img") == []
    assert "merge [] A()" in parsed.text
    # The operations of a known row have no answers.
    row.events = None
    assert "merge [] stand-alone program" in harmless(page(result(row))).text


def test_the_comparison_is_at_its_step() -> None:
    row = broken(expected="allocate(request=r1, new=2): block 3", observed="block 1")
    parsed = harmless(page(result(row)))
    assert len(parsed.all("li", **{"class": "breaks"})) == 1
    assert "r1 1 2 Here the law breaks expected allocate(request=r1, new=2): block 3" in parsed.text
    row.expected = "something else"
    text = harmless(page(result(row))).text
    assert "free the blocks of r1 By the end of this step, the law is broken expected something else" in text


def test_findings_are_grouped_by_cause() -> None:
    known = [Row("hash.total", Level.SAFETY, name, Status.KNOWN, message="vLLM issue 1") for name in "AB"]
    rows = [
        broken(subject="A", facet="key left"),
        Row("spec.page-positive", Level.SAFETY, "A", Status.INHERITED, message="toy breaks it"),
        broken(subject="A", facet="other"),
        *known,
        broken(subject="B", facet="key left"),
        Row("pool.partition", Level.ROBUSTNESS, "A", Status.BROKEN),
    ]
    text = harmless(page(result(*rows))).text
    places = [
        text.index(words)
        for words in (
            "Broken These findings make",
            "pool.reset: key left 2 findings",
            "pool.reset: other 1 finding",
            "Broken, robustness only These findings count",
            "Inherited from stock The stock class",
            "toy breaks it 1 finding inherited spec.page-positive",
            "Known The baseline",
            "vLLM issue 1 2 findings",
        )
    ]
    assert places == sorted(places)


def test_a_known_cause_heads_its_findings() -> None:
    cause = Cause("merge-drops", "merge drops a field.", Severity.CRASH, "Copies lack it.", "https://x.org/1")
    rows = [
        Row("hash.total", Level.SAFETY, "A", Status.KNOWN, message=message, cause=cause)
        for message in (cause.title, "It drops g.")
    ]
    text = harmless(page(result(*rows))).text
    about = "merge drops a field. 2 findings Copies lack it. crash; cause merge-drops; https://x.org/1"
    assert about in text
    assert text.index(about) < text.index("It drops g.")


def test_headings_are_in_order() -> None:
    row = broken()
    known = Row("hash.total", Level.SAFETY, "A", Status.KNOWN, message="vLLM issue 1")
    parsed = harmless(page(result(row, known)))
    levels = [int(tag[1]) for tag, _ in parsed.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_processes_are_told_apart() -> None:
    row = broken()
    assert row.trace is not None
    row.trace["runs"] = [{**row.trace["runs"][0], "flags": ["-O"]}] * 6
    row.events = None
    parsed = harmless(page(result(row)))
    assert parsed.text.count("In a fresh process, python -O") == 4
    assert "2 more processes are in traces/" in parsed.text


def test_coverage_is_told_where_it_was_measured() -> None:
    file = FileReached("toy/<pool>.py", [1, 2, 3, 4], frozenset({3, 4}), [(1, -1)], {})
    reached = Reached(["toy"], [], [file] * 101, ["toy/other.py"], [], [])
    parsed = harmless(page(result(broken(), coverage=reached)))
    assert "Lines no law reached: toy." in parsed.text
    assert "202 of 404 lines were reached (50%)" in parsed.text
    assert "toy/<pool>.py 4 50% 1->exit, 3-4" in parsed.text
    assert "1 more files are in coverage.md" in parsed.text
    assert "toy/other.py" in parsed.text
    assert "Coverage" not in harmless(page(result(broken()))).text


def test_laws_by_version() -> None:
    one = result(broken(), Row("pool.partition", Level.SAFETY, "pool", Status.HOLDS), row("hash.total"))
    other = result(row("pool.reset"), row("pool.partition", Status.INHERITED), target=target("2", "acme 3"))
    reports = [report_document(each) for each in (one, other)]
    parsed = harmless(page(one, reports))
    table = parsed.text.partition("Laws by version")[2]
    assert table.startswith(
        " law toy 1 toy 2 with acme 3 pool pool.reset broken holds pool.partition holds inherited "
        "hash hash.total holds Each cell"
    )
    assert "Laws by version" not in harmless(page(one, reports[:1])).text
    rows = [found for found in parsed.all("tr") if "data-area" in found]
    assert rows[:3] == rows[3:]


def test_versions_are_shown_as_text_and_have_a_limit() -> None:
    one = result(*(row(law) for law in LAWS))
    others = [
        report_document(result(*one.rows, target=target(text[:5_000] + str(number), text[:5_000])))
        for number, text in enumerate(HOSTILE * 2)
    ]
    parsed = harmless(page(one, [report_document(one), *others]))
    assert f"{1 + len(others) - 20} more versions are left out" in parsed.text
    assert "more laws are not on this page" not in parsed.text


def row(law: str, status: Status = Status.HOLDS) -> Row:
    return Row(law, Level.SAFETY, "pool", status)


def target(version: str, plugin: str) -> dict[str, Any]:
    return {"name": "toy", "version": version, "plugin": plugin, "capabilities": {}}


def test_nothing_to_tell_is_told_as_well() -> None:
    parsed = harmless(page(result()))
    assert "no law was run" in parsed.text
    assert "incomplete" in parsed.text
    assert parsed.all("section", id="findings") == []


def test_only_what_is_ours_runs_and_nothing_is_loaded() -> None:
    text = page(result(broken())).decode()
    policy = Page(text.encode()).all("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"] or ""
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        inside = text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        assert inside.strip()
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
        assert "://" not in inside
        assert not re.search(r"@import|url\(|fetch\(|innerHTML", inside)


def hostile(text: str) -> Result:
    rows = [
        broken(text, text, text, expected=text, observed=text, message=text, program=text),
        Row(text, Level.SAFETY, text, Status.KNOWN, text, message=text),
        Row(text, Level.SAFETY, text, Status.NOT_APPLICABLE, message=text),
        Row(text, Level.SAFETY, text, Status.DECLARED_GAP, message=text),
        Row("pool.reset", Level.SAFETY, text, Status.HOLDS),
    ]
    requests = [
        op("cache.allocate", {text: text}, request=text),
        state([1], [0, 0, 1], {text: [[2]]}),
        {"op": "cache.free", "args": {text: text}, "outcome": {"error": {"type": text, "message": text}}},
        {"op": "cache.free", "args": {}, "outcome": {"died": text}},
    ]
    traced(rows[0], [*EVENTS, *requests])
    file = FileReached(text or "-", [1, 2], frozenset({1}), [], {text: frozenset({2})})
    return result(
        *rows,
        target={"name": text or "-", "version": text, "plugin": text, "capabilities": {text: text}},
        baseline=text,
        profile=text,
        environment={text: text},
        notes=[text],
        coverage=Reached([text], [text], [file], [text], [text], [text]),
    )


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:30]))
def test_hostile_text_stays_text(text: str, tmp_path: Path) -> None:
    one = hostile(text)
    started = time.monotonic()
    parsed = harmless(page(one))
    assert time.monotonic() - started < 10
    if text.isprintable() and text.strip() and len(text) < 100:
        # The text appears unchanged in all places: no part became markup, and no part is missing.
        assert parsed.text.count(text) > 20
    if text.isprintable() and len(text) > 100:
        assert text[:110] in parsed.text
        assert text[:2_000] not in parsed.text


@pytest.mark.parametrize("text", ["../../x", "/etc/passwd", "..", "a/../../b", "\x00/../x"])
def test_no_name_leads_out_of_the_folder(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "in" / "report"
    one = hostile(text)
    one.coverage = None  # a target can choose any name for itself, but not for its files
    written = write_report(one, folder)
    assert all(path.resolve().is_relative_to(folder.resolve()) for path in written)
    assert {path.relative_to(folder).parts[0] for path in written} == {
        *("report.json", "report.html", "badge.json", "junit.xml", "traces", "repro")
    }
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and folder not in path.parents] == []


@settings(max_examples=50)
@given(st.text(max_size=300))
def test_any_text_stays_text(text: str) -> None:
    harmless(page(hostile(text)))


def many(laws: int, subjects: int, *, broken_every: int, program: int, steps: int) -> Iterator[Row]:
    refs = [[int((block * 7 + step) % 3 > 0) for block in range(48)] for step in range(steps)]
    events = [op("cache.create", {"null": 0, "reserved": []})]
    for held in refs:
        events.append(op("cache.allocate", {"added": [[1, 2, 3]]}, request="r1", new=1, lookahead=0))
        tables = {f"r{n}": [[b for b in range(n, 48, 6) if held[b]]] for n in range(6)}
        events.append(state([block for block in range(48) if not held[block]], held, tables))
    for law in range(laws):
        for subject in range(subjects):
            name = f"area{law % 20}.law-{law}"
            if (law * subjects + subject) % broken_every:
                yield Row(name, Level.SAFETY, f"SomeAttentionSpec{subject}", Status.HOLDS, examples=100)
            else:
                row = broken(
                    name, f"SomeAttentionSpec{subject}", "facet", expected="e" * 200, observed="o" * 200
                )
                row.program = f"# {law} {subject}\n" + "print('a line of a program')\n" * (program // 29)
                traced(row, events)
                yield row


def test_a_run_of_all_laws_with_much_that_is_broken_stays_small() -> None:
    rows = list(many(120, 12, broken_every=20, program=20_000, steps=80))
    started = time.monotonic()
    content = page(result(*rows))
    assert time.monotonic() - started < 20
    parsed = harmless(content)
    found = parsed.all("article")
    assert len(found) == sum(row.status is Status.BROKEN for row in rows) == 72
    # The page draws some findings in full. For the others it says where to find the rest.
    pictures = len(parsed.all("svg", role="img"))
    assert 5 < pictures < 72
    assert "(not on this page)" in parsed.text
    assert len([each for each in parsed.all("tr") if "data-area" in each]) == 120
    assert "are not on this page" not in parsed.text


def test_what_there_is_no_room_for_is_counted() -> None:
    rows = list(many(3_000, 1, broken_every=1, program=100, steps=2))
    parsed = harmless(page(result(*rows)))
    shown = len(parsed.all("article"))
    assert shown < 3_000
    assert f"{3_000 - shown} more findings are not on this page" in parsed.text
    assert re.search(r"\d+ more laws are not on this page", parsed.text)


@pytest.mark.parametrize(
    "text", ["", '"' * 2_000, "\U000e0001" * 2_000, "x" * 2_000], ids=["empty", "quotes", "tags", "long"]
)
def test_very_much_of_everything_stays_small(text: str) -> None:
    names = [f"{number}{text}" for number in range(1_000)]
    rows = [
        Row(f"{name}.law", Level.SAFETY, name, status, name, message=name)
        for name in names
        for status in Status
    ]
    lines = [*range(1, 5_000)]
    file = FileReached(text or "-", lines, frozenset(lines[::2]), [], {})
    one = result(
        *rows,
        target={"name": text, "version": text, "plugin": text, "capabilities": dict.fromkeys(names, text)},
        environment=dict.fromkeys(names, text),
        notes=[text] * 100_000,
        coverage=Reached(names, names, [file] * 1_000, names, names, names),
    )
    parsed = harmless(page(one))
    assert re.search(r"and \d+ more, in report\.json", parsed.text)


def test_long_programs_are_left_to_their_files() -> None:
    row = broken(program="x = 1\n" * 50_000)
    parsed = harmless(page(result(row)))
    assert parsed.all("pre") == []
    assert re.search(r"program repro/\S+ \(not on this page\)", parsed.text)


def test_a_check_writes_the_page(kvref: Kvref, tmp_path: Path) -> None:
    fault = "kvref_conformance.targets.faults.pool:shared_blocks_counted_once"
    ran = kvref("check", fault, "--laws", "pool.ref-model", "--report", tmp_path / "report")
    assert ran.code == 1
    parsed = harmless((tmp_path / "report" / "report.html").read_bytes())
    assert len(parsed.all("svg", role="img")) == 1
    assert "allocate 1 block block 1" in parsed.text
    assert len(parsed.all("li", **{"class": "breaks"})) == 1
    assert "main_in_process(" in parsed.text
