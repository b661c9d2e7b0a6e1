"""`kvref hosts`: list and prepare releases of vLLM."""

from __future__ import annotations

import click

from kvref_conformance.processes import releases


@click.group(invoke_without_command=True)
@click.pass_context
def hosts(context: click.Context) -> None:
    """List the releases of vLLM that can be checked side by side, as 'vllm==VERSION'."""
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
    """Download and set up releases of vLLM, all or those named.

    Makes one environment with PyTorch and the requirements of the newest release (2.3 GB), and a folder for
    each of the others (0.4 GB), below ${KVREF_CACHE:-${XDG_CACHE_HOME:-~/.cache}/kvref}. What is there is
    kept. With KVREF_VLLM_PYTHON, the environment of that interpreter is used instead.
    """
    for host in [releases.find(version) for version in versions or releases.VERSIONS]:
        releases.prepare(host.version, lambda text: click.echo(f"kvref: {text}", err=True))
        click.echo(f"vllm=={host.version} is prepared")
