"""Whatever a target does, kvref ends soon, says why in one paragraph, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from conftest import TARGETS, Kvref

from kvref_conformance.processes.answers import answer, problem
from kvref_conformance.processes.session import NotJudged

MERGE = ("--laws", "spec.merge-identity")
ANSWERS = ("--laws", "target.answers")
LOOKUP = ("--laws", "registry.nearest-base")

REAL_TIME = signal.SIGRTMIN + 3
REGISTERED = ["registry.define_spec", "registry.register", "registry.lookup"]


def rows(report: dict[str, Any], law: str) -> list[dict[str, Any]]:
    return [row for row in report["laws"] if row["id"] == law]


# -- loading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (
            "raises_import_error",
            ["loading it raised ImportError: libascend.so: cannot open", "hostile_loading.py"],
        ),
        ("raises_runtime_error", ["loading it raised RuntimeError: no device\n  | second line \\x1b[31mred"]),
        ("raises_system_exit", ["loading it raised SystemExit: 0"]),
        ("raises_untellable", ["loading it raised Untellable"]),
        ("exits_quietly", ["its process ended while loading (exit code 0)"]),
        ("exits_loudly", ["its process ended while loading (exit code 9)", "the last words"]),
        ("segfaults", ["its process ended while loading (killed by SIGSEGV)"]),
        ("dies_of_real_time_signal", [f"its process ended while loading (killed by signal {REAL_TIME})"]),
        ("closes_everything", ["its process ended while loading (closed its connection to kvref)"]),
        ("floods_and_fails", ["loading it raised RuntimeError: after the flood", "stderr stderr"]),
        ("not_callable", ["loading it raised TypeError: 'int' object is not callable"]),
        ("missing", ["loading it raised AttributeError", "has no attribute 'missing'"]),
        ("gives_none", ["does not describe itself: the factory returned a 'NoneType' whose name is None"]),
        ("gives_class", ["does not describe itself: the factory returned a 'type' whose name is None"]),
    ],
)
def test_does_not_load(kvref: Kvref, factory: str, words: list[str]) -> None:
    ran = kvref.check(f"hostile_loading:{factory}", *MERGE)
    assert (ran.code, ran.out) == (2, "")
    assert ran.told.startswith(f"kvref: target 'hostile_loading:{factory}' cannot be used: ")
    for text in words:
        assert text in ran.told
    assert "Traceback" not in ran.told
    assert "\x1b" not in ran.told
    assert len(ran.told) < 2500


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [("raise", "loading it raised ImportError"), ("die", "ended while loading (exit code 9)")],
)
def test_does_not_import(kvref: Kvref, monkeypatch: pytest.MonkeyPatch, behaviour: str, words: str) -> None:
    monkeypatch.setenv("HOSTILE_IMPORT", behaviour)
    ran = kvref.check("hostile_loading:floods", *MERGE)
    assert (ran.code, ran.out, words in ran.told) == (2, "", True)


@pytest.mark.parametrize("laws", [MERGE, ("--laws", "registry.refusals-survive-O")])
def test_hangs_while_loading(kvref: Kvref, laws: tuple[str, ...]) -> None:
    """The second law needs two hosts, and both load the target."""
    ran = kvref.check("hostile_loading:hangs_with_child", "--timeout", "0.2", *laws)
    assert (ran.code, ran.out) == (2, "")
    assert ran.told.endswith("cannot be used: still loading after 2 s.")
    assert ran.seconds < 15


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("without_name", "the factory returned a 'SimpleNamespace' whose name is None, not a string"),
        ("with_odd_name", "is ['toy'], not a string"),
        ("with_long_version", "whose version is"),
        ("with_odd_capabilities", "capabilities is {'devices': {1, 2}}, which is not plain data"),
        ("with_odd_classes", 'specs.classes answered [0]={"name": "FullAttentionSpec"}; `mro` is missing'),
        ("classes_hang", "it does not describe itself within 1 s"),
        ("classes_die", "its process ended while it described itself (exit code 4)"),
        ("forks_hang", "no process could be forked from the target within 5 s"),
    ],
)
def test_does_not_describe_itself(kvref: Kvref, factory: str, words: str) -> None:
    timeout = "1" if factory.endswith("hang") else "30"
    ran = kvref.check(f"hostile_operations:{factory}", "--timeout", timeout, *MERGE)
    assert (ran.code, ran.out, words in ran.told) == (2, "", True), ran.told
    assert len(ran.told) < 1000


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (
            "nonsense",
            "unknown target 'nonsense': give 'reference', 'reference:fast', 'vllm', 'vllm==VERSION'",
        ),
        ("module:not-a-name", "unknown target"),
        (":factory", "unknown target"),
        (
            "hostile_nowhere:target",
            "loading it raised ModuleNotFoundError: No module named 'hostile_nowhere'",
        ),
    ],
)
def test_no_such_target(kvref: Kvref, target: str, words: str) -> None:
    ran = kvref.check(target, *MERGE)
    assert (ran.code, ran.out, words in ran.told) == (2, "", True)


def interpreter(tmp_path: Path, kind: str) -> Path:
    if kind == "missing":
        return tmp_path / "no" / "python"
    if kind == "folder":
        return tmp_path
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\nsleep 300\n" if kind == "hangs" else "#!/bin/sh\necho I am no snake\n")
    path.chmod(path.stat().st_mode | (0 if kind == "not executable" else stat.S_IXUSR))
    return path


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("missing", "No such file or directory"),
        ("folder", "Permission denied"),
        ("not executable", "Permission denied"),
        ("hangs", "still loading after 2 s"),
        (
            "something else",
            "its process ended while loading (exit code 0).\n  | Its last output:\n  | I am no snake",
        ),
    ],
)
def test_no_interpreter(kvref: Kvref, tmp_path: Path, kind: str, words: str) -> None:
    python = interpreter(tmp_path, kind)
    ran = kvref.check("hostile_toy:target", "--timeout", "0.2", "--python", python, *MERGE)
    assert (ran.code, ran.out) == (2, "")
    assert str(python) in ran.told
    assert words in ran.told


def test_folder_of_temporary_files_with_a_long_name(
    kvref: Kvref, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kvref must not put sockets into this folder, because a socket's path may have only about 100 bytes."""
    long = tmp_path / ("long" * 30)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    ran = kvref.check("hostile_operations:merge_loses_field", *MERGE)
    assert ran.code == 1, ran.told
    assert list(long.iterdir()) == []


