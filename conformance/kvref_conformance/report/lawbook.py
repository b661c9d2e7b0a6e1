"""The page of all laws, docs/laws.md."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from kvref_conformance.laws import Law
from kvref_conformance.running.fault_matrix import Fault, faults
from kvref_strategies.catalogue import WORKLOADS

_HEAD = """# Laws

Made by `kvref laws --markdown`; change the laws, not this page. A *safety* law is one the engine relies on:
wrong output, lost memory, a crash or a refused start follows when it breaks. A *robustness* law is good
behaviour under misuse; `kvref check` fails on it with `--strict` only.
"""


def laws_page(laws: Iterable[Law]) -> str:
    """Markdown: the laws by area, each with its reason, its check, its workload and its faults."""
    lines = [_HEAD]
    area = ""
    laws = list(laws)
    areas = list(dict.fromkeys(law.area for law in laws))
    for law in sorted(laws, key=lambda law: areas.index(law.area)):
        if law.area != area:
            area = law.area
            lines.append(f"## {area}\n")
        workload = WORKLOADS.get(law.workload)
        faults = [f"`{fault.name}`" for fault in faults_of(law) if not fault.source]
        reported = [
            f"* reported as {fault.source}: `{fault.name}`"
            + (f", found from the depth {fault.depth} on" if fault.depth != "quick" else "")
            for fault in faults_of(law)
            if fault.source
        ]
        lines += [
            f"### {law.id}\n",
            f"{law.statement} *({law.level})*\n",
            f"{law.why} Sources: {', '.join(law.sources)}.\n",
            f"* check: `{place(law.check)}`",
            f"* workload: `{workload.name}`, `{place(workload.examples)}`" if workload else "* workload: all",
            *(f"* needs the capability `{name}`" for name in law.capabilities),
            f"* faults: {', '.join(faults)}",
            *reported,
            "",
        ]
    return "\n".join(lines)


def faults_of(law: Law) -> list[Fault]:
    """The faults that the law must catch: its own first, then those that were reported."""
    return [fault for fault in faults() if fault.law == law.id]


def place(thing: object) -> str:
    """The full name of a function or a class."""
    module = inspect.getmodule(thing)
    return f"{module.__name__ if module else '?'}.{getattr(thing, '__name__', '?')}"
