"""What `kvref explain` says about a law."""

from __future__ import annotations

import importlib
import io
import re
import subprocess
import sys
import tomllib

import pytest
from conftest import Kvref
from jsonschema import Draft202012Validator
from rich.console import Console

from kvref_conformance.documents.capabilities import CAPABILITIES
from kvref_conformance.laws import LAWS
from kvref_conformance.report.explain import render_explanation
from kvref_conformance.running.fault_matrix import faults
from kvref_strategies.catalogue import WORKLOADS


def explained(law: str, width: int = 10_000) -> str:
    output = io.StringIO()
    render_explanation(LAWS[law], Console(file=output, width=width))
    return output.getvalue()


@pytest.mark.parametrize("law", LAWS)
def test_all_that_is_held_of_a_law_is_told(law: str) -> None:
    told = explained(law)
    known = LAWS[law]
    for text in (known.statement, known.why, *known.sources, known.level, known.check.__name__):
        assert text in told
    if workload := WORKLOADS.get(known.workload):
        assert f"workload {workload.name}, " in told
        for part in workload.parts:
            assert re.search(rf"\b{part.rpartition('.')[2]}\b", told.partition("what it needs")[2])
    for name in known.capabilities:
        assert f"the capability {name}: {CAPABILITIES[name].what}" in told
    may = told.partition("may do differently, if you declare it")[2].partition("\n\n")[0]
    for name, capability in CAPABILITIES.items():
        is_about = workload is not None and not {*capability.parts}.isdisjoint(workload.parts)
        assert (f"  {name}: {capability.what}" in may) == (is_about and name not in known.capabilities)
    own = [fault for fault in faults() if fault.law == law]
    assert own
    for fault in own:
        assert re.search(rf"^  kvref check {re.escape(fault.target)} .*--laws {re.escape(law)}\b", told, re.M)
    assert told.count("(reported as ") == sum(bool(fault.source) for fault in own)
    assert "()" not in told
    # No section is empty.
    assert not re.search(r"^\S.*\n\n|^\S.*\n\Z", told.partition("\n\n")[2], re.M)


def test_capabilities_are_about_parts_that_there_are() -> None:
    """`kvref explain` names a capability at the laws whose workload uses its parts."""
    parts = {part for workload in WORKLOADS.values() for part in workload.parts}
    assert [name for name, capability in CAPABILITIES.items() if not {*capability.parts} <= parts] == []


def test_what_a_fault_does_is_told_as_it_says_itself() -> None:
    for fault in faults():
        module, _, name = fault.target.partition(":")
        says = " ".join(getattr(importlib.import_module(module), name).__doc__.split())
        told = explained(fault.law).partition(f"{fault.name} (")[2].partition("\n")[0].partition(": ")[2]
        # The fault's source is shown before the sentence.
        assert told.removesuffix(".") == says.removesuffix(".").removesuffix(f" ({fault.source})")


@pytest.mark.parametrize("law", [law.id for law in LAWS.values() if law.capabilities])
def test_how_a_capability_is_declared_is_right(law: str) -> None:
    declared = re.findall(r"below \[capabilities\], for example (.*); or in the target", explained(law))
    assert len(declared) == len(LAWS[law].capabilities)
    for line in declared:
        [(name, value)] = tomllib.loads(line).items()
        assert value
        Draft202012Validator(CAPABILITIES[name].value).validate(value)


def test_only_commands_are_wider_than_the_console() -> None:
    told = explained("manager.held-bounded", 60)
    wide = [line for line in told.splitlines() if len(line) > 60]
    assert wide
    assert all(line.startswith("  kvref check ") for line in wide)


def test_the_command(kvref: Kvref) -> None:
    ran = kvref("explain", "pool.reset")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("pool.reset  safety")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("pool.rest", "did you mean pool.reset"),
        ("reset", "did you mean pool.reset"),
        ("pool", "did you mean pool.partition, "),
        ("zzz", "'kvref laws' lists them"),
        ("\x1b[31m", "no law is called '\\x1b[31m'"),
    ],
)
def test_an_unknown_law_is_refused_and_close_ones_are_named(kvref: Kvref, name: str, meant: str) -> None:
    ran = kvref("explain", name)
    assert (ran.code, ran.out) == (2, "")
    assert meant in ran.err
    assert ran.err.count("\n") == 1


def test_pytorch_is_not_needed() -> None:
    script = (
        "import sys\nfrom kvref_conformance.commands.cli import cli\n"
        "cli(['explain', 'pool.reset'], standalone_mode=False)\nsys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
