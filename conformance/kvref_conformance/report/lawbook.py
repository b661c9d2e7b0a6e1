"""The page of all laws, docs/laws.md."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from kvref_conformance.laws import Law
from kvref_conformance.running.fault_matrix import Fault, faults
from kvref_strategies.catalogue import WORKLOADS

_HEAD = """# Laws

Made by `kvref laws --markdown`; change the laws, not this page. The engine relies on a *safety* law: if it
breaks, the engine gives wrong output, leaks memory, crashes or does not start. A *robustness* law asks for
good behaviour under misuse; it fails `kvref check` with `--strict` only.
"""


def laws_page(laws: Iterable[Law]) -> str:
    """The page, in Markdown: for each law the reason, the check, the workload and the faults."""
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
            + (f", found at the depth {fault.depth} or deeper" if fault.depth != "quick" else "")
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
    """The faults that the law must catch. First comes the one made for it, then reported bugs."""
    return [fault for fault in faults() if fault.law == law.id]


def place(thing: object) -> str:
    """The full name of a function or a class."""
    module = inspect.getmodule(thing)
    return f"{module.__name__ if module else '?'}.{getattr(thing, '__name__', '?')}"
