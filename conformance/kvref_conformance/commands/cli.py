"""The command line: each command is a module of this package."""

from __future__ import annotations

import click

import kvref
from kvref_conformance.commands.bench import bench
from kvref_conformance.commands.causes import causes
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

    TARGET is the implementation under test:

    \b
      reference             kvref's own; the default if no profile names a target
      reference:fast        its fast half; 'reference:plain' is the plain one
      vllm                  the installed vLLM
      vllm==VERSION         a release that 'kvref hosts prepare' set up
      vllm:PLUGIN           vLLM with this platform plugin; also vllm==VERSION:PLUGIN
      package.module:name   your own, made by this factory (docs/targets.md)
      NAME                  one of several profiles in kvref.toml (docs/profile.md)

    \b
    Start with:
      kvref doctor TARGET          does it load, and what can be checked?
      kvref check TARGET           which laws does it break?
      kvref explain LAW            what does a law say, and why?

    Every command exits with 2 on bad usage; see COMMAND --help for the other exit codes.
    """


for command in (
    check,
    causes,
    fuzz,
    doctor,
    explain,
    laws,
    replay,
    diff,
    init,
    hosts,
    matrix,
    prove,
    faults,
    bench,
):
    cli.add_command(command)