# -- operations that do not come back ----------------------------------------------------------------------


def check_death(
    kvref: Kvref, tmp_path: Path, factory: str, laws: tuple[str, ...], observed: str, *options: str
) -> dict[str, Any]:
    """Check that kvref reports the death of the process. Returns the trace of the finding."""
    folder = tmp_path / "report"
    ran, report = kvref.report(f"hostile_operations:{factory}", "--report", folder, *laws, *ANSWERS, *options)
    assert (ran.code, report["verdict"]) == (1, "not conformant"), ran.out
    [death] = rows(report, "target.answers")
    assert (death["status"], death["observed"]) == ("broken", observed)
    assert death["expected"] == "the operation returns or raises an exception"
    [cut] = rows(report, laws[1])
    assert cut["status"] == "incomplete"
    assert "see target.answers" in cut["message"]
    trace: dict[str, Any] = json.loads((folder / death["trace"]).read_text())
    assert (folder / death["repro"]).is_file()
    return trace


def operations(trace: dict[str, Any]) -> list[str]:
    names = [operation["op"] for run in trace["runs"] for operation in run["operations"]]
    return ["registry.register" if name == "registry.decorate" else name for name in names]


@pytest.mark.parametrize(
    ("factory", "observed"),
    [
        # The last case needs a short time-out, because its program hangs.
        ("merge_segfaults", "specs.merge: killed by SIGSEGV"),
        ("merge_dies_of_real_time_signal", f"specs.merge: killed by signal {REAL_TIME}"),
        ("merge_raises_system_exit", "specs.merge: raised SystemExit, which ends a process"),
        ("build_closes_everything", "specs.build: closed its connection without an answer"),
    ],
)
def test_operation_ends_the_process(kvref: Kvref, tmp_path: Path, factory: str, observed: str) -> None:
    trace = check_death(kvref, tmp_path, factory, MERGE, observed, "--timeout", "4")
    assert operations(trace) == [observed.partition(":")[0]]


