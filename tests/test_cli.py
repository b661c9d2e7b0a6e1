"""The command line: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from conftest import TARGETS, Kvref

import kvref as package
from kvref_conformance.documents.schemas import validate
from kvref_conformance.laws import LAWS

TOY = "hostile_toy:target"
LOSING = "hostile_operations:merge_loses_field"
MERGE = ("--laws", "spec.merge-identity")
REFUSALS = ("--laws", "registry.refusals-survive-O")

# -- help and laws -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((), ["check", "doctor", "laws", "replay", "package.module:name"]),
        (
            ("check",),
            [
                "--laws GLOB",
                "quick 100, standard 500, deep 5000",
                "--coverage-source MODULE",
                "0  conformant",
                "3  incomplete",
            ],
        ),
        (("laws",), ["[GLOB]...", "--verbose"]),
        (("doctor",), ["[TARGET]", "--python", "--path"]),
        (("replay",), ["TRACE [TARGET]", "0 the law holds 1 the law breaks"]),
    ],
)
def test_help(kvref: Kvref, command: tuple[str, ...], words: list[str]) -> None:
    ran = kvref(*command, "--help")
    assert (ran.code, ran.err) == (0, "")
    text = " ".join(ran.out.split())
    for word in words:
        assert " ".join(word.split()) in text


def test_version(kvref: Kvref) -> None:
    assert package.__version__ in kvref("--version").out


def test_laws(kvref: Kvref) -> None:
    every = kvref("laws")
    assert every.code == 0
    listed, _, end = every.out.partition("\n\n")
    assert [line.split()[0] for line in listed.splitlines() if line[0] != " "] == list(LAWS)
    areas = {law.area for law in LAWS.values()}
    assert end == f"{len(LAWS)} laws in {len(areas)} areas\nnext: kvref explain LAW\n"
    some = kvref("laws", "spec.*", "target.answers", "-v")
    told = [line.split()[0] for line in some.out.partition("\n\n")[0].splitlines() if line[0] != " "]
    assert told == [law for law in LAWS if law.startswith("spec.")] + ["target.answers"]
    assert some.out.count("  why: ") == len(told)


@pytest.mark.parametrize("command", [("laws", "spce.*"), ("check", TOY, "--laws", "spce.*")])
def test_no_such_law(kvref: Kvref, command: tuple[str, ...]) -> None:
    """kvref refuses before it starts anything."""
    ran = kvref(*command)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(
        "kvref: no law matches 'spce.*'; 'kvref laws' lists them (areas: registry, spec"
    )
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [
        ("--timeout", "0"),
        ("--timeout", "-1"),
        ("--timeout", "nan"),
        ("--timeout", "inf"),
        ("--budget", "-1"),
        ("--depth", "bottomless"),
        ("--seed", "first"),
        ("-n", "0"),
        ("--path", "/no/such/folder"),
        ("--save-baseline", "/no/such/folder/baseline.json"),
        ("--nonsense",),
    ],
)
def test_bad_options(kvref: Kvref, options: tuple[str, ...]) -> None:
    ran = kvref("check", TOY, *options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("Usage: ")
    assert options[0].strip("-") in ran.err


def test_a_device_that_is_not_there(kvref: Kvref, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    laws = ("--laws", "tensors.zeroed", "--subjects", "attention")
    ran = kvref("check", *laws, "--device", "cuda")
    assert (ran.code, ran.out) == (2, "")
    assert "PyTorch sees no device of the kind 'cuda' in the process of reference, only cpu" in ran.err
    assert kvref("check", *laws, "--device", "cpu").code == 0


# -- doctor --------------------------------------------------------------------------------------------------


def test_doctor(kvref: Kvref) -> None:
    ran = kvref("doctor", TOY, "--path", TARGETS)
    assert ran.code == 0
    target, _, judged = ran.out.partition("\n\n")
    told = {line[:13].strip(): line[13:] for line in target.splitlines()}
    assert told["target"] == "toy 1"
    assert told["torch"] == "not imported"
    assert told["parts"] == "specs, registry"
    assert told["classes"] == "AttentionSpec, FullAttentionSpec, SlidingWindowSpec"
    assert told["baseline"] == "none shipped for this version"
    assert re.match(r"can be judged: \d+ of \d+ laws\n  registry \d+, spec \d+, ", judged)
    left_out = judged.partition("not applicable\n")[2]
    assert "  the class has no page_size_padded: spec.padding-honoured (2 subjects)\n" in left_out
    assert "  the target has no registry.race: registry.concurrent\n" in left_out
    # Each reason appears once.
    reasons = re.findall(r"^  (\S.*?): ", left_out, re.MULTILINE)
    assert len(set(reasons)) == len(reasons)
    assert "threads" not in told
    assert ran.out.endswith(f"\nnext: kvref check {TOY} --path {TARGETS}\n")


def test_doctor_finds(kvref: Kvref) -> None:
    ran = kvref("doctor", "hostile_operations:with_thread", "--path", TARGETS)
    assert (ran.code, "threads      2 run after import" in ran.out) == (0, True)
    ran = kvref("doctor", "hostile_operations:without_registry", "--path", TARGETS)
    assert (ran.code, ran.out.count("the target has no registry: ")) == (0, 1)
    ran = kvref("doctor", "hostile_loading:raises_import_error", "--path", TARGETS)
    assert (ran.code, ran.out, "ImportError: libascend.so" in ran.told) == (2, "", True)


# -- reports -------------------------------------------------------------------------------------------------


def test_report(kvref: Kvref, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "report"
    ran = kvref.check(LOSING, *MERGE, "--report", folder)
    assert ran.code == 1
    report = json.loads((folder / "report.json").read_text())
    validate(report, "report")
    assert (report["verdict"], report["totals"]) == ("not conformant", {"broken": 2})
    assert json.loads((folder / "badge.json").read_text())["message"] == "not conformant"
    files = {"report.json", "report.html", "badge.json", "junit.xml"}
    for row in report["laws"]:
        trace = json.loads((folder / row["trace"]).read_text())
        validate(trace, "trace")
        assert (trace["law"], trace["subject"], trace["facet"]) == (row["id"], row["subject"], row["facet"])
        compile((folder / row["repro"]).read_text(), row["repro"], "exec")
        assert str(folder / row["repro"]) in ran.out
        files |= {row["trace"], row["repro"]}
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == files
    assert len(ElementTree.parse(folder / "junit.xml").findall(".//failure")) == 2

    # A new report replaces the earlier one, and --json prints the same report.
    ran = kvref.check(TOY, *MERGE, "--report", folder, "--json")
    assert (ran.code, json.loads(ran.out)) == (0, json.loads((folder / "report.json").read_text()))
    left = {path.name for path in folder.rglob("*") if path.is_file()}
    assert left == {"report.json", "report.html", "badge.json", "junit.xml"}


def test_reports_of_other_versions_are_shown_beside(kvref: Kvref, tmp_path: Path) -> None:
    earlier, later = tmp_path / "1", tmp_path / "2"
    assert kvref.check(LOSING, *MERGE, "--report", earlier).code == 1
    assert kvref.check(TOY, *MERGE, "--report", later, "--beside", earlier, "--beside", earlier).code == 0
    page = (later / "report.html").read_text()
    assert page.count('<span class="tag s-broken">broken') == 2
    ran = kvref.check(TOY, *MERGE, "--beside", earlier)
    assert (ran.code, "--report DIR" in ran.err) == (2, True)
    ran = kvref.check(TOY, *MERGE, "--report", later, "--beside", tmp_path)
    assert (ran.code, "cannot use the report" in ran.err) == (2, True)


@pytest.mark.parametrize("kind", ["other", "file", "below a file"])
def test_report_folder_in_other_use(kvref: Kvref, tmp_path: Path, kind: str) -> None:
    """kvref refuses before it loads the target, and leaves the folder as it was."""
    folder = tmp_path / "folder"
    if kind == "other":
        folder.mkdir()
        (folder / "thesis.tex").write_text("mine")
    else:
        folder.write_text("mine")
    chosen = folder / "report" if kind == "below a file" else folder
    ran = kvref.check("hostile_loading:hangs", *MERGE, "--report", chosen)
    assert (ran.code, ran.out) == (2, "")
    assert "loading" not in ran.err
    assert str(chosen) in ran.err
    assert (folder if folder.is_file() else folder / "thesis.tex").read_text() == "mine"


def test_budget(kvref: Kvref) -> None:
    ran, report = kvref.report(TOY, "--laws", "spec.*", "--laws", "target.answers", "--budget", "0")
    assert (ran.code, report["verdict"]) == (3, "incomplete")
    judged = [row for row in report["laws"] if row["status"] != "not-applicable"]
    assert {row["status"] for row in judged} == {"incomplete"}
    messages = {row["message"] for row in judged if row["id"] != "target.answers"}
    assert messages == {"cut by the budget"}


def test_strict(kvref: Kvref) -> None:
    ran, report = kvref.report("hostile_operations:asserts_only", *REFUSALS)
    assert (ran.code, report["verdict"], report["totals"]["broken"]) == (0, "conformant", 2)
    assert {row["level"] for row in report["laws"]} == {"robustness"}
    ran, report = kvref.report("hostile_operations:asserts_only", *REFUSALS, "--strict")
    assert (ran.code, report["verdict"], report["strict"]) == (1, "not conformant", True)


# -- baselines -----------------------------------------------------------------------------------------------


@pytest.fixture
def baseline(kvref: Kvref, tmp_path: Path) -> Path:
    """A baseline with the findings of the target that loses a field."""
    file = tmp_path / "known.json"
    assert kvref.check(LOSING, *MERGE, "--save-baseline", file).code == 1
    validate(json.loads(file.read_text()), "baseline")
    return file


def test_baseline(kvref: Kvref, baseline: Path) -> None:
    ran, report = kvref.report(LOSING, *MERGE, "--baseline", baseline)
    assert (ran.code, report["totals"], report["baseline"]) == (0, {"known": 2}, "known")
    assert {row["message"] for row in report["laws"]} == {"NOT REVIEWED"}
    ran, report = kvref.report(LOSING, *MERGE, "--baseline", "none")
    assert (ran.code, report["totals"], report["baseline"]) == (1, {"broken": 2}, None)

    # A known finding that is gone gets a note, and so does one that cannot be replayed.
    document = json.loads(baseline.read_text())
    document["known"][1]["trace"]["runs"][0]["operations"][0]["op"] = "specs.nonsense"
    baseline.write_text(json.dumps(document))
    ran, report = kvref.report(TOY, *MERGE, "--baseline", baseline)
    assert (ran.code, report["totals"]) == (0, {"holds": 2})
    gone, odd = report["notes"]
    first, second = (row["subject"] for row in document["known"])
    assert gone.startswith(f"known finding no longer shows: spec.merge-identity [{first}: page_size_bytes]")
    assert odd.startswith(f"known finding could not be replayed: spec.merge-identity [{second}: page_size")
    assert odd.endswith("target 'toy' has no operation 'specs.nonsense'")


def test_baseline_hides_nothing_else(kvref: Kvref, baseline: Path) -> None:
    document = json.loads(baseline.read_text())
    known = document["known"].pop(0)
    document["known"][0]["reason"] = "vendor's bug 7"
    baseline.write_text(json.dumps(document))
    ran, report = kvref.report(LOSING, *MERGE, "--baseline", baseline, "--save-baseline", baseline)
    assert (ran.code, report["totals"]) == (1, {"broken": 1, "known": 1})
    [broken] = [row for row in report["laws"] if row["status"] == "broken"]
    assert broken["subject"] == known["subject"]
    reasons = {entry["subject"]: entry["reason"] for entry in json.loads(baseline.read_text())["known"]}
    assert reasons.pop(known["subject"]) == "NOT REVIEWED"
    assert list(reasons.values()) == ["vendor's bug 7"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot read baseline"),
        (b"{", "Expecting property name"),
        (b"\xff\xfe", "codec can't decode"),
        (b"[]", "invalid baseline at $: [] is not of type 'object'"),
        (b'{"schema": "kvref.trace/1"}', "invalid baseline at $"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_baseline(kvref: Kvref, tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "baseline.json"
    if content is not None:
        file.write_bytes(content)
    ran = kvref.check(TOY, *MERGE, "--baseline", file)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.told
    assert str(file) in ran.told


# -- replay --------------------------------------------------------------------------------------------------


def test_replay(kvref: Kvref, tmp_path: Path) -> None:
    """Replay a trace of one target on that target and on the reference."""
    target = "hostile_reference:merge_loses_window"
    assert kvref.check(target, *MERGE, "--report", tmp_path / "report").code == 1
    [trace] = (tmp_path / "report" / "traces").iterdir()
    ran = kvref("replay", trace, target, "--path", TARGETS)
    title = "spec.merge-identity [SlidingWindowSpec] in"
    assert (ran.code, ran.out.splitlines()[:2]) == (1, [f"{title} losing 1", "breaks"])
    assert "sliding_window is 7, was 16" in ran.out
    ran = kvref("replay", trace)
    assert (ran.code, ran.out) == (0, f"{title} reference {package.__version__}\nholds\n")


def trace(law: str, *operations: str, flags: tuple[str, ...] = (), runs: int = 1) -> dict[str, Any]:
    performed = [{"op": name, "args": {}} for name in operations]
    return {
        "schema": "kvref.trace/1",
        "law": law,
        "subject": "X",
        "facet": "",
        "target": {"name": "toy", "version": "1"},
        "runs": [{"flags": list(flags), "operations": performed}] * runs,
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "invalid trace at $: not JSON"),
        (b"\xff\xfe", "invalid trace at $: not JSON"),
        (b"[" * 100_000, "invalid trace at $: nested too deeply"),
        (b"[]", "invalid trace at $: [] is not of type 'object'"),
        ({"schema": "kvref.baseline/1"}, "invalid trace at $"),
        (trace("spec.merge-identity", flags=("-c",)), "invalid trace at $.runs[0].flags[0]: '-c'"),
        (trace("spec.merge-identity", "../etc/passwd"), "invalid trace at $.runs[0].operations[0].op"),
        (trace("spec.\x1b[31m"), "no law is called 'spec.\\x1b[31m'; 'kvref laws' lists them"),
    ],
)
def test_replay_refuses(kvref: Kvref, tmp_path: Path, content: bytes | dict[str, Any], words: str) -> None:
    """kvref refuses before it starts anything."""
    path = tmp_path / "trace.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    ran = kvref("replay", path, TOY, "--path", TARGETS)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("kvref: ")
    assert words in ran.err
    assert "loading" not in ran.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (trace("spec.merge-identity", "specs.nonsense"), "target 'toy' has no operation 'specs.nonsense'"),
        (trace("registry.order-free", runs=3), "registry.order-free cannot judge the answers to this trace"),
    ],
)
def test_replay_cannot_tell(kvref: Kvref, tmp_path: Path, content: dict[str, Any], words: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    ran = kvref("replay", path, TOY, "--path", TARGETS)
    assert (ran.code, ran.out, words in ran.told) == (2, "", True)


def test_replay_under_any_flags(kvref: Kvref, tmp_path: Path) -> None:
    """The process gets the flags of the trace, whatever flags the law needs in a check."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace("spec.merge-identity", "specs.classes", flags=("-OO", "-B"))))
    ran = kvref("replay", path, TOY, "--path", TARGETS)
    assert (ran.code, "holds" in ran.out) == (0, True)


@pytest.mark.parametrize("path", ["/no/such/trace.json", "/"])
def test_replay_of_no_file(kvref: Kvref, path: str) -> None:
    ran = kvref("replay", path, TOY)
    assert (ran.code, ran.out, path in ran.err) == (2, "", True)
