"""The command line: each command is a module of this room."""

from __future__ import annotations

import click

import kvref
from kvref_conformance.commands.bench import bench
from kvref_conformance.commands.check import check
from kvref_conformance.commands.diff import diff
from kvref_conformance.commands.doctor import doctor
from kvref_conformance.commands.exits import Group
from kvref_conformance.commands.explain import explain
from kvref_conformance.commands.faults import faults
from kvref_conformance.commands.fuzz import fuzz
from kvref_conformance.commands.hosts import hosts
from kvref_conformance.commands.init import init
from kvref_conformance.commands.laws import laws
from kvref_conformance.commands.matrix import matrix
from kvref_conformance.commands.prove import prove
from kvref_conformance.commands.replay import replay


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(kvref.__version__, prog_name="kvref")
def cli() -> None:
    """Check that a KV-cache implementation keeps the laws an LLM engine relies on.

    A TARGET is 'reference' (kvref's own, the default if no profile names one; 'reference:fast' and
    'reference:plain' are its two halves), 'vllm' (the one installed), 'vllm==VERSION' (a release that 'kvref
    hosts' prepared), 'vllm:PLUGIN' or 'vllm==VERSION:PLUGIN' (with that platform plugin),
    'package.module:factory' for any other (docs/targets.md), or the name of one of several profiles in a
    file (docs/profile.md).
    """


for command in (check, fuzz, doctor, explain, laws, replay, diff, init, hosts, matrix, prove, faults, bench):
    cli.add_command(command)