@pytest.mark.parametrize(
    ("factory", "laws", "observed", "reduced"),
    [
        ("merge_hangs_with_children", MERGE, "specs.merge: no answer within 1.5 s", ["specs.merge"]),
        ("lookup_hangs_once_registered", LOOKUP, "registry.lookup: no answer within 1.5 s", REGISTERED),
    ],
)
def test_operation_hangs(
    kvref: Kvref, tmp_path: Path, factory: str, laws: tuple[str, ...], observed: str, reduced: list[str]
) -> None:
    trace = check_death(kvref, tmp_path, factory, laws, observed, "--timeout", "1.5")
    assert operations(trace) == reduced


@pytest.mark.parametrize(
    ("factory", "laws", "observed", "reduced"),
    [
        ("merge_exits", MERGE, "specs.merge: exit code 0", ["specs.merge"]),
        ("lookup_dies_once_registered", LOOKUP, "registry.lookup: killed by SIGABRT", REGISTERED),
    ],
)
def test_death_can_be_shown_to_others(
    kvref: Kvref, tmp_path: Path, factory: str, laws: tuple[str, ...], observed: str, reduced: list[str]
) -> None:
    """The trace is short, the program fails by itself, and the replay passes on a correct target."""
    trace = check_death(kvref, tmp_path, factory, laws, observed)
    assert operations(trace) == reduced
    [program] = (tmp_path / "report" / "repro").iterdir()
    ran = subprocess.run(
        [sys.executable, program],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(TARGETS)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, "BROKEN target.answers" in ran.stdout) == (1, True), ran.stderr
    [path] = (tmp_path / "report" / "traces").iterdir()
    again = kvref("replay", path, f"hostile_operations:{factory}", "--path", TARGETS)
    assert (again.code, "breaks\n" in again.out) == (1, True)
    sound = kvref("replay", path, "hostile_toy:target", "--path", TARGETS)
    assert (sound.code, "holds\n" in sound.out) == (0, True)


def test_death_that_does_not_come_again(
    kvref: Kvref, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTILE_MARKER", str(tmp_path / "marker"))
    ran, report = kvref.report("hostile_operations:merge_dies_once", *MERGE, *ANSWERS)
    assert (ran.code, report["verdict"]) == (3, "incomplete")
    assert {row["status"] for row in report["laws"]} == {"incomplete"}
    [death] = rows(report, "target.answers")
    assert "exit code 9; replaying the operations did not show it again" in death["message"]


def test_operation_ends_the_process_it_was_forked_from(kvref: Kvref) -> None:
    ran, report = kvref.report("hostile_operations:build_kills_parent", *MERGE, *ANSWERS)
    assert (ran.code, report["verdict"]) == (3, "incomplete")
    [death] = rows(report, "target.answers")
    assert "could not be replayed: the process that loaded the target has ended" in death["message"]


def test_processes_left_by_operations_are_ended(kvref: Kvref) -> None:
    assert kvref.check("hostile_operations:build_leaves_children", *MERGE, *ANSWERS).code == 0


# -- invalid answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factory", "laws", "words"),
    [
        ("build_answers_object", MERGE, "specs.build answered what is not plain data (TypeError: Object"),
        ("build_answers_too_much", MERGE, "characters of JSON"),
        ("without_merge", MERGE, "target 'toy' has no operation 'specs.merge'"),
        ("lookup_answers_object", LOOKUP, "registry.lookup answered what is not plain data"),
    ],
)
def test_no_answer(kvref: Kvref, factory: str, laws: tuple[str, ...], words: str) -> None:
    ran, report = kvref.report(f"hostile_operations:{factory}", *laws, *ANSWERS)
    assert (ran.code, report["verdict"]) == (3, "incomplete")
    assert {row["status"] for row in report["laws"]} == {"incomplete"}
    [row] = rows(report, laws[1])
    assert row["message"].startswith("not judged: ")
    assert words in row["message"]
    assert len(row["message"]) < 500


def raising(error: BaseException) -> Any:
    def build(**arguments: Any) -> NoReturn:
        raise error

    return build


