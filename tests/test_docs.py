import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import commands
import differences
import pytest

import kvref_conformance.documents.schemas
from kvref_conformance.commands.cli import cli
from kvref_conformance.documents.profile import choose_profile
from kvref_conformance.laws import LAWS
from kvref_conformance.processes import releases as hosts
from kvref_conformance.report.lawbook import laws_page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {str(page.relative_to(ROOT)): page for page in [*ROOT.glob("*.md"), *DOCS.glob("*.md")]}


def test_the_page_of_laws_is_up_to_date() -> None:
    assert (DOCS / "laws.md").read_text(encoding="utf-8") == laws_page(LAWS.values()), (
        "run: kvref laws --markdown > docs/laws.md"
    )


def test_each_area_has_one_heading() -> None:
    headings = [line[3:] for line in laws_page(LAWS.values()).splitlines() if line.startswith("## ")]
    assert headings == list(dict.fromkeys(law.area for law in LAWS.values()))


def test_the_page_of_differences_is_up_to_date() -> None:
    told = (DOCS / "differences.md").read_text(encoding="utf-8")
    assert told == differences.page(differences.load()), (
        "run: python tests/differences.py > docs/differences.md"
    )


def test_each_difference_has_a_name_of_its_own_and_laws_that_exist() -> None:
    listed = differences.load()["difference"]
    assert len({each["id"] for each in listed}) == len(listed)
    assert {law for each in listed for law in each.get("laws", ())} <= {*LAWS}


def test_the_page_of_commands_is_up_to_date() -> None:
    # In a new process: click keeps the names of a help option from the first command that asked for it.
    made = subprocess.run([sys.executable, commands.__file__], capture_output=True, text=True, check=True)
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == made.stdout, (
        "run: python tests/commands.py > docs/cli.md"
    )


def test_the_page_of_schemas_has_them_all() -> None:
    page = (DOCS / "schemas.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```{literalinclude} (.*)$", page, re.MULTILINE)
    folder = Path(kvref_conformance.documents.schemas.__file__).parent
    assert sorted(Path(path).name for path in shown) == sorted(file.name for file in folder.glob("*.json"))


def commands_in(text: str) -> list[str]:
    """The `kvref` commands in a page's code blocks, without comments, redirections and alternatives."""
    shown = "".join(re.findall(r"^```(?:sh|console|yaml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    lines = re.findall(r"^ *(?:\$ |(?:- )?run: )?(kvref(?: .*)?)$", shown, re.MULTILINE)
    return [re.split(r" (?:#|>>|\|\|) ", line)[0].strip() for line in lines]


def parse(command: click.Command, context: click.Context, words: list[str]) -> None:
    """Raises `click.UsageError` if the command or an option does not exist."""
    _, words, _ = command.make_parser(context).parse_args(words)
    if isinstance(command, click.Group) and words:
        name, chosen, words = command.resolve_command(context, words)
        assert chosen is not None
        parse(chosen, click.Context(chosen, info_name=name, parent=context), words)


@pytest.mark.parametrize("name", PAGES)
def test_commands_that_are_shown_are_there(name: str) -> None:
    for line in commands_in(PAGES[name].read_text(encoding="utf-8")):
        parse(cli, click.Context(cli, info_name="kvref"), shlex.split(line)[1:])


def test_commands_are_seen_wherever_they_are_shown() -> None:
    shown = "".join(
        f"```{kind}\n{line}\n```\n"
        for kind, line in (
            ("sh", "kvref laws -v     # all"),
            ("console", "$ kvref hosts"),
            ("yaml", "  - run: kvref check >> x"),
        )
    )
    assert commands_in(shown) == ["kvref laws -v", "kvref hosts", "kvref check"]
    with pytest.raises(click.UsageError):
        parse(cli, click.Context(cli), ["check", "--nonsense"])
    with pytest.raises(click.UsageError):
        parse(cli, click.Context(cli), ["nonsense"])


def test_the_finding_that_is_shown_first_is_in_its_script() -> None:
    """tests/vllm/test_stock.py runs this script."""
    script = (DOCS / "finding.py").read_text(encoding="utf-8")
    for page in (ROOT / "README.md", DOCS / "index.md"):
        (shown,) = re.findall(
            r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        )
        assert script.endswith(shown)


TUTORIAL = (DOCS / "tutorial.md").read_text(encoding="utf-8")


def test_the_tutorial_ends_with_the_profile_of_its_plugin() -> None:
    """Apart from the known finding, the tutorial's profile equals the plugin's own, which tests/vllm runs."""
    blocks = re.findall(r"^```toml\n(.*?)^```", TUTORIAL, re.MULTILINE | re.DOTALL)
    told = tomllib.loads("".join(blocks))
    assert [entry["law"] for entry in told.pop("known")] == ["spec.merge-identity"]
    shipped = choose_profile(str(DOCS / "example-plugin" / "kvref.toml"), None)
    assert {"strategies": shipped.strategies} == told


def test_the_tutorial_speaks_of_what_there_is() -> None:
    assert re.findall(r"kvref hosts prepare (\S+)", TUTORIAL) == [hosts.BASE]
    plugin = (DOCS / "example-plugin" / "vllm_bankdev" / "kv_cache.py").read_text(encoding="utf-8")
    (line,) = re.findall(r"^```python\n(.*?)\n```", TUTORIAL, re.MULTILINE | re.DOTALL)
    assert line in plugin
    linked = re.findall(r"\]\(([\w./-]+)[^)]*\)", TUTORIAL)
    assert linked
    assert [name for name in linked if not (DOCS / name).exists()] == []
