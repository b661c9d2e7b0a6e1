"""Makes docs/cli.md, the page with the help of every command.

python tests/commands.py > docs/cli.md
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from kvref_conformance.commands.cli import cli

WIDTH = 88

_HEAD = """# Commands

The output of `kvref COMMAND --help`, made by `python tests/commands.py > docs/cli.md`. Change the commands,
not this page.
"""


def page() -> str:
    settings = {**cli.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    top = click.Context(cli, info_name="kvref", **settings)
    told = [
        f"\n## {context.command_path}\n\n```text\n{context.command.get_help(context)}\n```\n"
        for context in contexts(top)
    ]
    return _HEAD + "".join(told)


def contexts(context: click.Context) -> Iterator[click.Context]:
    """Yields this command's context, then those of all its subcommands, in the order of the help."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command is not None and not command.hidden:
                yield from contexts(click.Context(command, info_name=name, parent=context))


if __name__ == "__main__":
    print(page(), end="")