def answering(value: Any) -> Any:
    return lambda **arguments: value


class Untellable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


LOOP: list[Any] = []
LOOP.append(LOOP)
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]
FACTS = {"class": "A", "fields": {}, "page_size_bytes": 1}


@pytest.mark.parametrize(
    ("operation", "function", "words"),
    [
        (
            "specs.build",
            answering({**FACTS, "page_size_bytes": float("nan")}),
            "not plain data (ValueError: Out",
        ),
        (
            "specs.build",
            answering({**FACTS, "fields": {"x": float("inf")}}),
            "not plain data (ValueError: Out",
        ),
        (
            "specs.build",
            answering({**FACTS, "fields": {(1, 2): 3}}),
            "not plain data (TypeError: keys must be",
        ),
        (
            "specs.build",
            answering({**FACTS, "fields": {"x": 10**5000}}),
            "not plain data (ValueError: Exceeds",
        ),
        ("specs.build", answering(LOOP), "not plain data (ValueError: Circular reference"),
        ("specs.build", answering(DEEP), "not plain data (RecursionError"),
        ("specs.build", raising(Untellable()), "specs.build raised an exception that cannot be told as text"),
        ("specs.missing", None, "target 'odd' has no operation 'specs.missing'"),
        ("nothing.build", answering(FACTS), "target 'odd' has no operation 'nothing.build'"),
    ],
)
def test_not_judged(operation: str, function: Any, words: str) -> None:
    part, _, name = operation.partition(".")
    target: Any = SimpleNamespace(name="odd", specs=None, registry=None)
    setattr(target, {"nothing": "specs"}.get(part, part), SimpleNamespace(**{name: function}))
    with pytest.raises(NotJudged) as caught:
        answer(target, operation, {})
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


ALLOCATION = {"added": [[4], [5, 0]], "needed": 2, "taken": [4, 5]}
POOL = {"free": [1], "free_count": 1, "refs": [1, 0], "keys": {}, "found": {}}
VIEW = {
    "buffer": 0,
    "offset": 0,
    "axes": "BNC",
    "shape": [2, 16, 8],
    "strides": [256, 16, 2],
    "itemsize": 2,
    "device": "cpu",
}


def caches(**changed: Any) -> dict[str, Any]:
    sizes = {"page_size_bytes": 256, "content_size_bytes": 256, "block_stride": 256}
    return {
        "num_blocks": 2,
        "groups": [["a"]],
        "buffers": [512],
        "planned": 512,
        "zero": True,
        "layers": {"a": {"views": [{**VIEW, **changed}], **sizes}},
    }


