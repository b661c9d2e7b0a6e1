"""Results, rows and traces for tests of reports."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from kvref_conformance.documents.results import Result, Row, Status, Trace
from kvref_conformance.laws.core import Level
from kvref_conformance.report.terminal import render

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
