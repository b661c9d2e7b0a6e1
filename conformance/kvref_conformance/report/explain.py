"""Print the explanation of one law."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from kvref_conformance.documents.capabilities import CAPABILITIES
from kvref_conformance.laws import ANSWERS, Law
from kvref_conformance.laws.core import Level
from kvref_conformance.report.lawbook import faults_of, place
from kvref_conformance.report.terminal import Printer
from kvref_conformance.running.checker import DEPTH
from kvref_conformance.running.fault_matrix import Fault
from kvref_strategies.catalogue import WORKLOADS
from kvref_strategies.workload import Workload

_LEVELS = {
    Level.SAFETY: "if it breaks, the verdict is 'not conformant'",
    Level.ROBUSTNESS: "if it breaks, the verdict is 'not conformant' with --strict only",
}


def render_explanation(law: Law, console: Console) -> None:
    """Print the explanation of a law. Commands stay on one line, so that the user can copy them."""
    printer = Printer(console)
    printer.line(law.id, style="bold", after=f"  {law.level}: {_LEVELS[law.level]}")
    printer.line(law.statement, indent=2)
    faults = faults_of(law)
    parts = {
        "why": [law.why],
        "sources": law.sources,
        "what is judged": [*_paragraphs(law.check), f"check: {place(law.check)}"],
        "examples": _examples(law),
        "what it needs": _needs(law),
        "what your implementation may do differently, if you declare it (docs/profile.md)": _may_differ(law),
        "what breaks it in the reference": [_cause(fault) for fault in faults],
    }
    for title, paragraphs in parts.items():
        lines = list(paragraphs)
        if lines:
            _title(printer, title)
        for line in lines:
            printer.line(line, indent=2)
    _title(printer, "see it break in the reference, with the smallest example")
    for fault in faults:
        printer.whole(f"  {_check_of(fault)}")
    _title(printer, "see how soon it breaks there, and which other laws break")
    printer.whole(f"  kvref faults --area {law.area}")
    _title(printer, "if it is broken")
    for line in _remedy(law):
        printer.line(line, indent=2)


def _title(printer: Printer, title: str) -> None:
    printer.blank()
    printer.line(title, style="bold")


def _paragraphs(thing: object) -> list[str]:
    """The paragraphs of a docstring, each as one line."""
    docstring = inspect.getdoc(thing) or ""
    return [" ".join(paragraph.split()) for paragraph in docstring.split("\n\n")]


def _examples(law: Law) -> Iterator[str]:
    workload = WORKLOADS.get(law.workload)
    if workload is None:
        yield "every operation of every workload"
        return
    source = "state machine" if isinstance(workload.examples, type) else "strategy"
    yield f"workload {workload.name}, drawn by the {source} {place(workload.examples)}"
    if workload.isolated:
        yield "each example runs in processes of its own"
    if workload.driven is not None:
        yield f"long driven examples, too, at the depths {' and '.join(workload.driven.examples)}"


def _needs(law: Law) -> Iterator[str]:
    workload = WORKLOADS.get(law.workload)
    if workload is None:
        yield "nothing but a target"
        return
    for part, operations in _parts(workload).items():
        needed = f", with {', '.join(operations)}" if operations else ""
        yield f"the part {part} of the target (docs/targets.md){needed}"
    for name in law.capabilities:
        capability = CAPABILITIES[name]
        yield f"the capability {name}: {capability.what}"
        yield (
            f"  declare it in kvref.toml, below [capabilities], for example {name} = "
            f"{_toml(_instance(capability.value))}; or in the target itself (docs/profile.md)"
        )


def _may_differ(law: Law) -> Iterator[str]:
    """A line for each capability of the parts that the law uses, except those that the law needs."""
    workload = WORKLOADS.get(law.workload)
    parts = _parts(workload) if workload is not None else {}
    for name, capability in CAPABILITIES.items():
        if name not in law.capabilities and not parts.keys().isdisjoint(capability.parts):
            yield f"{name}: {capability.what}"


def _parts(workload: Workload) -> dict[str, list[str]]:
    """The parts of a target that the workload needs, each with the optional operations that it needs."""
    parts: dict[str, list[str]] = {}
    for name in workload.parts:
        part, _, operation = name.partition(".")
        parts.setdefault(part, []).extend([operation] if operation else [])
    return parts


def _instance(schema: Mapping[str, Any]) -> object:
    """An example of a capability's value, made from the schema of the capability."""
    match schema:
        case {"enum": [first, *_]}:
            return first
        case {"type": "boolean"}:
            return True
        case {"type": "array", "items": {"enum": [*values]}}:
            return values
        case {"type": "array", "items": {"type": "string"}}:
            return ["plain", "fast"]
        case {"type": "object", "properties": properties}:
            return {name: _instance(properties[name]) for name in schema.get("required", properties)}
    raise NotImplementedError(f"an example for the schema {schema}")


def _toml(value: object) -> str:
    """Plain data as one line of TOML."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name} = {_toml(item)}' for name, item in value.items())}}}"
    return json.dumps(value)


def _cause(fault: Fault) -> str:
    reported = f"reported as {fault.source}" if fault.source else "deliberate"
    depth = f", found at the depth {fault.depth}" if fault.depth != DEPTH else ""
    return f"{fault.name} ({reported}{depth}): {_docstring(fault)}"


def _docstring(fault: Fault) -> str:
    """The docstring of a fault, which describes the fault.

    If the fault is a reported bug, the docstring ends with the place where it was reported. This part is cut
    off.
    """
    module, _, name = fault.target.partition(":")
    text = _docstrings(module)[name]
    return text.removesuffix(f" ({fault.source}).") + "." if text.endswith(f"({fault.source}).") else text


@functools.cache
def _docstrings(module: str) -> dict[str, str]:
    """The docstrings of a module's functions, by name.

    They are read from the module's source, because importing the module would load PyTorch.
    """
    spec = importlib.util.find_spec(module)
    source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    return {node.name: " ".join((ast.get_docstring(node) or "").split()) for node in functions}


def _check_of(fault: Fault) -> str:
    """The command that shows the fault, and runs little else."""
    # If `target.answers` is the only law, all workloads run.
    others = "--laws 'spec.*' " if fault.law == ANSWERS.id else ""
    deep = f" --depth {fault.depth}" if fault.depth != DEPTH else ""
    return f"kvref check {fault.target} {others}--laws {fault.law}{deep}"


def _remedy(law: Law) -> Iterator[str]:
    workload = WORKLOADS.get(law.workload)
    yield (
        f"1. Get its program: kvref check TARGET --laws {law.id} --report DIR writes it to DIR/repro. It has "
        "the operations, the calls of your own API, and the comparison. It runs without kvref."
    )
    where = f"your code behind {', '.join(_parts(workload))}" if workload else "the last operation"
    yield f"2. Look at {where}: does it make one of the mistakes that break the law in the reference?"
    yield f"3. When it is fixed: kvref check TARGET --laws {law.id} --depth standard"
    yield (
        "If you cannot fix it now, list it under [[known]] in kvref.toml, with an issue and a day. If your "
        "implementation differs on purpose, declare that: see docs/profile.md."
    )
