"""`kvref hosts`: list and prepare releases of vLLM."""

from __future__ import annotations

import click

from kvref_conformance.processes import releases


@click.group(invoke_without_command=True)
@click.pass_context
def hosts(context: click.Context) -> None:
    """List the releases of vLLM that kvref can check, and which of them are prepared.

    \b
    Examples:
      kvref hosts                   list them
      kvref hosts prepare 0.32.0    download one
      kvref check vllm==0.32.0      check it

    Exit code 0 if the list was printed.
    """
    if context.invoked_subcommand is not None:
        return
    found = [releases.find(version) for version in releases.VERSIONS]
    for host in found:
        where = host.folder or host.python
        click.echo(f"vllm=={host.version:8} {f'prepared      {where}' if host.prepared else 'not prepared'}")
    prepared = [host.version for host in found if host.prepared]
    click.echo(f"next: kvref check vllm=={prepared[-1]}" if prepared else "next: kvref hosts prepare")


@hosts.command("prepare")
@click.argument("versions", nargs=-1, metavar="[VERSION]...")
def prepare_hosts(versions: tuple[str, ...]) -> None:
    """Download and set up releases of vLLM: the named ones, or all.

    All releases share one environment with PyTorch and the requirements of the newest release (2.3 GB). Each
    other release gets a folder (0.4 GB). All of it goes below
    ${KVREF_CACHE:-${XDG_CACHE_HOME:-~/.cache}/kvref}. Releases that are already there are kept. To use an
    environment of your own, set KVREF_VLLM_PYTHON to its interpreter.

    \b
    Example:
      kvref hosts prepare 0.30.0 0.32.0

    \b
    Exit codes:  0  the releases are prepared
                 2  bad usage, or a release could not be prepared
    """
    for host in [releases.find(version) for version in versions or releases.VERSIONS]:
        releases.prepare(host.version, lambda text: click.echo(f"kvref: {text}", err=True))
        click.echo(f"vllm=={host.version} is prepared")