@pytest.mark.parametrize(
    ("operation", "value", "words"),
    [
        ("specs.build", None, "null; a mapping is wanted"),
        ("specs.copy", {**FACTS, "fields": []}, "fields=[]; a mapping is wanted"),
        (
            "specs.merge",
            {**FACTS, "page_size_bytes": "1"},
            'page_size_bytes="1"; a whole number or a number is wanted',
        ),
        ("specs.build", {"class": "A"}, '{"class": "A"}; `fields` is missing'),
        ("specs.twins", {"equal": 1, "hashes_equal": True}, "equal=1; true or false is wanted"),
        ("registry.define_spec", "KVCacheSpec", '"KVCacheSpec"; a list is wanted'),
        ("registry.lookup", {"manager": None}, '{"manager": null}; `base` is missing'),
        ("registry.lookup", {"manager": 1, "base": None}, "manager=1; a string or null is wanted"),
        ("cache.allocate", {**ALLOCATION, "taken": 2}, "taken=2; a list is wanted"),
        ("cache.allocate", {**ALLOCATION, "added": 2}, "added=2; a list or null is wanted"),
        ("cache.allocate", {**ALLOCATION, "added": [[4], [5, "0"]]}, 'added[1][1]="0"; a whole number is'),
        ("cache.allocate", {**ALLOCATION, "needed": 1.5}, "needed=1.5; a whole number is wanted"),
        (
            "cache.take_events",
            [{"what": "lost", "hashes": []}],
            "[0].what=\"lost\"; Invalid enum value 'lost'",
        ),
        ("pool.state", {**POOL, "keys": {"1": [7]}}, 'keys={"1": [7]}; a string is wanted at [...][0]'),
        ("pool.usage", "all", '"all"; a number is wanted'),
        ("tensors.read", "0g", '"0g"; bytes in hexadecimal are wanted'),
        ("tensors.read", "", '""; bytes in hexadecimal are wanted'),
        ("tensors.compare_slots", [[0, 1, 2]], "[0]=[0, 1, 2]; a list of length 2 is wanted"),
        (
            "tensors.allocate",
            caches(buffer=1),
            "layers.a.views[0].buffer=1; the number of one of",
        ),
        ("tensors.allocate", caches(axes="BBC"), 'layers.a.views[0].axes="BBC"; exactly one B is wanted'),
        ("tensors.allocate", caches(shape=[2]), "layers.a.views[0].shape=[2]; a number for each of the axes"),
        (
            "planner.capacity",
            {"num_blocks": 2, "blocks_per_request": [1], "told": {}},
            "told={}; what at least one worker or scheduler reports is wanted",
        ),
    ],
)
def test_what_is_wrong_with_an_answer(operation: str, value: Any, words: str) -> None:
    """The message names the operation, the field with its value, and what a valid answer has."""
    part, _, name = operation.partition(".")
    target: Any = SimpleNamespace(**{"name": "odd", part: SimpleNamespace(**{name: answering(value)})})
    with pytest.raises(NotJudged) as caught:
        answer(target, operation, {})
    assert str(caught.value).startswith(f"{operation} answered {words}")
    assert str(caught.value).endswith(" (see docs/targets.md)")


@pytest.mark.parametrize(
    ("operation", "value"),
    [
        ("cache.allocate", {**ALLOCATION, "more": "than the protocol has"}),
        ("cache.free", "a word too many"),
        ("specs.uniform", "a law judges this"),
        ("specs.build", {**FACTS, "page_size_bytes": 1.5}),
        ("specs.own", object),
        ("tensors.allocate", caches()),
    ],
)
def test_answers_that_are_let_through(operation: str, value: Any) -> None:
    assert problem(operation, value) == ""


@pytest.mark.parametrize(
    ("function", "outcome"),
    [
        (
            answering({**FACTS, "fields": {"x": (1, 2), 3: None}}),
            {**FACTS, "fields": {"x": [1, 2], "3": None}},
        ),
        (raising(ValueError("no")), {"type": "ValueError", "message": "no"}),
        (raising(SystemExit(0)), "raised SystemExit, which ends a process"),
        (raising(KeyboardInterrupt()), "raised KeyboardInterrupt, which ends a process"),
    ],
)
def test_answers(function: Any, outcome: Any) -> None:
    """The control: plain data, refusals and the end of a process are valid outcomes."""
    target: Any = SimpleNamespace(name="odd", specs=SimpleNamespace(build=function), registry=None)
    assert list(answer(target, "specs.build", {}).values()) == [outcome]


def test_answer_changes_its_mind(kvref: Kvref) -> None:
    ran, report = kvref.report("hostile_operations:merge_changes_its_mind", *MERGE)
    assert (ran.code, {row["status"] for row in report["laws"]}) == (3, {"unconfirmed"})


def test_long_texts_are_cut(kvref: Kvref, tmp_path: Path) -> None:
    ran, report = kvref.report(
        "hostile_operations:merge_answers_long_text", "--report", tmp_path / "report", *MERGE
    )
    [row] = rows(report, "spec.merge-identity")
    assert (ran.code, row["status"], row["facet"]) == (1, "broken", "note")
    assert row["observed"].endswith("characters)")
    assert sum(path.stat().st_size for path in (tmp_path / "report").rglob("*") if path.is_file()) < 100_000


def test_arguments_may_be_changed(kvref: Kvref, tmp_path: Path) -> None:
    """A report shows the arguments of an operation as they were sent, not as the target changed them."""
    ran, report = kvref.report(
        "hostile_operations:changes_its_arguments", "--report", tmp_path / "report", *MERGE
    )
    [row] = rows(report, "spec.merge-identity")
    assert (ran.code, row["status"]) == (1, "broken"), row
    trace = json.loads((tmp_path / "report" / row["trace"]).read_text())
    build = trace["runs"][0]["operations"][0]
    assert build["args"]["spec"]["fields"] == {"block_size": 16, "num_kv_heads": 1, "head_size": 8}


