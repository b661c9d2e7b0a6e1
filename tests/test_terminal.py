"""What kvref prints on a terminal: the result of a check, the laws, and the progress."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sample_results import broken, op, rendered, result_of, small, trace_of

from kvref_conformance.documents import baseline as baselines
from kvref_conformance.documents.baseline import Known
from kvref_conformance.documents.causes import Cause, Severity
from kvref_conformance.documents.names import repro_name, trace_digest, trace_name
from kvref_conformance.documents.results import Result, Row, Status
from kvref_conformance.laws import LAWS
from kvref_conformance.laws.core import Law, Level
from kvref_conformance.report.files import write_report
from kvref_conformance.report.progress import is_live, progress
from kvref_conformance.report.terminal import Invocation, open_console, render, render_laws, render_setup

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