def test_slow_operations_are_no_hang(kvref: Kvref) -> None:
    """The time-out applies to each operation, so an example may take longer."""
    laws = ("--laws", "spec.copy-consistent")
    ran, report = kvref.report("hostile_operations:slow_at_first", "--timeout", "2.5", *laws, *ANSWERS)
    assert (ran.code, {row["status"] for row in report["laws"]}) == (0, {"holds"}), report


def test_flood_of_output(kvref: Kvref) -> None:
    """The target prints hundreds of megabytes to both streams. The stdout of kvref stays pure JSON."""
    process = kvref.start("check", "hostile_loading:floods", "--path", TARGETS, "--json", *MERGE)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, json.loads(out)["verdict"]) == (0, "conformant")
    assert len(err) < 1000
    kvref.check_nothing_left()


# -- parts that are not there ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factory", "laws", "code", "statuses"),
    [
        ("without_registry", (*MERGE, *LOOKUP), 0, {"holds": 1, "not-applicable": 1}),
        ("without_specs", MERGE, 3, {"not-applicable": 1}),
        ("without_attributes", (*MERGE, *LOOKUP), 3, {"not-applicable": 2}),
        ("with_no_classes", MERGE, 3, {"not-applicable": 1}),
    ],
)
def test_parts_missing(
    kvref: Kvref, factory: str, laws: tuple[str, ...], code: int, statuses: dict[str, int]
) -> None:
    ran, report = kvref.report(f"hostile_operations:{factory}", *laws)
    assert (ran.code, report["totals"]) == (code, statuses), report
    messages = [row["message"] for row in report["laws"] if row["status"] == "not-applicable"]
    assert all(message.startswith("the target has no") for message in messages)


# -- interrupts --------------------------------------------------------------------------------------------


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("factory", "laws", "number", "code"),
    [
        ("hostile_operations:merge_hangs_with_children", MERGE, signal.SIGINT, 130),
        ("hostile_operations:merge_hangs_with_children", MERGE, signal.SIGTERM, 143),
        ("hostile_operations:lookup_hangs_once_registered", LOOKUP, signal.SIGKILL, -9),
        ("hostile_loading:hangs_with_child", MERGE, signal.SIGTERM, 143),
    ],
)
def test_interrupts_leave_nothing(
    kvref: Kvref,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    factory: str,
    laws: tuple[str, ...],
    number: signal.Signals,
    code: int,
) -> None:
    marker = tmp_path / "marker"
    monkeypatch.setenv("HOSTILE_MARKER", str(marker))
    process = kvref.start("check", factory, "--path", TARGETS, *laws)
    wait_for(marker)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    # At most the line that says what kvref checks.
    assert (process.returncode, out.count("\n") <= 2) == (code, True)
    assert "Traceback" not in err
    assert ("interrupted" in err) == (number == signal.SIGINT)
    kvref.check_nothing_left()


def test_interrupt_while_confirming(kvref: Kvref, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt ends kvref although a thread of it still waits for the program."""
    marker = tmp_path / "marker"
    monkeypatch.setenv("HOSTILE_MARKER", str(marker))
    target = "hostile_operations:merge_hangs_in_programs"
    process = kvref.start("check", target, "--path", TARGETS, *MERGE, *ANSWERS)
    wait_for(marker)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, "confirming" in err) == (130, True)
    kvref.check_nothing_left()


def test_killed_while_loading(kvref: Kvref, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the temporary folder stays: no process is left to remove it."""
    marker = tmp_path / "marker"
    monkeypatch.setenv("HOSTILE_MARKER", str(marker))
    process = kvref.start("check", "hostile_loading:hangs_with_child", "--path", TARGETS, *MERGE)
    wait_for(marker)
    process.kill()
    process.communicate(timeout=20)
    for folder in kvref.temporary.glob("kvref-*"):
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir()
        folder.rmdir()
    kvref.check_nothing_left()
